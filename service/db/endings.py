"""Ending single jobs: cancelled, or waited too long."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ..domain import ACTIVE, EventType, Failure, State
from .tables import BuildRow, JobRow
from .transitions import Draft, append_events, write_state

__all__ = ["end_one_job", "queue_timeout"]

_QUEUE_TIMEOUT = "the job waited longer than its queue limit of {limit} s"


def end_one_job(
    session: Session,
    build: BuildRow,
    job: JobRow,
    to: State,
    failure: Failure | None,
    now: datetime,
) -> None:
    """End one job by itself (cancelled, waited too long), and its build when it was the last.

    The build's row must be locked.
    """
    data: dict[str, Any] = {"state": to.value}
    if failure is not None:
        data["error"] = failure.to_json()
    last = append_events(
        session, build.id, now, build.fencing, [Draft(EventType.STATE, data, job_id=job.id)]
    )
    write_state(
        session,
        JobRow,
        [JobRow.id == job.id],
        expect=sorted(ACTIVE),
        to=to,
        values={
            "finished_at": now,
            "event_end": last,
            "failure": None if failure is None else failure.to_json(),
        },
    )
    others = session.execute(
        select(func.count())
        .select_from(JobRow)
        .where(JobRow.build_id == build.id, JobRow.state.in_([s.value for s in ACTIVE]))
    ).scalar_one()
    if others:
        return
    # nobody may join a build that is about to end
    build.cache_key = None
    if build.state == State.RUNNING.value:
        build.cancel_requested = True
        session.flush()
        return
    session.flush()
    write_state(
        session,
        BuildRow,
        [BuildRow.id == build.id],
        expect=[State.QUEUED],
        to=to,
        values={
            "finished_at": now,
            "failure": None if failure is None else failure.to_json(),
        },
    )


def queue_timeout(limit_s: int) -> Failure:
    """Return the failure of a job that waited too long."""
    return Failure(
        "JOB_TIMEOUT",
        _QUEUE_TIMEOUT.format(limit=limit_s),
        details={"limit": "queue_s", "seconds": limit_s},
        hint="raise limits.queue_s, or add workers",
    )
