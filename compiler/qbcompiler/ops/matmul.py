"""``MatMul``: the product of two activations, or an activation and constant weights.

The public operator list has no name for a fully connected layer, so that is ``MatMul`` with a
constant second input: its last axis is the output channel, each with a weight scale of its own,
and a bias of one number for each may follow. ONNX ``Gemm`` comes here too, transposed and scaled
at compile time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..ir import (
    Array,
    Attrs,
    Box,
    DType,
    Graph,
    IntLayer,
    NoAttrs,
    Node,
    QuantParams,
    TensorType,
    Value,
)
from ..ir.boxes import slices
from .affine import MAX_RATIO
from .arithmetic import add_any
from .common import (
    broadcast,
    centre,
    float64,
    grid_of,
    integer_reason,
    is_wide,
    require,
    require_same_dtype,
    rounding_of,
    span_of,
)
from .conv import linear_inputs, linear_tensors
from .fixedpoint import fixed_multiplier, requantize
from .regions import broadcast_box, every_axis, replaced
from .shapes import ReshapeAttrs, TransposeAttrs
from .spec import (
    Case,
    Kernels,
    Lowering,
    OnnxEmitter,
    OpSpec,
    QuantContext,
    RealForm,
    Refusal,
    SourceNode,
)
from .weights import ACC_LIMIT, WIDE_ACC_LIMIT, finish_linear, quantize_linear

__all__ = ["MatMul"]


class MatMul(OpSpec[NoAttrs]):
    """Batched matrix product of [..., M, K] and [..., K, N], with an optional bias [N].

    A bias is allowed only where the second input is constant.
    """

    name = "MatMul"
    attrs_type = NoAttrs
    onnx = ("MatMul", "Gemm")
    weights = (1,)

    def infer(self, attrs: NoAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        a, b = require(inputs, 0), require(inputs, 1)
        dtype = require_same_dtype([a, b])
        if a.type.rank < 2 or b.type.rank < 2 or a.shape[-1] != b.shape[-2]:
            raise ValueError(f"cannot multiply {a.type} by {b.type}")
        bias = inputs[2] if len(inputs) > 2 else None
        if bias is not None and bias.shape != (b.shape[-1],):
            raise ValueError(f"the bias is {bias.type}, expected {b.shape[-1]} numbers")
        batch = broadcast(a.shape[:-2], b.shape[:-2])
        return [TensorType(dtype, (*batch, a.shape[-2], b.shape[-1]))]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        a, b = node.input(0), node.input(1)
        if a is None or b is None:
            return Refusal("it lacks an input")
        if node.op_type == "Gemm":
            return _lower_gemm(node, a, b, to)
        if a.type.rank == 0 or b.type.rank == 0:
            return Refusal("an input is a scalar")
        return [_product(a, b, to)]

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        if not bias:
            to.emit("MatMul", node.inputs[:2], node.outputs)
            return
        product = to.temp("product")
        to.emit("MatMul", node.inputs[:2], [product])
        to.emit("Add", [product, bias], node.outputs)

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        b = graph.values[node.inputs[1]]
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        if bias and not graph.values[bias].is_const:
            return "its bias is not constant"
        if b.is_const:
            return integer_reason(node, graph)
        if bias:
            return "it has a bias but no constant weights"
        reason = integer_reason(node, graph, (0, 1))
        depth = b.shape[-2]
        if reason is None and depth * 255 * 255 > ACC_LIMIT:
            reason = f"a sum of {depth} products may overflow 32 bits"
        return reason

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        a, b = node.inputs[0], node.inputs[1]
        source, out = grid_of(q, a), grid_of(q, node.outputs[0])
        if q.is_const(b):
            w = q.const(b)
            bias = node.inputs[2] if len(node.inputs) > 2 else ""
            columns = np.moveaxis(float64(w), -1, 0)
            parts = quantize_linear(
                columns.reshape(w.shape[-1], -1),
                float64(q.const(bias)) if bias else None,
                source,
                out,
                q.weight_bits(node),
            )
            tensors = linear_tensors(parts, np.moveaxis(parts.weight.reshape(columns.shape), 0, -1))
            return IntLayer(node.name, node.op, [a], list(node.outputs), {}, tensors, node.source)
        other = grid_of(q, b)
        depth = q.graph.values[b].shape[-2]
        limit = WIDE_ACC_LIMIT if is_wide(source, other) else ACC_LIMIT
        if depth * span_of(source) * span_of(other) > limit:
            raise ValueError(f"a sum of {depth} products may overflow its accumulator")
        real = min(source.scale * other.scale / out.scale, MAX_RATIO)
        m, r = fixed_multiplier(real)
        return IntLayer(
            node.name,
            node.op,
            [a, b],
            list(node.outputs),
            {},
            {"multiplier": m.astype(np.int32), "shift": r},
            node.source,
        )

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        return every_axis(graph.values[node.outputs[0]].shape)

    def reads(self, node: Node, graph: Graph, box: Box) -> list[Box]:
        a, b = (graph.values[n] for n in node.inputs[:2])
        left = (*broadcast_box(box[:-2], a.shape[:-2]), box[-2], (0, a.shape[-1]))
        if b.is_const:
            return [left]
        return [left, (*broadcast_box(box[:-2], b.shape[:-2]), (0, b.shape[-2]), box[-1])]

    def part(
        self,
        layer: IntLayer,
        box: Box,
        reads: Sequence[Box],
        shapes: Mapping[str, Sequence[int]],
    ) -> IntLayer:
        if "weight" not in layer.tensors:
            return layer
        weight = layer.tensors["weight"]
        batch = broadcast_box(box[:-2], weight.shape[:-2])
        tensors = {r: layer.tensors[r][slice(*box[-1])] for r in ("bias", "multiplier", "shift")}
        index = slices((*batch, reads[0][-1], box[-1]))
        tensors["weight"] = np.ascontiguousarray(weight[index])
        return replaced(layer, tensors=tensors)

    def sum_axis(self, node: Node, graph: Graph) -> int | None:
        a, b = (graph.values[n] for n in node.inputs[:2])
        return a.type.rank - 1 if b.is_const else None

    def accumulate(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> NDArray[np.int64]:
        a = inputs[0]
        assert a is not None
        return kernels.matmul(centre(a, params[layer.inputs[0]]), layer.tensors["weight"])

    def finish(
        self, layer: IntLayer, acc: NDArray[np.int64], params: Mapping[str, QuantParams | None]
    ) -> list[Array]:
        out = params[layer.outputs[0]]
        assert out is not None
        return [finish_linear(acc, layer.tensors, out, acc.ndim - 1)]

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        tensors = layer.tensors
        if "weight" in tensors:
            return self.finish(layer, self.accumulate(layer, inputs, params, kernels), params)
        (a, b), out = inputs, params[layer.outputs[0]]
        assert a is not None and b is not None and out is not None
        left = centre(a, params[layer.inputs[0]])
        acc = kernels.matmul(left, centre(b, params[layer.inputs[1]]))
        wide = is_wide(*(params[n] for n in layer.inputs))
        return [requantize(acc, tensors["multiplier"], tensors["shift"], out, wide=wide)]

    def real_form(self, layer: IntLayer, params: Mapping[str, QuantParams | None]) -> RealForm:
        if "weight" not in layer.tensors:
            return RealForm(self.name, NoAttrs(), layer.inputs, rounding_of(layer.tensors))
        axis = layer.tensors["weight"].ndim - 1
        inputs = linear_inputs(layer, params, axis)
        return RealForm(self.name, NoAttrs(), inputs, rounding_of(layer.tensors, (-1,)))

    def macs(self, node: Node, graph: Graph) -> int:
        depth = graph.values[node.inputs[0]].shape[-1]
        return graph.values[node.outputs[0]].type.size * depth

    def cases(self) -> Sequence[Case]:
        rng = np.random.default_rng(7)

        def f32(*shape: int) -> Array:
            return rng.normal(size=shape).astype(np.float32)

        def act(*shape: int) -> TensorType:
            return TensorType(DType.FLOAT32, shape)

        return [
            Case("weights", NoAttrs(), [act(3, 16), f32(16, 10)], bound=2.0),
            Case("bias", NoAttrs(), [act(4, 32), f32(32, 7), f32(7)], bound=3.0),
            Case("tokens", NoAttrs(), [act(1, 5, 12), f32(12, 8), f32(8)], bound=2.0),
            Case("batched_weights", NoAttrs(), [act(2, 3, 4), f32(2, 4, 5)], bound=2.0),
            Case("activations", NoAttrs(), [act(1, 2, 5, 6), act(1, 2, 6, 4)], bound=0.51),
            Case("broadcast", NoAttrs(), [act(2, 3, 4), act(4, 6)], bound=0.51),
        ]


def _product(a: Value, b: Value, to: Lowering) -> Value:
    """Multiply, with NumPy's rules for vectors and with constant weights put to the right."""
    if a.type.rank == 1 or b.type.rank == 1:
        left = _reshape(a, (1, a.shape[0]), to) if a.type.rank == 1 else a
        right = _reshape(b, (b.shape[0], 1), to) if b.type.rank == 1 else b
        full = _product(left, right, to)
        shape = list(full.shape)
        if b.type.rank == 1:
            del shape[-1]
        if a.type.rank == 1:
            del shape[-1 if b.type.rank == 1 else -2]
        return _reshape(full, tuple(shape), to)
    if a.data is not None and b.data is None:
        # (A B)^T = B^T A^T: the weights belong to the right
        swapped = to.emit("MatMul", NoAttrs(), [_transpose(b, to), _transpose(a, to)])[0]
        return _transpose(swapped, to)
    return to.emit("MatMul", NoAttrs(), [a, b])[0]


