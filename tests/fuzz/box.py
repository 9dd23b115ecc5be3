"""Runs cases in a process of its own, bounded, and says which ended as none may.

The child prints the number of each case before it begins it, so that the parent knows which one
killed it or hangs; after either it goes on with the next case in a new child.
"""

from __future__ import annotations

import json
import os
import queue
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qbcompiler.errors import InternalError, QbCompilerError

from .faulty import FAULTY

__all__ = ["Finding", "case_of", "search"]

Make = Callable[[random.Random, Path], bytes]
Feed = Callable[[bytes, Path], None]

CASE_SECONDS = 10
"""Longest time that one case may take."""
MEMORY = 2 << 30
"""Most memory that a process may allocate beyond what it has before its first case."""
_START_SECONDS = 120
_SECRET = "not for the compiler to read"


@dataclass(frozen=True)
class Finding:
    """A case that ended as none may.

    Attributes:
        target, seed, number: make the case again.
        what: the error and where it was raised, or ``hang`` or ``killed by …``.
        trace: the traceback, "" where there is none.
    """

    target: str
    seed: int
    number: int
    what: str
    trace: str = ""


class Hang(BaseException):
    """A case took too long; no handler for ``Exception`` may keep it."""


class Escape(BaseException):
    """A file outside the scratch folder was opened for writing, or one read that was planted."""


def case_of(target: str, seed: int, number: int, folder: Path) -> bytes:
    """Return a case's bytes, as they are made on every machine."""
    rng = random.Random(f"{target}:{seed}:{number}")
    return _functions(target)[0](rng, folder)


def _functions(target: str) -> tuple[Make, Feed, tuple[type[Exception], ...]]:
    """Return how a target makes a case, where it goes, and what it may end in.

    The targets import everything that they feed; those that fail on purpose need none of it.
    """
    if target in FAULTY:
        return (lambda rng, folder: b""), FAULTY[target], (QbCompilerError,)
    from .targets import TARGETS, TYPED

    chosen = TARGETS[target]
    return chosen.make, chosen.feed, TYPED


# -- parent ---------------------------------------------------------------------------------


def search(
    target: str,
    seed: int,
    *,
    cases: int | None = None,
    seconds: float | None = None,
    first: int = 0,
    case_seconds: float = CASE_SECONDS,
) -> tuple[int, list[Finding]]:
    """Run cases from ``first`` on until their number or time is used up.

    Returns:
        How many were run, and the findings.
    """
    findings: list[Finding] = []
    number, last = first, None if cases is None else first + cases
    stop_at = None if seconds is None else time.monotonic() + seconds
    while (last is None or number < last) and (stop_at is None or time.monotonic() < stop_at):
        left = None if stop_at is None else stop_at - time.monotonic()
        words = [str(seed), str(number), str(-1 if last is None else last)]
        words += [str(1e9 if left is None else left), str(case_seconds)]
        number = _one_child(target, seed, number, words, findings)
    return number - first, findings


def _one_child(
    target: str,
    seed: int,
    first: int,
    words: Sequence[str],
    findings: list[Finding],
) -> int:
    """Run a child to its end; return the number of the next case."""
    command = [sys.executable, "-m", "tests.fuzz.box", target, *words]
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
        )
        lines: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=_lines, args=(child, lines), daemon=True)
        reader.start()
        current, hung = first - 1, False
        wait = float(_START_SECONDS)
        try:
            while True:
                try:
                    line = lines.get(timeout=wait)
                except queue.Empty:
                    hung = True
                    break
                if line is None:
                    break
                said = json.loads(line)
                wait = CASE_SECONDS + 10
                if "begin" in said:
                    current = said["begin"]
                elif "what" in said:
                    findings.append(Finding(target, seed, current, said["what"], said["trace"]))
        finally:
            if child.poll() is None and hung:
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
            reader.join()
            assert child.stdout is not None
            child.stdout.close()
        if code == 0 and not hung:
            return current + 1
        errors.seek(0)
        tail = errors.read()[-3000:].decode("utf-8", "replace")
    if current < first:
        raise RuntimeError(f"cases of {target} cannot be run: {tail}")
    what = "hang in code that takes no signal" if hung else f"the process ended with {code}"
    findings.append(Finding(target, seed, current, what, tail))
    return current + 1


