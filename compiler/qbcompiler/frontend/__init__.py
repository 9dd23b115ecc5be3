"""From a source model to the IR, and from the IR back to ONNX.

The names load on first use, for the loader and the simplifier bring in packages that an importer
of :mod:`qbcompiler.frontend.export` alone does not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .export import save_onnx, to_onnx, to_onnx_bytes
    from .load import SourceModel, load_model
    from .parse import parse

__all__ = ["SourceModel", "load_model", "parse", "save_onnx", "to_onnx", "to_onnx_bytes"]

_HOMES = {
    "SourceModel": "load",
    "load_model": "load",
    "parse": "parse",
    "save_onnx": "export",
    "to_onnx": "export",
    "to_onnx_bytes": "export",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
