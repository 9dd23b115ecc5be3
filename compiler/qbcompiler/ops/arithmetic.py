"""Arithmetic of two activations: ``Adding``, ``Sub``, ``Multiply``, ``Div``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..ir import (
    Array,
    DType,
    Graph,
    IntLayer,
    NoAttrs,
    Node,
    QuantParams,
    TensorType,
    Value,
)
from .affine import MAX_RATIO, affine_form, affine_layer, run_affine
from .common import (
    broadcast,
    centre,
    grid_of,
    integer_reason,
    is_wide,
    require,
    require_same_dtype,
    rounding_of,
)
from .fixedpoint import fixed_multiplier, requantize
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
)
from .tables import by_pair

__all__ = ["Adding", "Div", "Multiply", "Sub", "add_any"]

Int64 = NDArray[np.int64]


def add_any(a: Value, b: Value, to: Lowering) -> Value:
    """Add two values, by the constant form where just one of them is constant."""
    if (a.data is None) != (b.data is None):
        x, c = (a, b) if a.data is None else (b, a)
        return to.emit("AddingConstant", NoAttrs(), [x, c])[0]
    return to.emit("Adding", NoAttrs(), [a, b])[0]


class _Binary(OpSpec[NoAttrs]):
    """What operators of two broadcast tensors share."""

    attrs_type = NoAttrs
    elementwise = True
    exported: ClassVar[str]

    def infer(self, attrs: NoAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        a, b = require(inputs, 0), require(inputs, 1)
        dtype = require_same_dtype([a, b])
        if dtype in (DType.BOOL, DType.STRING):
            raise ValueError(f"cannot calculate with {dtype.value} elements")
        return [TensorType(dtype, broadcast(a.shape, b.shape))]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        a, b = node.input(0), node.input(1)
        if a is None or b is None:
            return Refusal("it lacks an input")
        if (a.data is None) != (b.data is None):
            return Refusal("one of its inputs is a constant")
        return to.emit(self.name, NoAttrs(), [a, b])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        to.emit(self.exported, node.inputs, node.outputs)

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        return integer_reason(node, graph, (0, 1))

    def cases(self) -> Sequence[Case]:
        def act(*shape: int) -> TensorType:
            return TensorType(DType.FLOAT32, shape)

        return [
            Case("same", NoAttrs(), [act(1, 3, 4, 5), act(1, 3, 4, 5)], bound=0.51),
            Case("channel", NoAttrs(), [act(1, 3, 4, 5), act(1, 3, 1, 1)], bound=0.51),
            Case("rank", NoAttrs(), [act(5), act(2, 3, 5)], bound=0.51),
        ]


class _Sum(_Binary):
    """Weighted sums of two activations."""

    rule = QuantRule.MEET
    signs: ClassVar[tuple[float, float]]

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        return affine_layer(node, q, self.signs)

    def real_form(self, layer: IntLayer, params: Mapping[str, QuantParams | None]) -> Affine:
        return affine_form(layer, params)

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


class Adding(_Sum):
    """``a + b``; ONNX ``Sum`` and ``Mean`` become chains of it."""

    name = "Adding"
    onnx = ("Add", "Sum", "Mean")
    exported = "Add"
    signs = (1.0, 1.0)

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        if node.op_type == "Add":
            return super().lower(node, to)
        values = [v for v in node.inputs if v is not None]
        if not values or (any(v.data is not None for v in values) and len(values) == 1):
            return Refusal("it has no activations")
        total = values[0]
        for value in values[1:]:
            total = add_any(total, value, to)
        if node.op_type == "Mean" and len(values) > 1:
            part = to.const(np.asarray(1.0 / len(values), dtype=total.type.dtype.numpy))
            return to.emit("MultiplyConstant", NoAttrs(), [total, part])
        if len(values) == 1:
            return to.emit("Identity", NoAttrs(), [total])
        return [total]


class Sub(_Sum):
    """``a - b``."""

    name = "Sub"
    onnx = ("Sub",)
    exported = "Sub"
    signs = (1.0, -1.0)


def _product_tensors(node: Node, q: QuantContext, real: float) -> IntLayer:
    m, r = fixed_multiplier(min(real, MAX_RATIO))
    return IntLayer(
        node.name,
        node.op,
        list(node.inputs),
        list(node.outputs),
        {},
        {"multiplier": m.astype(np.int32), "shift": r},
        node.source,
    )


class Multiply(_Binary):
    """``a * b``: the product of the integers, requantized once."""

    name = "Multiply"
    onnx = ("Mul",)
    exported = "Mul"

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        a, b = (grid_of(q, n) for n in node.inputs)
        out = grid_of(q, node.outputs[0])
        return _product_tensors(node, q, a.scale * b.scale / out.scale)

    def real_form(self, layer: IntLayer, params: Mapping[str, QuantParams | None]) -> RealForm:
        return RealForm(self.name, NoAttrs(), layer.inputs, rounding_of(layer.tensors))

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        m, r = layer.tensors["multiplier"], layer.tensors["shift"]
        wide = is_wide(*(params[n] for n in layer.inputs))

        def formula(a: Int64, b: Int64, out: QuantParams) -> Array:
            return requantize(a * b, m, r, out, wide=wide)

        return [_by_pair(formula, layer, inputs, params)]


class Div(_Binary):
    """``a / b`` by one exact integer division, rounded half up.

    With ``s_a / (s_b * s_out) = M / 2^r`` the quotient is ``floor((2 n + d) / (2 d))`` for
    ``n = +-a * M`` and ``d = |b| * 2^r``; ``r`` is at most 40, so nothing leaves 62 bits. An
    integer divisor of 0 stands for a real one below half a step: the result saturates with the
    sign of the dividend, and 0 / 0 is 0.
    """

    name = "Div"
    onnx = ("Div",)
    exported = "Div"

    def real_form(self, layer: IntLayer, params: Mapping[str, QuantParams | None]) -> RealForm:
        return RealForm(self.name, NoAttrs(), layer.inputs)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        a, b = (grid_of(q, n) for n in node.inputs)
        out = grid_of(q, node.outputs[0])
        real = min(a.scale / (b.scale * out.scale), MAX_RATIO)
        m, r = fixed_multiplier(real)
        shift = int(r)
        if shift > 40:
            m, shift = np.asarray(round(real * 2.0**40), dtype=np.int64), 40
        return IntLayer(
            node.name,
            node.op,
            list(node.inputs),
            list(node.outputs),
            {},
            {"multiplier": m.astype(np.int32), "shift": np.asarray(shift, dtype=np.int8)},
            node.source,
        )

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        m, r = (layer.tensors[k].astype(np.int64) for k in ("multiplier", "shift"))

        def formula(a: Int64, b: Int64, out: QuantParams) -> Array:
            numerator = a * np.where(b < 0, -1, 1) * m
            divisor = np.abs(b) << r
            safe = np.where(divisor == 0, 1, divisor)
            quotient = (2 * numerator + safe) // (2 * safe)
            quotient = np.where(divisor == 0, np.sign(a) << 40, quotient) + out.zero_point
            result: Array = np.clip(quotient, out.qmin, out.qmax).astype(out.dtype.numpy)
            return result

        return [_by_pair(formula, layer, inputs, params)]

    def cases(self) -> Sequence[Case]:
        def act(*shape: int) -> TensorType:
            return TensorType(DType.FLOAT32, shape)

        return [
            Case("same", NoAttrs(), [act(1, 3, 4, 5), act(1, 3, 4, 5)], low=1.0, bound=0.51),
            Case("channel", NoAttrs(), [act(1, 3, 4), act(1, 3, 1)], low=1.0, bound=0.51),
            Case("negative", NoAttrs(), [act(2, 7), act(7)], low=-5.0, high=-1.0, bound=0.51),
        ]


def _by_pair(
    formula: Callable[[Int64, Int64, QuantParams], Array],
    layer: IntLayer,
    inputs: Sequence[Array | None],
    params: Mapping[str, QuantParams | None],
) -> Array:
    """Apply an integer formula of two centred inputs."""
    a, b = inputs
    first, second = (params[n] for n in layer.inputs)
    out = params[layer.outputs[0]]
    assert a is not None and b is not None and out is not None
    grid = out

    def centred(p: Array, q: Array) -> Array:
        left, right = centre(p, first).astype(np.int64), centre(q, second).astype(np.int64)
        return formula(left, right, grid)

    return by_pair(centred, a, b)
