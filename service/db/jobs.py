"""Jobs: submitting, answering from the cache, showing, listing, cancelling."""

from __future__ import annotations

from sqlalchemy import and_, delete, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from ..domain import (
    ACTIVE,
    Build,
    BuildSpec,
    CacheAnswer,
    ServiceError,
    State,
    build_key,
)
from .audit import Action, audit
from .endings import end_one_job
from .job_events import JobEvents
from .labels import rarest_first
from .mapping import to_build, to_job
from .paging import Page, cut_page, keyset
from .requests import JobFilter, JobView, NewJob, Submission
from .submitting import add_job, answer_of, hold_inputs, replay
from .tables import BuildRow, IdempotencyRow, JobLabelRow, JobRow
from .transitions import lock_build, retrying

__all__ = ["JobStore"]


class JobStore(JobEvents):
    """What the API does with jobs. Each method is one transaction."""

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
                    earlier = replay(
                        session, new.project, new.idempotency_key, new.request_digest, now
                    )
                    if earlier is not None:
                        return earlier
                    session.execute(delete(IdempotencyRow).where(IdempotencyRow.expires_at < now))
                hold_inputs(session, new)
                return add_job(session, new, key, now)

        return retrying(work)

    def replay(self, project: str, key: str, request_digest: str) -> Submission | None:
        """Return the job that an Idempotency-Key made before, or None.

        Raises:
            ServiceError: ``IDEMPOTENCY_MISMATCH``: it was used for another request.
        """
        with self._db.read() as session:
            return replay(session, project, key, request_digest, self._db.now(session))

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
            return answer_of(row), to_build(row)

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
                now = self._db.now(session)
                end_one_job(session, build, job, State.CANCELLED, None, now)
                audit(session, now, project, Action.JOB_CANCEL, job_id)

        retrying(work)
        view = self.get(project, job_id)
        assert view is not None
        return view


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
