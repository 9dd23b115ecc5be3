"""Puts right what processes that died left behind. Any number may run at once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from ..domain import AttemptState, Failure, LeaseLost, LeasePolicy, State
from .builds import end_build, requeue_build
from .endings import end_one_job, queue_timeout
from .engine import Database
from .outbox import owe_message
from .tables import BuildRow, JobRow
from .transitions import lock_build

__all__ = ["ReconcileReport", "Reconciler"]

_log = logging.getLogger(__name__)

_BATCH = 200


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """What one run did: ids."""

    requeued: tuple[str, ...] = ()
    """Builds whose worker was lost."""
    lost: tuple[str, ...] = ()
    """Builds that lost their worker too often, and failed."""
    cancelled: tuple[str, ...] = ()
    """Builds whose worker died before it could obey a cancel."""
    timed_out: tuple[str, ...] = ()
    """Jobs that waited longer than their queue limit."""
    announced: tuple[str, ...] = ()
    """Queued builds that got another message."""

    @property
    def empty(self) -> bool:
        """Whether there was nothing to do."""
        return not (
            self.requeued or self.lost or self.cancelled or self.timed_out or self.announced
        )


class Reconciler:
    """Compares the database with what should be.

    Each build is put right in a transaction of its own, which looks again under the build's lock,
    so that two reconcilers, or one and a worker that comes back, never do it twice.
    """

    def __init__(self, db: Database, policy: LeasePolicy | None = None) -> None:
        self._db = db
        self._policy = policy or LeasePolicy()

    def run_once(self) -> ReconcileReport:
        """Look once at everything."""
        requeued: list[str] = []
        lost: list[str] = []
        cancelled: list[str] = []
        into = {State.QUEUED: requeued, State.FAILED: lost, State.CANCELLED: cancelled}
        for build_id in self._lost_leases():
            state = self._each(build_id, self._recover)
            if state is not None:
                into[state].append(build_id)
        timed_out = [job_id for job_id in self._overdue_jobs() if self._each(job_id, self._give_up)]
        announced = [
            build_id for build_id in self._unannounced() if self._each(build_id, self._announce)
        ]
        report = ReconcileReport(
            tuple(requeued), tuple(lost), tuple(cancelled), tuple(timed_out), tuple(announced)
        )
        if not report.empty:
            _log.info("reconciled: %s", report)
        return report

    def expire_leases(self, worker: str | None = None) -> int:
        """End the leases of a worker that is known to be dead, or of all; return how many.

        For a launcher that has seen its worker die, or that starts alone on its data: waiting
        for the leases to run out would only cost time.
        """
        with self._db.write() as session:
            past = self._db.now(session) - timedelta(seconds=1)
            where = [BuildRow.state == State.RUNNING.value]
            if worker is not None:
                where.append(BuildRow.worker == worker)
            done = session.execute(
                update(BuildRow)
                .where(*where)
                .values(lease_until=past)
                .returning(BuildRow.id)
                .execution_options(synchronize_session=False)
            )
            return len(done.scalars().all())

    def _each(self, identifier: str, work: Callable[[Session, str], State | None]) -> State | None:
        try:
            with self._db.write() as session:
                return work(session, identifier)
        except LeaseLost:
            return None

    def _lost_leases(self) -> list[str]:
        with self._db.read() as session:
            now = self._db.now(session)
            return list(
                session.execute(
                    select(BuildRow.id)
                    .where(BuildRow.state == State.RUNNING.value, BuildRow.lease_until < now)
                    .order_by(BuildRow.lease_until)
                    .limit(_BATCH)
                ).scalars()
            )

    def _recover(self, session: Session, build_id: str) -> State | None:
        row = lock_build(session, BuildRow.id == build_id)
        now = self._db.now(session)
        if row is None or row.state != State.RUNNING.value:
            return None
        if row.lease_until is None or row.lease_until >= now:
            return None
        if row.cancel_requested:
            end_build(session, now, row.id, row.fencing, State.CANCELLED, AttemptState.LOST)
            return State.CANCELLED
        if row.losses + 1 >= self._policy.max_losses:
            failure = Failure(
                "WORKER_LOST",
                f"the worker was lost {row.losses + 1} times while it ran this build",
                details={"losses": row.losses + 1, "last_phase": row.phase},
                hint="look at the workers' logs: the host may be out of memory or restarting",
            )
            row.losses += 1
            session.flush()
            end_build(
                session, now, row.id, row.fencing, State.FAILED, AttemptState.LOST, failure=failure
            )
            return State.FAILED
        requeue_build(session, now, row.id, row.fencing, AttemptState.LOST)
        return State.QUEUED

    def _overdue_jobs(self) -> list[str]:
        with self._db.read() as session:
            now = self._db.now(session)
            return list(
                session.execute(
                    select(JobRow.id)
                    .where(JobRow.state == State.QUEUED.value, JobRow.queue_deadline < now)
                    .order_by(JobRow.queue_deadline)
                    .limit(_BATCH)
                ).scalars()
            )

    def _give_up(self, session: Session, job_id: str) -> State | None:
        build_id = session.execute(
            select(JobRow.build_id).where(JobRow.id == job_id)
        ).scalar_one_or_none()
        if build_id is None:
            return None
        build = lock_build(session, BuildRow.id == build_id)
        job = session.get(JobRow, job_id, populate_existing=True)
        now = self._db.now(session)
        if build is None or job is None or job.state != State.QUEUED.value:
            return None
        if job.queue_deadline >= now:
            return None
        end_one_job(session, build, job, State.TIMED_OUT, queue_timeout(job.queue_limit_s), now)
        return State.TIMED_OUT

    def _unannounced(self) -> list[str]:
        with self._db.read() as session:
            before = self._db.now(session) - timedelta(seconds=self._policy.resend_seconds)
            return list(
                session.execute(
                    select(BuildRow.id)
                    .where(BuildRow.state == State.QUEUED.value, BuildRow.announced_at < before)
                    .order_by(BuildRow.priority.desc(), BuildRow.queued_at)
                    .limit(_BATCH)
                ).scalars()
            )

    def _announce(self, session: Session, build_id: str) -> State | None:
        now = self._db.now(session)
        before = now - timedelta(seconds=self._policy.resend_seconds)
        row = session.execute(
            update(BuildRow)
            .where(
                BuildRow.id == build_id,
                BuildRow.state == State.QUEUED.value,
                BuildRow.announced_at < before,
            )
            .values(announced_at=now)
            .returning(BuildRow.queue, BuildRow.priority)
            .execution_options(synchronize_session=False)
        ).one_or_none()
        if row is None:
            return None
        owe_message(session, build_id, row[0], row[1], now)
        return State.QUEUED
