"""``Pooling`` (maximum and average windows) and ``GlobalAveragePooling``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from ..ir.boxes import whole
from .affine import MAX_RATIO
from .common import (
    centre,
    constant_axes,
    grid_of,
    integer_reason,
    is_wide,
    require,
    require_float,
    rounding_of,
)
from .fixedpoint import fixed_multiplier, requantize
from .regions import along, every_axis, replaced, spread, window_box, window_part
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
    Rounding,
    SourceNode,
)
from .window import check_window, ints, pool_output, resolve_pads

__all__ = ["GlobalAveragePooling", "Pooling", "PoolingAttrs"]

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PoolingAttrs(Attrs):
    """A pooling window.

    Attributes:
        mode: ``max`` or ``average``.
        kernel, strides, dilations: one for each spatial dimension.
        pads: begin of each dimension, then end of each.
        ceil_mode: whether a last window may overhang the end.
        count_include_pad: whether an average counts the padding (not the overhang).
    """

    mode: str
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    ceil_mode: bool = False
    count_include_pad: bool = False


class Pooling(OpSpec[PoolingAttrs]):
    """Maximum or average over windows of the spatial dimensions.

    A maximum keeps its integers. An average sums exactly and multiplies by the fixed-point
    reciprocal of the number of elements that its window counts.
    """

    name = "Pooling"
    attrs_type = PoolingAttrs
    onnx = ("MaxPool", "AveragePool")
    channel_first = True

    def rule_of(self, node: Node, graph: Graph) -> QuantRule:
        return QuantRule.MOVE if self.attrs_of(node).mode == "max" else QuantRule.RANGE

    def infer(self, attrs: PoolingAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        if attrs.mode not in ("max", "average"):
            raise ValueError(f"unknown pooling mode {attrs.mode!r}")
        if attrs.mode == "average":
            require_float(x)
        spatial = x.type.rank - 2
        if spatial < 1:
            raise ValueError(f"{x.type} has no spatial dimensions")
        check_window(spatial, attrs.strides, attrs.pads, attrs.dilations, attrs.kernel)
        out = pool_output(
            x.shape[2:], attrs.kernel, attrs.strides, attrs.pads, attrs.dilations, attrs.ceil_mode
        )
        return [x.type.with_shape((*x.shape[:2], *out))]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x = node.input(0)
        if x is None or x.type.rank < 3:
            return Refusal("its input has no spatial dimensions")
        if any(node.outputs[1:]):
            return Refusal("the indices of the maxima are used")
        kernel = ints(node.attrs, "kernel_shape", ())
        spatial = len(kernel)
        strides = ints(node.attrs, "strides", [1] * spatial)
        dilations = ints(node.attrs, "dilations", [1] * spatial)
        pads = resolve_pads(node.attrs, x.shape[2:], kernel, strides, dilations)
        if min(pads, default=0) < 0:
            return Refusal("it has negative pads")
        attrs = PoolingAttrs(
            "max" if node.op_type == "MaxPool" else "average",
            kernel,
            strides,
            pads,
            dilations,
            # SAME_* already fixes the output's size
            bool(node.attrs.get("ceil_mode", 0))
            and str(node.attrs.get("auto_pad") or "NOTSET") in ("NOTSET", "VALID"),
            bool(node.attrs.get("count_include_pad", 0)),
        )
        return to.emit(self.name, attrs, [x])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        a = self.attrs_of(node)
        extra: dict[str, Any] = (
            {"count_include_pad": int(a.count_include_pad)} if a.mode == "average" else {}
        )
        to.emit(
            "MaxPool" if a.mode == "max" else "AveragePool",
            node.inputs,
            node.outputs,
            kernel_shape=list(a.kernel),
            strides=list(a.strides),
            pads=list(a.pads),
            dilations=list(a.dilations),
            ceil_mode=int(a.ceil_mode),
            **extra,
        )

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        size = math.prod(self.attrs_of(node).kernel)
        if size > 1 << 22:
            return f"a window of {size} elements is too large"
        return integer_reason(node, graph)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        a = self.attrs_of(node)
        source, out = q.params(node.inputs[0]), q.params(node.outputs[0])
        tensors: dict[str, Array] = {}
        if a.mode == "max":
            if source != out:
                raise ValueError("a maximum's output must have its input's grid")
        else:
            source, out = grid_of(q, node.inputs[0]), grid_of(q, node.outputs[0])
            every = _counts(a, q.graph.values[node.inputs[0]].shape[2:])
            counts, row = np.unique(every, return_inverse=True)
            real = np.minimum(source.scale / (out.scale * counts), MAX_RATIO)
            m, r = fixed_multiplier(real)
            tensors = {
                # for each output which multiplier is its own
                "row": row.reshape(every.shape).astype(np.int32),
                "multiplier": m.astype(np.int32),
                "shift": r,
            }
        inputs, outputs = [node.inputs[0]], list(node.outputs)
        return IntLayer(node.name, node.op, inputs, outputs, a.to_dict(), tensors, node.source)

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        return every_axis(graph.values[node.outputs[0]].shape)

    def reads(self, node: Node, graph: Graph, box: Box) -> list[Box]:
        a, shape = self.attrs_of(node), graph.values[node.inputs[0]].shape
        spatial = window_box(box, shape, a.kernel, a.strides, a.pads, a.dilations)
        return [(box[0], box[1], *spatial)]

    def part(
        self,
        layer: IntLayer,
        box: Box,
        reads: Sequence[Box],
        shapes: Mapping[str, Sequence[int]],
    ) -> IntLayer:
        both = shapes[layer.inputs[0]], shapes[layer.outputs[0]]
        attrs = window_part(layer, box, reads[0], both, layer.attrs["kernel"])
        if attrs:
            attrs["ceil_mode"] = False  # the margins hold what overhangs
        tensors = {"row": along(layer.tensors["row"], box)} if "row" in layer.tensors else {}
        return replaced(layer, attrs=attrs, tensors=tensors)

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        x, out = inputs[0], params[layer.outputs[0]]
        assert x is not None and out is not None
        margins = layer.attrs.get("margins")
        a = PoolingAttrs.from_dict({k: v for k, v in layer.attrs.items() if k != "margins"})
        if a.mode == "max":
            lowest = _lowest(x.dtype)
            return [_slide(spread(x, margins, lowest), a, np.maximum, lowest)]
        source = params[layer.inputs[0]]
        wide = is_wide(source)
        sums = np.int64 if wide else np.int32
        total = _slide(spread(centre(x, source).astype(sums), margins, 0), a, np.add, 0)
        index = layer.tensors["row"]
        m, r = layer.tensors["multiplier"][index], layer.tensors["shift"][index]
        return [requantize(total, m, r, out, wide=wide)]

    def real_form(self, layer: IntLayer, params: Mapping[str, QuantParams | None]) -> RealForm:
        attrs = PoolingAttrs.from_dict(layer.attrs)
        if attrs.mode == "max":
            return RealForm(self.name, attrs, layer.inputs)
        row = layer.tensors["row"]
        rounding = Rounding(rounding_of(layer.tensors).ratio[row])
        return RealForm(self.name, attrs, layer.inputs, rounding)

    def cases(self) -> Sequence[Case]:
        def act(*shape: int) -> TensorType:
            return TensorType(DType.FLOAT32, shape)

        def window(mode: str, kernel: int, stride: int, pad: int = 0, **kw: Any) -> PoolingAttrs:
            kw.setdefault("pads", (pad,) * 4)
            kw.setdefault("dilations", (1, 1))
            return PoolingAttrs(mode, (kernel, kernel), (stride, stride), **kw)

        x = act(1, 3, 8, 7)
        return [
            Case("max", window("max", 3, 2, 1), [x], bound=0.0),
            Case("max_ceil", window("max", 3, 2, ceil_mode=True), [x], bound=0.0),
            Case("max_dilated", window("max", 2, 1, dilations=(2, 3)), [x], bound=0.0),
            Case("max_uneven", window("max", 3, 2, pads=(0, 1, 2, 1)), [x], bound=0.0),
            Case("average", window("average", 3, 1, 1), [x], bound=0.51),
            Case("average_2", window("average", 2, 2), [x], bound=0.51),
            Case(
                "average_padding",
                window("average", 3, 2, 1, count_include_pad=True),
                [x],
                bound=0.51,
            ),
            Case("average_ceil", window("average", 3, 2, ceil_mode=True), [x], bound=0.51),
            Case(
                "average_ceil_padding",
                window("average", 3, 2, 1, ceil_mode=True, count_include_pad=True),
                [x],
                bound=0.51,
            ),
            Case("average_dilated", window("average", 2, 1, 1, dilations=(2, 2)), [x], bound=0.51),
            Case(
                "average_1d",
                PoolingAttrs("average", (4,), (2,), (1, 2), (1,)),
                [act(2, 3, 11)],
                bound=0.51,
            ),
            Case(
                "max_3d",
                PoolingAttrs("max", (2, 2, 2), (2, 1, 2), (0, 0, 1, 0, 1, 0), (1, 1, 1)),
                [act(1, 2, 4, 5, 6)],
                bound=0.0,
            ),
        ]


def _slide(x: Array, a: PoolingAttrs, combine: Callable[..., Any], fill: int) -> Array:
    """Reduce windows axis by axis: sums and maxima separate, so k + k steps do for k * k."""
    n = len(a.kernel)
    out = pool_output(x.shape[2:], a.kernel, a.strides, a.pads, a.dilations, a.ceil_mode)
    for i in range(n):
        k, s, d, begin = a.kernel[i], a.strides[i], a.dilations[i], a.pads[i]
        axis = 2 + i
        need = (out[i] - 1) * s + d * (k - 1) + 1
        width = [(0, 0)] * x.ndim
        width[axis] = (begin, max(need - begin - x.shape[axis], 0))
        if any(width[axis]):
            x = np.pad(x, width, constant_values=fill)
        acc: Array | None = None
        for j in range(k):
            start = j * d
            part = x[(slice(None),) * axis + (slice(start, start + (out[i] - 1) * s + 1, s),)]
            acc = part.copy() if acc is None else combine(acc, part, out=acc)
        assert acc is not None
        x = acc
    return x


def _lowest(dtype: np.dtype[Any]) -> int:
    return int(np.iinfo(dtype).min)


def _counts(a: PoolingAttrs, size: Sequence[int]) -> Int64:
    """Return how many elements each output's average counts, over the spatial dimensions."""
    n = len(a.kernel)
    out = pool_output(size, a.kernel, a.strides, a.pads, a.dilations, a.ceil_mode)
    total: Int64 = np.ones((1,) * n, dtype=np.int64)
    for i in range(n):
        starts = np.arange(out[i]) * a.strides[i] - a.pads[i]
        taps = starts[:, None] + np.arange(a.kernel[i])[None, :] * a.dilations[i]
        low, high = 0, size[i]
        if a.count_include_pad:
            low, high = -a.pads[i], size[i] + a.pads[n + i]
        count = ((taps >= low) & (taps < high)).sum(axis=1).astype(np.int64)
        shape = [1] * n
        shape[i] = -1
        total = total * count.reshape(shape)
    return np.maximum(total, 1)