def _lines(child: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
    lines.put(None)


# -- child ----------------------------------------------------------------------------------


def main(argv: list[str]) -> None:
    """Run the cases and print what became of each.

    ``argv`` is ``TARGET SEED FIRST LAST SECONDS CASE_SECONDS``.
    """
    target, seed, first, last = argv[0], *map(int, argv[1:4])
    seconds, case_seconds = map(float, argv[4:])
    # what a library prints must not be taken for ours
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**words: Any) -> None:
        out.write(json.dumps(words) + "\n")
        out.flush()

    with tempfile.TemporaryDirectory(prefix="qb-fuzz-") as name:
        home = Path(name).resolve()
        (home / "secret").write_text(_SECRET)
        os.environ["TMPDIR"] = str(home)
        tempfile.tempdir = str(home)
        _warm_up(target, home)
        _bound_memory()
        # ONNX Runtime keeps one of its own in the folder for temporary files
        there = {path.name for path in home.iterdir()}
        watch = _Watch(home)
        sys.addaudithook(watch)
        signal.signal(signal.SIGALRM, _alarm)
        stop_at, number = time.monotonic() + seconds, first
        while (last < 0 or number < last) and time.monotonic() < stop_at:
            say(begin=number)
            folder = home / "case"
            folder.mkdir()
            try:
                try:
                    data = case_of(target, seed, number, folder)
                except RecursionError:  # deeper than the mutation itself can follow
                    data = b"[" * 100_000
                for path in folder.iterdir():
                    path.unlink()
                problem = _run(target, data, folder, watch, case_seconds)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            for path in home.iterdir():
                if path.name not in there and problem is None:
                    problem = (f"{path.name} was left outside the case's folder", "")
            if problem is not None:
                say(what=problem[0], trace=problem[1])
            number += 1


def _warm_up(target: str, home: Path) -> None:
    """Make the seeds and import what a case needs, so that neither counts against the first."""
    if target in FAULTY:
        return
    folder = home / "warm"
    folder.mkdir()
    with _quiet():
        for number in range(3):
            data = case_of(target, -1, number, folder)
            shutil.rmtree(folder)
            folder.mkdir()
            with suppress(Exception):  # only what it imports matters
                _functions(target)[1](data, folder)
            shutil.rmtree(folder)
            folder.mkdir()
    shutil.rmtree(folder)


def _run(
    target: str, data: bytes, folder: Path, watch: _Watch, seconds: float
) -> tuple[str, str] | None:
    _, feed, typed = _functions(target)
    watch.outside = None
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with _quiet():
            feed(data, folder)
    except InternalError as exc:
        return _described(exc)
    except typed as exc:
        return _untidy(exc)
    except (Hang, Exception) as exc:
        return _described(exc)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if watch.outside is not None:
            return f"file outside the scratch folder: {watch.outside}", ""  # noqa: B012
    return None


def _untidy(exc: Exception) -> tuple[str, str] | None:
    """Say what a typed error lacks: one line of bounded length, data that is JSON."""
    text = str(exc)
    if not text or len(text) > 4000 or "Traceback" in text:
        return f"an error's text is empty, too long or a traceback: {text[:200]!r}", ""
    try:
        json.dumps(getattr(exc, "details", None), allow_nan=False)
    except (TypeError, ValueError) as problem:
        return f"an error's details are not JSON: {problem}", _described(exc)[1]
    return None


def _described(exc: BaseException) -> tuple[str, str]:
    innermost = exc
    while innermost.__cause__ is not None:
        innermost = innermost.__cause__
    frames = traceback.extract_tb(innermost.__traceback__)
    own = [f for f in frames if "/tests/fuzz/" not in f.filename] or frames
    ours = [f for f in own if "site-packages" not in f.filename and "/lib/python" not in f.filename]
    place = (ours or own or [None])[-1]
    where = "" if place is None else f" in {Path(place.filename).name}:{place.lineno}"
    text = str(innermost).partition("\n")[0][:120]
    trace = "".join(traceback.format_exception(exc))
    return f"{type(innermost).__name__}{where}: {text}", trace[-6000:]


def _alarm(number: int, frame: Any) -> None:
    raise Hang("it takes too long")


def _bound_memory() -> None:
    with Path("/proc/self/status").open() as file:
        kib = next(int(line.split()[1]) for line in file if line.startswith("VmData:"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (kib * 1024 + MEMORY, hard))


class _Watch:
    """Notes files that are opened for writing outside the folder, and the planted secret."""

    def __init__(self, home: Path) -> None:
        self._home = str(home) + "/"
        self._secret = self._home + "secret"
        self.outside: str | None = None

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], (str, bytes)):
            path = os.path.abspath(os.fsdecode(args[0]))  # noqa: PTH100
            writes = args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            foreign = not path.startswith(self._home) and not path.startswith("/dev/")
            if (writes and foreign) or path == self._secret:
                self.outside = path
        elif event in ("os.symlink", "os.link", "os.mkdir", "os.rename", "os.remove"):
            for name in args[:2]:
                path = os.fsdecode(name) if isinstance(name, (str, bytes)) else ""
                whole = os.path.abspath(path)  # noqa: PTH100
                if path.startswith("/") and not whole.startswith(self._home):
                    self.outside = path
        elif event in ("subprocess.Popen", "os.system", "pickle.find_class"):
            self.outside = f"{event} {args[0]!r}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Turn warnings and logs away: thousands of cases would fill the parent's file."""
    import logging
    import warnings

    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


if __name__ == "__main__":
    main(sys.argv[1:])
