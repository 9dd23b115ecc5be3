"""Mode 2 with ``kl``: the clip that loses least information.

After S. Migacz, "8-bit Inference with TensorRT" (GTC 2017): for each candidate clip the clipped
distribution of magnitudes is compared with the same distribution quantized to the grid's levels,
by Kullback-Leibler divergence. Zeros are left out, for every grid represents them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..settings import CalibrationSettings
from ..spans import Span
from .base import Grid, Observed, Range
from .maximum import whole
from .squared_error import SquaredError

__all__ = ["Divergence", "even_bins"]

Floats = NDArray[np.float64]

_CANDIDATES = 120
_SMOOTH = 1e-4


def even_bins(span: Span, peak: float, bins: int) -> Floats:
    """Return the counts in bins of equal width over 0..``peak``, spread evenly within a bin."""
    edges = np.minimum(span.edges, peak)
    total = np.concatenate([[0.0], np.cumsum(span.counts, dtype=np.float64)])
    at = np.linspace(0.0, peak, bins + 1)
    counts: Floats = np.diff(np.interp(at, edges, total))
    return counts


class Divergence:
    """Chooses the clip of least Kullback-Leibler divergence.

    It compares at most ``bins`` levels, so that grids of more than 8 bits use squared error.
    """

    name = "kl"
    needs_histogram = True

    def __call__(self, observed: Observed, grid: Grid, settings: CalibrationSettings) -> Range:
        """Return the range; with a zero point, each end is cut at the same magnitude."""
        peak = observed.extremes.peak
        low, high = whole(observed, grid)
        if peak <= 0:
            return low, high
        levels = 1 << (grid.bits - 1)
        if grid.bits > 8 or settings.bins < 2 * levels:
            return SquaredError()(observed, grid, settings)
        counts = even_bins(observed.counts.magnitude, peak, settings.bins)
        clip = peak * _best(counts, levels) / settings.bins
        return max(low, -clip), min(high, clip)


def _best(counts: Floats, levels: int) -> int:
    """Return the number of bins to keep; ties go to more."""
    bins = counts.size
    step = max(1, (bins - levels) // _CANDIDATES)
    best, kept = np.inf, bins
    beyond = counts[::-1].cumsum()[::-1]
    for keep in range(bins, levels - 1, -step):
        divergence = _divergence(counts[:keep], float(beyond[keep]) if keep < bins else 0.0, levels)
        if divergence < best:
            best, kept = divergence, keep
    return kept


def _divergence(inside: Floats, outside: float, levels: int) -> float:
    group = np.arange(inside.size) * levels // inside.size
    filled = inside > 0
    totals = np.bincount(group, weights=inside, minlength=levels)
    shares = np.bincount(group, weights=filled.astype(np.float64), minlength=levels)
    quantized = np.where(filled, (totals / np.maximum(shares, 1.0))[group], 0.0)
    clipped = inside.copy()
    clipped[-1] += outside
    total, quantized_total = clipped.sum(), quantized.sum()
    if total <= 0 or quantized_total <= 0:
        return float("inf")
    used = clipped > 0
    p = clipped[used] / total
    # a value clipped into an empty bin would cost infinitely much
    q = np.maximum(quantized[used] / quantized_total, _SMOOTH / inside.size)
    return float((p * np.log(p / q)).sum())
