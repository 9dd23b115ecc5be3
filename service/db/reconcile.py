"""Puts right what processes that died left behind. Any number may run at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

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
_CLOCK_SLACK_S = 1.0


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


class Steadiness:
    """Says whether the database has been there, and its clock even, for the length of a lease.

    Args:
        lease_s: how long a lease lasts.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._hold_until = 0.0
        self._last: tuple[float, datetime] | None = None

    @contextmanager
    def look(self) -> Iterator[None]:
        """Wrap a look at the database: one that fails makes the next ones careful."""
        try:
            yield
        except BaseException:
            self._hold_until = float("inf")
            raise

    def at(self, now: datetime) -> bool:
        """Take note of the database's time, and say whether leases can be trusted."""
        mono = time.monotonic()
        jumped = self._last is not None and (
            (now - self._last[1]).total_seconds() - (mono - self._last[0]) > self._lease_s / 2
        )
        self._last = mono, now
        if jumped or self._hold_until == float("inf"):
            self._hold_until = mono + self._lease_s
        return mono >= self._hold_until


class Reconciler:
    """Compares the database with what should be.

    Each build is put right in a transaction of its own, which looks again under the build's lock,
    so that two reconcilers, or one and a worker that comes back, never do it twice.

    A lease that looks over proves nothing right after the database was away or its clock jumped:
    no worker could extend one. The reconciler then leaves leases alone for the length of one.
    """

    def __init__(self, db: Database, policy: LeasePolicy | None = None) -> None:
        self._db = db
        self._policy = policy or LeasePolicy()
        self._steady = Steadiness(self._policy.lease_seconds)

    def run_once(self) -> ReconcileReport:
        """Look once at everything."""
        requeued: list[str] = []
        lost: list[str] = []
        cancelled: list[str] = []
        into = {State.QUEUED: requeued, State.FAILED: lost, State.CANCELLED: cancelled}
        with self._steady.look():
            lost_leases = self._lost_leases()
        for build_id in lost_leases:
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
            ahead = self._is_ahead(session, now)
        if ahead:
            self._set_back()
        if not self._steady.at(now):
            return []
        with self._db.read() as session:
            return list(
                session.execute(
                    select(BuildRow.id)
                    .where(BuildRow.state == State.RUNNING.value, BuildRow.lease_until < now)
                    .order_by(BuildRow.lease_until)
                    .limit(_BATCH)
                ).scalars()
            )

    def _is_ahead(self, session: Session, now: datetime) -> bool:
        """Whether there are times from before the clock was set back."""
        return any(
            session.execute(select(table.id).where(*where).limit(1)).scalar_one_or_none()
            for table, where in self._ahead_of(now)
        )

    def _ahead_of(self, now: datetime) -> list[tuple[type[BuildRow] | type[JobRow], list[Any]]]:
        soon = now + timedelta(seconds=_CLOCK_SLACK_S)
        lease = timedelta(seconds=self._policy.lease_seconds)
        running, queued = State.RUNNING.value, State.QUEUED.value
        return [
            # twice: another process may have longer leases
            (BuildRow, [BuildRow.state == running, BuildRow.lease_until > soon + 2 * lease]),
            (BuildRow, [BuildRow.state == queued, BuildRow.announced_at > soon]),
            (JobRow, [JobRow.state == queued, JobRow.queued_at > soon]),
        ]

    def _set_back(self) -> None:
        """Take times that lie too far ahead for ones from now: waits end as they should."""
        with self._db.write() as session:
            now = self._db.now(session)
            lease_until = now + timedelta(seconds=self._policy.lease_seconds)
            (_, leases), (_, messages), (_, waits) = self._ahead_of(now)
            for where, values in (
                (leases, {"lease_until": lease_until}),
                (messages, {"announced_at": now}),
            ):
                session.execute(
                    update(BuildRow)
                    .where(*where)
                    .values(**values)
                    .execution_options(synchronize_session=False)
                )
            for job in session.execute(select(JobRow).where(*waits).limit(_BATCH)).scalars():
                job.queued_at = now
                job.queue_deadline = now + timedelta(seconds=job.queue_limit_s)
        _log.warning("the clock was set back: leases and waits count from now")

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
