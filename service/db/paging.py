"""Cursor pages: newest first, by time and identifier."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, and_, or_
from sqlalchemy.orm import InstrumentedAttribute

from ..domain import FieldError, ServiceError

__all__ = ["Page", "cut_page", "keyset"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page, and the cursor of the next one or None."""

    items: list[T]
    next_cursor: str | None


def keyset(
    time: InstrumentedAttribute[datetime],
    identifier: InstrumentedAttribute[str],
    cursor: str | None,
) -> list[ColumnElement[bool]]:
    """Return the conditions that start after a cursor.

    Raises:
        ServiceError: it is none of ours.
    """
    if cursor is None:
        return []
    at, last = _decode(cursor)
    # the first condition alone lets the index be used
    return [time <= at, or_(time < at, and_(time == at, identifier < last))]


def cut_page(found: Sequence[T], limit: int, key: Callable[[T], tuple[datetime, str]]) -> Page[T]:
    """Make a page of at most ``limit`` from one item more than that."""
    items = list(found[:limit])
    if len(found) <= limit:
        return Page(items, None)
    at, identifier = key(items[-1])
    text = json.dumps([at.isoformat(), identifier], separators=(",", ":"))
    return Page(items, base64.urlsafe_b64encode(text.encode()).decode().rstrip("="))


def _decode(cursor: str) -> tuple[datetime, str]:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        data: Any = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        at, identifier = datetime.fromisoformat(data[0]), data[1]
        if at.tzinfo is None or not isinstance(identifier, str) or len(data) != 2:
            raise ValueError
    except (ValueError, TypeError, KeyError, IndexError, binascii.Error, RecursionError):
        raise ServiceError(
            "ARGUMENT_ERROR",
            "the cursor is not one that this server gave",
            hint="leave it out to start at the first page",
            errors=[FieldError(None, "unknown cursor", parameter="cursor")],
        ) from None
    return at, identifier
