"""Arithmetic with a constant, and batch normalization: all affine, exact in their constants.

``AddingConstant``, ``SubConstant``, ``MultiplyConstant``, ``DivConstant``, ``Neg``,
``Batchnorm``. Constants are not rounded to a grid: they enter as fixed-point numbers of the
output's resolution (see :mod:`.affine`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

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
from .affine import affine_form, affine_layer, run_affine
from .common import (
    ax,
    broadcast,
    float64,
    grid_of,
    integer_reason,
    is_wide,
    require,
    require_float,
    require_same_dtype,
)
from .spec import (
    Affine,
    Case,
    Kernels,
    Lowering,
    OnnxEmitter,
    OpSpec,
    QuantContext,
    QuantRule,
    RealForm,
    Refusal,
    SourceNode,
    TableForm,
)
from .tables import build_table, lookup

__all__ = [
    "AddingConstant",
    "Batchnorm",
    "BatchnormAttrs",
    "DivConstant",
    "MultiplyConstant",
    "Neg",
    "ReversibleAttrs",
    "SubConstant",
]

Float64 = NDArray[np.float64]

_WIDE_TABLES = 64
"""Tables of 65536 entries that a layer has at most."""


@dataclass(frozen=True, slots=True)
class ReversibleAttrs(Attrs):
    """For ``x - c`` and ``x / c``.

    Attributes:
        reverse: ``c - x`` or ``c / x`` instead.
    """

    reverse: bool = False


class _Affine(OpSpec[Attrs]):
    """What layers of the form ``k * x + c`` share at run time."""

    elementwise = True

    def is_pointwise(self, attrs: Attrs) -> bool:
        return True

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        for name in node.inputs[1:]:
            data = graph.values[name].data
            if data is None:
                return f"{name!r} is not constant"
            if np.isnan(float64(data)).any():
                return f"its constant {name!r} holds a value that is not a number"
        return integer_reason(node, graph)

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        out = params[layer.outputs[0]]
        assert out is not None
        return [run_affine(layer, inputs, out)]

    def real_form(
        self, layer: IntLayer, params: Mapping[str, QuantParams | None]
    ) -> RealForm | TableForm | Affine:
        return affine_form(layer, params)


class _WithConstant(_Affine):
    """An activation (input 0) and a constant (input 1), broadcast."""

    exported: ClassVar[str]

    def infer(self, attrs: Attrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x, c = require(inputs, 0), require(inputs, 1)
        if c.data is None:
            raise ValueError("input 1 is not constant")
        dtype = require_same_dtype([x, c])
        if dtype in (DType.BOOL, DType.STRING):
            raise ValueError(f"cannot calculate with {dtype.value} elements")
        return [TensorType(dtype, broadcast(x.shape, c.shape))]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        a, b = node.input(0), node.input(1)
        if a is None or b is None:
            return Refusal("it lacks an input")
        if (a.data is None) == (b.data is None):
            return Refusal("it does not have just one constant input")
        reverse = a.data is not None
        attrs = ReversibleAttrs(reverse) if self.attrs_type is ReversibleAttrs else NoAttrs()
        return to.emit(self.name, attrs, [b, a] if reverse else [a, b])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        reverse = getattr(node.attrs, "reverse", False)
        to.emit(self.exported, node.inputs[::-1] if reverse else node.inputs, node.outputs)


def _act(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


def _numbers(*shape: int) -> Array:
    rng = np.random.default_rng(sum(shape) + 3)
    sign = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
    return (rng.uniform(0.3, 3.0, size=shape) * sign).astype(np.float32)


class AddingConstant(_WithConstant):
    """``x + c``; infinities saturate."""

    name = "AddingConstant"
    attrs_type = NoAttrs
    onnx = ("Add",)
    exported = "Add"

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        return affine_layer(node, q, [1.0], float64(q.const(node.inputs[1])))

    def cases(self) -> Sequence[Case]:
        return [
            Case("scalar", NoAttrs(), [_act(2, 5), _numbers()], bound=0.51),
            Case("channel", NoAttrs(), [_act(1, 3, 4, 5), _numbers(3, 1, 1)], bound=0.51),
            Case("grows", NoAttrs(), [_act(1, 5), _numbers(2, 3, 1)], bound=0.51),
            Case(
                "mask",
                NoAttrs(),
                [_act(1, 4), np.array([0.0, -1e9, 0.5, -3e38], np.float32)],
                bound=0.51,
            ),
        ]


class SubConstant(_WithConstant):
    """``x - c``, or ``c - x`` where reversed."""

    name = "SubConstant"
    attrs_type = ReversibleAttrs
    onnx = ("Sub",)
    exported = "Sub"

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        sign = -1.0 if getattr(node.attrs, "reverse", False) else 1.0
        return affine_layer(node, q, [sign], -sign * float64(q.const(node.inputs[1])))

    def cases(self) -> Sequence[Case]:
        return [
            Case("scalar", ReversibleAttrs(), [_act(2, 5), _numbers()], bound=0.51),
            Case("channel", ReversibleAttrs(), [_act(1, 3, 4, 5), _numbers(3, 1, 1)], bound=0.51),
            Case("reverse", ReversibleAttrs(True), [_act(1, 3, 4), _numbers(3, 1)], bound=0.51),
        ]


class MultiplyConstant(_WithConstant):
    """``x * c``."""

    name = "MultiplyConstant"
    attrs_type = NoAttrs
    onnx = ("Mul",)
    exported = "Mul"

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        return super().unsupported(node, graph) or _infinite(node, graph)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        return affine_layer(node, q, [float64(q.const(node.inputs[1]))])

    def cases(self) -> Sequence[Case]:
        return [
            Case("scalar", NoAttrs(), [_act(2, 5), _numbers()], bound=0.51),
            Case("channel", NoAttrs(), [_act(1, 3, 4, 5), _numbers(3, 1, 1)], bound=0.51),
            Case("grows", NoAttrs(), [_act(1, 5), _numbers(2, 3, 1)], bound=0.51),
            Case(
                "zero",
                NoAttrs(),
                [_act(1, 4), np.array([0.0, 1e-9, 1.0, -250.0], np.float32)],
                bound=0.51,
            ),
        ]


class DivConstant(_WithConstant):
    """``x / c`` as ``x * (1 / c)``; ``c / x`` where reversed, by a table for each constant.

    ONNX ``Reciprocal`` is ``1 / x``. In the integer form a divisor ``x`` whose integer is 0
    saturates with the sign of the constant.
    """

    name = "DivConstant"
    attrs_type = ReversibleAttrs
    onnx = ("Div", "Reciprocal")
    exported = "Div"

    def is_pointwise(self, attrs: Attrs) -> bool:
        return not getattr(attrs, "reverse", False)

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        if node.op_type == "Div":
            return super().lower(node, to)
        x = node.input(0)
        if x is None or x.is_const:
            return Refusal("its input is a constant")
        one = to.const(np.asarray(1.0, dtype=x.type.dtype.numpy))
        return to.emit(self.name, ReversibleAttrs(True), [x, one])

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        reason = super().unsupported(node, graph) or _infinite(node, graph)
        if reason:
            return reason
        data = float64(graph.values[node.inputs[1]].data)  # type: ignore[arg-type]
        if getattr(node.attrs, "reverse", False):
            distinct = len(np.unique(data))
            return f"it divides {distinct} different constants" if distinct > 4096 else None
        return "it divides by zero" if (data == 0).any() else None

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        c = float64(q.const(node.inputs[1]))
        if not getattr(node.attrs, "reverse", False):
            if (c == 0).any():
                raise ValueError("it divides by zero")
            return affine_layer(node, q, [1.0 / c], attrs={"reverse": False})
        source, out = grid_of(q, node.inputs[0]), grid_of(q, node.outputs[0])
        distinct, row = np.unique(c, return_inverse=True)
        if source.bits > 8 and len(distinct) > _WIDE_TABLES:
            raise ValueError(
                f"it divides {len(distinct)} different constants, and a 16-bit input takes"
                f" {_WIDE_TABLES} at most"
            )
        table = np.stack([build_table(_reciprocal(v), source, out, smooth=False) for v in distinct])
        tensors: dict[str, Array] = {"table": table, "row": row.reshape(c.shape).astype(np.int32)}
        if is_wide(source, out):  # an exported model divides, having no such tables
            tensors["constant_scale"] = c.astype(np.float32)
        return IntLayer(
            node.name,
            node.op,
            [node.inputs[0]],
            list(node.outputs),
            {"reverse": True},
            tensors,
            node.source,
        )

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        if not layer.attrs["reverse"]:
            return super().run(layer, inputs, params, kernels)
        x, table, row = inputs[0], layer.tensors["table"], layer.tensors["row"]
        out = params[layer.outputs[0]]
        assert x is not None and out is not None
        if len(table) == 1:
            shape = np.broadcast_shapes(x.shape, row.shape)
            return [np.ascontiguousarray(np.broadcast_to(lookup(table[0], x, out), shape))]
        return [np.asarray(table[row, x.astype(np.int32) + table.shape[1] // 2])]

    def real_form(
        self, layer: IntLayer, params: Mapping[str, QuantParams | None]
    ) -> RealForm | TableForm | Affine:
        if layer.attrs["reverse"]:
            if is_wide(params[layer.inputs[0]], params[layer.outputs[0]]):
                constant = layer.tensors["constant_scale"]
                return RealForm(self.name, ReversibleAttrs(True), [layer.inputs[0], constant])
            return TableForm(layer.tensors["table"], layer.tensors["row"])
        return super().real_form(layer, params)

    def cases(self) -> Sequence[Case]:
        return [
            Case("scalar", ReversibleAttrs(), [_act(2, 5), _numbers()], bound=0.51),
            Case("channel", ReversibleAttrs(), [_act(1, 3, 4, 5), _numbers(3, 1, 1)], bound=0.51),
            Case(
                "reciprocal",
                ReversibleAttrs(True),
                [_act(1, 3, 4), np.asarray(1.0, np.float32)],
                low=0.5,
                bound=0.51,
            ),
            Case(
                "reverse",
                ReversibleAttrs(True),
                [_act(1, 3, 4), _numbers(3, 1)],
                low=0.5,
                bound=0.51,
            ),
        ]


class _reciprocal:  # noqa: N801 - a function with a parameter
    """``c / x`` with the pole at ``x = 0`` made an infinity of the constant's sign."""

    def __init__(self, c: float) -> None:
        self._c = c

    def __call__(self, x: Float64) -> Float64:
        safe = np.where(x == 0.0, 1.0, x)
        pole = np.copysign(np.inf, self._c) if self._c else 0.0
        return np.where(x == 0.0, pole, self._c / safe)


