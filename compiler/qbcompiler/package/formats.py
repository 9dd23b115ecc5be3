"""Names, versions and bounds of the two formats: all that a look at a manifest needs."""

from __future__ import annotations

from .reader import FormatVersion

__all__ = ["MAX_DIMENSION", "MAX_ITEMS", "MAX_NAME", "MAX_RANK", "MBLT_FORMAT", "MXQ_FORMAT"]

MBLT_FORMAT = FormatVersion("mblt", 1, 0)
MXQ_FORMAT = FormatVersion("mxq", 1, 1)

MAX_ITEMS = 1_000_000
"""Largest number of values, and of layers, of one graph."""
MAX_NAME = 4096
"""Longest name in characters."""
MAX_RANK = 32
"""Largest number of dimensions."""
MAX_DIMENSION = (1 << 31) - 1
"""Largest dimension."""
