"""Mathematical functions of one number, each a 256-entry table in the integer form.

Where a function is undefined (``log`` and ``sqrt`` below zero, ``1/sqrt`` at zero), the table holds
its limit: such inputs arise only from rounding to the grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir import (
    Attrs,
    DType,
    Graph,
    NoAttrs,
    Node,
    TensorType,
    Value,
)
from .common import broadcast
from .elementwise import Unary, erf
from .spec import (
    Case,
    Lowering,
    OnnxEmitter,
    Refusal,
    SourceNode,
)

__all__ = [
    "FUNCTIONS",
    "Abs",
    "Ceil",
    "Cos",
    "Erf",
    "Exp",
    "Log",
    "Pow",
    "PowAttrs",
    "Rsqrt",
    "Sin",
    "Sqrt",
]

Float64 = NDArray[np.float64]


def _act(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


class Abs(Unary[NoAttrs]):
    """Absolute value."""

    name = "Abs"
    attrs_type = NoAttrs
    onnx = ("Abs",)

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return np.abs(x)


class Ceil(Unary[NoAttrs]):
    """Smallest integer not below ``x``."""

    name = "Ceil"
    attrs_type = NoAttrs
    onnx = ("Ceil",)

    def is_smooth(self, attrs: NoAttrs) -> bool:
        return False

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return np.ceil(x)


class Cos(Unary[NoAttrs]):
    """Cosine."""

    name = "Cos"
    attrs_type = NoAttrs
    onnx = ("Cos",)

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return np.cos(x)


class Erf(Unary[NoAttrs]):
    """Gaussian error function."""

    name = "Erf"
    attrs_type = NoAttrs
    onnx = ("Erf",)

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return erf(x)


class Exp(Unary[NoAttrs]):
    """Exponential function."""

    name = "Exp"
    attrs_type = NoAttrs
    onnx = ("Exp",)

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return np.exp(x)


class Log(Unary[NoAttrs]):
    """Natural logarithm; the table saturates at and below zero."""

    name = "Log"
    attrs_type = NoAttrs
    onnx = ("Log",)
    partial = True
    range = (0.05, 8.0)

    def is_smooth(self, attrs: NoAttrs) -> bool:
        return False

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return np.where(x > 0, np.log(np.where(x > 0, x, 1.0)), -np.inf)


@dataclass(frozen=True, slots=True)
class PowAttrs(Attrs):
    """A constant exponent."""

    exponent: float = 2.0


class Pow(Unary[PowAttrs]):
    """``x`` to a constant power; where that is undefined, the table holds 0."""

    name = "Pow"
    attrs_type = PowAttrs
    onnx = ("Pow",)
    partial = True
    sample = (PowAttrs(2.0), PowAttrs(3.0))

    def is_smooth(self, attrs: PowAttrs) -> bool:
        return attrs.exponent >= 1.0

    def function(self, attrs: PowAttrs, x: Float64) -> Float64:
        with np.errstate(invalid="ignore"):
            y = np.power(x, attrs.exponent)
        return np.where(np.isnan(y), 0.0, y)

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x, exponent = node.input(0), node.const(1)
        if x is None or not x.type.dtype.is_float:
            return Refusal("its base is not floating point")
        if exponent is None or exponent.size == 0 or exponent.ndim > x.type.rank:
            return Refusal("its exponent is not constant")
        first = exponent.reshape(-1)[0]
        if (exponent != first).any() or broadcast(exponent.shape, x.shape) != x.shape:
            return Refusal("its exponent is not one number")
        if not math.isfinite(float(first)):
            return Refusal("its exponent is not finite")
        return to.emit(self.name, PowAttrs(float(first)), [x])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        dtype = graph.values[node.inputs[0]].type.dtype.numpy
        exponent = np.asarray(self.attrs_of(node).exponent, dtype=dtype)
        to.emit("Pow", [node.inputs[0], to.const(exponent, "exponent")], node.outputs)

    def cases(self) -> Sequence[Case]:
        root = PowAttrs(0.5)
        return [
            *super().cases(),
            Case(
                "root",
                root,
                [_act(2, 3, 40)],
                low=0.0,
                bound=0.51,
                reference=lambda x: self.function(root, np.asarray(x, dtype=np.float64)),
            ),
        ]


class Rsqrt(Unary[NoAttrs]):
    """``1 / sqrt(x)``; the table saturates at and below zero."""

    name = "Rsqrt"
    attrs_type = NoAttrs
    partial = True
    range = (0.1, 8.0)

    def is_smooth(self, attrs: NoAttrs) -> bool:
        return False

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return np.where(x > 0, 1.0 / np.sqrt(np.where(x > 0, x, 1.0)), np.inf)

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        return Refusal("ONNX has no such operator")

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        root = to.temp("root")
        to.emit("Sqrt", node.inputs, [root])
        to.emit("Reciprocal", [root], node.outputs)


class Sin(Unary[NoAttrs]):
    """Sine."""

    name = "Sin"
    attrs_type = NoAttrs
    onnx = ("Sin",)

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return np.sin(x)


class Sqrt(Unary[NoAttrs]):
    """Square root; the table holds 0 below zero."""

    name = "Sqrt"
    attrs_type = NoAttrs
    onnx = ("Sqrt",)
    partial = True
    range = (0.0, 8.0)

    def is_smooth(self, attrs: NoAttrs) -> bool:
        return False

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return np.sqrt(np.maximum(x, 0.0))


FUNCTIONS: tuple[Unary[Any], ...] = (
    Abs(),
    Ceil(),
    Cos(),
    Erf(),
    Exp(),
    Log(),
    Pow(),
    Rsqrt(),
    Sin(),
    Sqrt(),
)
"""Every function, in registry order."""
