"""How a run of an engine ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from service.domain import Failure, Usage

__all__ = ["Ending", "EngineFile", "Outcome"]


class Ending(Enum):
    """What became of a run."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    """Killed from outside, or the worker has to stop: another attempt may succeed."""


@dataclass(frozen=True, slots=True)
class EngineFile:
    """A file that the engine says it wrote, inside its output folder, digest checked."""

    kind: str
    path: Path
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run.

    Attributes:
        ending: what became of it.
        files: the results of a success.
        summary: the engine's summary of a success.
        failure: why not, for every ending but a success and a cancel.
        usage: processor time and peak memory of the process and its children.
        exit_code: negative for a signal; None when it never started.
    """

    ending: Ending
    files: tuple[EngineFile, ...] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    usage: Usage = field(default_factory=Usage)
    exit_code: int | None = None
