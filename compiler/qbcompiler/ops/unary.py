"""Activation functions, each a 256-entry table in the integer form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..ir import (
    Attrs,
    Graph,
    NoAttrs,
    Node,
    TensorType,
    Value,
)
from .elementwise import Unary, erf, sigmoid, softplus
from .spec import (
    Lowering,
    OnnxEmitter,
    Refusal,
    SourceNode,
)

__all__ = [
    "ACTIVATIONS",
    "AlphaAttrs",
    "Celu",
    "Elu",
    "Gelu",
    "GeluAttrs",
    "HardSigmoid",
    "HardSigmoidAttrs",
    "HardSwish",
    "Hardshrink",
    "LeakyRelu",
    "LeakyReluAttrs",
    "Mish",
    "QuickGelu",
    "QuickGeluAttrs",
    "Selu",
    "SeluAttrs",
    "ShrinkAttrs",
    "Sigmoid",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Swish",
    "Tanh",
]

A = TypeVar("A", bound=Attrs)
Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LeakyReluAttrs(Attrs):
    """Slope below zero."""

    alpha: float = 0.01


@dataclass(frozen=True, slots=True)
class HardSigmoidAttrs(Attrs):
    """``clamp(alpha * x + beta, 0, 1)``."""

    alpha: float = 0.2
    beta: float = 0.5


@dataclass(frozen=True, slots=True)
class AlphaAttrs(Attrs):
    """A factor whose default is 1."""

    alpha: float = 1.0


@dataclass(frozen=True, slots=True)
class QuickGeluAttrs(Attrs):
    """Factor inside the sigmoid."""

    alpha: float = 1.702


@dataclass(frozen=True, slots=True)
class SeluAttrs(Attrs):
    """Constants of the scaled exponential unit."""

    alpha: float = 1.67326319217681884765625
    gamma: float = 1.05070102214813232421875


@dataclass(frozen=True, slots=True)
class GeluAttrs(Attrs):
    """Form of the Gaussian error unit.

    Attributes:
        approximate: ``none`` (erf) or ``tanh``.
    """

    approximate: str = "none"


@dataclass(frozen=True, slots=True)
class ShrinkAttrs(Attrs):
    """Half width of the dead zone."""

    lambd: float = 0.5


class LeakyRelu(Unary[LeakyReluAttrs]):
    """``x`` where positive, ``alpha * x`` elsewhere."""

    name = "LeakyRelu"
    attrs_type = LeakyReluAttrs
    onnx = ("LeakyRelu",)
    sample = (LeakyReluAttrs(), LeakyReluAttrs(0.3))

    def function(self, attrs: LeakyReluAttrs, x: Float64) -> Float64:
        return np.where(x < 0, attrs.alpha * x, x)


class Sigmoid(Unary[NoAttrs]):
    """``1 / (1 + exp(-x))``."""

    name = "Sigmoid"
    attrs_type = NoAttrs
    onnx = ("Sigmoid",)

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return sigmoid(x)


class HardSigmoid(Unary[HardSigmoidAttrs]):
    """``clamp(alpha * x + beta, 0, 1)``."""

    name = "HardSigmoid"
    attrs_type = HardSigmoidAttrs
    onnx = ("HardSigmoid",)
    sample = (HardSigmoidAttrs(), HardSigmoidAttrs(1 / 6, 0.5))

    def function(self, attrs: HardSigmoidAttrs, x: Float64) -> Float64:
        return np.clip(attrs.alpha * x + attrs.beta, 0.0, 1.0)


class HardSwish(Unary[NoAttrs]):
    """``x * clamp(x / 6 + 1/2, 0, 1)``."""

    name = "HardSwish"
    attrs_type = NoAttrs
    onnx = ("HardSwish",)

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)


class _SigmoidProduct(Unary[A]):
    """``x * sigmoid(alpha * x)``, written as its parts."""

    def function(self, attrs: A, x: Float64) -> Float64:
        return x * sigmoid(getattr(attrs, "alpha", 1.0) * x)

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        x = node.inputs[0]
        alpha = float(getattr(node.attrs, "alpha", 1.0))
        inner = x
        if alpha != 1.0:
            inner = to.temp("scaled")
            dtype = graph.values[x].type.dtype.numpy
            to.emit("Mul", [x, to.const(np.asarray(alpha, dtype=dtype), "alpha")], [inner])
        gate = to.temp("gate")
        to.emit("Sigmoid", [inner], [gate])
        to.emit("Mul", [x, gate], node.outputs)


class Swish(_SigmoidProduct[NoAttrs]):
    """``x * sigmoid(x)``."""

    name = "Swish"
    attrs_type = NoAttrs
    onnx = ("Swish",)

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        if float(node.attrs.get("alpha", 1.0)) != 1.0:
            return Refusal("its alpha is not 1")
        return super().lower(node, to)

    def from_onnx(self, attrs: Mapping[str, Any]) -> NoAttrs:
        return NoAttrs()


class QuickGelu(_SigmoidProduct[QuickGeluAttrs]):
    """``x * sigmoid(alpha * x)``."""

    name = "QuickGelu"
    attrs_type = QuickGeluAttrs
    onnx = ("Swish", "com.microsoft::QuickGelu")
    sample = (QuickGeluAttrs(), QuickGeluAttrs(0.5))

    def from_onnx(self, attrs: Mapping[str, Any]) -> QuickGeluAttrs:
        return QuickGeluAttrs(float(attrs.get("alpha", 1.702)))


class Tanh(Unary[NoAttrs]):
    """Hyperbolic tangent."""

    name = "Tanh"
    attrs_type = NoAttrs
    onnx = ("Tanh",)

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return np.tanh(x)


class Gelu(Unary[GeluAttrs]):
    """``x * Phi(x)``, by erf or by its tanh approximation."""

    name = "Gelu"
    attrs_type = GeluAttrs
    onnx = ("Gelu", "com.microsoft::Gelu")
    sample = (GeluAttrs(), GeluAttrs("tanh"))

    def function(self, attrs: GeluAttrs, x: Float64) -> Float64:
        if attrs.approximate == "tanh":
            inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
            return 0.5 * x * (1.0 + np.tanh(inner))
        return 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))

    def infer(self, attrs: GeluAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        if attrs.approximate not in ("none", "tanh"):
            raise ValueError(f"unknown approximation {attrs.approximate!r}")
        return super().infer(attrs, inputs)


class Mish(Unary[NoAttrs]):
    """``x * tanh(softplus(x))``."""

    name = "Mish"
    attrs_type = NoAttrs
    onnx = ("Mish",)

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return x * np.tanh(softplus(x))


class Elu(Unary[AlphaAttrs]):
    """``x`` where positive, ``alpha * (exp(x) - 1)`` elsewhere."""

    name = "Elu"
    attrs_type = AlphaAttrs
    onnx = ("Elu",)
    sample = (AlphaAttrs(), AlphaAttrs(0.5))

    def function(self, attrs: AlphaAttrs, x: Float64) -> Float64:
        return np.where(x < 0, attrs.alpha * np.expm1(np.minimum(x, 0.0)), x)


class Celu(Unary[AlphaAttrs]):
    """``max(x, 0) + min(0, alpha * (exp(x / alpha) - 1))``."""

    name = "Celu"
    attrs_type = AlphaAttrs
    onnx = ("Celu",)
    sample = (AlphaAttrs(), AlphaAttrs(2.0))

    def function(self, attrs: AlphaAttrs, x: Float64) -> Float64:
        low = attrs.alpha * np.expm1(np.minimum(x / attrs.alpha, 0.0))
        return np.maximum(x, 0.0) + np.minimum(0.0, low)


class Selu(Unary[SeluAttrs]):
    """``gamma * (x`` where positive, ``alpha * (exp(x) - 1)`` elsewhere``)``."""

    name = "Selu"
    attrs_type = SeluAttrs
    onnx = ("Selu",)
    sample = (SeluAttrs(), SeluAttrs(1.5, 1.1))

    def function(self, attrs: SeluAttrs, x: Float64) -> Float64:
        return attrs.gamma * np.where(x > 0, x, attrs.alpha * np.expm1(np.minimum(x, 0.0)))


class Softplus(Unary[NoAttrs]):
    """``log(1 + exp(x))``."""

    name = "Softplus"
    attrs_type = NoAttrs
    onnx = ("Softplus",)

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return softplus(x)


class Softsign(Unary[NoAttrs]):
    """``x / (1 + |x|)``."""

    name = "Softsign"
    attrs_type = NoAttrs
    onnx = ("Softsign",)

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return x / (1.0 + np.abs(x))


class Hardshrink(Unary[ShrinkAttrs]):
    """``x`` outside [-lambd, lambd], 0 inside."""

    name = "Hardshrink"
    attrs_type = ShrinkAttrs
    onnx = ("Shrink",)
    sample = (ShrinkAttrs(), ShrinkAttrs(1.5))

    def is_smooth(self, attrs: ShrinkAttrs) -> bool:
        return False

    def function(self, attrs: ShrinkAttrs, x: Float64) -> Float64:
        return np.where(np.abs(x) > attrs.lambd, x, 0.0)

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        if float(node.attrs.get("bias", 0.0)) != 0.0:
            return Refusal("its bias is not 0")
        return super().lower(node, to)

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        to.emit("Shrink", node.inputs, node.outputs, lambd=self.attrs_of(node).lambd, bias=0.0)


class Softshrink(Unary[ShrinkAttrs]):
    """``x`` moved by ``lambd`` towards 0, 0 inside [-lambd, lambd]."""

    name = "Softshrink"
    attrs_type = ShrinkAttrs
    onnx = ("Shrink",)
    sample = (ShrinkAttrs(), ShrinkAttrs(1.5))

    def function(self, attrs: ShrinkAttrs, x: Float64) -> Float64:
        return np.where(np.abs(x) > attrs.lambd, x - np.copysign(attrs.lambd, x), 0.0)

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        lambd = float(node.attrs.get("lambd", 0.5))
        if float(node.attrs.get("bias", 0.0)) != lambd:
            return Refusal("its bias is not its lambd")
        return super().lower(node, to)

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        lambd = self.attrs_of(node).lambd
        to.emit("Shrink", node.inputs, node.outputs, lambd=lambd, bias=lambd)


ACTIVATIONS: tuple[Unary[Any], ...] = (
    LeakyRelu(),
    Sigmoid(),
    HardSigmoid(),
    HardSwish(),
    Swish(),
    QuickGelu(),
    Tanh(),
    Gelu(),
    Mish(),
    Elu(),
    Celu(),
    Selu(),
    Softplus(),
    Softsign(),
    Hardshrink(),
    Softshrink(),
)
"""Every activation function, in registry order."""