def _lower_gemm(node: SourceNode, a: Value, b: Value, to: Lowering) -> list[Value]:
    alpha, beta = float(node.attrs.get("alpha", 1.0)), float(node.attrs.get("beta", 1.0))
    if node.attrs.get("transA", 0):
        a = _transpose(a, to)
    if node.attrs.get("transB", 0):
        b = _transpose(b, to)
    c = node.input(2)
    if c is not None and beta != 1.0:
        c = _scale(c, beta, to)
    if alpha != 1.0:
        if b.data is not None:
            b = _scale(b, alpha, to)
        else:
            a = _scale(a, alpha, to)
    width = b.shape[-1]
    if c is None:
        return to.emit("MatMul", NoAttrs(), [a, b])
    if b.data is not None and c.data is not None and c.type.size in (1, width):
        row = c.shape[-1:] == (width,) or c.type.size == 1
        if row:
            bias = np.ascontiguousarray(np.broadcast_to(c.data.reshape(-1), (width,)))
            return to.emit("MatMul", NoAttrs(), [a, b, to.const(bias)])
    return [add_any(_product(a, b, to), c, to)]


def _scale(value: Value, factor: float, to: Lowering) -> Value:
    if value.data is not None:
        return to.const((float64(value.data) * factor).astype(value.data.dtype))
    constant = to.const(np.asarray(factor, dtype=value.type.dtype.numpy))
    return to.emit("MultiplyConstant", NoAttrs(), [value, constant])[0]


def _transpose(value: Value, to: Lowering) -> Value:
    if value.data is not None:
        return to.const(np.ascontiguousarray(np.swapaxes(value.data, -1, -2)))
    order = list(range(value.type.rank))
    order[-1], order[-2] = order[-2], order[-1]
    attrs: Attrs = TransposeAttrs(tuple(order))
    return to.emit("Transpose", attrs, [value])[0]


def _reshape(value: Value, shape: tuple[int, ...], to: Lowering) -> Value:
    if value.data is not None:
        return to.const(value.data.reshape(shape))
    return to.emit("Reshape", ReshapeAttrs(shape), [value])[0]
