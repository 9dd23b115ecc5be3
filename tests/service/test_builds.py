"""Claims, leases, fencing, ends and the reconciler, on both databases."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import func, select, update

from service.db import BuildStore, Database, Reconciler
from service.db.outbox import Message, OutboxDispatcher
from service.db.tables import BuildRow, JobRow, OutboxRow
from service.domain import (
    ArtifactKind,
    AttemptState,
    CacheAnswer,
    CacheMode,
    Claim,
    EventType,
    Failure,
    LeaseLost,
    LeasePolicy,
    Phase,
    State,
    StoredFile,
    Usage,
)

from .conftest import Bench, in_threads

MBLT = StoredFile(ArtifactKind.MBLT, "m.mblt", "b" * 64, 3)


def expire(db: Database, build_id: str, seconds: float = 1.0) -> None:
    with db.write() as session:
        session.execute(
            update(BuildRow)
            .where(BuildRow.id == build_id)
            .values(lease_until=db.now(session) - timedelta(seconds=seconds))
        )


def claimed(bench: Bench, **changes: object) -> tuple[str, Claim]:
    job = bench.jobs.submit(bench.new(**changes)).job  # type: ignore[arg-type]
    claim = bench.builds.claim(job.build_id, "w1")
    assert claim is not None
    return job.id, claim


def state_of(bench: Bench, job_id: str) -> State:
    view = bench.jobs.get("default", job_id)
    assert view is not None
    return view.job.state


def test_of_many_claimers_one_wins(bench: Bench) -> None:
    for variant in range(5):
        build_id = bench.jobs.submit(bench.new(variant)).build.id
        claims = in_threads(6, lambda i, b=build_id: bench.builds.claim(b, f"w{i}"))
        won = [c for c in claims if isinstance(c, Claim)]
        assert len(won) == 1, claims
        assert [c for c in claims if c is None] == [None] * 5
        assert won[0].fencing == 1
        attempts = bench.builds.attempts(build_id)
        assert [(a.number, a.worker) for a in attempts] == [(1, won[0].worker)]


def test_claimers_of_a_queue_get_different_builds(bench: Bench) -> None:
    ids = {bench.jobs.submit(bench.new(v)).build.id for v in range(6)}
    claims = in_threads(6, lambda i: bench.builds.claim_next("qb.qbcompiler", f"w{i}"))
    got = [c.build.id for c in claims if isinstance(c, Claim)]
    assert not [c for c in claims if isinstance(c, Exception)]
    assert len(got) == len(set(got))
    # on Postgres a claimer skips what another is looking at, and may find nothing left
    while (claim := bench.builds.claim_next("qb.qbcompiler", "w")) is not None:
        got.append(claim.build.id)
    assert set(got) == ids


def test_the_queue_is_served_by_priority_then_age(bench: Bench) -> None:
    low = bench.jobs.submit(bench.new(1, priority=1)).build.id
    first = bench.jobs.submit(bench.new(2, priority=5)).build.id
    second = bench.jobs.submit(bench.new(3, priority=5)).build.id
    other = bench.jobs.submit(bench.new(4, priority=9, queue="qb.other")).build.id
    positions = [
        view.queue_position
        for view in reversed(bench.jobs.page("default", _everything(), limit=10, cursor=None).items)
    ]
    assert positions == [2, 0, 1, 0]
    order = []
    while (claim := bench.builds.claim_next("qb.qbcompiler", "w")) is not None:
        order.append(claim.build.id)
    assert order == [first, second, low]
    assert bench.builds.claim(other, "w") is not None


def _everything() -> object:
    from service.db import JobFilter

    return JobFilter()


def test_a_build_runs_and_succeeds_once(bench: Bench) -> None:
    job_id, claim = claimed(bench)
    assert state_of(bench, job_id) is State.RUNNING
    bench.builds.progress(claim, phase=Phase.PARSE, current=1, total=4, message="x")
    bench.builds.progress(claim, phase=Phase.PARSE, current=2, total=4)
    bench.builds.append_log(claim, "one\n")
    answer = bench.builds.heartbeat(claim, Usage(1.5, 1000))
    assert (answer.cancel_requested, answer.run_limit_s) == (False, 100)
    view = bench.jobs.get("default", job_id)
    assert view is not None
    assert (view.build.phase, view.build.progress_current) == (Phase.PARSE, 2)
    assert view.build.lease_until is not None

    made = bench.builds.succeed(claim, [MBLT], {"seconds": 1}, Usage(2.5, 2000))
    assert [a.kind for a in made] == [ArtifactKind.MBLT]
    view = bench.jobs.get("default", job_id)
    assert view is not None
    assert view.job.state is view.build.state is State.SUCCEEDED
    assert view.job.finished_at == view.build.finished_at
    assert view.build.summary == {"seconds": 1}
    assert view.build.lease_until is None
    (attempt,) = bench.builds.attempts(claim.build.id)
    assert attempt.state is AttemptState.SUCCEEDED
    assert (attempt.cpu_seconds, attempt.peak_memory_bytes) == (2.5, 2000)

    for again in (
        lambda: bench.builds.succeed(claim, [MBLT]),
        lambda: bench.builds.fail(claim, Failure("INTERNAL_ERROR", "x")),
        lambda: bench.builds.heartbeat(claim),
        lambda: bench.builds.progress(claim, phase=Phase.STORE),
        lambda: bench.builds.append_log(claim, "late\n"),
        lambda: bench.builds.release(claim),
    ):
        with pytest.raises(LeaseLost):
            again()
    assert state_of(bench, job_id) is State.SUCCEEDED


def test_events_are_numbered_without_gaps_to_fall_into(bench: Bench) -> None:
    job_id, claim = claimed(bench)

    def write(index: int) -> None:
        for n in range(10):
            if index % 2:
                bench.builds.append_log(claim, f"{index} {n}\n")
            else:
                bench.builds.progress(claim, phase=Phase.PARSE, current=n, total=10)

    assert in_threads(4, write) == [None] * 4
    view = bench.jobs.get("default", job_id)
    assert view is not None
    numbers = [e.seq for e in bench.jobs.events(view.job, 0)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert view.build.event_seq == numbers[-1]
    log = "".join(str(e.data["text"]) for e in bench.jobs.log_chunks(claim.build.id, 0))
    assert sorted(log.splitlines()) == sorted(f"{i} {n}" for i in (1, 3) for n in range(10))
    # from the middle on
    rest = [e.seq for e in bench.jobs.events(view.job, numbers[20])]
    assert rest == numbers[21:]
    bench.builds.succeed(claim, [])
    kinds = {e.type for e in bench.jobs.events(view.job, 0)}
    assert EventType.PROGRESS not in kinds


def test_the_log_is_bounded_and_says_so(db: Database) -> None:
    bench = Bench(db, LeasePolicy(max_log_bytes=4096))
    _, claim = claimed(bench)
    for _ in range(10):
        bench.builds.append_log(claim, "ä" * 500 + "\n")
    bench.builds.append_log(claim, "a\0b")
    text = "".join(str(e.data["text"]) for e in bench.jobs.log_chunks(claim.build.id, 0))
    assert 4090 < len(text.encode()) < 4300
    assert text.count("the log is cut here") == 1


def test_what_an_engine_says_is_made_fit(bench: Bench) -> None:
    job_id, claim = claimed(bench)
    bench.builds.append_log(claim, "bad \ud800 and \0\n")
    bench.builds.progress(claim, phase=Phase.PARSE, current=1, message="\udfff")
    summary = {
        "nan": float("nan"), "inf": [float("-inf")], "big": 1 << 70, "s\0": "\ud800",
        "object": object, "fine": {"a": [1, 2.5, None, True]},
    }  # fmt: skip
    deep: dict[str, object] = {}
    for _ in range(200):
        deep = {"d": deep}
    summary["deep"] = deep
    bench.builds.succeed(claim, [replace(MBLT, name="a\0.mblt")], summary)
    view = bench.jobs.get("default", job_id)
    assert view is not None and view.build.summary is not None
    found = view.build.summary
    assert (found["nan"], found["inf"], found["fine"]) == (None, [None], summary["fine"])
    assert found["s\ufffd"] == "?"
    _, claim = claimed(bench, variant=2)
    failure = Failure("X" * 100, "\ud800" * 9000, {"x": "y" * 100_000}, "\0")
    bench.builds.fail(claim, failure)
    build = bench.builds.get(claim.build.id)
    assert build is not None and build.failure is not None
    assert len(build.failure.message) == 4000
    assert "left_out" in build.failure.details


def test_a_compiler_killed_from_outside_counts_like_a_lost_worker(bench: Bench) -> None:
    job = bench.jobs.submit(bench.new()).job
    failure = Failure("RESOURCE_LIMIT", "killed")
    for number in (1, 2, 3):
        claim = bench.builds.claim(job.build_id, "w")
        assert claim is not None
        bench.builds.lose(claim, failure)
        assert state_of(bench, job.id) is (State.FAILED if number == 3 else State.QUEUED)
    view = bench.jobs.get("default", job.id)
    assert view is not None and view.job.failure == failure
    assert view.build.losses == 3


def test_a_lost_worker_puts_the_build_back_and_its_writes_change_nothing(bench: Bench) -> None:
    job_id, claim = claimed(bench)
    reconciler = Reconciler(bench.db, bench.policy)
    assert reconciler.run_once().empty
    expire(bench.db, claim.build.id)
    assert reconciler.run_once().requeued == (claim.build.id,)
    assert state_of(bench, job_id) is State.QUEUED
    with pytest.raises(LeaseLost):
        bench.builds.succeed(claim, [MBLT])
    second = bench.builds.claim(claim.build.id, "w2")
    assert second is not None
    assert second.fencing == 2
    with pytest.raises(LeaseLost):
        bench.builds.succeed(claim, [MBLT])
    with pytest.raises(LeaseLost):
        bench.builds.append_log(claim, "zombie\n")
    bench.builds.succeed(second, [MBLT])
    states = [a.state for a in bench.builds.attempts(claim.build.id)]
    assert states == [AttemptState.LOST, AttemptState.SUCCEEDED]
    view = bench.jobs.get("default", job_id)
    assert view is not None
    assert view.build.losses == 1
    shown = [e.data["state"] for e in bench.jobs.events(view.job, 0) if e.type is EventType.STATE]
    assert shown == ["queued", "running", "queued", "running", "succeeded"]


def test_a_heartbeat_in_time_keeps_the_build(bench: Bench) -> None:
    _, claim = claimed(bench)
    expire(bench.db, claim.build.id)
    # late, but nobody has taken it away yet
    bench.builds.heartbeat(claim)
    assert Reconciler(bench.db, bench.policy).run_once().empty
    bench.builds.succeed(claim, [])


def test_three_losses_are_too_many(bench: Bench) -> None:
    job = bench.jobs.submit(bench.new()).job
    reconciler = Reconciler(bench.db, bench.policy)
    for number in (1, 2, 3):
        claim = bench.builds.claim(job.build_id, f"w{number}")
        assert claim is not None and claim.fencing == number
        expire(bench.db, job.build_id)
        report = reconciler.run_once()
        assert (report.lost if number == 3 else report.requeued) == (job.build_id,)
    view = bench.jobs.get("default", job.id)
    assert view is not None and view.job.failure is not None
    assert view.job.state is State.FAILED
    assert view.job.failure.code == "WORKER_LOST"
    assert view.job.failure.details["losses"] == 3
    assert view.build.cache_key is None
    # not cached: the next request tries again
    assert bench.jobs.submit(bench.new()).job.cache is CacheAnswer.MISS


def test_two_reconcilers_put_a_build_back_once(bench: Bench) -> None:
    _, claim = claimed(bench)
    expire(bench.db, claim.build.id)
    reports = in_threads(4, lambda _: Reconciler(bench.db, bench.policy).run_once())
    assert [r.requeued for r in reports if not isinstance(r, Exception)].count(  # type: ignore[attr-defined]
        (claim.build.id,)
    ) == 1
    assert not [r for r in reports if isinstance(r, Exception)], reports
    build = bench.builds.get(claim.build.id)
    assert build is not None and build.losses == 1


def test_release_puts_back_without_counting(bench: Bench) -> None:
    job_id, claim = claimed(bench)
    bench.builds.release(claim, Usage(1.0, 5))
    build = bench.builds.get(claim.build.id)
    assert build is not None
    assert (build.state, build.losses, build.worker) == (State.QUEUED, 0, None)
    assert state_of(bench, job_id) is State.QUEUED
    assert bench.builds.attempts(build.id)[0].state is AttemptState.RELEASED


def test_a_worker_that_ends_while_the_reconciler_looks(bench: Bench) -> None:
    for variant in range(8):
        job_id, claim = claimed(bench, variant=variant)
        expire(bench.db, claim.build.id)

        def work(index: int, claim: Claim = claim) -> object:
            if index == 0:
                return bench.builds.succeed(claim, [MBLT])
            return Reconciler(bench.db, bench.policy).run_once()

        ended, report = in_threads(2, work)
        if isinstance(ended, LeaseLost):
            assert state_of(bench, job_id) is State.QUEUED
            assert report.requeued == (claim.build.id,)  # type: ignore[attr-defined]
        else:
            assert isinstance(ended, list), ended
            assert state_of(bench, job_id) is State.SUCCEEDED
            assert report.requeued == ()  # type: ignore[attr-defined]


def test_cancel_before_the_start(bench: Bench) -> None:
    job = bench.jobs.submit(bench.new()).job
    view = bench.jobs.cancel("default", job.id)
    assert view.job.state is view.build.state is State.CANCELLED
    assert bench.builds.claim(job.build_id, "w") is None
    assert bench.jobs.cancel("default", job.id).job.state is State.CANCELLED


def test_cancel_while_it_runs_kills_only_with_the_last_job(bench: Bench) -> None:
    first, claim = claimed(bench)
    second = bench.jobs.submit(bench.new()).job
    assert second.cache is CacheAnswer.JOINED
    assert second.state is State.RUNNING
    assert bench.jobs.cancel("default", first).job.state is State.CANCELLED
    assert not bench.builds.heartbeat(claim).cancel_requested
    bench.jobs.cancel("default", second.id)
    assert bench.builds.heartbeat(claim).cancel_requested
    # nobody joins what is being killed
    third = bench.jobs.submit(bench.new()).job
    assert third.cache is CacheAnswer.MISS
    assert third.build_id != claim.build.id
    bench.builds.cancelled(claim)
    build = bench.builds.get(claim.build.id)
    assert build is not None and build.state is State.CANCELLED
    assert state_of(bench, third.id) is State.QUEUED


def test_a_cancelled_build_that_is_given_back_ends(bench: Bench) -> None:
    job_id, claim = claimed(bench)
    bench.jobs.cancel("default", job_id)
    bench.builds.release(claim)
    build = bench.builds.get(claim.build.id)
    assert build is not None and build.state is State.CANCELLED
    assert bench.builds.claim_next("qb.qbcompiler", "w") is None


def test_a_cancelled_build_whose_worker_died_ends(bench: Bench) -> None:
    job_id, claim = claimed(bench)
    bench.jobs.cancel("default", job_id)
    expire(bench.db, claim.build.id)
    assert Reconciler(bench.db, bench.policy).run_once().cancelled == (claim.build.id,)
    build = bench.builds.get(claim.build.id)
    assert build is not None and build.state is State.CANCELLED


def test_cancel_and_success_at_once_end_in_one_of_both(bench: Bench) -> None:
    from service.domain import ServiceError

    for variant in range(8):
        job_id, claim = claimed(bench, variant=variant)

        def work(index: int, claim: Claim = claim, job_id: str = job_id) -> object:
            if index == 0:
                return bench.builds.succeed(claim, [MBLT])
            return bench.jobs.cancel("default", job_id)

        ended, cancelled = in_threads(2, work)
        state = state_of(bench, job_id)
        assert isinstance(ended, list), ended
        if isinstance(cancelled, ServiceError):
            assert cancelled.code == "CONFLICT"
            assert state is State.SUCCEEDED
        else:
            assert state is State.CANCELLED


def test_waiting_too_long_ends_the_job_and_the_build_with_the_last(bench: Bench) -> None:
    short = bench.jobs.submit(bench.new(queue_limit_s=1)).job
    long = bench.jobs.submit(bench.new(queue_limit_s=1000)).job
    reconciler = Reconciler(bench.db, bench.policy)
    assert reconciler.run_once().timed_out == ()
    _overdue(bench, short.id)
    assert reconciler.run_once().timed_out == (short.id,)
    view = bench.jobs.get("default", short.id)
    assert view is not None and view.job.failure is not None
    assert view.job.state is State.TIMED_OUT
    assert (view.job.failure.code, view.job.failure.details["limit"]) == ("JOB_TIMEOUT", "queue_s")
    assert view.build.state is State.QUEUED
    _overdue(bench, long.id)
    reconciler.run_once()
    build = bench.builds.get(long.build_id)
    assert build is not None and build.state is State.TIMED_OUT
    assert build.cache_key is None


def _overdue(bench: Bench, job_id: str) -> None:
    with bench.db.write() as session:
        session.execute(
            update(JobRow)
            .where(JobRow.id == job_id)
            .values(queue_deadline=bench.db.now(session) - timedelta(seconds=1))
        )


def test_joining_raises_limits_and_priority(bench: Bench) -> None:
    _, claim = claimed(bench, run_limit_s=50, memory_limit_mb=100)
    bench.jobs.submit(bench.new(run_limit_s=70, memory_limit_mb=80, priority=9))
    answer = bench.builds.heartbeat(claim)
    assert (answer.run_limit_s, answer.memory_limit_mb) == (70, 100)
    bench.jobs.submit(bench.new(run_limit_s=10, memory_limit_mb=None))
    answer = bench.builds.heartbeat(claim)
    assert (answer.run_limit_s, answer.memory_limit_mb) == (70, None)
    build = bench.builds.get(claim.build.id)
    assert build is not None and build.priority == 9


def test_time_out_of_a_run_is_not_cached(bench: Bench) -> None:
    job_id, claim = claimed(bench)
    bench.builds.time_out(claim, Failure("JOB_TIMEOUT", "ran 100 s", {"limit": "run_s"}))
    assert state_of(bench, job_id) is State.TIMED_OUT
    assert bench.jobs.submit(bench.new()).job.cache is CacheAnswer.MISS


# the outbox ---------------------------------------------------------------------------------


def outbox(db: Database) -> int:
    with db.read() as session:
        return session.execute(select(func.count()).select_from(OutboxRow)).scalar_one()


def test_messages_go_out_after_the_commit_and_once(bench: Bench) -> None:
    build_id = bench.jobs.submit(bench.new(priority=7)).build.id
    bench.jobs.submit(bench.new())
    sent: list[Message] = []
    dispatcher = OutboxDispatcher(bench.db, sent.append)
    assert dispatcher.run_once() == 1
    assert dispatcher.run_once() == 0
    assert sent == [Message(build_id, "qb.qbcompiler", 7)]


def test_a_request_that_is_refused_owes_no_message(bench: Bench) -> None:
    from service.domain import ServiceError

    bench.models.delete("default", bench.model.id)
    with pytest.raises(ServiceError, match="there is no model"):
        bench.jobs.submit(bench.new())
    assert outbox(bench.db) == 0


def test_a_broker_that_is_down_puts_messages_off_and_loses_none(bench: Bench) -> None:
    for variant in range(3):
        bench.jobs.submit(bench.new(variant))
    tried: list[Message] = []

    def down(message: Message) -> None:
        tried.append(message)
        raise ConnectionError("refused")

    assert OutboxDispatcher(bench.db, down).run_once() == 0
    # the first one shows that the broker is down
    assert len(tried) == 1
    assert outbox(bench.db) == 3
    with bench.db.write() as session:
        row = session.execute(select(OutboxRow).order_by(OutboxRow.id).limit(1)).scalar_one()
        assert row.tries == 1
        assert row.last_error == "ConnectionError: refused"
        assert row.not_before > row.created_at
        row.not_before = row.created_at
    sent: list[Message] = []
    assert OutboxDispatcher(bench.db, sent.append).run_once() == 3
    assert outbox(bench.db) == 0


def test_a_lost_message_is_sent_again(db: Database) -> None:
    bench = Bench(db, LeasePolicy(resend_seconds=60))
    build_id = bench.jobs.submit(bench.new()).build.id
    OutboxDispatcher(db, lambda _: None).run_once()
    reconciler = Reconciler(db, bench.policy)
    assert reconciler.run_once().announced == ()
    with db.write() as session:
        session.execute(
            update(BuildRow).values(announced_at=db.now(session) - timedelta(seconds=61))
        )
    assert reconciler.run_once().announced == (build_id,)
    assert reconciler.run_once().announced == ()
    sent: list[Message] = []
    OutboxDispatcher(db, sent.append).run_once()
    assert [m.build_id for m in sent] == [build_id]


def test_requeueing_owes_a_message(bench: Bench) -> None:
    _, claim = claimed(bench)
    sent: list[Message] = []
    OutboxDispatcher(bench.db, sent.append).run_once()
    bench.builds.release(claim)
    OutboxDispatcher(bench.db, sent.append).run_once()
    assert [m.build_id for m in sent] == [claim.build.id] * 2


# the cache ----------------------------------------------------------------------------------


def test_of_identical_requests_at_once_one_builds(bench: Bench) -> None:
    for variant in range(4):
        made = in_threads(6, lambda _, v=variant: bench.jobs.submit(bench.new(v)))
        assert not [m for m in made if isinstance(m, Exception)], made
        assert len({m.build.id for m in made}) == 1  # type: ignore[attr-defined]
        answers = sorted(m.job.cache.value for m in made)  # type: ignore[attr-defined]
        assert answers == ["joined"] * 5 + ["miss"]


def test_a_finished_build_answers_at_once(bench: Bench) -> None:
    _, claim = claimed(bench)
    bench.builds.append_log(claim, "hello\n")
    bench.builds.succeed(claim, [MBLT])
    hit = bench.jobs.submit(bench.new())
    assert hit.job.cache is CacheAnswer.HIT
    assert hit.job.state is State.SUCCEEDED
    assert hit.build.id == claim.build.id
    events = bench.jobs.events(hit.job, 0)
    assert [e.data["state"] for e in events] == ["queued", "succeeded"]
    assert events[-1].seq == hit.job.event_end
    # a job that came before sees none of that
    first = bench.jobs.page("default", _everything(), limit=1, cursor=None)  # type: ignore[arg-type]
    assert first.items[0].job.id == hit.job.id


def test_a_fault_of_the_input_answers_too_and_one_of_ours_does_not(bench: Bench) -> None:
    _, claim = claimed(bench, variant=1)
    bench.builds.fail(claim, Failure("UNSUPPORTED_OPERATOR", "layer x", {"layer": "x"}))
    hit = bench.jobs.submit(bench.new(1)).job
    assert (hit.cache, hit.state) == (CacheAnswer.HIT, State.FAILED)
    assert hit.failure is not None and hit.failure.details == {"layer": "x"}
    _, claim = claimed(bench, variant=2)
    bench.builds.fail(claim, Failure("INTERNAL_ERROR", "oops"))
    assert bench.jobs.submit(bench.new(2)).job.cache is CacheAnswer.MISS


def test_refresh_builds_again_compares_and_takes_over(bench: Bench) -> None:
    _, claim = claimed(bench)
    bench.builds.succeed(claim, [MBLT])
    again = bench.jobs.submit(bench.new(cache=CacheMode.REFRESH))
    assert again.job.cache is CacheAnswer.MISS
    assert again.build.refresh_of == claim.build.id
    # until it has ended, the old one answers
    assert bench.jobs.submit(bench.new()).build.id == claim.build.id
    second = bench.builds.claim(again.build.id, "w")
    assert second is not None
    bench.builds.succeed(second, [replace(MBLT, sha256="c" * 64)])
    build = bench.builds.get(again.build.id)
    assert build is not None and build.summary is not None
    assert build.summary["refresh"] == {
        "build_id": claim.build.id,
        "bytes_agree": False,
        "differs": ["mblt"],
    }
    assert bench.jobs.submit(bench.new()).build.id == again.build.id


def test_refreshes_that_end_together_leave_one_answer(bench: Bench) -> None:
    _, claim = claimed(bench)
    bench.builds.succeed(claim, [MBLT])
    claims = []
    for _ in range(4):
        build_id = bench.jobs.submit(bench.new(cache=CacheMode.REFRESH)).build.id
        claims.append(bench.builds.claim(build_id, "w"))
    ended = in_threads(4, lambda i: bench.builds.succeed(claims[i], [MBLT]))  # type: ignore[arg-type]
    assert not [e for e in ended if isinstance(e, Exception)], ended
    with bench.db.read() as session:
        holders = session.execute(
            select(func.count()).select_from(BuildRow).where(BuildRow.cache_key.is_not(None))
        ).scalar_one()
    assert holders == 1


def test_off_shares_in_neither_direction(bench: Bench) -> None:
    off = bench.jobs.submit(bench.new(cache=CacheMode.OFF))
    assert off.build.cache_key is None
    on = bench.jobs.submit(bench.new())
    assert on.build.id != off.build.id
    assert on.job.cache is CacheAnswer.MISS


def test_builds_are_not_shared_between_projects(bench: Bench) -> None:
    from service.db import TokenStore
    from service.domain import Role

    TokenStore(bench.db).create(project="other", name="t", role=Role.BUILDER)
    _, claim = claimed(bench)
    bench.builds.succeed(claim, [MBLT])
    other = bench.jobs.submit(bench.new(project="other", model_id=None))
    assert other.job.cache is CacheAnswer.MISS
    assert bench.jobs.get("other", other.job.id) is not None
    assert bench.jobs.get("default", other.job.id) is None


def test_the_store_is_the_same_from_another_process(bench: Bench, any_database_url: str) -> None:
    other = Database(any_database_url)
    try:
        job = bench.jobs.submit(bench.new()).job
        claim = BuildStore(other).claim(job.build_id, "elsewhere")
        assert claim is not None
        assert bench.builds.claim(job.build_id, "here") is None
        assert claim.build.spec == bench.spec()
    finally:
        other.close()
