"""The engine boundary: a compiler as a subprocess that speaks JSON lines."""

from .command import EngineError, Inputs, build_command, check_sandbox, probe_version
from .control import Control, Interrupted, interruptible
from .outcome import Ending, EngineFile, Outcome
from .process import Sink, kill_marked, run_engine

__all__ = [
    "Control",
    "Ending",
    "EngineError",
    "EngineFile",
    "Inputs",
    "Interrupted",
    "Outcome",
    "Sink",
    "build_command",
    "check_sandbox",
    "interruptible",
    "kill_marked",
    "probe_version",
    "run_engine",
]
