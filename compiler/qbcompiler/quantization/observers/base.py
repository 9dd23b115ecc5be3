"""What an observer is: a reducer of one tensor, and an aggregator over samples.

A reducer turns the values of one sample's tensor into a statistic. An aggregator joins two
statistics; it is associative and commutative and exact, so that samples may be taken in any order
and by any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ...ir import Array

__all__ = ["Aggregator", "Observer", "Reducer", "by_name"]

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class Reducer(Protocol[S_co]):
    """One sample's tensor to a statistic."""

    def __call__(self, array: Array) -> S_co:
        """Return the statistic of the values; raises nothing for values that are not finite."""
        ...


Aggregator = Callable[[S, S], S]
"""Two statistics to one."""


@dataclass(frozen=True)
class Observer(Generic[S]):
    """A named pair of reducer and aggregator.

    Attributes:
        name: key in the registry and in stored statistics.
        reduce: of one tensor.
        merge: of two statistics.
        to_plain, from_plain: to and from plain numbers and arrays.
    """

    name: str
    reduce: Reducer[S]
    merge: Aggregator[S]
    to_plain: Callable[[S], Any]
    from_plain: Callable[[Any], S]

    def over(self, arrays: Iterable[Array]) -> S:
        """Return the statistic over several tensors; ValueError where there is none."""
        result: S | None = None
        for array in arrays:
            part = self.reduce(array)
            result = part if result is None else self.merge(result, part)
        if result is None:
            raise ValueError("nothing to observe")
        return result


def by_name(observers: Iterable[Observer[Any]]) -> dict[str, Observer[Any]]:
    """Index observers by name; ValueError on a duplicate."""
    index: dict[str, Observer[Any]] = {}
    for observer in observers:
        if observer.name in index:
            raise ValueError(f"observer {observer.name!r} is registered twice")
        index[observer.name] = observer
    return index
