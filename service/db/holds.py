"""Holds: what keeps an object that no row names yet, or no longer, from being collected.

Whoever stores an object takes a hold on its digest first, and records the object before the hold
runs out. The collector removes an object only while it has the digest's lock and finds no hold. So
either the hold came first, and the object stays, or the removal did, and the object is stored anew.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import func, insert, select, text, update
from sqlalchemy.orm import Session

from .engine import Database
from .tables import HoldRow
from .transitions import affected, retrying

__all__ = ["HOLD_SECONDS", "ObjectHolds", "hold_digest", "is_held", "lock_digest"]

HOLD_SECONDS = 24 * 3600
"""How long a hold lasts: longer than anything takes from storing a file to recording it, and than a
download or a presigned URL that began when the file was still on record."""


class ObjectHolds:
    """Takes holds. Each method is one transaction."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def hold(self, digest: str) -> None:
        """Keep an object, there or not yet there, from being collected for a day."""

        def work() -> None:
            with self._db.write() as session:
                lock_digest(session, digest)
                hold_digest(session, digest, self._db.now(session))

        retrying(work)


def lock_digest(session: Session, digest: str) -> None:
    """Let nobody else hold or remove an object until the transaction ends."""
    # on SQLite the transaction is the only one that writes
    if session.connection().dialect.name == "postgresql":
        session.execute(
            text("SELECT pg_advisory_xact_lock(hashtextextended(:digest, 0))"), {"digest": digest}
        )


def hold_digest(session: Session, digest: str, now: datetime) -> None:
    """Add a hold to the transaction, which has the digest's lock."""
    until = now + timedelta(seconds=HOLD_SECONDS)
    # with the lock nobody else adds the row; one that ran out may be removed at any moment
    renew = update(HoldRow).where(HoldRow.digest == digest).values(until=until)
    if not affected(session, renew):
        session.execute(insert(HoldRow).values(digest=digest, until=until))


def is_held(session: Session, digest: str, now: datetime) -> bool:
    """Say whether an object is held."""
    found = session.execute(
        select(func.count()).where(HoldRow.digest == digest, HoldRow.until > now)
    ).scalar_one()
    return bool(found)
