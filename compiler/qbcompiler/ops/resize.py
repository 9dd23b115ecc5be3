"""``Resize``: nearest, linear and cubic, in every ONNX coordinate mode.

Nearest moves elements. Linear and cubic are exact sums with fixed-point weights, axis by axis
(11 fraction bits each for up to two axes), requantized once. A row's weights sum to exactly 1, so
that the two of linear err by the same amount in opposite directions: a linear result is within
``0.5 + 255 axes 2^-(bits + 1) s_in / s_out`` steps of the real one, a cubic one within
``0.5 + 255 axes 2^(1 - bits) s_in / s_out``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
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
from .affine import MAX_RATIO
from .common import ax, centre, grid_of, int_list, integer_reason, is_wide, normalize_axis, require
from .fixedpoint import fixed_multiplier, requantize
from .interpolation import (
    COORDINATES,
    MODES,
    NEAREST,
    fixed_point_taps,
    resized,
    scaled_size,
    source_coordinates,
    taps,
)
from .regions import every_axis, replaced
from .spec import (
    Case,
    Kernels,
    Lowering,
    OnnxEmitter,
    OpSpec,
    QuantContext,
    QuantRule,
    Refusal,
    SourceNode,
)

__all__ = ["Resize", "ResizeAttrs"]

# fraction bits of one axis, and of all together
_MOST, _BITS = 11, 22
_MOST_WIDE, _BITS_WIDE = 14, 28  # where a grid has 16 bits


@dataclass(frozen=True, slots=True)
class ResizeAttrs(Attrs):
    """How a tensor is resized.

    Attributes:
        sizes: output shape, all dimensions.
        scales: factor of each dimension (a float32 number), from which coordinates follow.
        mode: ``nearest``, ``linear`` or ``cubic``.
        coordinates: ONNX ``coordinate_transformation_mode``.
        nearest: ONNX ``nearest_mode``.
        cubic_a: ONNX ``cubic_coeff_a``.
        exclude_outside: whether cubic taps outside the input have no weight.
        antialias: whether a kernel is widened when shrinking.
        roi: starts, then ends, of all dimensions; for ``tf_crop_and_resize`` only.
        extrapolation: value outside the input; for ``tf_crop_and_resize`` only.
    """

    sizes: tuple[int, ...]
    scales: tuple[float, ...]
    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    roi: tuple[float, ...] = ()
    extrapolation: float = 0.0


class Resize(OpSpec[ResizeAttrs]):
    """Interpolates along any axes."""

    name = "Resize"
    attrs_type = ResizeAttrs
    onnx = ("Resize",)

    def rule_of(self, node: Node, graph: Graph) -> QuantRule:
        return QuantRule.MOVE if self.attrs_of(node).mode == "nearest" else QuantRule.RANGE

    def infer(self, attrs: ResizeAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        rank = x.type.rank
        for what, value, known in (
            ("mode", attrs.mode, MODES),
            ("coordinate mode", attrs.coordinates, COORDINATES),
            ("nearest mode", attrs.nearest, NEAREST),
        ):
            if value not in known:
                raise ValueError(f"unknown {what} {value!r}")
        if len(attrs.sizes) != rank or len(attrs.scales) != rank:
            raise ValueError(f"sizes and scales do not fit {x.type}")
        if attrs.coordinates == "tf_crop_and_resize" and len(attrs.roi) != 2 * rank:
            raise ValueError("tf_crop_and_resize needs a region of interest")
        for d, size, scale in zip(x.shape, attrs.sizes, attrs.scales, strict=True):
            if size < 0 or scale <= 0:
                raise ValueError("sizes must not be negative and scales must be positive")
            if d == 0 and size:
                raise ValueError(f"cannot resize {x.type}, which has no elements")
        return [x.type.with_shape(attrs.sizes)]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x = node.input(0)
        if x is None:
            return Refusal("it lacks an input")
        attrs = _attributes(node, x)
        if isinstance(attrs, Refusal):
            return attrs
        # Runtimes copy where no size changes, whatever the scales.
        if attrs.sizes == x.shape and attrs.coordinates != "tf_crop_and_resize":
            return to.emit("Identity", NoAttrs(), [x])
        return to.emit(self.name, attrs, [x])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        a = self.attrs_of(node)
        shape = graph.values[node.inputs[0]].shape
        names, roi = [node.inputs[0], ""], list(a.roi)
        extra: dict[str, Any] = {}
        scales = [float(np.float32(s)) for s in a.scales]
        exact = tuple(math.floor(d * s) for d, s in zip(shape, scales, strict=True))
        stretched = [_ratio(n, d) for n, d in zip(a.sizes, shape, strict=True)] == scales
        # Readers differ in how they round a size that a scale hits just about: where sizes say
        # the same, they are the clearer form.
        if resized(shape, a.scales) == a.sizes and (exact == a.sizes or not stretched):
            names.append(to.const(np.asarray(a.scales, dtype=np.float32), "scales"))
        else:
            sizes = list(a.sizes)
            ratios = [_ratio(n, d) for n, d in zip(sizes, shape, strict=True)]
            if not stretched:
                # One scale was rounded to several sizes. The policy finds it again where the
                # axis that sets it has the smallest ratio.
                axes = [i for i, s in enumerate(a.scales) if s != 1.0]
                sizes = [n if ratios[i] == a.scales[i] else n + 1 for i, n in enumerate(sizes)]
                sizes = [sizes[i] for i in axes]
                roi = [roi[i] for i in (*axes, *(len(shape) + i for i in axes))] if roi else roi
                extra = {"axes": axes, "keep_aspect_ratio_policy": "not_larger"}
            names += ["", to.const(np.asarray(sizes, dtype=np.int64), "sizes")]
        if roi:
            names[1] = to.const(np.asarray(roi, dtype=np.float32), "roi")
        to.emit(
            "Resize",
            names,
            node.outputs,
            mode=a.mode,
            coordinate_transformation_mode=a.coordinates,
            nearest_mode=a.nearest,
            cubic_coeff_a=a.cubic_a,
            exclude_outside=int(a.exclude_outside),
            antialias=int(a.antialias),
            extrapolation_value=a.extrapolation,
            **extra,
        )

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        a = self.attrs_of(node)
        if a.antialias and a.mode != "nearest":
            return "it is antialiased"
        if a.coordinates == "tf_crop_and_resize":
            return "its coordinates are tf_crop_and_resize"
        return integer_reason(node, graph)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        a = self.attrs_of(node)
        shape = q.graph.values[node.inputs[0]].shape
        axes = _axes(a, shape)
        if q.params(node.inputs[0]) != q.params(node.outputs[0]) and a.mode == "nearest":
            raise ValueError("nearest interpolation's output must have its input's grid")
        wide = is_wide(q.params(node.inputs[0]), q.params(node.outputs[0]))
        most, total = (_MOST_WIDE, _BITS_WIDE) if wide else (_MOST, _BITS)
        bits = min(most, total // max(len(axes), 1))
        tensors: dict[str, Array] = {}
        for axis in axes:
            index, weight = _taps(a, shape[axis], axis)
            tensors[f"index_{axis}"] = index.astype(np.int32)
            if a.mode != "nearest":
                tensors[f"weight_{axis}"] = fixed_point_taps(weight, bits)
        if a.mode != "nearest":
            source, out = grid_of(q, node.inputs[0]), grid_of(q, node.outputs[0])
            real = source.scale / out.scale * 2.0 ** (-bits * len(axes))
            m, r = fixed_multiplier(min(real, MAX_RATIO))
            tensors["multiplier"], tensors["shift"] = m.astype(np.int32), r
        inputs, outputs = [node.inputs[0]], list(node.outputs)
        attrs: dict[str, Any] = {"axes": axes, "mode": a.mode}
        return IntLayer(node.name, node.op, inputs, outputs, attrs, tensors, node.source)

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        return every_axis(graph.values[node.outputs[0]].shape)

    def reads(self, node: Node, graph: Graph, box: Box) -> list[Box]:
        a, shape = self.attrs_of(node), graph.values[node.inputs[0]].shape
        found = list(box)
        for axis in _axes(a, shape):
            low, high = _reach(a, shape[axis], axis)
            start, stop = box[axis]
            found[axis] = (int(low[start:stop].min()), int(high[start:stop].max()) + 1)
        return [tuple(found)]

    def part(
        self,
        layer: IntLayer,
        box: Box,
        reads: Sequence[Box],
        shapes: Mapping[str, Sequence[int]],
    ) -> IntLayer:
        tensors: dict[str, Array] = {}
        for axis in layer.attrs["axes"]:
            cut = slice(*box[axis])
            index = layer.tensors[f"index_{axis}"][cut]
            tensors[f"index_{axis}"] = index.astype(np.int32) - np.int32(reads[0][axis][0])
            if f"weight_{axis}" in layer.tensors:
                tensors[f"weight_{axis}"] = layer.tensors[f"weight_{axis}"][cut]
        return replaced(layer, tensors=tensors)

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        x, out = inputs[0], params[layer.outputs[0]]
        assert x is not None and out is not None
        tensors = layer.tensors
        if layer.attrs["mode"] == "nearest":
            for axis in layer.attrs["axes"]:
                x = np.take(x, tensors[f"index_{axis}"][:, 0].astype(np.int64), axis=axis)
            return [x]
        acc: NDArray[np.int64] = centre(x, params[layer.inputs[0]]).astype(np.int64)
        for axis in layer.attrs["axes"]:
            index = tensors[f"index_{axis}"].astype(np.int64)
            weight = tensors[f"weight_{axis}"].astype(np.int64)
            total: NDArray[np.int64] | None = None
            for tap in range(index.shape[1]):
                term = np.take(acc, index[:, tap], axis=axis)
                term *= weight[:, tap].reshape(ax(acc.ndim, axis))
                total = term if total is None else total + term
            assert total is not None
            acc = total
        m, r = tensors["multiplier"], tensors["shift"]
        return [requantize(acc, m, r, out, wide=is_wide(params[layer.inputs[0]], out))]

    def cases(self) -> Sequence[Case]:
        found = [
            _case(f"nearest_{c}_{n}", out, mode="nearest", coordinates=c, nearest=n)
            for c in COORDINATES[:-1]
            for n in NEAREST
            for out in ((9, 7),)
        ]
        found += [
            _case(f"linear_{c}_{i}", out, mode="linear", coordinates=c)
            for c in COORDINATES[:-2]
            for i, out in enumerate(((8, 10), (7, 4)))
        ]
        found += [
            _case("cubic", (8, 10), mode="cubic"),
            _case("cubic_excluded", (7, 9), mode="cubic", exclude_outside=True, cubic_a=-0.5),
            _case("antialias", (2, 3), mode="linear", antialias=True),
            _case(
                "crop",
                (4, 4),
                mode="linear",
                coordinates="tf_crop_and_resize",
                roi=(0.0, 0.0, 0.1, 0.2, 1.0, 1.0, 0.8, 1.1),
                extrapolation=0.5,
            ),
            Case(
                "linear_1d",
                ResizeAttrs((1, 2, 9), (1.0, 1.0, 1.8), "linear"),
                [TensorType(DType.FLOAT32, (1, 2, 5))],
                bound=1.0,
            ),
            Case(
                "nearest_3d",
                ResizeAttrs(
                    (1, 1, 4, 6, 4), (1.0, 1.0, 2.0, 2.0, 2.0), "nearest", "asymmetric", "floor"
                ),
                [TensorType(DType.FLOAT32, (1, 1, 2, 3, 2))],
                bound=0.0,
            ),
        ]
        return found


def _axes(a: ResizeAttrs, shape: Sequence[int]) -> list[int]:
    """Return the axes along which something is resized."""
    return [i for i, d in enumerate(shape) if a.sizes[i] != d or a.scales[i] != 1.0]


def _taps(a: ResizeAttrs, size: int, axis: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return source indices and weights along an axis of ``size``."""
    x = source_coordinates(a.coordinates, size, a.sizes[axis], a.scales[axis])
    return taps(
        x,
        size,
        a.mode,
        nearest=a.nearest,
        cubic_a=a.cubic_a,
        exclude_outside=a.exclude_outside,
    )


