"""Observer ``histogram``: counts over a logarithmic grid, summed over samples."""

from __future__ import annotations

import numpy as np

from ...ir import Array
from .base import Observer
from .spans import LogHistogram

__all__ = ["HISTOGRAM", "add"]


def reduce(array: Array) -> LogHistogram:
    """Return the counts of a tensor's finite values."""
    if array.size and not (np.isfinite(array.min()) and np.isfinite(array.max())):
        array = array[np.isfinite(array)]
    return LogHistogram.of(array)


def add(a: LogHistogram, b: LogHistogram) -> LogHistogram:
    """Return the counts of both, exactly."""
    return a + b


HISTOGRAM: Observer[LogHistogram] = Observer(
    "histogram", reduce, add, LogHistogram.to_dict, LogHistogram.from_dict
)
