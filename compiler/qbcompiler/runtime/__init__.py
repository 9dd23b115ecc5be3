"""The runtime: the float engine, the exact integer engine, and the user's ``Model``.

Names are imported on first use, so that importing the package does not load ONNX Runtime.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .accelerator import Accelerator, CoreMode, Executor, ModelConfig
    from .float_engine import float_engine_version
    from .integer_engine import IntegerEngine
    from .kernels import ExactKernels
    from .model import Model
    from .program_engine import ProgramEngine

__all__ = [
    "Accelerator",
    "CoreMode",
    "ExactKernels",
    "Executor",
    "IntegerEngine",
    "Model",
    "ModelConfig",
    "ProgramEngine",
    "float_engine_version",
]

_HOME = {
    "Accelerator": "accelerator",
    "CoreMode": "accelerator",
    "ExactKernels": "kernels",
    "Executor": "accelerator",
    "IntegerEngine": "integer_engine",
    "Model": "model",
    "ModelConfig": "accelerator",
    "ProgramEngine": "program_engine",
    "float_engine_version": "float_engine",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
