"""The explicit list of observers."""

from __future__ import annotations

from typing import Any

from .base import Observer, by_name
from .extremes import RANGE
from .histogram import HISTOGRAM

__all__ = ["OBSERVERS"]

OBSERVERS: dict[str, Observer[Any]] = by_name([RANGE, HISTOGRAM])
"""Every observer by name; a new one is a module of its own and an entry here."""
