"""What an engine says, made fit for every database: an engine is not to be trusted with it."""

from __future__ import annotations

import json
import math
from typing import Any

from ..domain import Failure

__all__ = ["clean_failure", "clean_json", "clean_text"]

MAX_MESSAGE = 4000
MAX_DETAILS = 64 << 10
MAX_SUMMARY = 1 << 20
_MAX_DEPTH = 20


def clean_text(text: str) -> str:
    """Return text without NUL and lone surrogates, which Postgres cannot hold."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def clean_json(value: Any, *, limit: int) -> Any:
    """Return JSON data that every database can hold.

    NaN and infinities become None, other objects their text; what is nested too deeply is cut.
    Data that is longer than ``limit`` as JSON is replaced by a note that says so.
    """
    found = _clean(value, 0)
    if len(json.dumps(found)) > limit:
        return {"left_out": f"larger than {limit} bytes"}
    return found


def clean_failure(failure: Failure) -> dict[str, Any]:
    """Return a failure as the JSON object that is stored."""
    return {
        "code": clean_text(failure.code)[:64],
        "message": clean_text(failure.message)[:MAX_MESSAGE],
        "details": clean_json(dict(failure.details), limit=MAX_DETAILS),
        "hint": None if failure.hint is None else clean_text(failure.hint)[:MAX_MESSAGE],
    }


def _clean(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # as JSON numbers go, and as Postgres' numeric prints them
        return value if abs(value) < 1 << 63 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return clean_text(value)
    if depth >= _MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        return {clean_text(str(k)): _clean(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(v, depth + 1) for v in value]
    return clean_text(str(value))
