"""States of jobs and builds, and the one table of transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

__all__ = [
    "ACTIVE",
    "TERMINAL",
    "TRANSITIONS",
    "AttemptState",
    "Phase",
    "State",
    "TransitionError",
    "can_move",
    "check_move",
]


class State(StrEnum):
    """Where a job or a build stands."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


class Phase(StrEnum):
    """What a running build is doing."""

    FETCH = "fetch"
    PARSE = "parse"
    CALIBRATE = "calibrate"
    QUANTIZE = "quantize"
    CODEGEN = "codegen"
    VERIFY = "verify"
    STORE = "store"


class AttemptState(StrEnum):
    """How one worker's try at a build stands or ended."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    """Its lease ran out."""
    RELEASED = "released"
    """The worker gave it back on purpose."""


TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        # a job goes from queued straight to an end when a finished build answers it (succeeded,
        # or a failure that is the input's fault), when it is cancelled, and when it waited longer
        # than its queue limit
        State.QUEUED: frozenset(
            {State.RUNNING, State.SUCCEEDED, State.FAILED, State.CANCELLED, State.TIMED_OUT}
        ),
        # back to queued: the worker was lost or shut down
        State.RUNNING: frozenset(
            {State.QUEUED, State.SUCCEEDED, State.FAILED, State.CANCELLED, State.TIMED_OUT}
        ),
        State.SUCCEEDED: frozenset(),
        State.FAILED: frozenset(),
        State.CANCELLED: frozenset(),
        State.TIMED_OUT: frozenset(),
    }
)
"""Every state that may follow a state. Terminal states have no successor."""

TERMINAL: frozenset[State] = frozenset(s for s, after in TRANSITIONS.items() if not after)
ACTIVE: frozenset[State] = frozenset(State) - TERMINAL


class TransitionError(ValueError):
    """A transition that the table does not have: a fault of the caller's code."""

    def __init__(self, before: State, after: State) -> None:
        super().__init__(f"no transition from {before.value} to {after.value}")
        self.before = before
        self.after = after


def can_move(before: State, after: State) -> bool:
    """Say whether the table has the transition."""
    return after in TRANSITIONS[before]


def check_move(before: State, after: State) -> None:
    """Raise :class:`TransitionError` unless the table has the transition."""
    if not can_move(before, after):
        raise TransitionError(before, after)
