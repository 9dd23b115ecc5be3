"""Observer ``range``: smallest and largest value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...ir import Array
from .base import Observer

__all__ = ["RANGE", "Extremes", "widen"]


@dataclass(frozen=True, slots=True)
class Extremes:
    """The smallest and the largest value seen; NaN once a NaN was seen."""

    low: float
    high: float

    @property
    def finite(self) -> bool:
        """Whether no value was infinite or NaN."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def peak(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))


def reduce(array: Array) -> Extremes:
    """Return the extremes of a tensor that is not empty; NumPy's minimum keeps NaN."""
    return Extremes(float(array.min()), float(array.max()))


def widen(a: Extremes, b: Extremes) -> Extremes:
    """Return the extremes of both; NaN stays."""
    if not (a.finite and b.finite):
        values = (a.low, a.high, b.low, b.high)
        if any(math.isnan(v) for v in values):
            return Extremes(math.nan, math.nan)
    return Extremes(min(a.low, b.low), max(a.high, b.high))


def _plain(value: Extremes) -> list[float]:
    return [value.low, value.high]


def _parse(data: Any) -> Extremes:
    low, high = data
    return Extremes(float(low), float(high))


RANGE: Observer[Extremes] = Observer("range", reduce, widen, _plain, _parse)
