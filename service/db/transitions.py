"""The one place where a state is written, and where events are numbered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, CursorResult, Executable, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from ..domain import TERMINAL, EventType, State, check_move
from .tables import BuildRow, EventRow, JobRow
from .webhooks import owe_webhooks

__all__ = [
    "Draft",
    "affected",
    "append_events",
    "lock_build",
    "retrying",
    "write_state",
]

T = TypeVar("T")

# serialization failure, deadlock: Postgres asks for the transaction to be run again
_RETRY_SQLSTATES = frozenset({"40001", "40P01"})


@dataclass(frozen=True, slots=True)
class Draft:
    """An event that has no number yet."""

    type: EventType
    data: dict[str, Any] = field(default_factory=dict)
    job_id: str | None = None


def write_state(
    session: Session,
    table: type[BuildRow] | type[JobRow],
    where: Sequence[ColumnElement[bool]],
    *,
    expect: Collection[State],
    to: State,
    values: dict[str, Any] | None = None,
) -> list[str]:
    """Move rows from one of the expected states to another, and return the ids of those moved.

    A compare-and-set: a row whose state is not, or no longer, an expected one stays as it is and
    is not in the answer. Whoever asked to be told of a job's end is owed a message by the same
    transaction.

    Raises:
        TransitionError: the table of transitions does not have one of the moves.
    """
    for before in expect:
        check_move(before, to)
    statement = (
        update(table)
        .where(*where, table.state.in_([s.value for s in expect]))
        .values(state=to.value, **(values or {}))
        .returning(table.id)
        .execution_options(synchronize_session=False)
    )
    moved = list(session.execute(statement).scalars())
    if table is JobRow and moved and to in TERMINAL:
        at: datetime = (values or {})["finished_at"]
        owe_webhooks(session, moved, to, at)
    return moved


def append_events(
    session: Session, build_id: str, at: datetime, attempt: int, drafts: Sequence[Draft]
) -> int:
    """Add events to a build's stream and return the number of the last.

    The counter lives in the build's row, whose lock this takes: numbers rise in commit order, so
    a reader that has seen a number has missed none below it.
    """
    last = session.execute(
        update(BuildRow)
        .where(BuildRow.id == build_id)
        .values(event_seq=BuildRow.event_seq + len(drafts))
        .returning(BuildRow.event_seq)
        .execution_options(synchronize_session=False)
    ).scalar_one()
    first = last - len(drafts) + 1
    for offset, draft in enumerate(drafts):
        session.add(
            EventRow(
                build_id=build_id,
                seq=first + offset,
                job_id=draft.job_id,
                type=draft.type.value,
                attempt=attempt,
                at=at,
                data=draft.data,
            )
        )
    session.flush()
    return last


def lock_build(session: Session, *where: ColumnElement[bool]) -> BuildRow | None:
    """Return a build's row as it is now, locked until the transaction ends."""
    return session.execute(
        select(BuildRow).where(*where).with_for_update().execution_options(populate_existing=True)
    ).scalar_one_or_none()


def affected(session: Session, statement: Executable) -> int:
    """Run an UPDATE or DELETE and return how many rows it met."""
    result = session.execute(statement)
    assert isinstance(result, CursorResult)
    return int(result.rowcount)


def retrying(work: Callable[[], T], *, tries: int = 5) -> T:
    """Run a transaction again when another one came first: a unique key, a deadlock."""
    for remaining in range(tries - 1, -1, -1):
        try:
            return work()
        except DBAPIError as exc:
            state = getattr(exc.orig, "sqlstate", None)
            again = isinstance(exc, IntegrityError) or state in _RETRY_SQLSTATES
            if not again or remaining == 0:
                raise
    raise AssertionError("unreachable")
