"""Jobs: submitting, answering from the cache, showing, listing, cancelling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import and_, delete, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from ..domain import (
    ACTIVE,
    Build,
    BuildSpec,
    CacheAnswer,
    CacheMode,
    Event,
    EventType,
    Failure,
    IdKind,
    Job,
    JobKind,
    ServiceError,
    State,
    build_key,
    new_id,
)
from .engine import Database
from .labels import rarest_first
from .mapping import to_build, to_event, to_job
from .outbox import owe_message
from .paging import Page, cut_page, keyset
from .tables import (
    BuildRow,
    CalibrationRow,
    EventRow,
    IdempotencyRow,
    JobLabelRow,
    JobRow,
    ModelRow,
)
from .transitions import Draft, append_events, lock_build, retrying, write_state

__all__ = ["JobFilter", "JobStore", "JobView", "NewJob", "Submission"]

_QUEUE_TIMEOUT = "the job waited longer than its queue limit of {limit} s"


@dataclass(frozen=True, slots=True)
class NewJob:
    """A validated request.

    Args:
        project: who asks.
        spec: the work, complete.
        request: the request as it was given, for the record and for a retry.
        queue: the queue of the engine.
        priority: 0 (last) to 9 (first).
        queue_limit_s, run_limit_s, memory_limit_mb: limits.
        cache_mode: how to use the cache.
        compare_with: build that a refresh is compared with; the one that would answer by default.
        idempotency_key, request_digest, idempotency_hours: makes a repeated request answer with
            the first one's job.
    """

    project: str
    spec: BuildSpec
    request: Mapping[str, Any]
    queue: str
    priority: int
    queue_limit_s: int
    run_limit_s: int
    memory_limit_mb: int | None = None
    cache_mode: CacheMode = CacheMode.ON
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    source_revision: str | None = None
    model_id: str | None = None
    mblt_id: str | None = None
    calibration_id: str | None = None
    retry_of: str | None = None
    compare_with: str | None = None
    idempotency_key: str | None = None
    request_digest: str = ""
    idempotency_hours: int = 24


@dataclass(frozen=True, slots=True)
class Submission:
    """What became of a request. ``replayed``: its Idempotency-Key had made this job before."""

    job: Job
    build: Build
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class JobView:
    """A job with its build and its place in the queue (0 is next; None when not queued)."""

    job: Job
    build: Build
    queue_position: int | None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list; what is not set does not matter."""

    states: Sequence[State] = ()
    kinds: Sequence[JobKind] = ()
    target_device: str | None = None
    model_id: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    created_after: datetime | None = None
    created_before: datetime | None = None


