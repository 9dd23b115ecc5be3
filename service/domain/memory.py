"""Memory classes: builds wait in queues of workers that have enough memory for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["MemoryClasses"]


@dataclass(frozen=True, slots=True)
class MemoryClasses:
    """Classes by name, with the memory of one compiler in each, MiB. There may be none.

    A build that names no limit begins in the smallest class, and when it is killed for memory is
    tried once more in the largest. One that names a limit waits in the smallest class that has as
    much, and its limit is final.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The classes, the smallest first."""
        return sorted(self.sizes, key=lambda name: (self.sizes[name], name))

    def choose(self, asked_mb: int | None) -> str | None:
        """Return the class of a new build; None where there are no classes."""
        names = self.names
        if not names:
            return None
        if asked_mb is None:
            return names[0]
        return next((name for name in names if self.sizes[name] >= asked_mb), names[-1])

    def queue(self, base: str, name: str | None) -> str:
        """Return the queue of a class, given the engine's."""
        return base if name is None else f"{base}.{name}"

    def of_queue(self, queue: str) -> str | None:
        """Return the class that a queue is of; None for one from before there were classes."""
        name = queue.rpartition(".")[2]
        return name if name in self.sizes else None

    def bound(self, queue: str, asked_mb: int | None) -> int | None:
        """Return the memory of a compiler, MiB; None for no bound."""
        name = self.of_queue(queue)
        if name is None:
            return asked_mb
        return self.sizes[name] if asked_mb is None else min(asked_mb, self.sizes[name])

    def larger(self, queue: str, asked_mb: int | None) -> str | None:
        """Return the queue for another try of a build that was killed for memory, or None."""
        now = self.of_queue(queue)
        if now is None:
            return None
        if asked_mb is None:
            target = self.names[-1] if now == self.names[0] else now
        else:
            # a job that joined later may have asked for more than the class has
            target = self.choose(asked_mb) or now
        if self.sizes[target] <= self.sizes[now]:
            return None
        return self.queue(queue.removesuffix(f".{now}"), target)
