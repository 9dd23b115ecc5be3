"""An attempt at a build, from claim to artifacts, with stand-in engines on both databases."""

from __future__ import annotations

import hashlib
import subprocess
import threading
import time
from pathlib import Path

import pytest

from service.db import (
    ArtifactStore,
    Reconciler,
)
from service.domain import (
    DEFAULT_PROJECT,
    ArtifactKind,
    State,
)
from service.settings import Settings
from service.storage import scratch_folder
from worker.build import Builder, clean_scratch, scratch_root

from .house import MODEL, Make


def test_a_build_ends_with_artifacts_log_and_usage(house: Make) -> None:
    h = house("good")
    view = h.submit()
    assert h.builder.run(view.job.build_id)
    view = h.job(view.job.id)
    assert view.job.state is State.SUCCEEDED
    artifacts = ArtifactStore(h.db).of_builds([view.job.build_id])[view.job.build_id]
    assert {a.kind for a in artifacts} == {
        ArtifactKind.MBLT,
        ArtifactKind.MXQ,
        ArtifactKind.REPORT,
        ArtifactKind.LOG,
    }
    for artifact in artifacts:
        data = b"".join(h.store.read(artifact.sha256))
        assert hashlib.sha256(data).hexdigest() == artifact.sha256
        assert len(data) == artifact.size
    assert "a line on standard error" in h.log(view)
    (attempt,) = h.builds.attempts(view.job.build_id)
    assert attempt.peak_memory_bytes and attempt.cpu_seconds is not None
    assert list(scratch_root(h.settings).iterdir()) == []


def test_a_second_message_changes_nothing(house: Make) -> None:
    h = house("good")
    view = h.submit()
    assert h.builder.run(view.job.build_id)
    assert not h.builder.run(view.job.build_id)
    assert not h.builder.run("bld_unknown")
    assert len(h.builds.attempts(view.job.build_id)) == 1


