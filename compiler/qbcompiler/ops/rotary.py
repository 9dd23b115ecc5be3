"""Rotary position embedding: pairs of features turned by an angle of their position.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021). With ``swap`` the
exchange of the two features of each pair and ``sign`` -1 for the first and +1 for the second,

    y = x * cos + swap(x) * sign * sin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir import Array, Attrs, DType, Graph, IntLayer, Node, QuantParams, TensorType, Value
from .affine import affine_tensors, run_affine
from .common import broadcast, float64, grid_of, integer_reason, require
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

__all__ = ["RotaryAttrs", "RotaryEmbedding"]


@dataclass(frozen=True, slots=True)
class RotaryAttrs(Attrs):
    """Which features are a pair.

    Attributes:
        interleaved: neighbours (2i and 2i + 1); else the halves (i and i + D/2).
    """

    interleaved: bool = False


def _act(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


class RotaryEmbedding(OpSpec[RotaryAttrs]):
    """Inputs: ``x`` [..., D], and the constants ``cos`` and ``sin``, which broadcast over it.

    The integer form is one affine sum of ``x`` and ``swap(x)`` with a multiplier for each element
    of the tables, within half a step and the rounding of the multipliers (2^-30 of the span).
    """

    name = "RotaryEmbedding"
    attrs_type = RotaryAttrs
    onnx = ("RotaryEmbedding",)

    def infer(self, attrs: RotaryAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x, cos, sin = (require(inputs, i) for i in range(3))
        if not x.shape or x.shape[-1] % 2:
            raise ValueError(f"{x.type} has no pairs of features")
        for table in (cos, sin):
            if table.shape[-1:] != x.shape[-1:] or broadcast(x.shape, table.shape) != x.shape:
                raise ValueError(f"a table of {table.type} does not fit {x.type}")
        return [x.type]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x, cos, sin, places = node.input(0), node.const(1), node.const(2), node.const(3)
        if x is None or x.type.rank != 4:
            return Refusal("its input is not [N, heads, tokens, features]")
        if cos is None or sin is None or (node.input(3) is not None and places is None):
            return Refusal("its tables or positions are not constant")
        if int(node.attrs.get("rotary_embedding_dim", 0)) not in (0, x.shape[-1]):
            return Refusal("it turns a part of the features only")
        n, _, tokens, features = x.shape
        interleaved = bool(node.attrs.get("interleaved", 0))
        values = []
        for hint, table in (("cos", cos), ("sin", sin)):
            rows = table if places is None else table[places]
            if rows.shape not in ((n, tokens, features // 2), (1, tokens, features // 2)):
                return Refusal("its tables do not fit its input")
            wide = np.repeat(rows, 2, -1) if interleaved else np.concatenate([rows, rows], -1)
            values.append(to.const(np.ascontiguousarray(wide[:, None]), hint))
        return to.emit(self.name, RotaryAttrs(interleaved), [x, *values])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        # by index: ONNX Runtime breaks a model whose Slice of a DequantizeLinear meets a Neg
        x, cos, sin = node.inputs
        features, interleaved = graph.values[x].shape[-1], self.attrs_of(node).interleaved
        index = _swapped(np.arange(features, dtype=np.int64), interleaved)
        sign = _sign(features, interleaved).astype(graph.values[sin].type.dtype.numpy)
        swapped, signed, left, right = (to.temp(n) for n in ("swapped", "signed", "left", "right"))
        to.emit("Gather", [x, to.const(index, "pairs")], [swapped], axis=-1)
        to.emit("Mul", [sin, to.const(sign, "sign")], [signed])
        to.emit("Mul", [x, cos], [left])
        to.emit("Mul", [swapped, signed], [right])
        to.emit("Add", [left, right], node.outputs)

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        for name in node.inputs[1:]:
            data = graph.values[name].data
            if data is None:
                return "its tables are not constant"
            if not np.isfinite(float64(data)).all():
                return "its tables have infinities or NaN"
        return integer_reason(node, graph)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        interleaved = self.attrs_of(node).interleaved
        source, out = grid_of(q, node.inputs[0]), grid_of(q, node.outputs[0])
        cos, sin = (float64(q.const(n)) * (source.scale / out.scale) for n in node.inputs[1:])
        factors = [cos, sin * _sign(sin.shape[-1], interleaved)]
        tensors, shift = affine_tensors(factors, 0.0, [source, source], out)
        return IntLayer(
            node.name,
            node.op,
            [node.inputs[0]],
            list(node.outputs),
            {"shift": shift, "interleaved": interleaved},
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
        x, out = inputs[0], params[layer.outputs[0]]
        assert x is not None and out is not None
        return [run_affine(layer, [x, _swapped(x, bool(layer.attrs["interleaved"]))], out)]

    def real_form(self, layer: IntLayer, params: Mapping[str, QuantParams | None]) -> RealForm:
        source, out = params[layer.inputs[0]], params[layer.outputs[0]]
        assert source is not None and out is not None
        unit = 2.0 ** int(layer.attrs["shift"]) * source.scale / out.scale
        cos, sin = (layer.tensors[f"multiplier_{i}"].astype(np.float64) / unit for i in range(2))
        interleaved = bool(layer.attrs["interleaved"])
        sin = sin * _sign(sin.shape[-1], interleaved)
        tables = [t.astype(np.float32) for t in (cos, sin)]
        return RealForm(self.name, RotaryAttrs(interleaved), [layer.inputs[0], *tables])

    def cases(self) -> Sequence[Case]:
        angles = np.arange(5)[:, None] * 10000.0 ** -(np.arange(4) / 4)
        half = np.concatenate([angles, angles], -1)
        pairs = np.repeat(angles, 2, -1)

        def case(name: str, a: NDArray[np.float64], x: TensorType, interleaved: bool) -> Case:
            cos, sin = np.cos(a).astype(np.float32), np.sin(a).astype(np.float32)

            def reference(x: NDArray[np.float64]) -> NDArray[np.float64]:
                if interleaved:
                    turned = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
                else:
                    turned = np.concatenate([-x[..., 4:], x[..., :4]], -1)
                return np.asarray(x * cos + turned * sin)

            attrs = RotaryAttrs(interleaved)
            return Case(name, attrs, [x, cos, sin], bound=0.51, reference=reference)

        return [
            case("halves", half, _act(1, 3, 5, 8), False),
            case("pairs", pairs[:, None], _act(1, 5, 3, 8), True),
        ]


def _sign(features: int, interleaved: bool) -> NDArray[np.float64]:
    sign = np.ones(features)
    sign[:: 2 if interleaved else 1][: features // 2] = -1.0
    return sign


def _swapped(x: NDArray[Any], interleaved: bool) -> NDArray[Any]:
    if interleaved:
        pairs = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
        return np.ascontiguousarray(pairs[..., ::-1]).reshape(x.shape)
    return np.roll(x, x.shape[-1] // 2, axis=-1)
