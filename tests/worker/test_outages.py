"""What an attempt does while its surroundings fail: store, database, disk and clock."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from service.db import ArtifactStore, JobView
from service.domain import DEFAULT_PROJECT, ArtifactKind, Claim, State
from service.storage import LocalStore, StorageError
from service.storage.port import storage_full
from worker.build import Builder, scratch_root
from worker.metrics import Observed, WorkerMetrics
from worker.reporter import Reporter

from .house import House, Make

pytestmark = pytest.mark.parametrize("any_database_url", ["sqlite"], indirect=True)


@dataclass
class Unsteady:
    """An object store in front of which something stands: ``get`` and ``put`` are called first."""

    inner: LocalStore
    get: Callable[[], None] = lambda: None
    put: Callable[[], None] = lambda: None
    cut: list[int] = field(default_factory=list)
    """After so many bytes the next reads break off."""

    def put_file(self, path: Path, sha256: str) -> None:
        self.put()
        self.inner.put_file(path, sha256)

    def read(self, sha256: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        self.get()
        chunks = self.inner.read(sha256, start, stop)
        return chunks if not self.cut else self._broken(chunks, self.cut.pop())

    def _broken(self, chunks: Iterator[bytes], after: int) -> Iterator[bytes]:
        yield b"".join(chunks)[:after]
        raise StorageError("cannot read an object: IncompleteReadError")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def refuse(times: int) -> Callable[[], None]:
    left = [times]

    def call() -> None:
        if left[0] > 0:
            left[0] -= 1
            raise StorageError("cannot reach the store: the object store answered SlowDown")

    return call


def unsteady(h: House, outage_seconds: float = 20.0, **how: Any) -> tuple[Builder, Unsteady]:
    store = Unsteady(h.store, **how)
    settings = h.settings.model_copy(update={"outage_seconds": outage_seconds})
    return replace(h.builder, settings=settings, store=store), store


def check_success(h: House, view: JobView) -> None:
    """The job succeeded, once, with whole artifacts of the right input, and left no file."""
    job = h.job(view.job.id).job
    assert job.state is State.SUCCEEDED, job
    artifacts = ArtifactStore(h.db).of_builds([view.job.build_id])[view.job.build_id]
    kinds = [a.kind for a in artifacts]
    assert sorted(kinds) == sorted(set(kinds)) and ArtifactKind.MXQ in kinds
    model = hashlib.sha256(b"a model, as far as the stand-in can tell").hexdigest()
    for artifact in artifacts:
        data = b"".join(h.store.read(artifact.sha256))
        assert hashlib.sha256(data).hexdigest() == artifact.sha256
        if artifact.kind is ArtifactKind.MXQ:
            assert data == f".mxq of {model}".encode()
    check_clean(h)


def check_clean(h: House) -> None:
    assert list(scratch_root(h.settings).iterdir()) == []


def database_error() -> OperationalError:
    return OperationalError("…", None, Exception("server closed the connection unexpectedly"))


# the object store ---------------------------------------------------------------------------


def test_a_store_that_refuses_for_a_while_costs_nothing(house: Make) -> None:
    h = house("good")
    builder, _ = unsteady(h, get=refuse(2), put=refuse(2))
    view = h.submit()
    assert builder.run(view.job.build_id)
    check_success(h, view)
    assert len(h.builds.attempts(view.job.build_id)) == 1


def test_a_connection_cut_in_the_middle_leaves_no_half_input(house: Make) -> None:
    h = house("good")
    builder, _ = unsteady(h, cut=[7, 0])
    view = h.submit()
    assert builder.run(view.job.build_id)
    check_success(h, view)


@pytest.mark.parametrize("side", ["get", "put"])
def test_a_store_that_stays_away_fails_the_job_with_no_address_told(side: str, house: Make) -> None:
    h = house("good")
    builder, _ = unsteady(h, outage_seconds=0.3, **{side: refuse(10**6)})
    view = h.submit()
    assert builder.run(view.job.build_id)
    job = h.job(view.job.id).job
    assert job.state is State.FAILED and job.failure is not None
    assert job.failure.code == "OUTPUT_WRITE_ERROR" and "SlowDown" not in job.failure.message
    assert not ArtifactStore(h.db).of_builds([view.job.build_id]).get(view.job.build_id)
    check_clean(h)


def test_a_full_store_fails_at_once_and_says_so(house: Make) -> None:
    def full() -> None:
        raise storage_full("the file")

    h = house("good")
    builder, _ = unsteady(h, put=full)
    view = h.submit()
    began = time.monotonic()
    assert builder.run(view.job.build_id)
    assert time.monotonic() - began < 10
    job = h.job(view.job.id).job
    assert job.state is State.FAILED and job.failure is not None
    assert job.failure.code == "OUTPUT_WRITE_ERROR" and "no space" in job.failure.message
    check_clean(h)


@pytest.mark.parametrize("side", ["get", "put"])
@pytest.mark.parametrize("why", ["cancel", "limit", "stop"])
def test_a_store_that_hangs_holds_up_no_end(side: str, why: str, house: Make) -> None:
    """Cancel, run limit and stop take effect while bytes are moved."""
    h = house("good")
    hung, release = threading.Event(), threading.Event()

    def hang() -> None:
        hung.set()
        release.wait(30)

    builder, _ = unsteady(h, **{side: hang})
    view = h.submit(run_limit_s=2 if why == "limit" else 60)
    thread = threading.Thread(target=builder.run, args=(view.job.build_id,))
    thread.start()
    try:
        assert hung.wait(20)
        at = time.monotonic()
        if why == "cancel":
            h.jobs.cancel(DEFAULT_PROJECT, view.job.id)
        elif why == "stop":
            builder.stopping.set()
        thread.join(10)
        assert not thread.is_alive()
        assert time.monotonic() - at < (4 if why == "limit" else 2)
    finally:
        release.set()
    state = h.job(view.job.id).job.state
    assert state is {
        "cancel": State.CANCELLED, "limit": State.TIMED_OUT, "stop": State.QUEUED
    }[why]  # fmt: skip
    check_clean(h)


# the database -------------------------------------------------------------------------------


def test_a_database_away_at_the_end_does_not_cost_the_work(
    house: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = house("good")
    succeed, left = h.builds.succeed, [3]

    def away(*args: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise database_error()
        return succeed(*args)

    monkeypatch.setattr(h.builds, "succeed", away)
    view = h.submit()
    assert h.builder.run(view.job.build_id)
    check_success(h, view)
    assert len(h.builds.attempts(view.job.build_id)) == 1


def test_a_commit_whose_answer_is_lost_ends_the_job_once(
    house: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try finds that the build has ended, and changes nothing."""
    h = house("good")
    succeed, calls = h.builds.succeed, []

    def unheard(*args: Any) -> Any:
        calls.append(1)
        found = succeed(*args)
        if len(calls) == 1:
            raise database_error()
        return found

    monkeypatch.setattr(h.builds, "succeed", unheard)
    view = h.submit()
    assert h.builder.run(view.job.build_id)
    assert len(calls) == 2
    check_success(h, view)


