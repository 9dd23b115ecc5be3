"""Random histories of jobs, workers, deaths and reconcilers: what must hold in each of them."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from sqlalchemy import select, update

from service.db import Database, OutboxDispatcher, Reconciler, run_migrations
from service.db.tables import ArtifactRow, BuildRow, EventRow, JobRow, OutboxRow
from service.domain import (
    ACTIVE,
    TERMINAL,
    ArtifactKind,
    CacheMode,
    Claim,
    Failure,
    LeaseLost,
    LeasePolicy,
    Phase,
    ServiceError,
    State,
    StoredFile,
    can_move,
)

from .conftest import Bench

_FOLDER = Path(tempfile.mkdtemp(prefix="qb-properties-"))
_URL = f"sqlite:///{_FOLDER / 'template.sqlite3'}"


def setup_module() -> None:
    _FOLDER.mkdir(exist_ok=True)
    run_migrations(_URL)
    # out of WAL, so that copying the file copies the database
    database = Database(_URL)
    with database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()


def teardown_module() -> None:
    shutil.rmtree(_FOLDER, ignore_errors=True)


class Histories(RuleBasedStateMachine):
    """Everything that clients, workers and the reconciler can do, in any order."""

    jobs = Bundle("jobs")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(dir=_FOLDER)) / "db.sqlite3"
        shutil.copy(_FOLDER / "template.sqlite3", self.path)
        self.db = Database(f"sqlite:///{self.path}")
        self.bench = Bench(self.db, LeasePolicy(lease_seconds=600, max_losses=3))
        self.reconciler = Reconciler(self.db, self.bench.policy)
        self.states: dict[str, State] = {}
        self.ended_claims: set[tuple[str, int]] = set()
        self.sent: list[str] = []

    def teardown(self) -> None:
        self.db.close()
        shutil.rmtree(self.path.parent)

    # clients

    @rule(target=jobs, variant=st.integers(0, 2), mode=st.sampled_from(list(CacheMode)))
    def submit(self, variant: int, mode: CacheMode) -> str:
        made = self.bench.jobs.submit(self.bench.new(variant, cache=mode))
        self.states[made.job.id] = State.QUEUED
        return made.job.id

    @rule(job=jobs)
    def cancel(self, job: str) -> None:
        before = self.bench.jobs.get("default", job)
        assert before is not None
        try:
            after = self.bench.jobs.cancel("default", job)
        except ServiceError as exc:
            assert exc.code == "CONFLICT"
            assert before.job.state in TERMINAL - {State.CANCELLED}
        else:
            assert after.job.state is State.CANCELLED

    @rule(job=jobs)
    def wait_too_long(self, job: str) -> None:
        with self.db.write() as session:
            session.execute(
                update(JobRow)
                .where(JobRow.id == job)
                .values(queue_deadline=self.db.now(session) - timedelta(seconds=1))
            )
        self.reconciler.run_once()

    # workers

    @rule(target=claims, job=jobs)
    def claim(self, job: str) -> Claim | None:
        view = self.bench.jobs.get("default", job)
        assert view is not None
        claim = self.bench.builds.claim(view.build.id, "w")
        assert (claim is not None) == (view.build.state is State.QUEUED)
        return claim

    @rule(target=claims)
    def claim_next(self) -> Claim | None:
        return self.bench.builds.claim_next("qb.qbcompiler", "w")

    def _use(self, claim: Claim | None, ends: bool, work: object) -> None:
        """Do something with a claim; it must work exactly when the claim is still good."""
        if claim is None:
            return
        build = self.bench.builds.get(claim.build.id)
        assert build is not None
        good = build.state is State.RUNNING and build.fencing == claim.fencing
        try:
            work(claim)  # type: ignore[operator]
        except LeaseLost:
            assert not good
        else:
            assert good
            key = (claim.build.id, claim.fencing)
            assert key not in self.ended_claims
            if ends:
                self.ended_claims.add(key)

    @rule(claim=claims)
    def heartbeat(self, claim: Claim | None) -> None:
        self._use(claim, False, self.bench.builds.heartbeat)

    @rule(claim=claims, phase=st.sampled_from(list(Phase)))
    def progress(self, claim: Claim | None, phase: Phase) -> None:
        builds = self.bench.builds
        self._use(claim, False, lambda c: builds.progress(c, phase=phase, current=1, total=2))

    @rule(claim=claims)
    def log(self, claim: Claim | None) -> None:
        self._use(claim, False, lambda c: self.bench.builds.append_log(c, "line\n"))

    @rule(claim=claims, digest=st.sampled_from("ab"))
    def succeed(self, claim: Claim | None, digest: str) -> None:
        file = StoredFile(ArtifactKind.MBLT, "m.mblt", digest * 64, 1)
        self._use(claim, True, lambda c: self.bench.builds.succeed(c, [file]))

    @rule(claim=claims, code=st.sampled_from(["CONFIG_ERROR", "INTERNAL_ERROR"]))
    def fail(self, claim: Claim | None, code: str) -> None:
        self._use(claim, True, lambda c: self.bench.builds.fail(c, Failure(code, "x")))

    @rule(claim=claims)
    def time_out(self, claim: Claim | None) -> None:
        failure = Failure("JOB_TIMEOUT", "x")
        self._use(claim, True, lambda c: self.bench.builds.time_out(c, failure))

    @rule(claim=claims)
    def release(self, claim: Claim | None) -> None:
        self._use(claim, True, self.bench.builds.release)

    @rule(claim=claims)
    def lose(self, claim: Claim | None) -> None:
        failure = Failure("RESOURCE_LIMIT", "killed")
        self._use(claim, True, lambda c: self.bench.builds.lose(c, failure))

    @rule(claim=claims)
    def obey_cancel(self, claim: Claim | None) -> None:
        if claim is None:
            return
        build = self.bench.builds.get(claim.build.id)
        if build is not None and build.cancel_requested:
            self._use(claim, True, self.bench.builds.cancelled)

    @precondition(lambda self: self.states)
    @rule()
    def all_workers_die(self) -> None:
        with self.db.write() as session:
            session.execute(
                update(BuildRow)
                .where(BuildRow.state == State.RUNNING.value)
                .values(lease_until=self.db.now(session) - timedelta(seconds=1))
            )
        self.reconciler.run_once()
        with self.db.read() as session:
            running = session.execute(
                select(BuildRow.id).where(BuildRow.state == State.RUNNING.value)
            ).all()
        assert running == []

    @rule()
    def dispatch(self) -> None:
        OutboxDispatcher(self.db, lambda m: self.sent.append(m.build_id)).run_once()

    # what must hold

    @invariant()
    def ended_is_ended_and_moves_are_in_the_table(self) -> None:
        with self.db.read() as session:
            rows = session.execute(select(JobRow.id, JobRow.state)).all()
        for job_id, text in rows:
            state, before = State(text), self.states.get(job_id, State.QUEUED)
            if before in TERMINAL:
                assert state is before
            elif state is not before:
                # several moves may lie between two looks
                assert can_move(before, state) or state in (State.QUEUED, State.RUNNING)
            self.states[job_id] = state

    @invariant()
    def jobs_and_builds_agree(self) -> None:
        with self.db.read() as session:
            builds = {b.id: b for b in session.execute(select(BuildRow)).scalars()}
            jobs = list(session.execute(select(JobRow)).scalars())
            made = list(session.execute(select(ArtifactRow.build_id)).scalars())
            owed = set(session.execute(select(OutboxRow.build_id)).scalars())
        for job in jobs:
            build = builds[job.build_id]
            if State(job.state) in ACTIVE:
                assert job.state == build.state
            if job.state == State.SUCCEEDED.value:
                assert build.state == State.SUCCEEDED.value
            assert (job.finished_at is None) == (State(job.state) in ACTIVE)
            assert (job.event_end is None) == (State(job.state) in ACTIVE)
        for build in builds.values():
            active = [j for j in jobs if j.build_id == build.id and State(j.state) in ACTIVE]
            if build.state == State.QUEUED.value:
                assert active, "a queued build is someone's"
                assert build.id in owed or build.id in self.sent
            if build.state == State.RUNNING.value and not active:
                assert build.cancel_requested
            if build.cancel_requested:
                assert build.cache_key is None
            assert made.count(build.id) == (build.state == State.SUCCEEDED.value)
            assert (build.lease_until is not None) == (build.state == State.RUNNING.value)

    @invariant()
    def streams_are_whole(self) -> None:
        with self.db.read() as session:
            rows = session.execute(select(EventRow).order_by(EventRow.build_id, EventRow.seq))
            events = list(rows.scalars())
            tops = dict(session.execute(select(BuildRow.id, BuildRow.event_seq)).all())
            jobs = [j.id for j in session.execute(select(JobRow)).scalars()]
        for event in events:
            assert 1 <= event.seq <= tops[event.build_id]
        for job_id in jobs:
            view = self.bench.jobs.get("default", job_id)
            assert view is not None
            stream = self.bench.jobs.events(view.job, 0)
            states = [State(e.data["state"]) for e in stream if "state" in e.data]
            assert states[0] is State.QUEUED
            assert states[-1] is view.job.state
            for before, after in itertools.pairwise(states):
                assert can_move(before, after), states

    @invariant()
    def one_build_answers_for_a_key(self) -> None:
        with self.db.read() as session:
            keys = list(
                session.execute(
                    select(BuildRow.key).where(BuildRow.cache_key.is_not(None))
                ).scalars()
            )
        assert len(keys) == len(set(keys))


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
