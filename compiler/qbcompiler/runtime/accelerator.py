"""What a user says to the runtime: the accelerator, the core mode, a model's configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

from ..errors import ArgumentError

__all__ = ["Accelerator", "CoreMode", "Executor", "ModelConfig"]


class Executor(StrEnum):
    """What the reference runtime executes; both give the same bits."""

    PROGRAM = "program"
    """The device's program of the core mode: tile by tile, core by core."""
    GRAPH = "graph"
    """The integer graph, layer by layer."""


class CoreMode(StrEnum):
    """How the cores share the work; all modes give the same bits."""

    AUTO = "auto"
    """The package's only mode; refused where it holds several."""
    SINGLE = "single"
    """Each core works alone on one input."""
    MULTI = "multi"
    """The four cores of a cluster take a batch of four."""
    GLOBAL4 = "global4"
    """Four cores share one input."""
    GLOBAL8 = "global8"
    """Eight cores share one input."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """How a model is to be run.

    Attributes:
        core_mode: a mode that the package was built for.
        threads: threads that the reference runtime uses; None for one for each processor that
            this process may use. Results do not depend on it.
        executor: what to execute; a package without programs has the graph alone.
    """

    core_mode: CoreMode = CoreMode.AUTO
    threads: int | None = None
    executor: Executor = Executor.PROGRAM

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "core_mode", CoreMode(self.core_mode))
        except ValueError:
            modes = ", ".join(m.value for m in CoreMode)
            raise ArgumentError(
                f"unknown core mode {self.core_mode!r}",
                details={"got": str(self.core_mode), "expected": [m.value for m in CoreMode]},
                hint=f"one of {modes}",
            ) from None
        try:
            object.__setattr__(self, "executor", Executor(self.executor))
        except ValueError:
            raise ArgumentError(
                f"unknown executor {self.executor!r}",
                details={"got": str(self.executor), "expected": [e.value for e in Executor]},
                hint=f"one of {', '.join(e.value for e in Executor)}",
            ) from None
        if self.threads is not None and self.threads < 1:
            raise ArgumentError(f"threads must be at least 1, got {self.threads}")

    @property
    def thread_count(self) -> int:
        """The number of threads, resolved."""
        if self.threads is not None:
            return self.threads
        if hasattr(os, "sched_getaffinity"):
            return max(1, len(os.sched_getaffinity(0)))
        return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The device that the reference runtime stands in for.

    Attributes:
        device: target device string, as given to the compiler.
    """

    device: str
