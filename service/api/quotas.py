"""What a project may hold."""

from __future__ import annotations

from fastapi import Depends

from ..db import stored_bytes
from ..domain import ServiceError
from .context import Builder, Context, Ctx

__all__ = ["ROOM", "check_room"]


def check_room(context: Context, project: str) -> None:
    """Refuse what would add to a project that holds all it may.

    Raises:
        ServiceError: ``QUOTA_EXCEEDED``.
    """
    most = context.settings.max_project_bytes
    if most is None:
        return
    held = stored_bytes(context.db, project)
    if held >= most:
        raise ServiceError(
            "QUOTA_EXCEEDED",
            f"the project holds {held} bytes; it may hold {most}",
            hint="delete models and calibration sets that are no longer needed",
            details={"quota": "max_project_bytes", "limit": most, "held": held},
        )


def _room(context: Ctx, principal: Builder) -> None:
    check_room(context, principal.project)


ROOM = Depends(_room)
"""Dependency of the routes that take uploads."""
