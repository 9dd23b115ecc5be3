"""The engine boundary: a compiler as a subprocess that speaks JSON lines."""

from .command import EngineError, Inputs, build_command, check_sandbox, probe_version
from .outcome import Ending, EngineFile, Outcome
from .process import Control, Sink, run_engine

__all__ = [
    "Control",
    "Ending",
    "EngineError",
    "EngineFile",
    "Inputs",
    "Outcome",
    "Sink",
    "build_command",
    "check_sandbox",
    "probe_version",
    "run_engine",
]