@lru_cache(maxsize=256)
def _reach(a: ResizeAttrs, size: int, axis: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and the last source index of each output index along an axis."""
    index = _taps(a, size, axis)[0]
    return index.min(axis=1), index.max(axis=1)


def _case(id: str, out: tuple[int, int], **attrs: Any) -> Case:
    size = (4, 5)
    scales = tuple(float(np.float32(o / d)) for o, d in zip(out, size, strict=True))
    a = ResizeAttrs((1, 2, *out), (1.0, 1.0, *scales), **attrs)
    bound = 0.0 if a.mode == "nearest" else 1.0
    integer = not (a.antialias or a.coordinates == "tf_crop_and_resize")
    return Case(id, a, [TensorType(DType.FLOAT32, (1, 2, *size))], bound=bound if integer else None)


def _ratio(size: int, before: int) -> float:
    """Return the scale that a target size stands for, as runtimes compute it."""
    return float(np.float32(size) / np.float32(before)) if before else 1.0


# -- ONNX forms ---------------------------------------------------------------------------


def _attributes(node: SourceNode, x: Value) -> ResizeAttrs | Refusal:
    mode = str(node.attrs.get("mode", "nearest"))
    rank = x.type.rank
    for index, what in ((1, "region of interest"), (2, "scales"), (3, "sizes")):
        if node.input(index) is not None and node.const(index) is None:
            return Refusal(f"its {what} is not constant")
    axes = [normalize_axis(int(a), rank) for a in node.attrs.get("axes") or range(rank)]
    coordinates = str(node.attrs.get("coordinate_transformation_mode", "half_pixel"))
    scales = [1.0] * rank
    sizes = list(x.shape)
    wanted, factors = node.const(3), node.const(2)
    if wanted is not None and wanted.size:
        policy = str(node.attrs.get("keep_aspect_ratio_policy", "stretch"))
        reason = _by_sizes(x, int_list(wanted), axes, policy, sizes, scales)
    elif factors is not None and factors.size:
        reason = None
        for axis, scale in zip(axes, factors.reshape(-1).tolist(), strict=True):
            scales[axis] = float(np.float32(scale))
            sizes[axis] = scaled_size(x.shape[axis], scales[axis])
    else:
        reason = "it has neither scales nor sizes"
    if reason:
        return Refusal(reason)
    roi: tuple[float, ...] = ()
    region = node.const(1)
    if coordinates == "tf_crop_and_resize":
        if region is None or region.size != 2 * len(axes):
            return Refusal("it lacks a region of interest")
        full = [0.0] * rank + [1.0] * rank
        for i, axis in enumerate(axes):
            full[axis] = float(region[i])
            full[rank + axis] = float(region[len(axes) + i])
        roi = tuple(full)
    return ResizeAttrs(
        tuple(sizes),
        tuple(scales),
        mode,
        coordinates,
        str(node.attrs.get("nearest_mode", "round_prefer_floor")),
        float(node.attrs.get("cubic_coeff_a", -0.75)),
        bool(node.attrs.get("exclude_outside", 0)),
        bool(node.attrs.get("antialias", 0)),
        roi,
        float(node.attrs.get("extrapolation_value", 0.0)),
    )


def _by_sizes(
    x: Value,
    wanted: Sequence[int],
    axes: Sequence[int],
    policy: str,
    sizes: list[int],
    scales: list[float],
) -> str | None:
    """Fill in sizes and scales from target sizes; return why not, or None."""
    if len(wanted) != len(axes):
        return f"it has {len(wanted)} sizes for {len(axes)} axes"
    if any(x.shape[a] == 0 for a in axes):
        return "its input has no elements"
    ratios = [_ratio(n, x.shape[a]) for a, n in zip(axes, wanted, strict=True)]
    if policy == "stretch":
        for axis, size, ratio in zip(axes, wanted, ratios, strict=True):
            sizes[axis], scales[axis] = int(size), ratio
        return None
    if policy not in ("not_larger", "not_smaller"):
        return f"its aspect ratio policy is {policy!r}"
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    for axis in axes:
        scales[axis] = ratio
        sizes[axis] = int(np.floor(np.float32(ratio) * np.float32(x.shape[axis]) + 0.5))
    return None
