"""What a running build tells its caller: status, progress, log lines, the result or the error.

One ``Reporter`` interface, four voices: the JSON-lines protocol of subprocesses, a progress bar
on a terminal, plain lines on a pipe, and a Python callback.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Literal

from .errors import QbCompilerError

__all__ = [
    "JSONL_VARIABLE",
    "PHASES",
    "CallbackReporter",
    "Choice",
    "JsonlReporter",
    "Level",
    "Phase",
    "PlainReporter",
    "ProgressCallback",
    "Reporter",
    "State",
    "TerminalReporter",
    "jsonl_wanted",
]

JSONL_VARIABLE = "QBCOMPILER_JSONL"
"""Environment variable: 1, true, yes or on asks for the JSON-lines protocol on standard output."""

Phase = Literal[
    "upload", "parse", "calibrate", "quantize", "codegen", "verify", "store", "download"
]
State = Literal["started", "phase", "finished"]
Level = Literal["info", "warning", "error"]
Choice = Literal["follow", "cancel", "leave"]

PHASES: tuple[Phase, ...] = ("parse", "calibrate", "quantize", "codegen", "verify", "store")
"""The phases of a build; one on a server has an upload before and a download behind them."""

ProgressCallback = Callable[[Mapping[str, Any]], object]
"""Called with each protocol message as a map."""

_TITLES: Mapping[str, str] = {
    "upload": "Uploading, KiB",
    "download": "Downloading, KiB",
    "parse": "Parsing",
    "calibrate": "Calibrating",
    "quantize": "Quantizing",
    "codegen": "Generating code",
    "verify": "Verifying",
    "store": "Writing",
}


def jsonl_wanted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the environment asks for the JSON-lines protocol."""
    value = (os.environ if environ is None else environ).get(JSONL_VARIABLE, "")
    return value.strip().lower() in ("1", "true", "yes", "on")


