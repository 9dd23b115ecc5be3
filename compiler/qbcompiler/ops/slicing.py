"""``Slice`` (also ONNX ``Split``), ``Gather`` and ``Concatenate``."""

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
from ..ir.boxes import box_shape, is_empty, slices
from .affine import affine_form, affine_tensors, run_affine
from .common import (
    grid_of,
    int_list,
    integer_reason,
    normalize_axis,
    require,
    require_same_dtype,
)
from .fixedpoint import dequantize, quantize
from .move import Move
from .regions import every_axis, replaced
from .spec import (
    Affine,
    Case,
    Kernels,
    Lowering,
    OnnxEmitter,
    OpSpec,
    QuantContext,
    Quantized,
    QuantRule,
    RealForm,
    Refusal,
    SourceNode,
)

__all__ = [
    "AxisAttrs",
    "Concatenate",
    "Gather",
    "Slice",
    "SliceAttrs",
    "slice_attrs",
]


def _act(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


@dataclass(frozen=True, slots=True)
class SliceAttrs(Attrs):
    """A regular part of a tensor, one number for each dimension.

    Attributes:
        starts: first element.
        sizes: number of elements.
        steps: distance of neighbours, negative to go backwards.
    """

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]


def slice_attrs(
    shape: tuple[int, ...],
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> SliceAttrs:
    """Resolve ONNX slice bounds (negative, beyond the end) against a shape.

    Raises:
        ValueError: a step of 0, an axis out of range, or lists of different lengths.
    """
    rank = len(shape)
    where = list(range(len(starts))) if axes is None else list(axes)
    by = [1] * len(starts) if steps is None else list(steps)
    if not len(starts) == len(ends) == len(where) == len(by):
        raise ValueError("starts, ends, axes and steps differ in length")
    first, size, step = [0] * rank, list(shape), [1] * rank
    for begin, end, axis, stride in zip(starts, ends, where, by, strict=True):
        if stride == 0:
            raise ValueError("a step of 0")
        i = normalize_axis(axis, rank)
        picked = range(*slice(begin, end, stride).indices(shape[i]))
        # a backward end of -1 means "last element" in ONNX, as it does in Python
        first[i], size[i], step[i] = picked.start, len(picked), stride
    return SliceAttrs(tuple(first), tuple(size), tuple(step))


class Slice(Move[SliceAttrs]):
    """A regular part of a tensor; ONNX ``Split`` becomes one for each part."""

    name = "Slice"
    attrs_type = SliceAttrs
    onnx = ("Slice", "Split")

    def infer(self, attrs: SliceAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        if not len(attrs.starts) == len(attrs.sizes) == len(attrs.steps) == x.type.rank:
            raise ValueError(f"the bounds do not fit {x.type}")
        for i, d in enumerate(x.shape):
            start, size, step = attrs.starts[i], attrs.sizes[i], attrs.steps[i]
            last = start + (size - 1) * step
            if size < 0 or step == 0 or (size and not (0 <= start < d and 0 <= last < d)):
                raise ValueError(f"elements {start}, {start + step}, … {last} are not in {x.type}")
        return [x.type.with_shape(attrs.sizes)]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x = node.input(0)
        if x is None:
            return Refusal("it lacks an input")
        if node.op_type == "Split":
            return self._split(node, x, to)
        lists: list[list[int] | None] = []
        for index in range(1, 5):
            data = node.const(index)
            if data is None and node.input(index) is not None:
                return Refusal("its bounds are not constant")
            lists.append(None if data is None else int_list(data))
        begin, end, axes, steps = lists
        if begin is None or end is None:
            return Refusal("its bounds are not constant")
        return self._emit(x, slice_attrs(x.shape, begin, end, axes, steps), to)

    def _emit(self, x: Value, attrs: SliceAttrs, to: Lowering) -> list[Value]:
        return to.emit(self.name, attrs, [x])

    def _split(self, node: SourceNode, x: Value, to: Lowering) -> list[Value] | Refusal:
        axis = normalize_axis(int(node.attrs.get("axis", 0)), x.type.rank)
        sizes: list[int] = []
        if node.input(1) is not None:
            data = node.const(1)
            if data is None:
                return Refusal("its sizes are not constant")
            sizes = int_list(data)
        count = len(node.outputs)
        if not sizes:
            # equal parts, the last one smaller where that does not come out even
            part = -(-x.shape[axis] // count)
            sizes = [min(part, x.shape[axis] - i * part) for i in range(count)]
        if len(sizes) != count or sum(sizes) != x.shape[axis] or min(sizes) < 0:
            raise ValueError(f"cannot split {x.type} into {list(sizes)} along axis {axis}")
        found, begin = [], 0
        for size in sizes:
            end = begin + int(size)
            found += self._emit(x, slice_attrs(x.shape, [begin], [end], [axis]), to)
            begin = end
        return found

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        a = self.attrs_of(node)
        shape = graph.values[node.inputs[0]].shape
        axes = [
            i for i, d in enumerate(shape) if (a.starts[i], a.sizes[i], a.steps[i]) != (0, d, 1)
        ]
        if not axes:
            to.emit("Identity", node.inputs, node.outputs)
            return
        ends = []
        for i in axes:
            end = a.starts[i] + a.sizes[i] * a.steps[i]
            # below 0 an end would count from the back
            ends.append(end if end >= 0 else -(1 << 62))
        numbers = [[a.starts[i] for i in axes], ends, axes, [a.steps[i] for i in axes]]
        names = [to.const(np.asarray(v, dtype=np.int64), "slice") for v in numbers]
        to.emit("Slice", [node.inputs[0], *names], node.outputs)

    def move(self, layer: IntLayer, x: Array) -> Array:
        parts = []
        for start, size, step in zip(
            layer.attrs["starts"], layer.attrs["sizes"], layer.attrs["steps"], strict=True
        ):
            end = start + size * step
            parts.append(slice(start, end if end >= 0 else None, step))
        return np.ascontiguousarray(x[tuple(parts)])

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        return every_axis(graph.values[node.outputs[0]].shape)

    def reads(self, node: Node, graph: Graph, box: Box) -> list[Box]:
        a = self.attrs_of(node)
        found = []
        for (low, high), start, step in zip(box, a.starts, a.steps, strict=True):
            ends = start + low * step, start + (high - 1) * step
            found.append((min(ends), max(ends) + 1))
        return [tuple(found)]

    def part(
        self,
        layer: IntLayer,
        box: Box,
        reads: Sequence[Box],
        shapes: Mapping[str, Sequence[int]],
    ) -> IntLayer:
        a = layer.attrs
        starts = [
            start + low * step - first
            for (low, _), start, step, (first, _) in zip(
                box, a["starts"], a["steps"], reads[0], strict=True
            )
        ]
        return replaced(layer, attrs={"starts": starts, "sizes": list(box_shape(box))})

    def cases(self) -> Sequence[Case]:
        return [
            Case("rows", SliceAttrs((1, 0), (2, 5), (1, 1)), [_act(4, 5)], bound=0.0),
            Case("steps", SliceAttrs((0, 1), (2, 2), (2, 3)), [_act(4, 5)], bound=0.0),
            Case("backward", SliceAttrs((3, 4), (4, 3), (-1, -2)), [_act(4, 5)], bound=0.0),
            Case("all", SliceAttrs((0, 0), (4, 5), (1, 1)), [_act(4, 5)], bound=0.0),
        ]


@dataclass(frozen=True, slots=True)
class AxisAttrs(Attrs):
    """One axis, counted from the front."""

    axis: int


class Gather(Move[AxisAttrs]):
    """Elements along an axis by index (input 1); an integer copy where the indices are constant."""

    name = "Gather"
    attrs_type = AxisAttrs
    onnx = ("Gather",)

    def rule_of(self, node: Node, graph: Graph) -> QuantRule:
        return QuantRule.MOVE if graph.values[node.inputs[1]].is_const else QuantRule.FLOAT

    def infer(self, attrs: AxisAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x, indices = require(inputs, 0), require(inputs, 1)
        axis = normalize_axis(attrs.axis, x.type.rank)
        if not indices.type.dtype.is_integer:
            raise ValueError(f"the indices are {indices.type}")
        if indices.data is not None and indices.data.size:
            numbers = np.asarray(indices.data, dtype=np.int64)
            if numbers.min() < -x.shape[axis] or numbers.max() >= x.shape[axis]:
                raise ValueError(f"an index is out of range for axis {axis} of {x.type}")
        return [x.type.with_shape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x = node.input(0)
        if x is None or node.input(1) is None:
            return Refusal("it lacks an input")
        axis = normalize_axis(int(node.attrs.get("axis", 0)), x.type.rank)
        return to.emit(self.name, AxisAttrs(axis), node.inputs[:2])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        to.emit("Gather", node.inputs, node.outputs, axis=self.attrs_of(node).axis)

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        if not graph.values[node.inputs[1]].is_const:
            return "its indices are not constant"
        return integer_reason(node, graph)

    def tensors(self, node: Node, q: QuantContext) -> dict[str, Array]:
        size = q.graph.values[node.inputs[0]].shape[self.attrs_of(node).axis]
        indices = np.asarray(q.graph.values[node.inputs[1]].data, dtype=np.int64)
        return {"indices": np.where(indices < 0, indices + size, indices).astype(np.int32)}

    def real_form(self, layer: IntLayer, params: Mapping[str, QuantParams | None]) -> RealForm:
        attrs = AxisAttrs(layer.attrs["axis"])
        return RealForm(self.name, attrs, [layer.inputs[0], layer.tensors["indices"]])

    def move(self, layer: IntLayer, x: Array) -> Array:
        return np.take(x, layer.tensors["indices"].astype(np.int64), axis=layer.attrs["axis"])

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        axis, rank = self.attrs_of(node).axis, len(graph.values[node.inputs[1]].shape)
        shape = graph.values[node.outputs[0]].shape
        return every_axis(shape, *range(axis, axis + rank))

    def reads(self, node: Node, graph: Graph, box: Box) -> list[Box]:
        axis, rank = self.attrs_of(node).axis, len(graph.values[node.inputs[1]].shape)
        size = graph.values[node.inputs[0]].shape[axis]
        return [(*box[:axis], (0, size), *box[axis + rank :])]

    def cases(self) -> Sequence[Case]:
        return [
            Case("list", AxisAttrs(1), [_act(2, 5, 3), np.array([4, 0, -2])], bound=0.0),
            Case("scalar", AxisAttrs(0), [_act(4, 3), np.asarray(2)], bound=0.0),
            Case("matrix", AxisAttrs(0), [_act(4, 3), np.array([[0, 1], [3, 3]])], bound=0.0),
        ]


def _within(cut: tuple[int, int], first: int, size: int) -> tuple[int, int]:
    """Return what ``cut`` of a row of tensors takes of the one at ``first``, counted from there."""
    low, high = max(cut[0] - first, 0), min(cut[1] - first, size)
    return (low, high) if low < high else (0, 0)


class Concatenate(OpSpec[AxisAttrs]):
    """Tensors in a row along an axis.

    Inputs on the output's grid keep their integers, others are requantized; constants are put
    on the output's grid at compile time.
    """

    name = "Concatenate"
    attrs_type = AxisAttrs
    rule = QuantRule.MEET
    onnx = ("Concat",)

    def infer(self, attrs: AxisAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        values = [require(inputs, i) for i in range(max(len(inputs), 1))]
        dtype = require_same_dtype(values)
        first = values[0]
        axis = normalize_axis(attrs.axis, first.type.rank)
        for v in values[1:]:
            if v.type.rank != first.type.rank or any(
                a != b
                for i, (a, b) in enumerate(zip(v.shape, first.shape, strict=True))
                if i != axis
            ):
                raise ValueError(f"{v.type} does not continue {first.type} along axis {axis}")
        shape = list(first.shape)
        shape[axis] = sum(v.shape[axis] for v in values)
        return [TensorType(dtype, tuple(shape))]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x = node.input(0)
        if x is None:
            return Refusal("it lacks an input")
        axis = normalize_axis(int(node.attrs.get("axis", 1)), x.type.rank)
        return to.emit(self.name, AxisAttrs(axis), node.inputs)

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        to.emit("Concat", node.inputs, node.outputs, axis=self.attrs_of(node).axis)

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        data = [i for i, n in enumerate(node.inputs) if not graph.values[n].is_const]
        if not data:
            return "all its inputs are constant"
        out = graph.values[node.outputs[0]].type
        return (
            integer_reason(node, graph, data)
            if out.dtype.is_float
            else (f"it works on {out.dtype.value} values, not real ones")
        )

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        out = grid_of(q, node.outputs[0])
        names: list[str] = []
        tensors: dict[str, Array] = {}
        shifts: list[int] = []  # for each part: 0 constant, -1 copied, else its shift
        for index, name in enumerate(node.inputs):
            if q.is_const(name):
                tensors[f"constant_{index}"] = quantize(q.const(name), out)
                shifts.append(0)
                continue
            source = grid_of(q, name)
            names.append(name)
            if source == out:
                shifts.append(-1)
                continue
            ratio = source.scale / out.scale
            found, shift = affine_tensors([ratio], 0.0, [source], out)
            tensors[f"multiplier_{index}"] = found["multiplier_0"]
            tensors[f"offset_{index}"] = found["constant"]
            shifts.append(shift)
        attrs: dict[str, Any] = {"axis": self.attrs_of(node).axis, "shifts": shifts}
        return IntLayer(node.name, node.op, names, list(node.outputs), attrs, tensors, node.source)

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        out = params[layer.outputs[0]]
        assert out is not None
        parts: list[Array] = []
        rest = iter(inputs)
        for index, shift in enumerate(layer.attrs["shifts"]):
            if shift == 0:
                parts.append(layer.tensors[f"constant_{index}"])
                continue
            x = next(rest)
            assert x is not None
            if shift > 0:
                part = IntLayer(
                    layer.name,
                    layer.op,
                    [],
                    [],
                    {"shift": shift},
                    {
                        "multiplier_0": layer.tensors[f"multiplier_{index}"],
                        "constant": layer.tensors[f"offset_{index}"],
                    },
                )
                x = run_affine(part, [x], out)
            parts.append(x)
        return [np.concatenate(parts, axis=layer.attrs["axis"])]

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        return every_axis(graph.values[node.outputs[0]].shape)

    def reads(self, node: Node, graph: Graph, box: Box) -> list[Box]:
        axis, first, found = self.attrs_of(node).axis, 0, []
        for name in node.inputs:
            value = graph.values[name]
            size = value.shape[axis]
            if not value.is_const:
                cut = _within(box[axis], first, size)
                found.append((*box[:axis], cut, *box[axis + 1 :]))
            first += size
        return found

    def part(
        self,
        layer: IntLayer,
        box: Box,
        reads: Sequence[Box],
        shapes: Mapping[str, Sequence[int]],
    ) -> IntLayer:
        axis, first = int(layer.attrs["axis"]), 0
        shifts: list[int] = []
        tensors: dict[str, Array] = {}
        inputs: list[str] = []
        rest = iter(zip(layer.inputs, reads, strict=True))
        for index, shift in enumerate(layer.attrs["shifts"]):
            constant = layer.tensors.get(f"constant_{index}") if shift == 0 else None
            if constant is not None:
                cut = _within(box[axis], first, constant.shape[axis])
                first += constant.shape[axis]
                if cut[0] < cut[1]:
                    where = slices((*box[:axis], cut, *box[axis + 1 :]))
                    tensors[f"constant_{len(shifts)}"] = constant[where]
                    shifts.append(0)
                continue
            name, read = next(rest)
            first += shapes[name][axis]
            if is_empty(read):
                continue
            for role in ("multiplier", "offset"):
                if f"{role}_{index}" in layer.tensors:
                    tensors[f"{role}_{len(shifts)}"] = layer.tensors[f"{role}_{index}"]
            shifts.append(shift)
            inputs.append(name)
        attrs = {**layer.attrs, "shifts": shifts}
        return IntLayer(
            layer.name, layer.op, inputs, list(layer.outputs), attrs, tensors, layer.source
        )

    def real_form(self, layer: IntLayer, params: Mapping[str, QuantParams | None]) -> RealForm:
        out = params[layer.outputs[0]]
        assert out is not None
        rest = iter(layer.inputs)
        parts: list[str | Affine | Array | Quantized] = []
        for index, shift in enumerate(layer.attrs["shifts"]):
            if shift == 0:
                parts.append(dequantize(layer.tensors[f"constant_{index}"], out))
            elif shift < 0:
                parts.append(next(rest))
            else:
                tensors = {
                    "multiplier_0": layer.tensors[f"multiplier_{index}"],
                    "constant": layer.tensors[f"offset_{index}"],
                }
                name = [next(rest)]
                parts.append(affine_form(layer, params, inputs=name, tensors=tensors, shift=shift))
        return RealForm(self.name, AxisAttrs(layer.attrs["axis"]), parts)

    def cases(self) -> Sequence[Case]:
        rng = np.random.default_rng(4)
        constant = rng.uniform(-2, 2, size=(1, 2, 4)).astype(np.float32)
        return [
            Case("two", AxisAttrs(1), [_act(1, 3, 4), _act(1, 2, 4)], bound=0.51),
            Case("last", AxisAttrs(2), [_act(1, 3, 4), _act(1, 3, 1), _act(1, 3, 2)], bound=0.51),
            Case("constant", AxisAttrs(1), [constant, _act(1, 3, 4)], bound=0.51),
        ]