def test_a_database_away_for_longer_than_a_lease_leaves_the_compiler_alone(
    house: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can take the build meanwhile, so the attempt goes on and ends well."""
    h = house("slow:1.5")
    settings = h.settings.model_copy(update={"lease_seconds": 0.4})
    builder = replace(h.builder, settings=settings)
    heartbeat, since = h.builds.heartbeat, time.monotonic()

    def away(claim: Claim) -> Any:
        if time.monotonic() - since < 1.4:
            raise database_error()
        return heartbeat(claim)

    monkeypatch.setattr(h.builds, "heartbeat", away)
    view = h.submit()
    assert builder.run(view.job.build_id)
    check_success(h, view)


def test_a_database_that_stays_away_ends_the_compiler(
    house: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = house("hang")
    settings = h.settings.model_copy(update={"lease_seconds": 0.3, "outage_seconds": 0.3})
    builder = replace(h.builder, settings=settings)

    def away(*_: Any, **__: Any) -> Any:
        raise database_error()

    view = h.submit()
    for name in ("heartbeat", "progress", "append_log", "release"):
        monkeypatch.setattr(h.builds, name, away)
    began = time.monotonic()
    assert builder.run(view.job.build_id)
    assert time.monotonic() - began < 10
    # still claimed: the reconciler puts it back when the lease runs out
    assert h.job(view.job.id).job.state is State.RUNNING
    check_clean(h)


# the disk -----------------------------------------------------------------------------------


def test_a_log_on_a_full_disk_costs_only_the_file(house: Make) -> None:
    """``/dev/full`` answers each write with ENOSPC; the database has the text."""
    h = house("good")
    view = h.submit()
    claim = h.builds.claim(view.job.build_id, "test:1")
    assert claim is not None
    reporter = Reporter(h.builds, claim, Path("/dev/full"), 1 << 20, Observed(WorkerMetrics()))
    reporter.log("one")
    reporter.log("two")
    reporter.flush()
    assert reporter.finish() is None
    assert h.log(view) == "one\ntwo\n"


def test_no_folder_to_work_in_fails_the_job(house: Make) -> None:
    h = house("good")
    root = scratch_root(h.settings)
    root.parent.mkdir(parents=True)
    root.write_text("a file where the folder should be")
    view = h.submit()
    assert h.builder.run(view.job.build_id)
    job = h.job(view.job.id).job
    assert job.state is State.FAILED and job.failure is not None
    assert job.failure.code == "OUTPUT_WRITE_ERROR" and str(root) not in job.failure.message
