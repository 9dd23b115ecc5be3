"""What a project holds."""

from __future__ import annotations

from sqlalchemy import func, select

from .engine import Database
from .tables import ArtifactRow, CalibrationRow, ModelRow

__all__ = ["stored_bytes"]


def stored_bytes(db: Database, project: str) -> int:
    """Return the bytes of a project's models, calibration sets (unpacked) and artifacts.

    A file that several of its builds made is stored, and counted, once.
    """
    files = (
        select(ArtifactRow.sha256, func.max(ArtifactRow.size).label("size"))
        .where(ArtifactRow.project == project)
        .group_by(ArtifactRow.sha256)
        .subquery()
    )
    parts = (
        select(func.sum(ModelRow.size)).where(
            ModelRow.project == project, ModelRow.deleted_at.is_(None)
        ),
        select(func.sum(CalibrationRow.total_bytes)).where(
            CalibrationRow.project == project, CalibrationRow.deleted_at.is_(None)
        ),
        select(func.sum(files.c.size)),
    )
    with db.read() as session:
        return sum(int(session.execute(part).scalar_one() or 0) for part in parts)
