"""The explicit list of built-in operators, in order of preference."""

from __future__ import annotations

from typing import Any

from .spec import OpSpec

__all__ = ["SPECS"]

SPECS: list[OpSpec[Any]] = []
