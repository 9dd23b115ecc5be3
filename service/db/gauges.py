"""How full the queues are, for the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select

from ..domain import State
from .engine import Database
from .tables import BuildRow, OutboxRow

__all__ = ["QueueGauges", "read_gauges"]


@dataclass(frozen=True, slots=True)
class QueueGauges:
    """Builds and messages that wait or run now.

    Attributes:
        queued, running: builds, by queue.
        oldest_s: seconds that the queue's oldest build has waited, by queue.
        busy_workers: worker processes that run a build.
        outbox: messages not sent yet.
        outbox_oldest_s: seconds since the oldest of them was owed; 0 without any.
    """

    queued: Mapping[str, int]
    running: Mapping[str, int]
    oldest_s: Mapping[str, float]
    busy_workers: int
    outbox: int
    outbox_oldest_s: float


def read_gauges(db: Database) -> QueueGauges:
    """Look once at the builds that have not ended, and at the outbox."""
    with db.read() as session:
        now = db.now(session)
        rows = session.execute(
            select(BuildRow.state, BuildRow.queue, func.count(), func.min(BuildRow.queued_at))
            .where(BuildRow.state.in_([State.QUEUED.value, State.RUNNING.value]))
            .group_by(BuildRow.state, BuildRow.queue)
        ).all()
        busy = session.execute(
            select(func.count(func.distinct(BuildRow.worker))).where(
                BuildRow.state == State.RUNNING.value
            )
        ).scalar_one()
        waiting, since = session.execute(
            select(func.count(OutboxRow.id), func.min(OutboxRow.created_at))
        ).one()
    queued = {queue: n for state, queue, n, _ in rows if state == State.QUEUED.value}
    running = {queue: n for state, queue, n, _ in rows if state == State.RUNNING.value}
    return QueueGauges(
        queued=queued,
        running=running,
        oldest_s={
            queue: max(0.0, (now - first).total_seconds())
            for state, queue, _, first in rows
            if state == State.QUEUED.value
        },
        busy_workers=busy,
        outbox=waiting,
        outbox_oldest_s=0.0 if since is None else max(0.0, (now - since).total_seconds()),
    )