class JobStore:
    """What the API does with jobs. Each method is one transaction."""

    def __init__(self, db: Database) -> None:
        self._db = db

    # submitting ---------------------------------------------------------------------------

    def submit(self, new: NewJob) -> Submission:
        """Make a job, and a build unless one answers already.

        Raises:
            ServiceError: ``IDEMPOTENCY_MISMATCH``; ``NOT_FOUND`` when an input was deleted
                meanwhile.
        """
        key = build_key(new.spec)

        def work() -> Submission:
            with self._db.write() as session:
                now = self._db.now(session)
                if new.idempotency_key is not None:
                    earlier = self._replay(
                        session, new.project, new.idempotency_key, new.request_digest, now
                    )
                    if earlier is not None:
                        return earlier
                    session.execute(delete(IdempotencyRow).where(IdempotencyRow.expires_at < now))
                self._hold_inputs(session, new)
                return self._submit(session, new, key, now)

        return retrying(work)

    def replay(self, project: str, key: str, request_digest: str) -> Submission | None:
        """Return the job that an Idempotency-Key made before, or None.

        Raises:
            ServiceError: ``IDEMPOTENCY_MISMATCH``: it was used for another request.
        """
        with self._db.read() as session:
            return self._replay(session, project, key, request_digest, self._db.now(session))

    def find_answer(self, project: str, spec: BuildSpec) -> tuple[CacheAnswer, Build | None]:
        """Say how a request would be answered, without making anything."""
        with self._db.read() as session:
            row = session.execute(
                select(BuildRow).where(
                    BuildRow.project == project, BuildRow.cache_key == build_key(spec)
                )
            ).scalar_one_or_none()
            if row is None:
                return CacheAnswer.MISS, None
            return _answer_of(row), to_build(row)

    def _replay(
        self, session: Session, project: str, key: str, request_digest: str, now: datetime
    ) -> Submission | None:
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

    def _hold_inputs(self, session: Session, new: NewJob) -> None:
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

    def _submit(self, session: Session, new: NewJob, key: str, now: datetime) -> Submission:
        holder = lock_build(session, BuildRow.project == new.project, BuildRow.cache_key == key)
        if new.cache_mode is CacheMode.ON and holder is not None:
            build, answer = holder, _answer_of(holder)
        else:
            build, answer = self._new_build(session, new, key, holder, now), CacheAnswer.MISS
        job = _job_row(new, build, answer, now)
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
        self._catch_up(session, new, build, job, answer, now)
        session.flush()
        session.expire_all()
        return Submission(
            to_job(session.get_one(JobRow, job.id)),
            to_build(session.get_one(BuildRow, build.id)),
        )

    def _new_build(
        self, session: Session, new: NewJob, key: str, holder: BuildRow | None, now: datetime
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
        )
        session.add(build)
        session.flush()
        owe_message(session, build.id, build.queue, build.priority, now)
        return build

    def _catch_up(
        self,
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
            Draft(
                EventType.STATE, {"state": State.QUEUED.value, "cache": answer.value}, job_id=job.id
            )
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

    def forget_answer(self, build_id: str) -> None:
        """Let a finished build answer no more requests, because what it made is gone."""
        with self._db.write() as session:
            session.execute(
                update(BuildRow)
                .where(BuildRow.id == build_id)
                .values(cache_key=None)
                .execution_options(synchronize_session=False)
            )

    # showing ------------------------------------------------------------------------------

    def get(self, project: str, job_id: str) -> JobView | None:
        """Return a job of the project, or None."""
        with self._db.read() as session:
            row = session.execute(
                select(JobRow, BuildRow)
                .join(BuildRow, BuildRow.id == JobRow.build_id)
                .where(JobRow.id == job_id, JobRow.project == project)
            ).one_or_none()
            if row is None:
                return None
            job, build = row
            return JobView(to_job(job), to_build(build), _queue_position(session, job, build))

    def page(
        self, project: str, only: JobFilter, *, limit: int, cursor: str | None
    ) -> Page[JobView]:
        """Return jobs, newest first.

        Raises:
            ServiceError: the cursor is none of ours.
        """
        where = [JobRow.project == project]
        if only.states:
            where.append(JobRow.state.in_([s.value for s in only.states]))
        if only.kinds:
            where.append(JobRow.kind.in_([k.value for k in only.kinds]))
        if only.target_device is not None:
            where.append(JobRow.target_device == only.target_device)
        if only.model_id is not None:
            where.append(JobRow.source_id == only.model_id)
        if only.created_after is not None:
            where.append(JobRow.created_at > only.created_after)
        if only.created_before is not None:
            where.append(JobRow.created_at < only.created_before)
        statement = select(JobRow, BuildRow).join(BuildRow, BuildRow.id == JobRow.build_id)
        time, identifier = JobRow.created_at, JobRow.id
        with self._db.read() as session:
            for number, (name, value) in enumerate(rarest_first(session, project, only.labels)):
                label = aliased(JobLabelRow)
                statement = statement.join(
                    label,
                    and_(
                        label.job_id == JobRow.id,
                        label.project == project,
                        label.name == name,
                        label.value == value,
                    ),
                )
                if number == 0:
                    # the label's own index has the jobs in order
                    time, identifier = label.created_at, label.job_id
            statement = (
                statement.where(*where, *keyset(time, identifier, cursor))
                .order_by(time.desc(), identifier.desc())
                .limit(limit + 1)
            )
            views = [
                JobView(to_job(job), to_build(build), _queue_position(session, job, build))
                for job, build in session.execute(statement)
            ]
        return cut_page(views, limit, lambda view: (view.job.created_at, view.job.id))

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

    def counts(self) -> dict[State, int]:
        """Return how many jobs are in each state, over all projects."""
        with self._db.read() as session:
            rows = session.execute(select(JobRow.state, func.count()).group_by(JobRow.state))
            found = {State(state): int(count) for state, count in rows}
        return {state: found.get(state, 0) for state in State}

    # cancelling ---------------------------------------------------------------------------

    def cancel(self, project: str, job_id: str) -> JobView:
        """Cancel a job; its build is killed when no other job needs it.

        Cancelling a cancelled job answers the same again.

        Raises:
            ServiceError: ``NOT_FOUND``; ``CONFLICT`` when the job has ended in another way.
        """

        def work() -> None:
            with self._db.write() as session:
                build_id = session.execute(
                    select(JobRow.build_id).where(JobRow.id == job_id, JobRow.project == project)
                ).scalar_one_or_none()
                if build_id is None:
                    raise ServiceError("NOT_FOUND", f"there is no job {job_id!r}")
                build = lock_build(session, BuildRow.id == build_id)
                assert build is not None
                job = session.get_one(JobRow, job_id, populate_existing=True)
                state = State(job.state)
                if state is State.CANCELLED:
                    return
                if state not in ACTIVE:
                    raise ServiceError("CONFLICT", f"the job has ended already: {state.value}")
                end_one_job(session, build, job, State.CANCELLED, None, self._db.now(session))

        retrying(work)
        view = self.get(project, job_id)
        assert view is not None
        return view


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


def _answer_of(row: BuildRow) -> CacheAnswer:
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
        event_floor=build.event_seq,
        created_at=now,
        queued_at=now,
    )


def _queue_position(session: Session, job: JobRow, build: BuildRow) -> int | None:
    if job.state != State.QUEUED.value or build.state != State.QUEUED.value:
        return None
    ahead = or_(
        BuildRow.priority > build.priority,
        and_(BuildRow.priority == build.priority, BuildRow.queued_at < build.queued_at),
        and_(
            BuildRow.priority == build.priority,
            BuildRow.queued_at == build.queued_at,
            BuildRow.id < build.id,
        ),
    )
    return session.execute(
        select(func.count())
        .select_from(BuildRow)
        .where(BuildRow.state == State.QUEUED.value, BuildRow.queue == build.queue, ahead)
    ).scalar_one()
