"""Operators of the IR, one file per family; see :mod:`qbcompiler.ops.spec`."""

from .registry import Registry, default_registry
from .spec import (
    EXPORT_OPSET,
    Case,
    Kernels,
    Lowering,
    OnnxEmitter,
    OpSpec,
    QuantContext,
    QuantRule,
    Refusal,
    SourceNode,
)

__all__ = [
    "EXPORT_OPSET",
    "Case",
    "Kernels",
    "Lowering",
    "OnnxEmitter",
    "OpSpec",
    "QuantContext",
    "QuantRule",
    "Refusal",
    "Registry",
    "SourceNode",
    "default_registry",
]
