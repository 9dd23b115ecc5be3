"""Mode 2 with ``mse``: the range of least squared quantization error.

Within a histogram bin values are taken as spread evenly, so that the error of rounding to a step
and of clipping is an exact integral; nothing is assumed of the distribution beyond that. Ranges
are searched on a logarithmic scale, coarse over 16 octaves and then fine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..settings import CalibrationSettings
from ..spans import Span
from .base import Grid, Observed, Range
from .maximum import whole

__all__ = ["SquaredError", "error_of"]

Floats = NDArray[np.float64]

_COARSE = 2.0 ** -(np.arange(33) / 2)
_FINE = 2.0 ** (np.arange(16, -17, -1) / 16)
_FINEST = 2.0 ** (np.arange(8, -9, -1) / 64)
_REACH = 2.0**-20
"""Magnitudes below this share of the peak round to zero for every range that is tried."""


@dataclass(frozen=True)
class _Density:
    """One sign's values: lower and upper bin edges, and values for each unit of width."""

    low: Floats
    high: Floats
    density: Floats
    rest: float
    """Squared sum of the values too small to matter, which always round to zero."""


def _density(span: Span, peak: float) -> _Density:
    edges = span.edges
    low, high = edges[:-1], np.minimum(edges[1:], max(peak, 0.0))
    width = high - low
    # the top bin may end where its only value begins; give it back its own width
    width = np.where(width > 0, width, edges[1:] - low)
    high = low + width
    density = span.counts / width if span.counts.size else np.zeros(0)
    small = high <= peak * _REACH
    rest = float((density[small] * (high[small] ** 3 - low[small] ** 3)).sum() / 3)
    keep = ~small
    return _Density(low[keep], high[keep], density[keep], rest)


def _rounding(t: Floats) -> Floats:
    """Return the integral of ``(u - round(u))^2`` from 0 to ``t``."""
    whole_steps = np.rint(t)
    part = t - whole_steps
    result: Floats = whole_steps / 12 + part * part * part / 3
    return result


def error_of(values: _Density, clips: Floats, steps: Floats) -> Floats:
    """Return the squared error of one sign's values, summed, for each candidate.

    Args:
        values: the values' distribution.
        clips: [n] where values are cut off.
        steps: [n] size of a quantization step.
    """
    clip, step = clips[:, np.newaxis], steps[:, np.newaxis]
    low, high = values.low, values.high
    inside = _rounding(np.minimum(high, clip) / step) - _rounding(np.minimum(low, clip) / step)
    over = np.maximum(high - clip, 0) ** 3 - np.maximum(low - clip, 0) ** 3
    total: Floats = (step**3 * inside + over / 3) @ values.density + values.rest
    return total


class SquaredError:
    """Chooses the range of least squared error.

    With a zero point the ends are whole steps from zero, as on the grid itself, so an end may lie
    up to two steps beyond what was observed.
    """

    name = "mse"
    needs_histogram = True

    def __call__(self, observed: Observed, grid: Grid, settings: CalibrationSettings) -> Range:
        """Return the range; ties go to the wider one."""
        low, high = whole(observed, grid)
        if high - low <= 0:
            return low, high
        if grid.symmetric:
            return _symmetric(_density(observed.counts.magnitude, high), high, grid)
        below = _density(observed.counts.negative, -low)
        above = _density(observed.counts.positive, high)
        return _asymmetric(below, above, -low, high, grid.steps)


def _symmetric(values: _Density, peak: float, grid: Grid) -> Range:
    clip = peak
    for shares in (_COARSE, _FINE):
        clips = np.minimum(clip * shares, peak)
        errors = error_of(values, clips, clips / grid.positive_steps)
        clip = float(clips[np.argmin(errors)])
    return -clip, clip


def _asymmetric(below: _Density, above: _Density, low: float, high: float, steps: int) -> Range:
    """Search the size of a step and the number of steps below zero."""

    def error(step: Floats, zero: Floats) -> Floats:
        total: Floats = error_of(below, zero * step, step)
        total += error_of(above, (steps - zero) * step, step)
        return total

    def best(lows: Floats, highs: Floats) -> tuple[float, float]:
        step = (lows + highs) / steps
        good = step > 0
        step, lows = step[good], lows[good]
        zero = np.clip(np.rint(lows / step), 0, steps)
        at = int(np.argmin(error(step, zero)))
        return float(step[at]), float(zero[at])

    step, zero = best(low * _COARSE, high * _COARSE)
    for shares in (_COARSE, _FINE, _FINE):
        # each end alone, from where it is now; never far beyond what was observed
        now = (steps - zero) * step
        step, zero = best(np.minimum(zero * step * shares, low), np.full_like(shares, now))
        now = zero * step
        step, zero = best(
            np.full_like(shares, now), np.minimum((steps - zero) * step * shares, high)
        )
    # the grid itself: a few more or fewer steps below zero, of a slightly other size
    sizes = np.tile(step * _FINEST, 5)
    zeros = np.clip(np.repeat(np.arange(-2.0, 3.0) + zero, _FINEST.size), 0, steps)
    near = ((zeros - 2) * sizes <= low) & ((steps - zeros - 2) * sizes <= high)
    zeros, sizes = zeros[near], sizes[near]
    at = int(np.argmin(error(sizes, zeros)))
    return 0.0 - float(zeros[at] * sizes[at]), float((steps - zeros[at]) * sizes[at])
