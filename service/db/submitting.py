"""Making jobs: which build answers a request, and bringing the job to where that build is."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ..domain import (
    ACTIVE,
    CacheAnswer,
    CacheMode,
    EventType,
    IdKind,
    ServiceError,
    State,
    new_id,
)
from .audit import Action, audit
from .mapping import to_build, to_job
from .outbox import owe_message
from .requests import NewJob, Submission
from .tables import BuildRow, CalibrationRow, IdempotencyRow, JobLabelRow, JobRow, ModelRow
from .transitions import Draft, append_events, lock_build, write_state

__all__ = ["add_job", "answer_of", "hold_inputs", "replay"]


def replay(
    session: Session, project: str, key: str, request_digest: str, now: datetime
) -> Submission | None:
    """Return the job that an Idempotency-Key made before, or None.

    Raises:
        ServiceError: ``IDEMPOTENCY_MISMATCH``: it was used for another request.
    """
    row = session.get(IdempotencyRow, (project, key))
    if row is None or row.expires_at < now:
        return None
    if row.request_digest != request_digest:
        raise ServiceError(
            "IDEMPOTENCY_MISMATCH",
            "this Idempotency-Key was used before with another request body",
            hint="use a new key for a new request",
            details={"job_id": row.job_id},
        )
    job = session.get_one(JobRow, row.job_id)
    build = session.get_one(BuildRow, job.build_id)
    return Submission(to_job(job), to_build(build), replayed=True)


def hold_inputs(session: Session, new: NewJob) -> None:
    """Keep the job's inputs from being deleted until it is there.

    Raises:
        ServiceError: ``NOT_FOUND``: one was deleted before.
    """
    # a shared lock: whoever deletes an input waits for this job to be there, or came first
    inputs: list[tuple[type[ModelRow] | type[CalibrationRow], str | None, str]] = [
        (ModelRow, new.model_id, "model"),
        (ModelRow, new.mblt_id if (new.mblt_id or "").startswith("mdl_") else None, "model"),
        (CalibrationRow, new.calibration_id, "calibration set"),
    ]
    for table, identifier, what in inputs:
        if identifier is None:
            continue
        found = session.execute(
            select(table.id)
            .where(table.id == identifier, table.deleted_at.is_(None))
            .with_for_update(read=True)
        ).scalar_one_or_none()
        if found is None:
            raise ServiceError("NOT_FOUND", f"there is no {what} {identifier!r}")


def add_job(
    session: Session,
    new: NewJob,
    key: str,
    now: datetime,
    *,
    matrix: tuple[str, int] | None = None,
) -> Submission:
    """Add a job, and a build unless one answers already.

    Args:
        session, now: the transaction and its time.
        new: the request.
        key: of the build.
        matrix: the job's matrix and place in it, if it is of one.
    """
    holder = lock_build(session, BuildRow.project == new.project, BuildRow.cache_key == key)
    if new.cache_mode is CacheMode.ON and holder is not None:
        build, answer = holder, answer_of(holder)
    else:
        build, answer = _new_build(session, new, key, holder, now), CacheAnswer.MISS
    job = _job_row(new, build, answer, now)
    if matrix is not None:
        job.matrix_id, job.matrix_index = matrix
    session.add(job)
    session.flush()
    session.add_all(
        JobLabelRow(job_id=job.id, name=k, value=v, project=job.project, created_at=now)
        for k, v in new.labels.items()
    )
    if new.idempotency_key is not None:
        session.add(
            IdempotencyRow(
                project=new.project,
                key=new.idempotency_key,
                request_digest=new.request_digest,
                job_id=job.id,
                expires_at=now + timedelta(hours=new.idempotency_hours),
            )
        )
    audit(
        session, now, job.project, Action.JOB_SUBMIT, job.id,
        type=job.kind, cache=answer.value, source_id=job.source_id, retry_of=job.retry_of,
    )  # fmt: skip
    _catch_up(session, new, build, job, answer, now)
    session.flush()
    if new.max_active is not None and State(build.state) in ACTIVE:
        _check_active(session, new.project, new.max_active)
    session.expire_all()
    return Submission(
        to_job(session.get_one(JobRow, job.id)),
        to_build(session.get_one(BuildRow, build.id)),
    )


def _check_active(session: Session, project: str, most: int) -> None:
    active = session.execute(
        select(func.count())
        .select_from(JobRow)
        .where(JobRow.project == project, JobRow.state.in_([s.value for s in ACTIVE]))
    ).scalar_one()
    if active > most:
        raise ServiceError(
            "QUOTA_EXCEEDED",
            f"the project has {active - 1} jobs that wait or run; it may have {most}",
            hint="wait for some to end, or cancel them",
            details={"quota": "max_active_jobs", "limit": most},
            retryable=True,
            retry_after_s=30,
        )


def _new_build(
    session: Session, new: NewJob, key: str, holder: BuildRow | None, now: datetime
) -> BuildRow:
    shares = new.cache_mode is not CacheMode.OFF and holder is None
    build = BuildRow(
        id=new_id(IdKind.BUILD),
        project=new.project,
        kind=new.spec.kind.value,
        key=key,
        cache_key=key if shares else None,
        state=State.QUEUED.value,
        spec=new.spec.to_json(),
        engine=new.spec.engine,
        queue=new.queue,
        priority=new.priority,
        fencing=0,
        losses=0,
        run_limit_s=new.run_limit_s,
        memory_limit_mb=new.memory_limit_mb,
        cancel_requested=False,
        created_at=now,
        queued_at=now,
        announced_at=now,
        event_seq=0,
        log_bytes=0,
        progress_events=0,
        refresh_of=(new.compare_with or (holder.id if holder is not None else None))
        if new.cache_mode is CacheMode.REFRESH
        else None,
        traceparent=new.traceparent,
    )
    session.add(build)
    session.flush()
    owe_message(session, build.id, build.queue, build.priority, now)
    return build


def _catch_up(
    session: Session,
    new: NewJob,
    build: BuildRow,
    job: JobRow,
    answer: CacheAnswer,
    now: datetime,
) -> None:
    """Bring a fresh job to where its build is."""
    state = State(build.state)
    drafts = [
        Draft(EventType.STATE, {"state": State.QUEUED.value, "cache": answer.value}, job_id=job.id)
    ]
    values: dict[str, Any] = {}
    if state is not State.QUEUED:
        data: dict[str, Any] = {"state": state.value}
        if build.failure is not None:
            data["error"] = build.failure
        drafts.append(Draft(EventType.STATE, data, job_id=job.id))
        values["started_at"] = now
    if state is State.RUNNING and build.phase is not None:
        drafts.append(Draft(EventType.PHASE, {"phase": build.phase}, job_id=job.id))
    last = append_events(session, build.id, now, build.fencing, drafts)
    if state is State.QUEUED or state is State.RUNNING:
        _raise_limits(build, new)
    else:
        values |= {"finished_at": now, "event_end": last, "failure": build.failure}
    if state is not State.QUEUED:
        write_state(
            session, JobRow, [JobRow.id == job.id], expect=[State.QUEUED], to=state,
            values=values,
        )  # fmt: skip


def answer_of(row: BuildRow) -> CacheAnswer:
    """Say how a build answers a request for the same."""
    return CacheAnswer.JOINED if State(row.state) in ACTIVE else CacheAnswer.HIT


def _raise_limits(build: BuildRow, new: NewJob) -> None:
    build.priority = max(build.priority, new.priority)
    build.run_limit_s = max(build.run_limit_s, new.run_limit_s)
    # None is no limit
    if new.memory_limit_mb is None or build.memory_limit_mb is None:
        build.memory_limit_mb = None
    else:
        build.memory_limit_mb = max(build.memory_limit_mb, new.memory_limit_mb)


def _job_row(new: NewJob, build: BuildRow, answer: CacheAnswer, now: datetime) -> JobRow:
    return JobRow(
        id=new_id(IdKind.JOB),
        project=new.project,
        kind=new.spec.kind.value,
        build_id=build.id,
        state=State.QUEUED.value,
        cache=answer.value,
        cache_mode=new.cache_mode.value,
        request=dict(new.request),
        name=new.name,
        labels=dict(new.labels),
        source_revision=new.source_revision,
        model_id=new.model_id,
        mblt_id=new.mblt_id,
        source_id=new.model_id or new.mblt_id,
        calibration_id=new.calibration_id,
        target_device=new.spec.target_device,
        priority=new.priority,
        queue_limit_s=new.queue_limit_s,
        queue_deadline=now + timedelta(seconds=new.queue_limit_s),
        retry_of=new.retry_of,
        webhook_url=new.webhook_url,
        event_floor=build.event_seq,
        created_at=now,
        queued_at=now,
    )
