"""Targets that fail on purpose, each in one way: the search must see it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from qbcompiler.errors import ArgumentError, InternalError

__all__ = ["FAULTY"]

Feed = Callable[[bytes, Path], None]


def _hang(data: bytes, folder: Path) -> None:
    while True:
        # as a library may
        with contextlib.suppress(Exception):
            time.sleep(60)


def _crash(data: bytes, folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _fault(data: bytes, folder: Path) -> None:
    raise InternalError("a fault")


def _allocation(data: bytes, folder: Path) -> None:
    bytearray(3 << 30)


def _write(data: bytes, folder: Path) -> None:
    (folder.parents[1] / "qb-fuzz-no-such-folder" / "x").write_text("x")


def _read(data: bytes, folder: Path) -> None:
    (folder.parent / "secret").read_text()


def _program(data: bytes, folder: Path) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def _left(data: bytes, folder: Path) -> None:
    (folder.parent / "beside").write_text("x")


def _typed(data: bytes, folder: Path) -> None:
    raise ArgumentError("wrong\x1b[2J", details={"got": float("nan"), 3: b"x"})


FAULTY: dict[str, Feed] = {
    "faulty-hang": _hang,
    "faulty-crash": _crash,
    "faulty-fault": _fault,
    "faulty-allocation": _allocation,
    "faulty-write": _write,
    "faulty-read": _read,
    "faulty-program": _program,
    "faulty-left": _left,
    "faulty-typed": _typed,
}
