"""Who did what, and when: written by the transaction that does it, so neither is without the other.

Whoever acts is a context variable, which the API sets for each request and ``qbserver`` for each
command; the stores need not be told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from ..domain import IdKind, new_id
from .clean import clean_json, clean_text
from .engine import Database
from .paging import Page, cut_page, keyset
from .tables import AuditRow

__all__ = [
    "Action",
    "Actor",
    "AuditEntry",
    "AuditFilter",
    "AuditStore",
    "acting",
    "acting_as",
    "audit",
]

_MAX_DETAILS = 4 << 10


class Action(StrEnum):
    """What is recorded: everything that changes what the server holds, and what was refused."""

    MODEL_CREATE = "model.create"
    MODEL_DELETE = "model.delete"
    CALIBRATION_CREATE = "calibration.create"
    CALIBRATION_DELETE = "calibration.delete"
    UPLOAD_CREATE = "upload.create"
    UPLOAD_COMPLETE = "upload.complete"
    UPLOAD_FAIL = "upload.fail"
    UPLOAD_DELETE = "upload.delete"
    JOB_SUBMIT = "job.submit"
    JOB_CANCEL = "job.cancel"
    LINK_CREATE = "link.create"
    LINK_REVOKE = "link.revoke"
    TOKEN_CREATE = "token.create"  # noqa: S105 (an action)
    TOKEN_REVOKE = "token.revoke"  # noqa: S105
    WEBHOOK_REDELIVER = "webhook.redeliver"
    WEBHOOK_ROTATE = "webhook.rotate"
    RETENTION_SET = "retention.set"
    DENIED = "access.denied"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts.

    Args:
        kind: ``token``; ``local``, whoever reaches a server without tokens; ``command``, someone
            at the server's own command line.
        id: the token's id.
        name: the token's name, or the user's on that machine.
        role: the token's.
        address: the caller's IP address, as the service sees it.
        request_id: of the request.
    """

    kind: str
    id: str | None = None
    name: str | None = None
    role: str | None = None
    address: str | None = None
    request_id: str | None = None


acting: ContextVar[Actor | None] = ContextVar("acting", default=None)
"""Who acts now; None for the server itself, which is not recorded."""


@contextmanager
def acting_as(actor: Actor) -> Iterator[None]:
    """Let what happens inside be an actor's doing."""
    token = acting.set(actor)
    try:
        yield
    finally:
        acting.reset(token)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One deed."""

    id: str
    project: str
    at: datetime
    actor: Actor
    action: Action
    subject: str | None
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries to list; what is not set does not matter."""

    actions: Sequence[Action] = field(default=())
    actor_id: str | None = None
    subject: str | None = None
    after: datetime | None = None
    before: datetime | None = None


def audit(
    session: Session,
    now: datetime,
    project: str,
    action: Action,
    subject: str | None,
    **details: Any,
) -> None:
    """Add an entry to the transaction; nothing where the server itself acts.

    Args:
        session, now: the transaction and its time.
        project: whose log.
        action, subject: what was done, and the id of what it was done to.
        details: JSON; never a secret.
    """
    actor = acting.get()
    if actor is None:
        return
    session.add(
        AuditRow(
            id=new_id(IdKind.AUDIT),
            project=project,
            at=now,
            actor_kind=actor.kind,
            actor_id=actor.id,
            actor_name=None if actor.name is None else clean_text(actor.name)[:255],
            actor_role=actor.role,
            address=actor.address,
            request_id=actor.request_id,
            action=action.value,
            subject=subject,
            details=clean_json(details, limit=_MAX_DETAILS),
        )
    )
    session.flush()


class AuditStore:
    """The log as the API sees it. Each method is one transaction."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def denied(self, project: str, needed: str, call: str) -> None:
        """Record that a valid token asked for more than its role allows."""
        with self._db.write() as session:
            now = self._db.now(session)
            audit(session, now, project, Action.DENIED, None, needed=needed, call=call[:500])

    def page(
        self, project: str, only: AuditFilter, *, limit: int, cursor: str | None
    ) -> Page[AuditEntry]:
        """Return a project's entries, newest first."""
        where = [AuditRow.project == project]
        if only.actions:
            where.append(AuditRow.action.in_([a.value for a in only.actions]))
        if only.actor_id is not None:
            where.append(AuditRow.actor_id == only.actor_id)
        if only.subject is not None:
            where.append(AuditRow.subject == only.subject)
        if only.after is not None:
            where.append(AuditRow.at > only.after)
        if only.before is not None:
            where.append(AuditRow.at < only.before)
        with self._db.read() as session:
            rows = session.execute(
                select(AuditRow)
                .where(*where, *keyset(AuditRow.at, AuditRow.id, cursor))
                .order_by(AuditRow.at.desc(), AuditRow.id.desc())
                .limit(limit + 1)
            ).scalars()
            found = [_entry(row) for row in rows]
        return cut_page(found, limit, lambda entry: (entry.at, entry.id))


def _entry(row: AuditRow) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        project=row.project,
        at=row.at,
        actor=Actor(
            row.actor_kind,
            row.actor_id,
            row.actor_name,
            row.actor_role,
            row.address,
            row.request_id,
        ),
        action=Action(row.action),
        subject=row.subject,
        details=row.details,
    )