def _infinite(node: Node, graph: Graph) -> str | None:
    data = graph.values[node.inputs[1]].data
    if data is not None and not np.isfinite(float64(data)).all():
        return f"its constant {node.inputs[1]!r} holds an infinity"
    return None


class Neg(_Affine):
    """``-x``."""

    name = "Neg"
    attrs_type = NoAttrs
    onnx = ("Neg",)

    def infer(self, attrs: Attrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        return [require(inputs, 0).type]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        return to.emit(self.name, NoAttrs(), node.inputs[:1])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        to.emit("Neg", node.inputs, node.outputs)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        return affine_layer(node, q, [-1.0])

    def cases(self) -> Sequence[Case]:
        return [Case("plain", NoAttrs(), [_act(2, 3, 4)], bound=0.51)]


@dataclass(frozen=True, slots=True)
class BatchnormAttrs(Attrs):
    """Attributes of batch normalization.

    Attributes:
        epsilon: added to the variance.
    """

    epsilon: float = 1e-5


class Batchnorm(_Affine):
    """Batch normalization in inference: ``(x - mean) / sqrt(var + eps) * scale + bias``.

    Inputs: activation [N, C, …], then scale, bias, mean and variance [C]. What no preceding
    convolution could take in runs as ``k * x + c`` for each channel.
    """

    name = "Batchnorm"
    attrs_type = BatchnormAttrs
    rule = QuantRule.RANGE
    onnx = ("BatchNormalization",)
    channel_first = True

    def infer(self, attrs: Attrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        require_float(x)
        if x.type.rank < 2:
            raise ValueError(f"{x.type} has no channels")
        for index in range(1, 5):
            v = require(inputs, index)
            if v.shape != (x.shape[1],):
                raise ValueError(f"input {index} is {v.type}, expected {x.shape[1]} numbers")
        return [x.type]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        if node.attrs.get("training_mode", 0) or any(node.outputs[1:]):
            return Refusal("it is in training mode")
        x = node.input(0)
        if x is None or x.type.rank < 2:
            return Refusal("its input has no channels")
        attrs = BatchnormAttrs(float(node.attrs.get("epsilon", 1e-5)))
        return to.emit(self.name, attrs, node.inputs[:5])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        epsilon = getattr(node.attrs, "epsilon", 1e-5)
        to.emit("BatchNormalization", node.inputs, node.outputs, epsilon=epsilon)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        scale, bias, mean, var = (float64(q.const(n)) for n in node.inputs[1:5])
        rank = q.graph.values[node.inputs[0]].type.rank
        k = scale / np.sqrt(var + getattr(node.attrs, "epsilon", 1e-5))
        shape = ax(rank, 1)
        return affine_layer(node, q, [k.reshape(shape)], (bias - mean * k).reshape(shape))

    def macs(self, node: Node, graph: Graph) -> int:
        return graph.values[node.outputs[0]].type.size

    def cases(self) -> Sequence[Case]:
        rng = np.random.default_rng(5)
        numbers = [rng.normal(size=3).astype(np.float32) for _ in range(3)]
        variance = rng.uniform(0.1, 2.0, size=3).astype(np.float32)
        return [
            Case("2d", BatchnormAttrs(), [_act(2, 3, 4, 5), *numbers, variance], bound=0.51),
            Case("flat", BatchnormAttrs(1e-3), [_act(4, 3), *numbers, variance], bound=0.51),
        ]
