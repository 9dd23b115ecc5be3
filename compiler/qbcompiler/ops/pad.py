"""``Pad``: constant, reflected, repeated or wrapped borders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir import (
    Array,
    Attrs,
    Box,
    DType,
    Graph,
    IntLayer,
    Node,
    QuantParams,
    TensorType,
    Value,
)
from ..ir.boxes import whole
from .affine import affine_form, affine_layer, run_affine
from .common import float64, grid_of, int_list, integer_reason, normalize_axis, require
from .fixedpoint import dequantize, quantize
from .regions import along, every_axis, replaced
from .slicing import SliceAttrs
from .spec import (
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

__all__ = ["Pad", "PadAttrs"]

_NUMPY_MODES = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}


@dataclass(frozen=True, slots=True)
class PadAttrs(Attrs):
    """A border.

    Attributes:
        pads: elements added, begin of each dimension, then end of each; not negative.
        mode: ``constant``, ``reflect``, ``edge`` or ``wrap``.
    """

    pads: tuple[int, ...]
    mode: str = "constant"


class Pad(OpSpec[PadAttrs]):
    """Puts a border around a tensor; input 1 is the constant's value (0 where absent).

    Negative ONNX pads, which crop, become a ``Slice`` first.
    """

    name = "Pad"
    attrs_type = PadAttrs
    onnx = ("Pad",)

    def rule_of(self, node: Node, graph: Graph) -> QuantRule:
        return QuantRule.MOVE if _value(node, graph) == 0.0 else QuantRule.RANGE

    def infer(self, attrs: PadAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        rank = x.type.rank
        if attrs.mode != "constant" and attrs.mode not in _NUMPY_MODES:
            raise ValueError(f"unknown padding mode {attrs.mode!r}")
        if len(attrs.pads) != 2 * rank or min(attrs.pads, default=0) < 0:
            raise ValueError(f"pads {list(attrs.pads)} do not fit {x.type}")
        value = inputs[1] if len(inputs) > 1 else None
        if value is not None and (value.type.size != 1 or value.type.dtype is not x.type.dtype):
            raise ValueError(f"the value is {value.type}, expected one {x.type.dtype.value}")
        for i, d in enumerate(x.shape):
            most = max(attrs.pads[i], attrs.pads[rank + i])
            if attrs.mode == "reflect" and most and most >= d:
                raise ValueError(f"cannot reflect {most} elements of dimension {i} of {x.type}")
            if attrs.mode in ("edge", "wrap") and most and d == 0:
                raise ValueError(f"dimension {i} of {x.type} has nothing to repeat")
        shape = tuple(d + attrs.pads[i] + attrs.pads[rank + i] for i, d in enumerate(x.shape))
        return [x.type.with_shape(shape)]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x = node.input(0)
        if x is None:
            return Refusal("it lacks an input")
        rank = x.type.rank
        mode = str(node.attrs.get("mode", "constant"))
        value, data = node.input(2), node.const(1)
        if data is None:
            return Refusal("its pads are not constant")
        if value is not None and value.data is None:
            return Refusal("its value is not constant")
        numbers = int_list(data)
        axes = list(range(rank))
        if node.input(3) is not None:
            named = node.const(3)
            if named is None:
                return Refusal("its axes are not constant")
            axes = [normalize_axis(a, rank) for a in int_list(named)]
        if len(numbers) != 2 * len(axes):
            raise ValueError(f"{len(numbers)} pads for {len(axes)} axes")
        begin, end = [0] * rank, [0] * rank
        for i, axis in enumerate(axes):
            begin[axis], end[axis] = numbers[i], numbers[len(axes) + i]
        if min(*begin, *end, 0) < 0:
            starts = tuple(max(-b, 0) for b in begin)
            sizes = tuple(
                max(d - s - max(-e, 0), 0) for d, s, e in zip(x.shape, starts, end, strict=True)
            )
            x = to.emit("Slice", SliceAttrs(starts, sizes, (1,) * rank), [x])[0]
            begin, end = [max(b, 0) for b in begin], [max(e, 0) for e in end]
        if value is not None and (mode != "constant" or value.type.size != 1):
            value = None
        attrs = PadAttrs((*begin, *end), mode)
        return to.emit(self.name, attrs, [x] if value is None else [x, value])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        a = self.attrs_of(node)
        names = [node.inputs[0], to.const(np.asarray(a.pads, dtype=np.int64), "pads")]
        if len(node.inputs) > 1 and node.inputs[1]:
            data = graph.values[node.inputs[1]].data
            # the value may have any rank of one element, ONNX wants a scalar
            names.append(node.inputs[1] if data is None else to.const(data.reshape(()), "value"))
        to.emit("Pad", names, node.outputs, mode=a.mode)

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        value = _value(node, graph)
        if value is None:
            return "its value is not constant"
        if value != value:
            return "its value is not a number"
        return integer_reason(node, graph)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        a = self.attrs_of(node)
        source, out = grid_of(q, node.inputs[0]), grid_of(q, node.outputs[0])
        real = _value(node, q.graph)
        if real is None:
            raise ValueError("its value is not constant")
        fill = int(quantize(np.asarray(real), out))
        attrs: dict[str, Any] = {**a.to_dict(), "value": fill}
        if source != out:
            # the constant is not among the inputs of the affine part
            moved = Node(node.name, node.op, node.inputs[:1], node.outputs, a, node.source)
            return affine_layer(moved, q, [1.0], attrs=attrs)
        inputs, outputs = [node.inputs[0]], list(node.outputs)
        return IntLayer(node.name, node.op, inputs, outputs, attrs, {}, node.source)

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        a, shape = self.attrs_of(node), graph.values[node.outputs[0]].shape
        rank = len(shape)
        padded = [i for i in range(rank) if a.pads[i] or a.pads[rank + i]]
        return every_axis(shape, *(() if a.mode == "constant" else padded))

    def reads(self, node: Node, graph: Graph, box: Box) -> list[Box]:
        a, shape = self.attrs_of(node), graph.values[node.inputs[0]].shape
        found = []
        for (low, high), begin, size in zip(box, a.pads, shape, strict=False):
            # at least one element, for a part that lies in the border alone
            first = min(max(low - begin, 0), size - 1)
            found.append((first, max(min(high - begin, size), first + 1)))
        whole_box = whole(graph.values[node.outputs[0]].shape)
        copied = a.mode != "constant"
        return [
            tuple(
                (0, d) if copied and box[i] == whole_box[i] else found[i]
                for i, d in enumerate(shape)
            )
        ]

    def part(
        self,
        layer: IntLayer,
        box: Box,
        reads: Sequence[Box],
        shapes: Mapping[str, Sequence[int]],
    ) -> IntLayer:
        tensors = {r: along(t, reads[0]) for r, t in layer.tensors.items()}
        if layer.attrs["mode"] != "constant":
            return replaced(layer, tensors=tensors)
        rank, pads = len(box), layer.attrs["pads"]
        begin = [r[0] - (b[0] - p) for r, b, p in zip(reads[0], box, pads, strict=False)]
        end = [b[1] - pads[i] - reads[0][i][1] for i, b in enumerate(box)]
        return replaced(layer, attrs={"pads": [*begin, *end][: 2 * rank]}, tensors=tensors)

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        x, out = inputs[0], params[layer.outputs[0]]
        assert x is not None and out is not None
        if "shift" in layer.attrs:
            x = run_affine(layer, [x], out)
        pads = layer.attrs["pads"]
        width = list(zip(pads[: x.ndim], pads[x.ndim :], strict=True))
        mode = layer.attrs["mode"]
        if mode == "constant":
            if min(pads, default=0) < 0:  # a part in the border, which reads one element in vain
                cut = (
                    slice(max(-b, 0), d - max(-e, 0))
                    for d, (b, e) in zip(x.shape, width, strict=True)
                )
                x = x[tuple(cut)]
                width = [(max(b, 0), max(e, 0)) for b, e in width]
            return [np.pad(x, width, constant_values=layer.attrs["value"])]
        return [np.pad(x, width, mode=mode)]

    def real_form(self, layer: IntLayer, params: Mapping[str, QuantParams | None]) -> RealForm:
        out = params[layer.outputs[0]]
        assert out is not None
        fill = dequantize(np.asarray(layer.attrs["value"], dtype=out.dtype.numpy), out)
        attrs = PadAttrs(tuple(layer.attrs["pads"]), layer.attrs["mode"])
        x = affine_form(layer, params) if "shift" in layer.attrs else layer.inputs[0]
        return RealForm(self.name, attrs, [x, fill])

    def cases(self) -> Sequence[Case]:
        x = TensorType(DType.FLOAT32, (1, 2, 4, 5))
        pads = (0, 0, 1, 2, 0, 0, 3, 0)
        return [
            Case("zero", PadAttrs(pads), [x], bound=0.0),
            Case("value", PadAttrs(pads), [x, np.asarray(2.5, np.float32)], bound=0.51),
            Case(
                "lowest",
                PadAttrs(pads),
                [x, np.asarray(-np.inf, np.float32)],
                bound=0.51,
            ),
            Case("reflect", PadAttrs(pads, "reflect"), [x], bound=0.0),
            Case("edge", PadAttrs(pads, "edge"), [x], bound=0.0),
            Case("wrap", PadAttrs(pads, "wrap"), [x], bound=0.0),
        ]


def _value(node: Node, graph: Graph) -> float | None:
    """Return the border's value, 0 for the modes that copy; None where it is not constant."""
    if len(node.inputs) < 2 or not node.inputs[1]:
        return 0.0
    data = graph.values[node.inputs[1]].data
    return None if data is None else float(float64(data).reshape(-1)[0])
