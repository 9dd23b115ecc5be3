"""Run an engine: its own process group, bounded memory, time and disk, and always an end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil

from service.domain import Failure, Phase, Usage
from worker.sandbox import Sandbox

from .control import Control
from .outcome import Ending, EngineFile, Outcome
from .protocol import Lines, Progress, Result, Said, read_line

__all__ = ["Sink", "kill_marked", "launch_command", "run_engine"]

_TICK = 0.1
_READ = 1 << 16
_DISK_EVERY = 2.0
_MIB = 1 << 20
_MARK = "QBCOMPILER_RUN"
_LAUNCHER = Path(__file__).parents[1] / "sandbox" / "launch.py"
_MAX_PROCESSES = 512
_MAX_THREADS = 4096
_OPEN_FILES = 4096
# a build that allocates faster than it is measured meets this bound
_DATA_SLACK = 1 << 30
_FILE_KINDS = {"mblt", "mxq", "report", "config", "body", "validation", "provenance", "log"}


class Sink(Protocol):
    """Takes what the engine says. Called from the thread that runs the engine."""

    def progress(
        self, phase: Phase, current: int | None, total: int | None, message: str | None
    ) -> None:
        """The engine is at this point."""
        ...

    def log(self, line: str) -> None:
        """A line for the log, without line end."""
        ...

    def tick(self) -> None:
        """Called several times a second, also while the engine is silent."""
        ...


def run_engine(
    command: Sequence[str],
    *,
    scratch: Path,
    output: Path,
    env: Mapping[str, str],
    control: Control,
    sink: Sink,
    sandbox: Sandbox | None = None,
) -> Outcome:
    """Run a command to its end and say how it ended; leaves no process of its group behind.

    Args:
        command: the engine with all its arguments.
        scratch: the engine's working folder; measured against the disk limit. Its path marks the
            engine's processes, for :func:`kill_marked`.
        output: folder, below ``scratch``, in which results must lie.
        env: the whole environment.
        control: limits, and the events that stop the run.
        sink: takes progress and log lines.
        sandbox: what the engine may touch beyond ``scratch``; None for no bound.
    """
    try:
        run = _Run(command, scratch, output, env, control, sink, sandbox)
    except OSError as exc:
        return Outcome(
            Ending.FAILED,
            failure=Failure(
                "INTERNAL_ERROR",
                f"the engine cannot be started: {exc.strerror}",
                hint="qbserver doctor says which engines run",
            ),
        )
    return run.run()


def kill_marked(mark: str) -> int:
    """Kill every process that an engine left behind; return how many there were.

    They are known by the path of the engine's scratch folder, in the environment that they
    inherited: a child may have left the engine's process group, and outlives a worker that was
    killed.
    """
    killed = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                process.kill()
                killed += 1
    return killed


def launch_command(
    command: Sequence[str],
    scratch: Path,
    sandbox: Sandbox | None = None,
    control: Control | None = None,
) -> list[str]:
    """Return the command that becomes ``command`` once it has bounded and confined itself."""
    control = control or Control()
    limits: dict[str, Any] = {
        "parent": os.getpid(),
        "open_files": _OPEN_FILES,
        "more_processes": _MAX_THREADS,
    }
    if control.disk_limit_mb is not None:
        limits["file_bytes"] = control.disk_limit_mb * _MIB
    if control.memory_limit_mb is not None:
        limits["data_bytes"] = 2 * control.memory_limit_mb * _MIB + _DATA_SLACK
    if sandbox is not None:
        limits["sandbox"] = {
            "mode": sandbox.mode.value,
            "readable": sandbox.readable,
            "writable": (str(scratch), *sandbox.writable),
            "network": sandbox.network,
        }
    return [sys.executable, "-I", "-S", str(_LAUNCHER), json.dumps(limits), "--", *command]


class _Run:
    def __init__(
        self,
        command: Sequence[str],
        scratch: Path,
        output: Path,
        env: Mapping[str, str],
        control: Control,
        sink: Sink,
        sandbox: Sandbox | None,
    ) -> None:
        self._scratch = scratch
        self._output = output
        self._prefix = f"{scratch}/"
        self._control = control
        self._sink = sink
        self._result: Result | None = None
        self._failure: Failure | None = None
        self._why: Ending | None = None
        self._reason: Failure | None = None
        self._peak = 0
        self._usage = Usage()
        self._oom_kills = _oom_kills()
        self._mark = str(scratch)
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            launch_command(command, scratch, sandbox, control),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=scratch,
            env={**env, _MARK: self._mark},
            start_new_session=True,
        )
        self._group = self._process.pid
        self._watched: psutil.Process | None
        try:
            self._watched = psutil.Process(self._process.pid)
        except psutil.Error:
            self._watched = None

    def run(self) -> Outcome:
        try:
            code = self._follow()
        finally:
            self._kill_group()
            with contextlib.suppress(ChildProcessError):
                if self._process.returncode is None:
                    self._reap(block=True)
            for pipe in (self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()
        return self._judge(code)

    # while it runs ------------------------------------------------------------------------

    def _follow(self) -> int:
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None and stderr is not None
        cutters = {stdout.fileno(): (Lines(), True), stderr.fileno(): (Lines(), False)}
        killed_at: float | None = None
        next_disk = self._started + _DISK_EVERY
        next_look = self._started
        with selectors.DefaultSelector() as selector:
            for fd in cutters:
                os.set_blocking(fd, False)
                selector.register(fd, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(_TICK):
                    self._read(key.fd, cutters, selector)
                self._sink.tick()
                now = time.monotonic()
                if now >= next_look:
                    next_look = now + _TICK
                    self._measure()
                if killed_at is None:
                    if now >= next_disk:
                        next_disk = now + _DISK_EVERY
                        self._check_disk()
                    self._check_limits()
                    if self._why is not None:
                        self._signal(signal.SIGTERM)
                        killed_at = now
                elif now - killed_at >= self._control.grace_s:
                    self._signal(signal.SIGKILL)
                code = self._reap()
                if code is not None:
                    # what is still in the pipes; children that hold them open do not count
                    for fd, (lines, is_stdout) in cutters.items():
                        self._drain(fd, lines, is_stdout)
                    return code

    def _read(
        self,
        fd: int,
        cutters: Mapping[int, tuple[Lines, bool]],
        selector: selectors.BaseSelector,
    ) -> None:
        lines, is_stdout = cutters[fd]
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            return
        if not data:
            selector.unregister(fd)
            return
        for line in lines.feed(data):
            self._hear(line, is_stdout)

    def _drain(self, fd: int, lines: Lines, is_stdout: bool) -> None:
        left = 64 * _READ
        with contextlib.suppress(OSError):
            while left > 0 and (data := os.read(fd, _READ)):
                left -= len(data)
                for line in lines.feed(data):
                    self._hear(line, is_stdout)
        for line in lines.close():
            self._hear(line, is_stdout)

    def _hear(self, line: str, is_stdout: bool) -> None:
        # where the server keeps its files is nobody's business
        line = line.replace(self._prefix, "")
        message = read_line(line) if is_stdout else (Said(line) if line.strip() else None)
        match message:
            case Progress():
                self._sink.progress(message.phase, message.current, message.total, message.message)
            case Said():
                self._sink.log(message.text)
            case Result():
                self._result = message
            case Failure():
                self._failure = message
                self._sink.log(f"error [{message.code}]: {message.message}")
            case None:
                pass

    def _measure(self) -> None:
        if self._watched is None:
            return
        total = 0
        try:
            family = [self._watched, *self._watched.children(recursive=True)]
        except psutil.Error:
            return
        for process in family:
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        self._peak = max(self._peak, total)
        if len(family) > _MAX_PROCESSES and self._why is None:
            self._why = Ending.FAILED
            self._reason = Failure(
                "RESOURCE_LIMIT",
                f"the compiler ran {len(family)} processes, more than the limit of"
                f" {_MAX_PROCESSES}",
                details={"resource": "processes", "limit": _MAX_PROCESSES},
            )
        limit = self._control.memory_limit_mb
        if limit is not None and total > limit * _MIB and self._why is None:
            self._why = Ending.FAILED
            self._reason = _memory_failure(limit, total)

    def _check_disk(self) -> None:
        limit = self._control.disk_limit_mb
        if limit is None or self._why is not None:
            return
        used = _folder_bytes(self._scratch)
        if used > limit * _MIB:
            self._why = Ending.FAILED
            self._reason = Failure(
                "RESOURCE_LIMIT",
                f"the build used {used // _MIB} MiB of scratch space, more than the limit of"
                f" {limit} MiB",
                details={"limit_mb": limit, "used_mb": used // _MIB, "resource": "disk"},
                hint="the operator can raise QB_DISK_LIMIT_MB",
            )

    def _check_limits(self) -> None:
        if self._why is None and (found := self._control.verdict()) is not None:
            self._why, self._reason = found

    # ending -------------------------------------------------------------------------------

    def _reap(self, *, block: bool = False) -> int | None:
        """Collect the process once it has ended; keep its resource usage."""
        if self._process.returncode is not None:
            return self._process.returncode
        pid, status, used = os.wait4(self._process.pid, 0 if block else os.WNOHANG)
        if pid == 0:
            return None
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code
        self._peak = max(self._peak, used.ru_maxrss * 1024)
        self._usage = Usage(round(used.ru_utime + used.ru_stime, 3), self._peak)
        return code

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._group, number)

    def _kill_group(self) -> None:
        """Kill what the engine left behind, children in groups of their own included."""
        self._signal(signal.SIGKILL)
        kill_marked(self._mark)

    def _judge(self, code: int) -> Outcome:
        def end(ending: Ending, failure: Failure | None = None, **more: Any) -> Outcome:
            return Outcome(ending, failure=failure, usage=self._usage, exit_code=code, **more)

        # an engine that finished at the moment it was to be stopped has still finished
        finished = code == 0 and self._result is not None and self._failure is None
        if self._why is not None and not (finished and self._why is Ending.TIMED_OUT):
            return end(self._why, self._reason)
        if self._failure is not None:
            return end(Ending.FAILED, self._failure)
        if code < 0:
            return end(*self._killed(-code))
        if code != 0:
            return end(
                Ending.FAILED,
                Failure(
                    "INTERNAL_ERROR",
                    f"the engine ended with exit code {code} and gave no error",
                    details={"exit_code": code},
                    hint="the job's log has its last words",
                ),
            )
        if self._result is None:
            return end(
                Ending.FAILED,
                Failure(
                    "INTERNAL_ERROR",
                    "the engine ended without a result",
                    hint="the job's log has its last words",
                ),
            )
        try:
            files = tuple(self._check_file(f) for f in self._result.files)
        except (ValueError, RuntimeError) as exc:
            return end(Ending.FAILED, Failure("INTERNAL_ERROR", f"the engine's result: {exc}"))
        except OSError as exc:
            text = f"the engine's result cannot be read: {exc.strerror}"
            return end(Ending.FAILED, Failure("INTERNAL_ERROR", text))
        return end(Ending.SUCCEEDED, files=files, summary=self._result.summary)

    def _killed(self, number: int) -> tuple[Ending, Failure]:
        name = signal.Signals(number).name if number in list(signal.Signals) else str(number)
        if number == signal.SIGKILL and _oom_kills() > self._oom_kills:
            return Ending.FAILED, _memory_failure(self._control.memory_limit_mb, self._peak)
        if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            return Ending.LOST, Failure(
                "WORKER_LOST", f"the compiler was killed from outside ({name})"
            )
        return Ending.FAILED, Failure(
            "INTERNAL_ERROR",
            f"the engine crashed ({name})",
            details={"signal": name},
            hint="the job's log has its last words",
        )

    def _check_file(self, entry: Mapping[str, Any]) -> EngineFile:
        kind, name = entry.get("kind"), entry.get("path")
        if not isinstance(kind, str) or not isinstance(name, str):
            raise ValueError("a file has no kind or path")
        if kind not in _FILE_KINDS:
            raise ValueError(f"unknown kind of file {kind[:32]!r}")
        path = (self._scratch / name).resolve()
        if not path.is_relative_to(self._output.resolve()):
            raise ValueError(f"the {kind} is not in the output folder")
        if not path.is_file():
            raise ValueError(f"the {kind} is not there")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = path.stat().st_size
        if entry.get("sha256", digest) != digest or entry.get("size", size) != size:
            raise ValueError(f"the {kind} is not what the engine said it wrote")
        return EngineFile(kind, path, digest, size)


def _memory_failure(limit_mb: int | None, peak: int) -> Failure:
    used = peak // _MIB
    if limit_mb is None:
        message = f"the compiler was killed for want of memory at {used} MiB"
    else:
        message = f"the compiler used {used} MiB of memory, more than the limit of {limit_mb} MiB"
    return Failure(
        "RESOURCE_LIMIT",
        message,
        details={"resource": "memory", "limit_mb": limit_mb, "peak_mb": used},
        hint="ask for a higher limits.memory_mb, or use a smaller input shape",
    )


def _folder_bytes(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_blocks * 512  # noqa: PTH118
    return total


def _oom_kills() -> int:
    """Return how often the kernel has killed for memory since it started (Linux)."""
    try:
        with Path("/proc/vmstat").open() as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0
