"""Functions of one number, each a 256-entry table in the integer form.

A table entry is the nearest output step, so the error is at most half a step. Where a function
is undefined (``log`` and ``sqrt`` below zero, ``1/sqrt`` at zero), the table holds its limit:
such inputs arise only from rounding to the grid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..ir import (
    Array,
    Attrs,
    DType,
    Graph,
    IntLayer,
    NoAttrs,
    Node,
    QuantParams,
    TensorType,
    Value,
)
from .common import grid_of, integer_reason, require, require_float
from .spec import (
    Case,
    Kernels,
    Lowering,
    OnnxEmitter,
    OpSpec,
    QuantContext,
    Refusal,
    SourceNode,
)
from .tables import build_table, lookup

__all__ = ["TABLE_SPECS", "PowAttrs", "Unary"]

A = TypeVar("A", bound=Attrs)
Float64 = NDArray[np.float64]


def _act(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


class Unary(OpSpec[A]):
    """An elementwise function of one activation.

    Subclasses give :meth:`function` and, where the ONNX form is not one node of the same
    attributes, :meth:`lower` or :meth:`export`.

    Class variables:
        exported: the ONNX operator that it is written as.
        range: inputs of the sample cases.
        sample: attributes of the sample cases.
    """

    exported: ClassVar[str] = ""
    range: ClassVar[tuple[float, float]] = (-4.0, 4.0)
    sample: ClassVar[tuple[Attrs, ...]] = (NoAttrs(),)

    def function(self, attrs: A, x: Float64) -> Float64:
        """Return the function in float64, defined for every finite input."""
        raise TypeError(f"{self.name} has no function")

    def infer(self, attrs: A, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        require_float(x)
        return [x.type]

    def from_onnx(self, attrs: Mapping[str, Any]) -> A:
        """Return the attributes of an ONNX node; by default those of the same names."""
        fields = {k: v for k, v in attrs.items() if k in self.attrs_type.__dataclass_fields__}
        found: A = self.attrs_type.from_dict(fields)  # type: ignore[assignment]
        return found

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x = node.input(0)
        if x is None or not x.type.dtype.is_float:
            return Refusal("its input is not floating point")
        return to.emit(self.name, self.from_onnx(node.attrs), [x])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        to.emit(
            self.exported or self.onnx[0], node.inputs[:1], node.outputs, **node.attrs.to_dict()
        )

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        return integer_reason(node, graph)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        attrs = self.attrs_of(node)
        table = build_table(
            lambda x: self.function(attrs, x),
            grid_of(q, node.inputs[0]),
            grid_of(q, node.outputs[0]),
        )
        return IntLayer(
            node.name,
            node.op,
            [node.inputs[0]],
            list(node.outputs),
            {},
            {"table": table},
            node.source,
        )

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        x = inputs[0]
        assert x is not None
        return [lookup(layer.tensors["table"], x)]

    def cases(self) -> Sequence[Case]:
        low, high = self.range

        def reference(attrs: Attrs) -> Any:
            return lambda x: self.function(attrs, np.asarray(x, dtype=np.float64))  # type: ignore[arg-type]

        return [
            Case(
                f"sample{i}",
                attrs,
                [_act(2, 3, 40)],
                low=low,
                high=high,
                bound=0.51,
                reference=reference(attrs),
            )
            for i, attrs in enumerate(self.sample)
        ]


# -- numerics -----------------------------------------------------------------------------


def _sigmoid(x: Float64) -> Float64:
    positive = 1.0 / (1.0 + np.exp(-np.abs(x)))
    return np.where(x >= 0, positive, 1.0 - positive)


def _softplus(x: Float64) -> Float64:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _erf(x: Float64) -> Float64:
    return np.array([math.erf(v) for v in x.ravel()], dtype=np.float64).reshape(x.shape)


# -- attributes ---------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class PowAttrs(Attrs):
    """A constant exponent."""

    exponent: float = 2.0


# -- operators ----------------------------------------------------------------------------


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
        return _sigmoid(x)


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
        return x * _sigmoid(getattr(attrs, "alpha", 1.0) * x)

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
        return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))

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
        return x * np.tanh(_softplus(x))


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
        return _softplus(x)


class Softsign(Unary[NoAttrs]):
    """``x / (1 + |x|)``."""

    name = "Softsign"
    attrs_type = NoAttrs
    onnx = ("Softsign",)

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return x / (1.0 + np.abs(x))


class Erf(Unary[NoAttrs]):
    """Gaussian error function."""

    name = "Erf"
    attrs_type = NoAttrs
    onnx = ("Erf",)

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return _erf(x)


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
    range = (0.05, 8.0)

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return np.where(x > 0, np.log(np.where(x > 0, x, 1.0)), -np.inf)


class Sqrt(Unary[NoAttrs]):
    """Square root; the table holds 0 below zero."""

    name = "Sqrt"
    attrs_type = NoAttrs
    onnx = ("Sqrt",)
    range = (0.0, 8.0)

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return np.sqrt(np.maximum(x, 0.0))


class Rsqrt(Unary[NoAttrs]):
    """``1 / sqrt(x)``; the table saturates at and below zero."""

    name = "Rsqrt"
    attrs_type = NoAttrs
    range = (0.1, 8.0)

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


class Cos(Unary[NoAttrs]):
    """Cosine."""

    name = "Cos"
    attrs_type = NoAttrs
    onnx = ("Cos",)

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return np.cos(x)


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

    def function(self, attrs: NoAttrs, x: Float64) -> Float64:
        return np.ceil(x)


class Hardshrink(Unary[ShrinkAttrs]):
    """``x`` outside [-lambd, lambd], 0 inside."""

    name = "Hardshrink"
    attrs_type = ShrinkAttrs
    onnx = ("Shrink",)
    sample = (ShrinkAttrs(), ShrinkAttrs(1.5))

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


class Pow(Unary[PowAttrs]):
    """``x`` to a constant power; where that is undefined, the table holds 0."""

    name = "Pow"
    attrs_type = PowAttrs
    onnx = ("Pow",)
    sample = (PowAttrs(2.0), PowAttrs(3.0))

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
        if (exponent != first).any() or broadcast_grows(exponent.shape, x.shape):
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


def broadcast_grows(small: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether broadcasting ``small`` over ``shape`` gives another shape than ``shape``."""
    return tuple(np.broadcast_shapes(small, shape)) != shape


TABLE_SPECS: tuple[Unary[Any], ...] = (
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
    Erf(),
    Exp(),
    Log(),
    Sqrt(),
    Rsqrt(),
    Sin(),
    Cos(),
    Abs(),
    Ceil(),
    Hardshrink(),
    Softshrink(),
    Pow(),
)
"""Every function of one number, in registry order."""
