"""Broker messages are rows of the transaction that makes them true; they are sent after it.

A message is sent at least once. A dispatcher that dies between sending and deleting sends again;
a worker that gets a message twice finds the build claimed and ends quietly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from .engine import Database
from .tables import BuildRow, OutboxRow

__all__ = ["Message", "OutboxDispatcher", "Sender", "owe_message"]

_log = logging.getLogger(__name__)

_MAX_DELAY_S = 5


@dataclass(frozen=True, slots=True)
class Message:
    """Wakes a worker of the queue for a build."""

    build_id: str
    queue: str
    priority: int
    traceparent: str | None = None
    """The trace that the build belongs to."""


Sender = Callable[[Message], None]
"""Sends a message to the broker; raises when it cannot."""


def owe_message(session: Session, build_id: str, queue: str, priority: int, now: datetime) -> None:
    """Add a message to the transaction."""
    session.add(
        OutboxRow(
            build_id=build_id,
            queue=queue,
            priority=priority,
            created_at=now,
            not_before=now,
            tries=0,
        )
    )
    session.flush()


class OutboxDispatcher:
    """Sends committed messages. Any number may run at once.

    Args:
        db: the database.
        send: sends one message; an exception puts the message off, with growing delays.
    """

    def __init__(self, db: Database, send: Sender) -> None:
        self._db = db
        self._send = send

    def run_once(self, *, limit: int = 100) -> int:
        """Send what is due and return how many messages went out."""
        with self._db.read() as session:
            now = self._db.now(session)
            due = list(
                session.execute(
                    select(OutboxRow, BuildRow.traceparent)
                    .outerjoin(BuildRow, BuildRow.id == OutboxRow.build_id)
                    .where(
                        or_(
                            OutboxRow.not_before <= now,
                            # written before the clock was set back
                            OutboxRow.tries == 0,
                            OutboxRow.not_before > now + timedelta(seconds=2 * _MAX_DELAY_S),
                        )
                    )
                    .order_by(OutboxRow.id)
                    .limit(limit)
                )
            )
        sent = 0
        for row, trace in due:
            try:
                # outside any transaction: a broker that hangs must not hold a lock
                self._send(Message(row.build_id, row.queue, row.priority, trace))
            except Exception as exc:
                _log.warning("no broker message for %s: %s", row.build_id, exc)
                self._put_off(row, exc)
                # the others would wait for the same broker
                break
            with self._db.write() as session:
                session.execute(delete(OutboxRow).where(OutboxRow.id == row.id))
            sent += 1
        return sent

    def _put_off(self, row: OutboxRow, exc: Exception) -> None:
        delay = min(2**row.tries, _MAX_DELAY_S)
        with self._db.write() as session:
            now = self._db.now(session)
            session.execute(
                update(OutboxRow)
                .where(OutboxRow.id == row.id)
                .values(
                    tries=OutboxRow.tries + 1,
                    not_before=now + timedelta(seconds=delay),
                    last_error=f"{type(exc).__name__}: {exc}"[:500],
                )
            )