class GlobalAveragePooling(OpSpec[NoAttrs]):
    """The mean over all spatial dimensions, which stay as 1."""

    name = "GlobalAveragePooling"
    attrs_type = NoAttrs
    onnx = ("GlobalAveragePool", "ReduceMean")
    channel_first = True

    def infer(self, attrs: NoAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        require_float(x)
        if x.type.rank < 3:
            raise ValueError(f"{x.type} has no spatial dimensions")
        return [x.type.with_shape((*x.shape[:2], *([1] * (x.type.rank - 2))))]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x = node.input(0)
        if x is None or x.type.rank < 3 or not x.type.dtype.is_float:
            return Refusal("its input has no spatial dimensions")
        if node.op_type == "ReduceMean":
            axes = constant_axes(node)
            spatial = list(range(2, x.type.rank))
            # A mean over one axis of three is more likely a normalization's than a pooling's.
            if not isinstance(axes, list) or x.type.rank < 4 or not node.attrs.get("keepdims", 1):
                return Refusal("it is not a mean over all spatial dimensions")
            if sorted(v % x.type.rank for v in axes) != spatial:
                return Refusal("it is not a mean over all spatial dimensions")
        return to.emit(self.name, NoAttrs(), [x])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        to.emit("GlobalAveragePool", node.inputs, node.outputs)

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        return {0: 1, 1: 1}

    def reads(self, node: Node, graph: Graph, box: Box) -> list[Box]:
        return [(*box[:2], *whole(graph.values[node.inputs[0]].shape[2:]))]

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        size = math.prod(graph.values[node.inputs[0]].shape[2:])
        if size > 1 << 22:
            return f"a mean of {size} elements is too large"
        return integer_reason(node, graph)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        source, out = grid_of(q, node.inputs[0]), grid_of(q, node.outputs[0])
        size = math.prod(q.graph.values[node.inputs[0]].shape[2:])
        m, r = fixed_multiplier(min(source.scale / (out.scale * size), MAX_RATIO))
        tensors: dict[str, Array] = {"multiplier": m.astype(np.int32), "shift": r}
        inputs, outputs = [node.inputs[0]], list(node.outputs)
        return IntLayer(node.name, node.op, inputs, outputs, {}, tensors, node.source)

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        x, out = inputs[0], params[layer.outputs[0]]
        assert x is not None and out is not None
        axes = tuple(range(2, x.ndim))
        source = params[layer.inputs[0]]
        total = centre(x, source).sum(axis=axes, keepdims=True, dtype=np.int64)
        m, r = layer.tensors["multiplier"], layer.tensors["shift"]
        return [requantize(total, m, r, out, wide=is_wide(source))]

    def real_form(self, layer: IntLayer, params: Mapping[str, QuantParams | None]) -> RealForm:
        return RealForm(self.name, NoAttrs(), layer.inputs, rounding_of(layer.tensors))

    def cases(self) -> Sequence[Case]:
        return [
            Case("2d", NoAttrs(), [TensorType(DType.FLOAT32, (2, 3, 7, 5))], bound=0.51),
            Case("1d", NoAttrs(), [TensorType(DType.FLOAT32, (1, 3, 9))], bound=0.51),
        ]
