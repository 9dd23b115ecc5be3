"""Column types that mean the same on SQLite and on Postgres."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, DateTime, Dialect
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator

__all__ = ["JSON_TYPE", "UtcDateTime"]

JSON_TYPE = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
"""JSON; binary JSON on Postgres. Python's None is SQL's NULL."""


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time in UTC; SQLite, which has no zones, holds it as sortable text."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse naive times; give SQLite the bare UTC time."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Return an aware time in UTC."""
        if value is None:
            return None
        found: datetime = value
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