class Reporter:
    """Takes what a build has to say; this base keeps it to itself.

    Attributes:
        seconds: wall-clock seconds of each finished phase, in order.
        warnings: the text of each warning, in order.
        verbose: whether informational lines are shown where only a person reads.
        trace: whether the traceback of an internal fault is wanted.
    """

    def __init__(self, *, verbose: bool = False) -> None:
        self.verbose = verbose
        self.trace = verbose
        self.seconds: dict[str, float] = {}
        self.warnings: list[str] = []

    def emit(self, message: Mapping[str, Any]) -> None:
        """Deliver one protocol message; subclasses override this."""

    def status(
        self, state: State, *, phase: Phase | None = None, message: str | None = None
    ) -> None:
        """Say where the build is."""
        self.emit(
            _without_none({"type": "status", "state": state, "phase": phase, "message": message})
        )

    @contextlib.contextmanager
    def phase(self, name: Phase, message: str | None = None) -> Iterator[None]:
        """Announce a phase and take its time."""
        self.status("phase", phase=name, message=message)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def progress(self, phase: Phase, current: int, total: int) -> None:
        """Say how far a phase has come."""
        self.emit({"type": "progress", "phase": phase, "current": current, "total": total})

    def step(self, phase: Phase) -> Callable[[int, int], None]:
        """Return a ``(current, total)`` function for a stage that knows no phases."""
        return lambda current, total: self.progress(phase, current, total)

    def log(self, level: Level, message: str) -> None:
        """Add a line to the log."""
        if level == "warning":
            self.warnings.append(message)
        self.emit({"type": "log", "level": level, "message": message})

    def info(self, message: str) -> None:
        """Log what somebody may want to know."""
        self.log("info", message)

    def warning(self, message: str) -> None:
        """Log what somebody should know; it is kept for the report too."""
        self.log("warning", message)

    def result(self, files: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
        """Hand over the outcome: each file written, and a summary."""
        self.emit({"type": "result", "files": [dict(f) for f in files], "summary": dict(summary)})

    def error(self, error: QbCompilerError) -> None:
        """Hand over the failure."""
        self.emit({"type": "error", **error.as_dict()})

    def interrupted(self, job: str) -> Choice:
        """Return what to do with a job on a server after Ctrl-C: without a reader, leave it be."""
        return "leave"

    def close(self) -> None:
        """Leave the output in order, a progress bar for one."""


class CallbackReporter(Reporter):
    """Calls a Python function with each message."""

    def __init__(self, callback: ProgressCallback) -> None:
        super().__init__()
        self._callback = callback

    def emit(self, message: Mapping[str, Any]) -> None:
        """Call the function."""
        self._callback(message)


class JsonlReporter(Reporter):
    """Writes one JSON object a line.

    Progress is written at most every ``interval`` seconds and when a phase's last step is done,
    so that a build of many small steps does not drown its reader.
    """

    def __init__(self, stream: IO[str], *, interval: float = 0.1) -> None:
        super().__init__()
        self._stream = stream
        self._interval = interval
        self._last = 0.0
        self._lock = threading.Lock()

    def emit(self, message: Mapping[str, Any]) -> None:
        """Write the line."""
        if message["type"] == "progress" and message["current"] < message["total"]:
            now = time.monotonic()
            if now - self._last < self._interval:
                return
            self._last = now
        line = json.dumps(_finite(message), ensure_ascii=True, allow_nan=False)
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()


class PlainReporter(Reporter):
    """Writes log lines for a pipe or a file.

    Args:
        stream: where to; standard error by default.
        verbose: write informational lines too.
        quiet: write warnings and errors only.
        interval: least seconds between a phase's beginning or line of progress and the next one,
            so that a short phase is one line.
    """

    def __init__(
        self,
        stream: IO[str] | None = None,
        *,
        verbose: bool = False,
        quiet: bool = False,
        interval: float = 2.0,
    ) -> None:
        super().__init__(verbose=verbose)
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._interval = interval
        self._tenth = -1
        self._last = 0.0

    def emit(self, message: Mapping[str, Any]) -> None:
        """Write what a reader of a log wants: phases, tenths of progress, warnings."""
        kind = message["type"]
        if self._quiet and kind != "log":
            return
        if kind == "status" and message["state"] == "phase":
            self._tenth = -1
            self._last = time.monotonic()
            text = message.get("message") or _TITLES[message["phase"]]
            self._write(text)
        elif kind == "progress" and message["total"] > 1:
            tenth = 10 * message["current"] // message["total"]
            now = time.monotonic()
            if tenth > self._tenth and message["current"] and now - self._last >= self._interval:
                self._tenth, self._last = tenth, now
                self._write(
                    f"{_TITLES[message['phase']]}: {message['current']} of {message['total']}"
                )
        elif kind == "log" and (message["level"] != "info" or self.verbose):
            prefix = "" if message["level"] == "info" else f"{message['level'].upper()}: "
            self._write(prefix + message["message"])

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


class TerminalReporter(Reporter):
    """Draws a progress bar for the running phase; log lines scroll above it.

    Args:
        stream: the terminal; standard error by default.
        verbose: show informational lines too.
    """

    def __init__(self, stream: IO[str] | None = None, *, verbose: bool = False) -> None:
        super().__init__(verbose=verbose)
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed

        self._console = Console(file=stream or sys.stderr, highlight=False, soft_wrap=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            Elapsed(),
            console=self._console,
            transient=False,
        )
        self._tasks: dict[str, Any] = {}

    def emit(self, message: Mapping[str, Any]) -> None:
        """Draw or print it."""
        kind = message["type"]
        if kind == "status" and message["state"] == "phase":
            self._bar.start()
            self._task(message["phase"])
        elif kind == "progress":
            self._bar.update(
                self._task(message["phase"]),
                completed=message["current"],
                total=max(1, message["total"]),
            )
        elif kind == "log" and (message["level"] != "info" or self.verbose):
            style = {"warning": "yellow", "error": "red"}.get(message["level"])
            prefix = "" if message["level"] == "info" else f"{message['level'].upper()}: "
            self._console.print(prefix + message["message"], style=style, markup=False)

    @contextlib.contextmanager
    def phase(self, name: Phase, message: str | None = None) -> Iterator[None]:
        """Draw the phase's bar, full when the phase is over."""
        with super().phase(name, message):
            yield
        task = self._task(name)
        total = self._bar.tasks[task].total or 1
        self._bar.update(task, total=total, completed=total)

    def interrupted(self, job: str) -> Choice:
        """Ask on the terminal."""
        self._bar.stop()
        self._console.print(
            f"Job {job} runs on the server.\n"
            "[c]ancel it, [l]eave it running, or Enter to go on watching: ",
            end="",
            markup=False,
        )
        try:
            answer = sys.stdin.readline().strip().lower()
        except KeyboardInterrupt:
            answer = "l"
        if answer in ("c", "cancel"):
            return "cancel"
        if answer in ("l", "leave"):
            return "leave"
        self._bar.start()
        return "follow"

    def close(self) -> None:
        """Leave the bars as they are and give the terminal back."""
        self._bar.stop()

    def _task(self, phase: str) -> Any:
        if phase not in self._tasks:
            self._tasks[phase] = self._bar.add_task(_TITLES[phase], total=None)
        return self._tasks[phase]


def _without_none(data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in data.items() if v is not None}


def _finite(value: Any) -> Any:
    """Return JSON data with floats that JSON does not have (NaN, infinities) as None."""
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)
