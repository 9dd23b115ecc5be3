"""Standard output under the JSON-lines protocol, and signals that end the program."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import IO

__all__ = ["Terminated", "protocol_stream", "terminable"]


class Terminated(BaseException):
    """SIGTERM, SIGHUP or SIGXCPU arrived; unwinds the stack so that temporary files go."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def protocol_stream() -> Iterator[IO[str]]:
    """Give standard output to the protocol alone.

    File descriptor 1 is pointed at standard error for the time, so that neither ``print`` nor a
    C library can write between the JSON lines.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.set_inheritable(kept, False)
    stream = os.fdopen(os.dup(kept), "w", encoding="utf-8", newline="\n")
    stdout = sys.stdout
    try:
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        yield stream
    finally:
        with contextlib.suppress(OSError, ValueError):
            stream.close()
        sys.stdout = stdout
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Turn SIGTERM, SIGHUP and SIGXCPU into :class:`Terminated` in the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        # a second signal must not interrupt the cleaning up
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Terminated(number)

    names = ("SIGTERM", "SIGHUP", "SIGXCPU")
    numbers = [signal.Signals[n] for n in names if n in signal.Signals.__members__]
    try:
        before = {n: signal.signal(n, stop) for n in numbers}
    except ValueError:  # not the main thread: signals are somebody else's business
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
