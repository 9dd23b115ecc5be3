"""Mode 1, max-percentile.

Of the ``topkRatio`` share of values that are largest in magnitude, the ``percentile`` quantile is
the clip: with 0.01 and 0.9999 one value in a million may be cut off. For a grid with a zero point
each end is chosen by the same rule from the values themselves (the largest and the smallest ones),
so each end cuts off at most that share.

Precisely: with ``n`` values and ``k = floor(n * topkRatio * (1 - percentile))``, the clip is the
smallest value with at most ``k`` values beyond it, interpolated within a histogram bin as if its
values were spread evenly, and never beyond the largest one seen.
"""

from __future__ import annotations

import math

from ..settings import CalibrationSettings
from ..spans import Span
from .base import Grid, Observed, Range
from .maximum import whole

__all__ = ["MaxPercentile", "upper_clip"]


def upper_clip(span: Span, beyond: int, peak: float) -> float:
    """Return the smallest magnitude with at most ``beyond`` of the counted values above it.

    Args:
        span: counts by magnitude.
        beyond: how many values may lie above.
        peak: the largest magnitude counted.

    Returns:
        Between 0 and ``peak``; 0 when all values may lie above.
    """
    if beyond <= 0:
        return peak
    edges = span.edges
    above = 0
    for index in range(span.counts.size - 1, -1, -1):
        inside = int(span.counts[index])
        if above + inside > beyond:
            low, high = float(edges[index]), min(float(edges[index + 1]), peak)
            return high - (high - low) * (beyond - above) / inside
        above += inside
    return 0.0


class MaxPercentile:
    """Clips a fixed, small share of the values."""

    name = "max_percentile"
    needs_histogram = True

    def __call__(self, observed: Observed, grid: Grid, settings: CalibrationSettings) -> Range:
        """Return the range that keeps all but the share."""
        counts = observed.counts
        # a share of 1e-6 of 2e6 values is 2; rounding noise must not make it 1
        beyond = math.floor(counts.total * settings.clipped_share * (1 + 1e-9))
        extremes = observed.extremes
        low, high = whole(observed, grid)
        if grid.symmetric:
            clip = upper_clip(counts.magnitude, beyond, extremes.peak)
        else:
            low = -upper_clip(counts.negative, beyond, -low)
            high = upper_clip(counts.positive, beyond, high)
            clip = max(high, -low)
        if clip <= 0:  # nearly all values are zero; the few that are not still need a range
            return whole(observed, grid)
        return (-clip, clip) if grid.symmetric else (low, high)
