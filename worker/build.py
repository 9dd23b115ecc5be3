"""One attempt at a build: claim, fetch, run the engine, store, end."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from service.db import BuildStore
from service.domain import (
    ArtifactKind,
    BuildSpec,
    Claim,
    Failure,
    HeartbeatAnswer,
    LeaseLost,
    Phase,
    ServiceError,
    StoredFile,
)
from service.settings import Settings
from service.storage import (
    ObjectStore,
    StorageError,
    fetch_calibration,
    fetch_model,
)

from .engine import Control, Ending, EngineError, Inputs, Outcome, build_command, run_engine
from .engine.command import engine_command, engine_env, engine_sandbox

__all__ = ["Builder", "scratch_root"]

_log = logging.getLogger(__name__)

_PROGRESS_EVERY = 0.25
_LOG_EVERY = 0.3
_LOG_BATCH = 64 << 10
_STORE_TRIES = 4
_MEDIA = {
    ArtifactKind.REPORT: "application/json",
    ArtifactKind.CONFIG: "application/json",
    ArtifactKind.LOG: "text/plain; charset=utf-8",
}
# the compiler's own provenance file repeats what the caller gave; the service keeps that with
# the job, for a build may serve many callers
_NOT_KEPT = frozenset({"provenance"})


def scratch_root(settings: Settings) -> Path:
    """Return the folder in which each attempt has one of its own."""
    return settings.scratch_dir / "builds"


@dataclass
class Builder:
    """Does builds, one at a time for each thread that calls it.

    Attributes:
        settings: limits, engines, folders.
        builds: the claim and its writes.
        store: objects in and out.
        worker: this worker's name, as attempts show it.
        stopping: set when the worker shuts down; running builds go back to the queue.
    """

    settings: Settings
    builds: BuildStore
    store: ObjectStore
    worker: str
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self, build_id: str) -> bool:
        """Do a build, unless it is not to be had; say whether it was claimed.

        A message may be late, doubled or about a build that another worker has: then there is
        nothing to claim and nothing happens.
        """
        if self.stopping.is_set():
            return False
        claim = self.builds.claim(build_id, self.worker)
        if claim is None:
            _log.info("build %s is not to be claimed", build_id)
            return False
        _log.info("build %s: attempt %d", build_id, claim.fencing)
        try:
            self._attempt(claim)
        except LeaseLost:
            _log.warning("build %s: lease of attempt %d lost, result dropped", build_id,
                         claim.fencing)  # fmt: skip
        return True

    def _attempt(self, claim: Claim) -> None:
        root = scratch_root(self.settings)
        root.mkdir(parents=True, exist_ok=True)
        # the folder's name says whose it is, so that the cleaner can tell an orphan
        scratch = Path(
            tempfile.mkdtemp(prefix=f"{claim.build.id}.{claim.fencing}.{os.getpid()}.", dir=root)
        )
        reporter = _Reporter(self.builds, claim, scratch / "log.txt", self.settings.max_log_bytes)
        control = self._control(claim)
        try:
            with _Heart(self, claim, control, reporter):
                outcome = self._make(claim, scratch, control, reporter)
                if outcome.ending is Ending.SUCCEEDED:
                    self._succeed(claim, outcome, reporter)
                    return
            self._end(claim, outcome, reporter)
        except LeaseLost:
            raise
        except (StorageError, ServiceError, OSError) as exc:
            reporter.flush()
            self.builds.fail(claim, _storage_failure(exc))
        except DBAPIError:
            # the database is away: the lease runs out and the reconciler puts the build back
            _log.exception("build %s: the database failed", claim.build.id)
        except Exception:
            _log.exception("build %s: a fault of ours", claim.build.id)
            reporter.flush()
            self.builds.fail(
                claim,
                Failure(
                    "INTERNAL_ERROR",
                    "a fault of the worker's; its log has the details",
                    details={"attempt": claim.fencing},
                ),
            )
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _control(self, claim: Claim) -> Control:
        return Control(
            stop=self.stopping if not self.stopping.is_set() else threading.Event(),
            run_limit_s=claim.build.run_limit_s,
            memory_limit_mb=claim.build.memory_limit_mb or self.settings.memory_limit_mb,
            disk_limit_mb=self.settings.disk_limit_mb,
        )

    def _make(self, claim: Claim, scratch: Path, control: Control, reporter: _Reporter) -> Outcome:
        spec = claim.build.spec
        inputs = self._fetch(spec, scratch)
        if control.cancel.is_set():
            return Outcome(Ending.CANCELLED)
        try:
            engine = engine_command(self.settings, spec.engine)
        except EngineError as exc:
            return Outcome(Ending.FAILED, failure=Failure("INTERNAL_ERROR", str(exc)))
        reporter.log(f"engine {spec.engine} {spec.engine_version}, attempt {claim.fencing}")
        cache = self._cache(claim)
        return run_engine(
            build_command(engine, spec, inputs, scratch),
            scratch=scratch,
            output=inputs.output,
            env=engine_env(scratch, self.settings.worker_threads, cache),
            control=control,
            sink=reporter,
            sandbox=engine_sandbox(self.settings, spec.engine, cache),
        )

    def _cache(self, claim: Claim) -> Path | None:
        """Return where the builds of one project, and no other, keep calibration statistics.

        A build that is to be compared with an earlier one must not take over what that one found.
        """
        if claim.build.refresh_of is not None:
            return None
        return self.settings.data_dir / "cache" / claim.build.project

    def _fetch(self, spec: BuildSpec, scratch: Path) -> Inputs:
        output = scratch / "out"
        output.mkdir()
        model = fetch_model(self.store, spec.model, scratch / "model")
        calibration = None
        if spec.calibration is not None:
            calibration = fetch_calibration(self.store, spec.calibration, scratch / "calibration")
        return Inputs(model, calibration, output)

    def _succeed(self, claim: Claim, outcome: Outcome, reporter: _Reporter) -> None:
        self.builds.progress(claim, phase=Phase.STORE)
        reporter.flush()
        files = []
        for file in outcome.files:
            if file.kind in _NOT_KEPT:
                continue
            kind = ArtifactKind(file.kind)
            name = _artifact_name(kind, file.path)
            self._store(file.path, file.sha256)
            files.append(_stored(kind, name, file.sha256, file.size))
        log = reporter.finish()
        if log is not None:
            path, sha256, size = log
            self._store(path, sha256)
            files.append(_stored(ArtifactKind.LOG, "log.txt", sha256, size))
        self.builds.succeed(claim, files, dict(outcome.summary), outcome.usage)

    def _store(self, path: Path, sha256: str) -> None:
        """Store a file; an object store that is away for a moment is tried again."""
        for attempt in range(_STORE_TRIES):
            try:
                self.store.put_file(path, sha256)
                return
            except StorageError:
                if attempt + 1 == _STORE_TRIES or not path.exists():
                    raise
                time.sleep(0.5 * 2**attempt)

    def _end(self, claim: Claim, outcome: Outcome, reporter: _Reporter) -> None:
        failure = outcome.failure
        reporter.flush()
        match outcome.ending:
            case Ending.CANCELLED:
                self.builds.cancelled(claim, outcome.usage)
            case Ending.TIMED_OUT:
                assert failure is not None
                self.builds.time_out(claim, failure, outcome.usage)
            case Ending.LOST if failure is None:
                self.builds.release(claim, outcome.usage)
            case Ending.LOST:
                assert failure is not None
                self.builds.lose(claim, failure, outcome.usage)
            case _:
                self.builds.fail(
                    claim,
                    failure or Failure("INTERNAL_ERROR", "the engine failed without a reason"),
                    outcome.usage,
                )


def _artifact_name(kind: ArtifactKind, path: Path) -> str:
    return path.name if kind is not ArtifactKind.CONFIG else "config.json"


def _stored(kind: ArtifactKind, name: str, sha256: str, size: int) -> StoredFile:
    return StoredFile(kind, name, sha256, size, _MEDIA.get(kind, "application/octet-stream"))


def _storage_failure(exc: Exception) -> Failure:
    """Say that files could not be moved; no path and no address of the server is told."""
    if isinstance(exc, ServiceError):
        return Failure(exc.code, exc.detail, hint=exc.hint)
    _log.error("storage failed: %s", exc)
    return Failure(
        "OUTPUT_WRITE_ERROR",
        "the server's storage could not be read or written",
        hint="try again; if it stays so, the operator should run qbserver doctor",
    )


class _Reporter:
    """Sends progress and log lines on, a few times a second; keeps the log as a file too."""

    def __init__(self, builds: BuildStore, claim: Claim, path: Path, limit: int) -> None:
        self._builds = builds
        self._claim = claim
        self._path = path
        self._limit = limit
        self._file = path.open("wb")
        self._written = 0
        self._lines: list[str] = []
        self._bytes = 0
        self._next_log = 0.0
        self._next_progress = 0.0
        self._phase: Phase | None = None
        self._pending: tuple[Phase, int | None, int | None, str | None] | None = None
        self.lost = False

    def progress(
        self, phase: Phase, current: int | None, total: int | None, message: str | None
    ) -> None:
        now = time.monotonic()
        if phase is self._phase and current is None:
            return
        self._pending = (phase, current, total, message)
        if phase is not self._phase or now >= self._next_progress:
            self._send_progress(now)

    def log(self, line: str) -> None:
        data = line.encode("utf-8", "replace") + b"\n"
        if self._written >= self._limit:
            return
        self._written += len(data)
        self._file.write(data)
        self._lines.append(line)
        self._bytes += len(data)
        if self._bytes >= _LOG_BATCH:
            self._send_log(time.monotonic())

    def tick(self) -> None:
        now = time.monotonic()
        if self._lines and now >= self._next_log:
            self._send_log(now)
        if self._pending is not None and now >= self._next_progress:
            self._send_progress(now)

    def flush(self) -> None:
        """Send what waits."""
        now = time.monotonic()
        if self._lines:
            self._send_log(now)
        if self._pending is not None:
            self._send_progress(now)

    def finish(self) -> tuple[Path, str, int] | None:
        """Close the log file; return its path, SHA-256 and size, None when it is empty."""
        import hashlib

        self._file.close()
        if not self._written:
            return None
        with self._path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return self._path, digest, self._path.stat().st_size

    def _send_log(self, now: float) -> None:
        text = "\n".join(self._lines) + "\n"
        self._lines, self._bytes = [], 0
        self._next_log = now + _LOG_EVERY
        self._send(lambda: self._builds.append_log(self._claim, text))

    def _send_progress(self, now: float) -> None:
        assert self._pending is not None
        phase, current, total, message = self._pending
        self._pending, self._phase = None, phase
        self._next_progress = now + _PROGRESS_EVERY
        self._send(
            lambda: self._builds.progress(
                self._claim, phase=phase, current=current, total=total, message=message
            )
        )

    def _send(self, write: Callable[[], None]) -> None:
        """Write; a lost lease shows at the end, and a database away for a moment costs a line."""
        if self.lost:
            return
        try:
            write()
        except LeaseLost:
            self.lost = True
        except DBAPIError as exc:
            _log.warning("build %s: progress not written: %s", self._claim.build.id, exc)


class _Heart:
    """Beats while an attempt runs: extends the lease, learns of a cancel and of new limits."""

    def __init__(
        self, builder: Builder, claim: Claim, control: Control, reporter: _Reporter
    ) -> None:
        self._builder = builder
        self._claim = claim
        self._control = control
        self._reporter = reporter
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heart", daemon=True)

    def __enter__(self) -> _Heart:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()

    def _beat(self) -> None:
        settings = self._builder.settings
        lease_ends = time.monotonic() + settings.lease_seconds
        while not self._done.wait(settings.heartbeat_seconds):
            try:
                answer = self._builder.builds.heartbeat(self._claim)
            except LeaseLost:
                self._abandon()
                return
            except Exception as exc:
                # away for a moment; once the lease is over another worker may have the build
                _log.warning("build %s: heartbeat failed: %s", self._claim.build.id, exc)
                if time.monotonic() > lease_ends:
                    self._abandon()
                    return
                continue
            lease_ends = time.monotonic() + settings.lease_seconds
            self._learn(answer)

    def _abandon(self) -> None:
        self._reporter.lost = True
        # not the worker's own event: only this run ends
        self._control.stop = _set_event()

    def _learn(self, answer: HeartbeatAnswer) -> None:
        self._control.run_limit_s = answer.run_limit_s
        self._control.memory_limit_mb = (
            answer.memory_limit_mb or self._builder.settings.memory_limit_mb
        )
        if answer.cancel_requested:
            self._control.cancel.set()


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def clean_scratch(settings: Settings) -> int:
    """Remove folders of attempts whose worker process is gone; return how many.

    A folder's name ends with the worker's process id and a random part; folders of other hosts
    that share the disk are left to their own workers.
    """
    root = scratch_root(settings)
    removed = 0
    if not root.is_dir():
        return 0
    for folder in root.iterdir():
        parts = folder.name.split(".")
        if len(parts) == 4 and parts[2].isdigit() and not _alive(int(parts[2])):
            with contextlib.suppress(OSError):
                shutil.rmtree(folder)
                removed += 1
    return removed


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
