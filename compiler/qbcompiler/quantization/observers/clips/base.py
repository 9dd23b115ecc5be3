"""What chooses a range from what was observed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..extremes import Extremes
from ..settings import CalibrationSettings
from ..spans import LogHistogram

__all__ = ["Clip", "Grid", "Observed", "Range"]

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid that a range is for: its bits, and whether it has no zero point."""

    bits: int = 8
    symmetric: bool = True

    @property
    def positive_steps(self) -> int:
        """Steps from zero to the end of a symmetric range."""
        return (1 << (self.bits - 1)) - 1

    @property
    def steps(self) -> int:
        """Steps from the low to the high end of an asymmetric range."""
        return (1 << self.bits) - 1


@dataclass(frozen=True, slots=True)
class Observed:
    """What is known of a tensor: its finite extremes, and its counts where they were taken."""

    extremes: Extremes
    histogram: LogHistogram | None

    @property
    def counts(self) -> LogHistogram:
        """The counts; ValueError where only extremes were observed."""
        if self.histogram is None:
            raise ValueError("this mode needs a histogram, and only extremes were observed")
        return self.histogram


class Clip(Protocol):
    """Chooses a range.

    A symmetric range is ``(-c, c)`` and does not go beyond what was observed. An asymmetric one
    contains zero, and goes beyond by two steps of the grid at most.
    """

    @property
    def name(self) -> str:
        """Key in the registry."""
        ...

    @property
    def needs_histogram(self) -> bool:
        """Whether extremes do not suffice."""
        ...

    def __call__(self, observed: Observed, grid: Grid, settings: CalibrationSettings) -> Range:
        """Return the range."""
        ...
