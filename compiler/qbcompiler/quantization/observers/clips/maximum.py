"""Mode 0: the whole observed range."""

from __future__ import annotations

from ..settings import CalibrationSettings
from .base import Grid, Observed, Range

__all__ = ["Maximum", "whole"]


def whole(observed: Observed, grid: Grid) -> Range:
    """Return the observed range, symmetric or with zero in it."""
    if grid.symmetric:
        return -observed.extremes.peak, observed.extremes.peak
    return min(0.0, observed.extremes.low), max(0.0, observed.extremes.high)


class Maximum:
    """Clips nothing."""

    name = "max"
    needs_histogram = False

    def __call__(self, observed: Observed, grid: Grid, settings: CalibrationSettings) -> Range:
        """Return the observed range."""
        return whole(observed, grid)