def test_of_two_workers_one_has_the_build(house: Make) -> None:
    h = house("slow:0.5")
    view = h.submit()
    other = Builder(h.settings, h.builds, h.store, "test:2")
    got: list[bool] = []
    threads = [
        threading.Thread(target=lambda b=b: got.append(b.run(view.job.build_id)))  # type: ignore[misc]
        for b in (h.builder, other)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(got) == [False, True]
    assert h.job(view.job.id).job.state is State.SUCCEEDED


def test_the_engines_fault_is_the_jobs_error(house: Make) -> None:
    h = house("fault")
    view = h.submit()
    h.builder.run(view.job.build_id)
    job = h.job(view.job.id).job
    assert job.state is State.FAILED and job.failure is not None
    assert (job.failure.code, job.failure.hint) == ("MODEL_LOAD_ERROR", "give a model")


def test_a_run_limit_ends_timed_out(house: Make) -> None:
    h = house("hang")
    view = h.submit(run_limit_s=1)
    h.builder.run(view.job.build_id)
    job = h.job(view.job.id).job
    assert job.state is State.TIMED_OUT and job.failure is not None
    assert job.failure.code == "JOB_TIMEOUT"


@pytest.mark.parametrize("behaviour", ["hang", "ignore_sigterm"])
def test_cancel_kills_within_two_seconds(behaviour: str, house: Make) -> None:
    h = house(behaviour)
    view = h.submit()
    thread = threading.Thread(target=h.builder.run, args=(view.job.build_id,))
    thread.start()
    while h.job(view.job.id).job.state is not State.RUNNING:
        time.sleep(0.02)
    time.sleep(0.4)
    at = time.monotonic()
    h.jobs.cancel(DEFAULT_PROJECT, view.job.id)
    thread.join(10)
    assert time.monotonic() - at < 2.0
    assert h.job(view.job.id).job.state is State.CANCELLED


def test_a_compiler_killed_from_outside_is_tried_three_times(house: Make) -> None:
    h = house("killed")
    view = h.submit()
    states = []
    for _ in range(4):
        h.builder.run(view.job.build_id)
        states.append(h.job(view.job.id).job.state)
    assert states == [State.QUEUED, State.QUEUED, State.FAILED, State.FAILED]
    job = h.job(view.job.id).job
    assert job.failure is not None and job.failure.code == "WORKER_LOST"
    assert len(h.builds.attempts(view.job.build_id)) == 3


@pytest.mark.parametrize("behaviour", ["eat_memory", "need_memory"])
def test_a_build_short_of_memory_is_tried_once_more_in_the_largest_class(
    behaviour: str, house: Make, tmp_path: Path
) -> None:
    enough = tmp_path / "enough"
    h = house(behaviour if behaviour == "eat_memory" else f"{behaviour}:{enough}")
    classes = {"small": 100, "large": 200}
    h.builder.settings = h.settings.model_copy(update={"memory_classes": classes})
    # a limit that the caller asked for is final
    view = h.submit(queue="qb.stand-in.small", memory_limit_mb=80)
    h.builder.run(view.job.build_id)
    assert h.job(view.job.id).job.state is State.FAILED
    view = h.submit(queue="qb.stand-in.small")
    h.builder.run(view.job.build_id)
    build = h.builds.get(view.job.build_id)
    assert build is not None
    assert (build.state, build.queue) == (State.QUEUED, "qb.stand-in.large")
    # the attempt tells why, and no worker counts as lost
    (first,) = h.builds.attempts(build.id)
    assert first.failure is not None and first.failure.code == "RESOURCE_LIMIT"
    assert build.losses == 0
    enough.touch()
    h.builder.run(view.job.build_id)
    job = h.job(view.job.id).job
    if behaviour == "need_memory":
        assert job.state is State.SUCCEEDED
        return
    assert job.state is State.FAILED and job.failure is not None
    assert job.failure.details["limit_mb"] == 200 < job.failure.details["peak_mb"]


def test_a_stopping_worker_puts_the_build_back_uncounted(house: Make) -> None:
    h = house("hang")
    view = h.submit()
    thread = threading.Thread(target=h.builder.run, args=(view.job.build_id,))
    thread.start()
    while h.job(view.job.id).job.state is not State.RUNNING:
        time.sleep(0.02)
    h.builder.stopping.set()
    thread.join(10)
    build = h.builds.get(view.job.build_id)
    assert build is not None and build.state is State.QUEUED and build.losses == 0


def test_a_worker_that_lost_its_lease_drops_its_result(house: Make) -> None:
    """The slow one comes back after the build was given to another."""
    h = house("slow:1.5")
    view = h.submit()
    thread = threading.Thread(target=h.builder.run, args=(view.job.build_id,))
    thread.start()
    while h.job(view.job.id).job.state is not State.RUNNING:
        time.sleep(0.02)
    reconciler = Reconciler(h.db, h.settings.lease_policy())
    assert reconciler.expire_leases("test:1") == 1
    reconciler.run_once()
    second = h.builds.claim(view.job.build_id, "test:2")
    assert second is not None and second.fencing == 2
    thread.join(10)
    build = h.builds.get(view.job.build_id)
    assert build is not None and build.state is State.RUNNING and build.fencing == 2
    assert not ArtifactStore(h.db).of_builds([build.id]).get(build.id)


def test_a_missing_object_fails_with_no_path_told(house: Make) -> None:
    h = house("good")
    view = h.submit()
    h.store.delete(hashlib.sha256(MODEL).hexdigest())
    h.builder.run(view.job.build_id)
    job = h.job(view.job.id).job
    assert job.state is State.FAILED and job.failure is not None
    assert job.failure.code == "OUTPUT_WRITE_ERROR"
    assert "/" not in job.failure.message


def test_an_unknown_engine_is_named(house: Make) -> None:
    h = house("good")
    view = h.submit()
    bare = Builder(Settings(data_dir=h.settings.data_dir), h.builds, h.store, "test:3")
    bare.run(view.job.build_id)
    job = h.job(view.job.id).job
    assert job.failure is not None and "no engine 'stand-in'" in job.failure.message


def test_scratch_of_dead_workers_is_cleared(house: Make) -> None:
    """A dead worker's folder goes, and what its compiler had started; a living one's stays."""
    h = house("good")
    root = scratch_root(h.settings)
    left = root / "bld_x.1.abc"
    left.mkdir(parents=True)
    stray = subprocess.Popen(["sleep", "60"], env={"QBCOMPILER_RUN": str(left)})
    other = subprocess.Popen(["sleep", "60"], env={"QBCOMPILER_RUN": f"{left}d"})
    try:
        with scratch_folder(root, "bld_x.2.") as mine:
            assert clean_scratch(h.settings) == 1
            assert list(root.iterdir()) == [mine]
        assert stray.wait(5) == -9
        assert other.poll() is None
    finally:
        for process in (stray, other):
            process.kill()
            process.wait()
    assert not list(root.iterdir())
