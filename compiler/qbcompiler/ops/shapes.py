"""Operators that change a tensor's shape or order and keep its elements.

``Reshape`` (also ONNX ``Flatten`` and ``Squeeze``), ``Unsqueeze``, ``Transpose``, ``Expand`` (also
``Tile``), ``Identity``, ``Cast``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

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
from ..ir.boxes import box_shape
from .activation import ClipAttrs
from .affine import affine_form, affine_layer, run_affine
from .common import (
    broadcast,
    constant_axes,
    grid_of,
    int_list,
    normalize_axes,
    normalize_axis,
    require,
)
from .move import Move
from .regions import broadcast_box, every_axis, replaced
from .spec import (
    Case,
    Kernels,
    Lowering,
    OnnxEmitter,
    QuantContext,
    QuantRule,
    RealForm,
    Refusal,
    SourceNode,
)

__all__ = [
    "Cast",
    "CastAttrs",
    "Expand",
    "Identity",
    "Reshape",
    "ReshapeAttrs",
    "Transpose",
    "TransposeAttrs",
    "Unsqueeze",
    "UnsqueezeAttrs",
    "resolve_shape",
]


def _act(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


@dataclass(frozen=True, slots=True)
class ReshapeAttrs(Attrs):
    """A target shape.

    Attributes:
        shape: every dimension, none left open.
    """

    shape: tuple[int, ...]


def resolve_shape(
    source: tuple[int, ...], wanted: Sequence[int], allow_zero: bool = False
) -> tuple[int, ...]:
    """Return ``wanted`` with ONNX's 0 (copy) and -1 (what is left) filled in.

    Raises:
        ValueError: the element counts differ.
    """
    shape = [int(d) for d in wanted]
    for i, d in enumerate(shape):
        if d == 0 and not allow_zero:
            if i >= len(source):
                raise ValueError(f"cannot copy dimension {i} of {list(source)}")
            shape[i] = source[i]
    size = math.prod(source)
    if -1 in shape:
        at = shape.index(-1)
        rest = math.prod(d for i, d in enumerate(shape) if i != at)
        shape[at] = size // rest if rest else 0
    if math.prod(shape) != size or min(shape, default=0) < 0:
        raise ValueError(f"cannot reshape {list(source)} to {list(wanted)}")
    return tuple(shape)


class Reshape(Move[ReshapeAttrs]):
    """The same elements in the same order under another shape."""

    name = "Reshape"
    attrs_type = ReshapeAttrs
    onnx = ("Reshape", "Flatten", "Squeeze")

    def infer(self, attrs: ReshapeAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        if math.prod(attrs.shape) != x.type.size or min(attrs.shape, default=0) < 0:
            raise ValueError(f"cannot reshape {x.type} to {list(attrs.shape)}")
        return [x.type.with_shape(attrs.shape)]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x = node.input(0)
        if x is None:
            return Refusal("it lacks an input")
        target = self._target(node, x.shape)
        if isinstance(target, str):
            return Refusal(target)
        return to.emit(self.name, ReshapeAttrs(target), [x])

    def _target(self, node: SourceNode, shape: tuple[int, ...]) -> tuple[int, ...] | str:
        if node.op_type == "Flatten":
            axis = int(node.attrs.get("axis", 1))
            at = axis + len(shape) if axis < 0 else axis
            return (math.prod(shape[:at]), math.prod(shape[at:]))
        if node.op_type == "Squeeze":
            axes = constant_axes(node)
            if isinstance(axes, Refusal):
                return axes.reason
            if axes is None:
                return tuple(d for d in shape if d != 1)
            drop = normalize_axes(axes, len(shape))
            if any(shape[a] != 1 for a in drop):
                raise ValueError(f"cannot squeeze axes {axes} of {list(shape)}")
            return tuple(d for i, d in enumerate(shape) if i not in drop)
        wanted = node.const(1)
        if wanted is not None:
            return resolve_shape(shape, int_list(wanted), bool(node.attrs.get("allowzero", 0)))
        known = node.output_types[0] if node.output_types else None
        if known is None:
            return "its target shape is not constant"
        return known.shape

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        shape = np.asarray(self.attrs_of(node).shape, dtype=np.int64)
        to.emit("Reshape", [node.inputs[0], to.const(shape, "shape")], node.outputs, allowzero=1)

    def move(self, layer: IntLayer, x: Array) -> Array:
        return x.reshape(layer.attrs["shape"])

    def cases(self) -> Sequence[Case]:
        return [
            Case("flatten", ReshapeAttrs((2, 12)), [_act(2, 3, 4)], bound=0.0),
            Case("scalar", ReshapeAttrs(()), [_act(1, 1)], bound=0.0),
        ]


@dataclass(frozen=True, slots=True)
class UnsqueezeAttrs(Attrs):
    """Where dimensions of 1 are put in.

    Attributes:
        axes: ascending positions in the output.
    """

    axes: tuple[int, ...]


class Unsqueeze(Move[UnsqueezeAttrs]):
    """Puts in dimensions of 1."""

    name = "Unsqueeze"
    attrs_type = UnsqueezeAttrs
    onnx = ("Unsqueeze",)

    def infer(self, attrs: UnsqueezeAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        rank = x.type.rank + len(attrs.axes)
        axes = normalize_axes(attrs.axes, rank)
        rest = iter(x.shape)
        return [x.type.with_shape(tuple(1 if i in axes else next(rest) for i in range(rank)))]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x, axes = node.input(0), constant_axes(node)
        if x is None or axes is None:
            return Refusal("it lacks an input")
        if isinstance(axes, Refusal):
            return axes
        attrs = UnsqueezeAttrs(normalize_axes(axes, x.type.rank + len(axes)))
        return to.emit(self.name, attrs, [x])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        axes = np.asarray(self.attrs_of(node).axes, dtype=np.int64)
        to.emit("Unsqueeze", [node.inputs[0], to.const(axes, "axes")], node.outputs)

    def move(self, layer: IntLayer, x: Array) -> Array:
        return np.expand_dims(x, tuple(layer.attrs["axes"]))

    def cases(self) -> Sequence[Case]:
        return [
            Case("two", UnsqueezeAttrs((0, 3)), [_act(2, 3)], bound=0.0),
            Case("last", UnsqueezeAttrs((2,)), [_act(2, 3)], bound=0.0),
        ]


@dataclass(frozen=True, slots=True)
class TransposeAttrs(Attrs):
    """An order of dimensions.

    Attributes:
        perm: for each output dimension the input dimension it comes from.
    """

    perm: tuple[int, ...]


class Transpose(Move[TransposeAttrs]):
    """Reorders dimensions."""

    name = "Transpose"
    attrs_type = TransposeAttrs
    onnx = ("Transpose",)

    def infer(self, attrs: TransposeAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        if sorted(attrs.perm) != list(range(x.type.rank)):
            raise ValueError(f"{list(attrs.perm)} is no order of the dimensions of {x.type}")
        return [x.type.with_shape(tuple(x.shape[p] for p in attrs.perm))]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x = node.input(0)
        if x is None:
            return Refusal("it lacks an input")
        rank = x.type.rank
        perm = node.attrs.get("perm") or range(rank - 1, -1, -1)
        attrs = TransposeAttrs(tuple(normalize_axis(int(p), rank) for p in perm))
        return to.emit(self.name, attrs, [x])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        to.emit("Transpose", node.inputs, node.outputs, perm=list(self.attrs_of(node).perm))

    def move(self, layer: IntLayer, x: Array) -> Array:
        return np.ascontiguousarray(x.transpose(layer.attrs["perm"]))

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        return every_axis(graph.values[node.outputs[0]].shape)

    def reads(self, node: Node, graph: Graph, box: Box) -> list[Box]:
        perm = self.attrs_of(node).perm
        return [tuple(box[perm.index(i)] for i in range(len(perm)))]

    def cases(self) -> Sequence[Case]:
        return [
            Case("nhwc", TransposeAttrs((0, 2, 3, 1)), [_act(1, 3, 4, 5)], bound=0.0),
            Case("cycle", TransposeAttrs((2, 0, 1)), [_act(2, 3, 4)], bound=0.0),
        ]


class Expand(Move[ReshapeAttrs]):
    """Repeats dimensions of 1; ONNX ``Tile`` becomes reshape, expand, reshape."""

    name = "Expand"
    attrs_type = ReshapeAttrs
    onnx = ("Expand", "Tile")

    def infer(self, attrs: ReshapeAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        if broadcast(x.shape, attrs.shape) != attrs.shape:
            raise ValueError(f"cannot expand {x.type} to {list(attrs.shape)}")
        return [x.type.with_shape(attrs.shape)]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x, wanted = node.input(0), node.const(1)
        if x is None:
            return Refusal("it lacks an input")
        if wanted is None:
            known = node.output_types[0] if node.output_types else None
            if known is None or node.op_type == "Tile":
                return Refusal("its target shape is not constant")
            return to.emit(self.name, ReshapeAttrs(known.shape), [x])
        numbers = int_list(wanted)
        if node.op_type == "Expand":
            return to.emit(self.name, ReshapeAttrs(broadcast(x.shape, tuple(numbers))), [x])
        if len(numbers) != x.type.rank:
            return Refusal("it does not repeat each dimension (opset 1 form)")
        apart = tuple(d for size in x.shape for d in (1, size))
        wide = tuple(d for pair in zip(numbers, x.shape, strict=True) for d in pair)
        final = tuple(n * d for n, d in zip(numbers, x.shape, strict=True))
        value = to.emit("Reshape", ReshapeAttrs(apart), [x])[0]
        value = to.emit(self.name, ReshapeAttrs(wide), [value])[0]
        return to.emit("Reshape", ReshapeAttrs(final), [value])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        shape = np.asarray(self.attrs_of(node).shape, dtype=np.int64)
        to.emit("Expand", [node.inputs[0], to.const(shape, "shape")], node.outputs)

    def move(self, layer: IntLayer, x: Array) -> Array:
        return np.ascontiguousarray(np.broadcast_to(x, tuple(layer.attrs["shape"])))

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        return every_axis(graph.values[node.outputs[0]].shape)

    def reads(self, node: Node, graph: Graph, box: Box) -> list[Box]:
        return [broadcast_box(box, graph.values[node.inputs[0]].shape)]

    def part(
        self,
        layer: IntLayer,
        box: Box,
        reads: Sequence[Box],
        shapes: Mapping[str, Sequence[int]],
    ) -> IntLayer:
        return replaced(layer, attrs={"shape": list(box_shape(box))})

    def cases(self) -> Sequence[Case]:
        return [
            Case("rows", ReshapeAttrs((2, 3, 4)), [_act(3, 1)], bound=0.0),
            Case("same", ReshapeAttrs((2, 3)), [_act(2, 3)], bound=0.0),
        ]


class Identity(Move[NoAttrs]):
    """Passes its input on: gives a graph output a name of its own."""

    name = "Identity"
    elementwise = True
    attrs_type = NoAttrs
    onnx = ("Identity",)

    def infer(self, attrs: NoAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        return [require(inputs, 0).type]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x = node.input(0)
        if x is None:
            return Refusal("it lacks an input")
        return to.emit(self.name, NoAttrs(), [x])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        to.emit("Identity", node.inputs, node.outputs)

    def move(self, layer: IntLayer, x: Array) -> Array:
        return x

    def cases(self) -> Sequence[Case]:
        return [Case("plain", NoAttrs(), [_act(2, 3)], bound=0.0)]


@dataclass(frozen=True, slots=True)
class CastAttrs(Attrs):
    """The element type to convert to.

    Attributes:
        to: a ``DType`` value.
        scale: step of the grid that the elements are rounded to on the way; None for no grid.
        zero_point: the grid's integer of 0.
        stored: type of the grid's integers, ``int8`` or ``uint8``.
    """

    to: str
    scale: float | None = None
    zero_point: int = 0
    stored: str = "int8"


class Cast(Move[CastAttrs]):
    """Converts elements; between floating-point types the integer form is a copy.

    One with a grid rounds to it: what ``QuantizeLinear`` and ``DequantizeLinear`` of a quantized
    model do. Its grid is that of the integers, and so of what makes its input.
    """

    name = "Cast"
    attrs_type = CastAttrs
    elementwise = True

    def rule_of(self, node: Node, graph: Graph) -> QuantRule:
        if self.attrs_of(node).scale is not None:
            return QuantRule.CLAMP
        source, target = (graph.values[n].type.dtype for n in (node.inputs[0], node.outputs[0]))
        return QuantRule.MOVE if source.is_float and target.is_float else QuantRule.FLOAT

    def grid(self, node: Node, graph: Graph) -> tuple[float, float] | None:
        a = self.attrs_of(node)
        if a.scale is None:
            return None
        limits = np.iinfo(a.stored)
        # a symmetric grid has no use for the one integer more below 0: with it, the step would grow
        low = -limits.max if a.zero_point == 0 and limits.min < 0 else limits.min
        return (low - a.zero_point) * a.scale, (limits.max - a.zero_point) * a.scale

    onnx = ("Cast", "CastLike")

    def infer(self, attrs: CastAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        return [TensorType(DType(attrs.to), require(inputs, 0).shape)]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x = node.input(0)
        known = node.output_types[0] if node.output_types else None
        if node.op_type == "CastLike" and known is None and (like := node.input(1)) is not None:
            known = like.type
        if x is None or known is None:
            return Refusal("its element type is not modelled")
        if DType.STRING in (x.type.dtype, known.dtype):
            return Refusal("it converts strings")
        return to.emit(self.name, CastAttrs(known.dtype.value), [x])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        a = self.attrs_of(node)
        if a.scale is None:
            to.emit("Cast", node.inputs, node.outputs, to=DType(a.to))
            return
        scale = to.const(np.asarray(a.scale, np.float32), "scale")
        zero = to.const(np.asarray(a.zero_point, DType(a.stored).numpy), "zero_point")
        integers = to.temp("integers")
        to.emit("QuantizeLinear", [node.inputs[0], scale, zero], [integers])
        to.emit("DequantizeLinear", [integers, scale, zero], node.outputs)

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        source, target = (graph.values[n].type.dtype for n in (node.inputs[0], node.outputs[0]))
        if not (source.is_float and target.is_float):
            return f"it converts {source.value} to {target.value}"
        return super().unsupported(node, graph)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        if self.attrs_of(node).scale is None:
            return super().quantize(node, q)
        source, out = grid_of(q, node.inputs[0]), grid_of(q, node.outputs[0])
        # a quantizer leaves a clamp to the ends of the grid, which the grid chosen here may pass
        limits = self.grid(node, q.graph)
        assert limits is not None
        low, high = (round(v / out.scale) + out.zero_point for v in limits)
        attrs = {"low": max(low, out.qmin), "high": min(high, out.qmax)}
        if source != out:
            return affine_layer(node, q, [1.0], attrs=attrs)
        inputs, outputs = [node.inputs[0]], list(node.outputs)
        return IntLayer(node.name, node.op, inputs, outputs, attrs, {}, node.source)

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        x, out = inputs[0], params[layer.outputs[0]]
        if "low" not in layer.attrs or out is None or x is None:
            return super().run(layer, inputs, params, kernels)
        low, high = int(layer.attrs["low"]), int(layer.attrs["high"])
        if "shift" in layer.attrs:
            return [run_affine(layer, inputs, out, low=low, high=high)]
        return [np.clip(x, x.dtype.type(low), x.dtype.type(high))]

    def real_form(self, layer: IntLayer, params: Mapping[str, QuantParams | None]) -> RealForm:
        out = params[layer.outputs[0]]
        if "low" in layer.attrs and out is not None:
            ends = (layer.attrs[k] for k in ("low", "high"))
            bounds = ClipAttrs(*((int(e) - out.zero_point) * out.scale for e in ends))
            form = affine_form(layer, params) if "shift" in layer.attrs else layer.inputs[0]
            return RealForm("Clip", bounds, [form])
        return RealForm("Identity", NoAttrs(), layer.inputs)

    def move(self, layer: IntLayer, x: Array) -> Array:
        return x

    def cases(self) -> Sequence[Case]:
        return [
            Case("double", CastAttrs("float64"), [_act(2, 3)], bound=0.0),
            Case("int", CastAttrs("int32"), [_act(2, 3)], bound=None),
            Case("half", CastAttrs("float16"), [_act(2, 3)], bound=0.1),
        ]
