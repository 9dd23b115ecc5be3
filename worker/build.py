"""One attempt at a build: claim, fetch, run the engine, store, end."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from service.db import DATABASE_ERRORS, BuildStore
from service.domain import (
    ArtifactKind,
    BuildSpec,
    Claim,
    Failure,
    LeaseLost,
    Phase,
    ServiceError,
    StoredFile,
)
from service.logs import log_ids
from service.settings import BUILTIN_ENGINE, Settings
from service.storage import (
    ObjectMissing,
    ObjectStore,
    StorageError,
    fetch_calibration,
    fetch_model,
    scratch_folder,
)
from service.storage import clean_scratch as clean_folders

from .engine import (
    Control,
    Ending,
    EngineError,
    Inputs,
    Interrupted,
    Outcome,
    build_command,
    interruptible,
    kill_marked,
    run_engine,
)
from .engine.command import engine_command, engine_env, engine_sandbox
from .heart import Heart
from .metrics import Observed, WorkerMetrics
from .reporter import Reporter

__all__ = ["Builder", "clean_scratch", "scratch_root"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

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
        metrics: what it measures.
    """

    settings: Settings
    builds: BuildStore
    store: ObjectStore
    worker: str
    stopping: threading.Event = field(default_factory=threading.Event)
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)

    def run(self, build_id: str) -> bool:
        """Do a build, unless it is not to be had; say whether it was claimed.

        A message may be late, doubled or about a build that another worker has: then there is
        nothing to claim and nothing happens.
        """
        if self.stopping.is_set():
            return False
        try:
            claim = self.builds.claim(build_id, self.worker)
        except DATABASE_ERRORS as exc:
            # still queued, and the reconciler sends another message; or claimed unseen, and then
            # the lease runs out
            _log.warning("build %s cannot be claimed: %s", build_id, exc)
            return False
        if claim is None:
            _log.info("build %s is not to be claimed", build_id)
            return False
        with (
            log_ids(build_id=build_id, attempt=claim.fencing, project=claim.build.project),
            self.metrics.attempt(claim.build, claim.fencing) as observed,
        ):
            _log.info("build %s: attempt %d", build_id, claim.fencing)
            try:
                self._attempt(claim, observed)
            except LeaseLost:
                _log.warning(
                    "build %s: attempt %d no longer holds the lease; whoever took it decides",
                    build_id,
                    claim.fencing,
                )
            except DATABASE_ERRORS:
                # the lease runs out and the reconciler puts the build back
                _log.exception("build %s: the database stayed away", build_id)
            _log.info("build %s: attempt %d %s", build_id, claim.fencing, observed.outcome)
        return True

    def _attempt(self, claim: Claim, observed: Observed) -> None:
        control = self._control(claim)
        try:
            with scratch_folder(
                scratch_root(self.settings), f"{claim.build.id}.{claim.fencing}."
            ) as scratch:
                reporter = Reporter(
                    self.builds,
                    claim,
                    scratch / "log.txt",
                    self.settings.max_log_bytes,
                    observed,
                )
                try:
                    with Heart(self.settings, self.builds, claim, control, reporter):
                        self._work(claim, scratch, control, reporter, observed)
                finally:
                    reporter.close()
        except OSError as exc:
            # no folder to work in
            failure = _storage_failure(exc)
            self._settle(lambda: self.builds.fail(claim, failure))
            observed.end("failed", failure.code)

    def _work(
        self,
        claim: Claim,
        scratch: Path,
        control: Control,
        reporter: Reporter,
        observed: Observed,
    ) -> None:
        observed.phase(Phase.FETCH)
        try:
            outcome = self._make(claim, scratch, control, reporter)
            if outcome.ending is Ending.SUCCEEDED:
                observed.phase(Phase.STORE)
                self._succeed(claim, outcome, control, reporter)
                observed.end("succeeded", usage=outcome.usage)
                return
        except Interrupted as exc:
            outcome = exc.outcome
        except (LeaseLost, *DATABASE_ERRORS):
            raise
        except (StorageError, ServiceError, OSError) as exc:
            outcome = Outcome(Ending.FAILED, failure=_storage_failure(exc))
        except Exception:
            _log.exception("build %s: a fault of ours", claim.build.id)
            outcome = Outcome(
                Ending.FAILED,
                failure=Failure(
                    "INTERNAL_ERROR",
                    "a fault of the worker's; its log has the details",
                    details={"attempt": claim.fencing},
                ),
            )
        reporter.flush()
        self._settle(lambda: self._end(claim, outcome))
        failure = outcome.failure
        released = outcome.ending is Ending.LOST and failure is None
        observed.end(
            "released" if released else outcome.ending.value,
            None if failure is None else failure.code,
            outcome.usage,
        )

    def _settle(self, write: Callable[[], object]) -> None:
        """Write an end; a database that is away for a while must not cost the work that was done.

        A repeated write does no harm: it goes through only while the attempt holds the build.
        """
        until = time.monotonic() + self.settings.outage_seconds
        pause = 0.1
        while True:
            try:
                write()
                return
            except DATABASE_ERRORS as exc:
                if time.monotonic() > until or self.stopping.is_set():
                    raise
                _log.warning("the end of an attempt is not written yet: %s", exc)
            time.sleep(pause)
            pause = min(2 * pause, 2.0)

    def _control(self, claim: Claim) -> Control:
        return Control(
            stop=self.stopping,
            run_limit_s=claim.build.run_limit_s,
            memory_limit_mb=self.settings.memory_bound(
                claim.build.queue, claim.build.memory_limit_mb
            ),
            disk_limit_mb=self.settings.disk_limit_mb,
        )

    def _make(self, claim: Claim, scratch: Path, control: Control, reporter: Reporter) -> Outcome:
        spec = claim.build.spec
        inputs = self._fetch(spec, scratch, control)
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
            env=engine_env(
                scratch,
                self.settings.worker_threads,
                cache,
                own=spec.engine == BUILTIN_ENGINE,
            ),
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

    def _fetch(self, spec: BuildSpec, scratch: Path, control: Control) -> Inputs:
        output = scratch / "out"
        output.mkdir()

        def fetch() -> Inputs:
            folder = Path(tempfile.mkdtemp(dir=scratch, prefix="in"))
            try:
                model = fetch_model(self.store, spec.model, folder / "model")
                calibration = None
                if spec.calibration is not None:
                    calibration = fetch_calibration(
                        self.store, spec.calibration, folder / "calibration"
                    )
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            # the compiler sees whole inputs only, and names that are the same at each try
            for part in folder.iterdir():
                part.rename(scratch / part.name)
            folder.rmdir()
            return Inputs(
                scratch / model.relative_to(folder),
                None if calibration is None else scratch / calibration.relative_to(folder),
                output,
            )

        return self._patiently(fetch, control)

    def _patiently(self, work: Callable[[], T], control: Control) -> T:
        """Move files; an object store that is away for a while is tried again.

        Raises:
            Interrupted: the attempt must end.
            StorageError: the store stayed away, or an object is not there.
        """
        until = time.monotonic() + self.settings.outage_seconds
        pause = 0.2
        while True:
            try:
                return interruptible(work, control)
            except ObjectMissing:
                raise
            except StorageError as exc:
                if time.monotonic() > until:
                    raise
                _log.warning("storage failed, to be tried again: %s", exc)
            interruptible(partial(time.sleep, pause), control)
            pause = min(2 * pause, 5.0)

    def _succeed(
        self, claim: Claim, outcome: Outcome, control: Control, reporter: Reporter
    ) -> None:
        with contextlib.suppress(*DATABASE_ERRORS):
            self.builds.progress(claim, phase=Phase.STORE)
        reporter.flush()
        files = []
        for file in outcome.files:
            if file.kind in _NOT_KEPT:
                continue
            kind = ArtifactKind(file.kind)
            name = _artifact_name(kind, file.path)
            self._store(file.path, file.sha256, control)
            files.append(_stored(kind, name, file.sha256, file.size))
        log = reporter.finish()
        if log is not None:
            path, sha256, size = log
            self._store(path, sha256, control)
            files.append(_stored(ArtifactKind.LOG, "log.txt", sha256, size))
        summary = dict(outcome.summary)
        self._settle(lambda: self.builds.succeed(claim, files, summary, outcome.usage))

    def _store(self, path: Path, sha256: str, control: Control) -> None:
        def store() -> None:
            # an earlier try may have stored it and failed on what came after
            if path.exists() or self.store.size(sha256) is None:
                self.store.put_file(path, sha256)

        self._patiently(store, control)

    def _end(self, claim: Claim, outcome: Outcome) -> None:
        failure = outcome.failure
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
            case Ending.FAILED if failure is not None and (queue := self._larger(claim, failure)):
                self.builds.enlarge(claim, queue, failure, outcome.usage)
            case _:
                self.builds.fail(
                    claim,
                    failure or Failure("INTERNAL_ERROR", "the engine failed without a reason"),
                    outcome.usage,
                )

    def _larger(self, claim: Claim, failure: Failure) -> str | None:
        """Return the queue in which a build that ran out of memory is tried once more, or None."""
        if failure.code != "RESOURCE_LIMIT" or failure.details.get("resource") != "memory":
            return None
        build = claim.build
        return self.settings.classes.larger(build.queue, build.memory_limit_mb)


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


def clean_scratch(settings: Settings) -> int:
    """Remove what attempts of dead workers left: folders, and processes that live on.

    Returns how many folders there were. Those of other hosts that share the disk are left alone as
    long as their workers hold them.
    """
    return clean_folders(scratch_root(settings), "bld_", before=_kill_strays)


def _kill_strays(folder: Path) -> None:
    killed = kill_marked(str(folder))
    if killed:
        _log.warning("killed %d processes that a lost compiler had left", killed)
