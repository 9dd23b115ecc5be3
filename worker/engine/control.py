"""What ends an attempt before its work is done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from service.domain import Failure

from .outcome import Ending, Outcome

__all__ = ["Control", "Interrupted", "interruptible"]

T = TypeVar("T")

_TICK = 0.05


@dataclass
class Control:
    """What may change while an attempt runs; set from any thread.

    Attributes:
        cancel: set to end the attempt because nobody wants the build any more.
        stop: set to end the attempt because the worker stops or has lost its lease.
        run_limit_s, memory_limit_mb, disk_limit_mb: the bounds; None for none.
        grace_s: time between SIGTERM and SIGKILL of an engine.
        started: when the attempt began, on the monotonic clock; its run limit counts from there.
    """

    cancel: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)
    run_limit_s: float | None = None
    memory_limit_mb: int | None = None
    disk_limit_mb: int | None = None
    grace_s: float = 0.8
    started: float = field(default_factory=time.monotonic)

    def verdict(self) -> tuple[Ending, Failure | None] | None:
        """Return how the attempt must end now, and why; None when it may go on."""
        if self.cancel.is_set():
            return Ending.CANCELLED, None
        if self.stop.is_set():
            return Ending.LOST, None
        limit = self.run_limit_s
        if limit is not None and time.monotonic() - self.started > limit:
            return Ending.TIMED_OUT, Failure(
                "JOB_TIMEOUT",
                f"the build ran longer than its limit of {limit:g} s",
                details={"limit": "run_s", "run_s": limit},
                hint="ask for a higher limits.run_s, or use fewer calibration samples",
            )
        return None


class Interrupted(Exception):  # noqa: N818 (an order, not a fault)
    """The attempt must end; ``outcome`` says how."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.ending.value)
        self.outcome = outcome


def interruptible(work: Callable[[], T], control: Control) -> T:
    """Run blocking work in a thread of its own, and return what it returns.

    A call that hangs in a socket or a disk cannot be woken. When the attempt must end, the thread
    is left to itself: what it still does to the scratch folder or the object store does no harm.

    Raises:
        Interrupted: the attempt must end.
        Exception: what ``work`` raises.
    """
    done = threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as exc:
            errors.append(exc)
        finally:
            done.set()

    threading.Thread(target=run, name="transfer", daemon=True).start()
    while not done.wait(_TICK):
        if (found := control.verdict()) is not None:
            raise Interrupted(Outcome(found[0], failure=found[1]))
    if errors:
        raise errors[0]
    return results[0]
