"""Reductions: ``ReduceMean``, ``ReduceSum``, ``ReduceMax``, ``ReduceMin``, and float ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

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
from .affine import MAX_RATIO
from .common import (
    centre,
    constant_axes,
    grid_of,
    integer_reason,
    is_wide,
    normalize_axes,
    require,
    rounding_of,
)
from .fixedpoint import fixed_multiplier, requantize
from .move import Move
from .regions import every_axis
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

__all__ = [
    "ReduceAttrs",
    "ReduceL2",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
]


@dataclass(frozen=True, slots=True)
class ReduceAttrs(Attrs):
    """What is reduced.

    Attributes:
        axes: ascending, counted from the front, none left out.
        keepdims: whether reduced dimensions stay as 1.
    """

    axes: tuple[int, ...]
    keepdims: bool = True


class _Reduce(OpSpec[ReduceAttrs]):
    """What all reductions share."""

    attrs_type = ReduceAttrs

    def infer(self, attrs: ReduceAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        if x.type.dtype in (DType.STRING,):
            raise ValueError(f"cannot reduce {x.type}")
        axes = normalize_axes(attrs.axes, x.type.rank)
        if attrs.keepdims:
            shape = tuple(1 if i in axes else d for i, d in enumerate(x.shape))
        else:
            shape = tuple(d for i, d in enumerate(x.shape) if i not in axes)
        return [x.type.with_shape(shape)]

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        a = self.attrs_of(node)
        rank = len(graph.values[node.outputs[0]].shape)
        return every_axis(range(rank), *(a.axes if a.keepdims else ()))

    def reads(self, node: Node, graph: Graph, box: Box) -> list[Box]:
        a, shape = self.attrs_of(node), graph.values[node.inputs[0]].shape
        kept = iter(box if not a.keepdims else [b for i, b in enumerate(box) if i not in a.axes])
        return [tuple((0, d) if i in a.axes else next(kept) for i, d in enumerate(shape))]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x = node.input(0)
        if x is None:
            return Refusal("it lacks an input")
        if node.op_type == "GlobalMaxPool":
            spatial = tuple(range(2, x.type.rank))
            return to.emit(self.name, ReduceAttrs(spatial, True), [x])
        axes = constant_axes(node)
        if isinstance(axes, Refusal):
            return axes
        if not axes:
            if node.attrs.get("noop_with_empty_axes", 0):
                if self.name == "ReduceL2":
                    return Refusal("it reduces no axis")
                return to.emit("Identity", NoAttrs(), [x])
            axes = list(range(x.type.rank))
        attrs = ReduceAttrs(normalize_axes(axes, x.type.rank), bool(node.attrs.get("keepdims", 1)))
        return to.emit(self.name, attrs, [x])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        a = self.attrs_of(node)
        axes = to.const(np.asarray(a.axes, dtype=np.int64), "axes")
        to.emit(
            self.name,
            [node.inputs[0], axes],
            node.outputs,
            keepdims=int(a.keepdims),
            noop_with_empty_axes=1,
        )

    def cases(self) -> Sequence[Case]:
        x = TensorType(DType.FLOAT32, (2, 3, 4, 5))
        bound = {QuantRule.RANGE: 0.51, QuantRule.MOVE: 0.0, QuantRule.FLOAT: None}[self.rule]
        return [
            Case("last", ReduceAttrs((3,), True), [x], bound=bound),
            Case("drop", ReduceAttrs((1, 2), False), [x], bound=bound),
            Case("all", ReduceAttrs((0, 1, 2, 3), False), [x], bound=bound),
        ]


class _Total(_Reduce):
    """An exact sum, requantized once."""

    mean: ClassVar[bool]

    def _size(self, node: Node, graph: Graph) -> int:
        shape = graph.values[node.inputs[0]].shape
        return math.prod(shape[a] for a in self.attrs_of(node).axes)

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        size = self._size(node, graph)
        if size > 1 << 22:
            return f"a sum of {size} elements is too large"
        return integer_reason(node, graph)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        source, out = grid_of(q, node.inputs[0]), grid_of(q, node.outputs[0])
        count = self._size(node, q.graph) if self.mean else 1
        m, r = fixed_multiplier(min(source.scale / (out.scale * count), MAX_RATIO))
        tensors: dict[str, Array] = {"multiplier": m.astype(np.int32), "shift": r}
        attrs = self.attrs_of(node).to_dict()
        inputs, outputs = [node.inputs[0]], list(node.outputs)
        return IntLayer(node.name, node.op, inputs, outputs, attrs, tensors, node.source)

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        x, out = inputs[0], params[layer.outputs[0]]
        assert x is not None and out is not None
        total: NDArray[np.int64] = np.asarray(
            centre(x, params[layer.inputs[0]]).sum(
                axis=tuple(layer.attrs["axes"]), keepdims=layer.attrs["keepdims"], dtype=np.int64
            )
        )
        m, r = layer.tensors["multiplier"], layer.tensors["shift"]
        return [requantize(total, m, r, out, wide=is_wide(params[layer.inputs[0]]))]

    def real_form(self, layer: IntLayer, params: Mapping[str, QuantParams | None]) -> RealForm:
        attrs = ReduceAttrs.from_dict(layer.attrs)
        return RealForm(self.name, attrs, layer.inputs, rounding_of(layer.tensors))


class ReduceMean(_Total):
    """Mean over axes."""

    name = "ReduceMean"
    onnx = ("ReduceMean",)
    mean = True


class ReduceSum(_Total):
    """Sum over axes."""

    name = "ReduceSum"
    onnx = ("ReduceSum",)
    mean = False


class _Extremum(_Reduce, Move[ReduceAttrs]):
    """A maximum or minimum: its integers are input integers."""

    rule = QuantRule.MOVE


class ReduceMax(_Extremum):
    """Maximum over axes; ONNX ``GlobalMaxPool`` is one over the spatial axes."""

    name = "ReduceMax"
    onnx = ("ReduceMax", "GlobalMaxPool")

    def move(self, layer: IntLayer, x: Array) -> Array:
        axes = tuple(layer.attrs["axes"])
        return np.asarray(x.max(axis=axes, keepdims=layer.attrs["keepdims"]))


class ReduceMin(_Extremum):
    """Minimum over axes."""

    name = "ReduceMin"
    onnx = ("ReduceMin",)

    def move(self, layer: IntLayer, x: Array) -> Array:
        axes = tuple(layer.attrs["axes"])
        return np.asarray(x.min(axis=axes, keepdims=layer.attrs["keepdims"]))


class ReduceProd(_Reduce):
    """Product over axes; no integer form."""

    name = "ReduceProd"
    onnx = ("ReduceProd",)
    rule = QuantRule.FLOAT


class ReduceL2(_Reduce):
    """Euclidean norm over axes; no integer form."""

    name = "ReduceL2"
    onnx = ("ReduceL2",)
    rule = QuantRule.FLOAT
