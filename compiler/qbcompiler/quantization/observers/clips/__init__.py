"""Choosing a range from what was observed: an explicit list, one module for each rule."""

from __future__ import annotations

from collections.abc import Iterable

from ..settings import CalibrationSettings
from .base import Clip, Grid, Observed, Range
from .divergence import Divergence
from .maximum import Maximum
from .percentile import MaxPercentile
from .squared_error import SquaredError

__all__ = ["CLIPS", "Clip", "Grid", "Observed", "Range", "by_name", "clip_for"]

CLIPS: tuple[Clip, ...] = (Maximum(), MaxPercentile(), SquaredError(), Divergence())


def by_name(clips: Iterable[Clip]) -> dict[str, Clip]:
    """Index rules by name; ValueError on a duplicate."""
    index: dict[str, Clip] = {}
    for clip in clips:
        if clip.name in index:
            raise ValueError(f"clip {clip.name!r} is registered twice")
        index[clip.name] = clip
    return index


_INDEX = by_name(CLIPS)


def clip_for(mode: int, settings: CalibrationSettings) -> Clip:
    """Return the rule of a calibration mode: 0 max, 1 max-percentile, 2 by the criterion.

    Raises:
        KeyError: there is no such mode or criterion; the configuration allows none.
    """
    return _INDEX[{0: "max", 1: "max_percentile", 2: settings.criterion}[mode]]
