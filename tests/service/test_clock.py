"""Leases, messages and waits when the clock is set, or the database was away."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from service.db import Database, OutboxDispatcher, Reconciler
from service.db.tables import BuildRow, JobRow, OutboxRow
from service.domain import LeasePolicy, State

from .conftest import Bench

LEASE_S = 1.0
POLICY = LeasePolicy(lease_seconds=LEASE_S, resend_seconds=1.0)


class Clock:
    """The database's clock, which can be set."""

    def __init__(self, db: Database) -> None:
        self.offset = timedelta(0)
        self._now = db.now

    def __call__(self, session: Any) -> datetime:
        return self._now(session) + self.offset

    def set(self, seconds: float) -> None:
        self.offset += timedelta(seconds=seconds)


@pytest.fixture
def clock(db: Database, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(db)
    monkeypatch.setattr(db, "now", clock)
    return clock


def test_a_clock_set_back_an_hour_keeps_no_build_for_an_hour(db: Database, clock: Clock) -> None:
    """A lease that was given before still runs out in its own time."""
    bench = Bench(db, POLICY)
    job = bench.jobs.submit(bench.new()).job
    assert bench.builds.claim(job.build_id, "w:1") is not None
    clock.set(-3600)
    reconciler = Reconciler(db, POLICY)
    assert reconciler.run_once().empty
    with db.read() as session:
        until = session.get_one(BuildRow, job.build_id).lease_until
        assert until is not None
        assert until <= db.now(session) + timedelta(seconds=LEASE_S)
    time.sleep(LEASE_S + 0.1)
    assert reconciler.run_once().requeued == (job.build_id,)
    assert bench.builds.claim(job.build_id, "w:2") is not None


def test_a_clock_set_back_delays_neither_messages_nor_waits(db: Database, clock: Clock) -> None:
    bench = Bench(db, POLICY)
    job = bench.jobs.submit(bench.new(queue_limit_s=100)).job
    sent: list[str] = []
    clock.set(-3600)
    assert OutboxDispatcher(db, lambda m: sent.append(m.build_id)).run_once() == 1
    assert sent == [job.build_id]
    Reconciler(db, POLICY).run_once()
    with db.read() as session:
        now = db.now(session)
        row = session.get_one(JobRow, job.id)
        assert row.queue_deadline <= now + timedelta(seconds=100)
        assert session.get_one(BuildRow, job.build_id).announced_at <= now
    # a message that was lost is sent again after the usual time, not after an hour
    time.sleep(1.1)
    Reconciler(db, POLICY).run_once()
    assert OutboxDispatcher(db, lambda m: sent.append(m.build_id)).run_once() == 1


def test_a_message_put_off_before_the_clock_was_set_back_goes_out(
    db: Database, clock: Clock
) -> None:
    bench = Bench(db, POLICY)
    bench.jobs.submit(bench.new())

    def down(_: object) -> None:
        raise ConnectionError

    assert OutboxDispatcher(db, down).run_once() == 0
    clock.set(-3600)
    sent: list[object] = []
    assert OutboxDispatcher(db, sent.append).run_once() == 1
    with db.read() as session:
        assert session.execute(select(OutboxRow)).first() is None


def test_a_clock_set_forward_takes_no_build_from_a_living_worker(
    db: Database, clock: Clock
) -> None:
    bench = Bench(db, POLICY)
    job = bench.jobs.submit(bench.new()).job
    claim = bench.builds.claim(job.build_id, "w:1")
    assert claim is not None
    reconciler = Reconciler(db, POLICY)
    reconciler.run_once()
    clock.set(+3600)
    assert reconciler.run_once().empty
    bench.builds.heartbeat(claim)
    assert reconciler.run_once().empty
    bench.builds.succeed(claim, [])
    assert bench.jobs.get("default", job.id).job.state is State.SUCCEEDED  # type: ignore[union-attr]


def test_leases_are_not_judged_right_after_the_database_was_away(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker could extend its lease meanwhile; each gets the time for a heartbeat."""
    bench = Bench(db, POLICY)
    job = bench.jobs.submit(bench.new()).job
    claim = bench.builds.claim(job.build_id, "w:1")
    assert claim is not None
    reconciler = Reconciler(db, POLICY)
    with monkeypatch.context() as patch:

        def away() -> Any:
            raise OperationalError("…", None, Exception("connection refused"))

        patch.setattr(db, "read", away)
        with pytest.raises(OperationalError):
            reconciler.run_once()
        time.sleep(LEASE_S + 0.1)
    assert reconciler.run_once().empty
    bench.builds.heartbeat(claim)
    time.sleep(LEASE_S + 0.1)
    # this time the worker is really gone
    assert reconciler.run_once().requeued == (job.build_id,)
