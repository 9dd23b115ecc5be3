"""Operators of the IR, one file per family; see :mod:`qbcompiler.ops.spec`."""

from .registry import Registry, default_registry
from .spec import (
    EXPORT_OPSET,
    Affine,
    Case,
    Kernels,
    Lowering,
    NormalForm,
    OnnxEmitter,
    OpSpec,
    QuantContext,
    Quantized,
    QuantRule,
    RealForm,
    Refusal,
    Rounding,
    SourceNode,
    TableForm,
)

__all__ = [
    "EXPORT_OPSET",
    "Affine",
    "Case",
    "Kernels",
    "Lowering",
    "NormalForm",
    "OnnxEmitter",
    "OpSpec",
    "QuantContext",
    "QuantRule",
    "Quantized",
    "RealForm",
    "Refusal",
    "Registry",
    "Rounding",
    "SourceNode",
    "TableForm",
    "default_registry",
]
