"""Reading the streams of builds: events and log text."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import or_, select

from ..domain import Event, EventType, Job
from .engine import Database
from .mapping import to_event
from .tables import BuildRow, EventRow

__all__ = ["JobEvents"]


class JobEvents:
    """What was said while builds ran. Each method is one transaction."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def events(self, job: Job, after: int, *, limit: int = 500) -> list[Event]:
        """Return the job's events after a number, in order."""
        where = [
            EventRow.build_id == job.build_id,
            EventRow.seq > max(after, job.event_floor),
            or_(EventRow.job_id.is_(None), EventRow.job_id == job.id),
        ]
        if job.event_end is not None:
            where.append(EventRow.seq <= job.event_end)
        statement = select(EventRow).where(*where).order_by(EventRow.seq).limit(limit)
        with self._db.read() as session:
            return [to_event(row) for row in session.execute(statement).scalars()]

    def build_events(self, build_id: str, after: int, limit: int) -> list[Event]:
        """Return a build's events after a number, those of single jobs too, in order."""
        statement = (
            select(EventRow)
            .where(EventRow.build_id == build_id, EventRow.seq > after)
            .order_by(EventRow.seq)
            .limit(limit)
        )
        with self._db.read() as session:
            return [to_event(row) for row in session.execute(statement).scalars()]

    def log_chunks(self, build_id: str, after: int, *, limit: int = 200) -> list[Event]:
        """Return a build's log text after a number, from its beginning on, in order."""
        statement = (
            select(EventRow)
            .where(
                EventRow.build_id == build_id,
                EventRow.type == EventType.LOG.value,
                EventRow.seq > after,
            )
            .order_by(EventRow.seq)
            .limit(limit)
        )
        with self._db.read() as session:
            return [to_event(row) for row in session.execute(statement).scalars()]

    def event_numbers(self, build_ids: Sequence[str]) -> dict[str, int]:
        """Return the newest event's number of each build: what a watcher polls."""
        with self._db.read() as session:
            rows = session.execute(
                select(BuildRow.id, BuildRow.event_seq).where(BuildRow.id.in_(build_ids))
            )
            return {str(identifier): int(number) for identifier, number in rows}
