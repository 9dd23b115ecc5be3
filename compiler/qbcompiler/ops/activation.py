"""Clamps (``Relu``, ``Clip``, ``Hardtanh``) and ``PRelu``: piecewise linear, no table needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

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
from .affine import affine_form, affine_layer, affine_tensors, run_affine
from .common import (
    broadcast,
    float64,
    grid_of,
    integer_reason,
    is_wide,
    require,
    require_float,
)
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
    TableForm,
)

__all__ = ["Clip", "ClipAttrs", "Hardtanh", "PRelu", "Relu"]


A = TypeVar("A", bound=Attrs)


def _act(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


@dataclass(frozen=True, slots=True)
class ClipAttrs(Attrs):
    """Real bounds; None for none."""

    min: float | None = None
    max: float | None = None


class _Clamp(OpSpec[A]):
    """``min(max(x, low), high)``: a plain integer clamp on one grid, else requantized first."""

    rule = QuantRule.CLAMP
    elementwise = True

    def bounds(self, attrs: A) -> tuple[float | None, float | None]:
        """Return the real bounds."""
        raise TypeError(f"{self.name} has no bounds")

    def infer(self, attrs: A, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        if x.type.dtype in (DType.BOOL, DType.STRING):
            raise ValueError(f"cannot clamp {x.type}")
        return [x.type]

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        return integer_reason(node, graph)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        source, out = grid_of(q, node.inputs[0]), grid_of(q, node.outputs[0])
        low, high = self.bounds(self.attrs_of(node))
        attrs: dict[str, Any] = {
            "low": _step(low, out, out.qmin),
            "high": _step(high, out, out.qmax),
        }
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
        assert x is not None and out is not None
        low, high = layer.attrs["low"], layer.attrs["high"]
        if "shift" in layer.attrs:
            return [run_affine(layer, inputs, out, low=low, high=high)]
        y: Array = np.minimum(np.maximum(x, x.dtype.type(low)), x.dtype.type(high))
        return [y]

    def real_form(self, layer: IntLayer, params: Mapping[str, QuantParams | None]) -> RealForm:
        attrs = self.attrs_type.from_dict(layer.real)
        if "shift" in layer.attrs:
            return RealForm(self.name, attrs, [affine_form(layer, params)])
        return RealForm(self.name, attrs, layer.inputs)


def _step(bound: float | None, out: QuantParams, default: int) -> int:
    if bound is None:
        return default
    q = round(min(max(bound / out.scale, -1e9), 1e9)) + out.zero_point
    return min(max(q, out.qmin), out.qmax)


class Relu(_Clamp[NoAttrs]):
    """``max(x, 0)``."""

    name = "Relu"
    attrs_type = NoAttrs
    onnx = ("Relu",)

    def bounds(self, attrs: NoAttrs) -> tuple[float | None, float | None]:
        return 0.0, None

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        return to.emit(self.name, NoAttrs(), node.inputs[:1])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        to.emit("Relu", node.inputs, node.outputs)

    def cases(self) -> Sequence[Case]:
        return [Case("plain", NoAttrs(), [_act(2, 3, 4)], bound=0.51)]


class Clip(_Clamp[ClipAttrs]):
    """``min(max(x, min), max)``; Relu6 is one.

    ONNX ``Max`` and ``Min`` of an activation and constant scalars come here too.
    """

    name = "Clip"
    attrs_type = ClipAttrs
    onnx = ("Clip", "Max", "Min")

    def bounds(self, attrs: ClipAttrs) -> tuple[float | None, float | None]:
        return attrs.min, attrs.max

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        found = _clip_bounds(node) if node.op_type == "Clip" else _extremum(node)
        if isinstance(found, Refusal):
            return found
        x, low, high = found
        return to.emit(self.name, ClipAttrs(low, high), [x])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        _export_clip(node, graph, to, self.bounds(self.attrs_of(node)))

    def cases(self) -> Sequence[Case]:
        return [
            Case("relu6", ClipAttrs(0.0, 6.0), [_act(2, 3, 4)], high=9.0, bound=0.51),
            Case("low", ClipAttrs(-0.5, None), [_act(5)], bound=0.51),
            Case("high", ClipAttrs(None, 1.25), [_act(5)], bound=0.51),
            Case("crossed", ClipAttrs(2.0, 1.0), [_act(5)], bound=0.51),
        ]


class Hardtanh(_Clamp[NoAttrs]):
    """``Clip`` to [-1, 1]."""

    name = "Hardtanh"
    attrs_type = NoAttrs
    onnx = ("Clip",)

    def bounds(self, attrs: NoAttrs) -> tuple[float | None, float | None]:
        return -1.0, 1.0

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        found = _clip_bounds(node)
        if isinstance(found, Refusal):
            return found
        x, low, high = found
        if (low, high) != (-1.0, 1.0):
            return Refusal("its bounds are not -1 and 1")
        return to.emit(self.name, NoAttrs(), [x])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        _export_clip(node, graph, to, self.bounds(self.attrs_of(node)))

    def cases(self) -> Sequence[Case]:
        return [Case("plain", NoAttrs(), [_act(2, 3, 4)], bound=0.51)]


def _export_clip(
    node: Node, graph: Graph, to: OnnxEmitter, bounds: tuple[float | None, float | None]
) -> None:
    dtype = graph.values[node.inputs[0]].type.dtype.numpy
    low, high = bounds
    names = [node.inputs[0]]
    names.append("" if low is None else to.const(np.asarray(low, dtype=dtype), "min"))
    if high is not None:
        names.append(to.const(np.asarray(high, dtype=dtype), "max"))
    to.emit("Clip", names, node.outputs)


_Bounds = tuple[Value, float | None, float | None]


def _clip_bounds(node: SourceNode) -> _Bounds | Refusal:
    x = node.input(0)
    if x is None or x.type.dtype in (DType.BOOL, DType.STRING):
        return Refusal("its input is not numeric")
    bounds: list[float | None] = []
    for index, key in ((1, "min"), (2, "max")):
        if node.input(index) is None:
            bounds.append(None)
            continue
        data = node.const(index)
        if data is None or data.size != 1:
            return Refusal("its bounds are not constant")
        bounds.append(_finite(float(data.item()), x.type.dtype, key))
    if any(b is not None and not math.isfinite(b) for b in bounds):
        return Refusal("a bound is not a finite number")
    return x, bounds[0], bounds[1]


def _finite(bound: float, dtype: DType, key: str) -> float | None:
    """Return None for a bound that clamps nothing: an infinity or the type's own limit."""
    limits: Any = (np.finfo if dtype.is_float else np.iinfo)(dtype.numpy)
    if math.isnan(bound):
        return bound
    if key == "min":
        return None if bound <= float(limits.min) else bound
    return None if bound >= float(limits.max) else bound


def _extremum(node: SourceNode) -> _Bounds | Refusal:
    values = [v for v in node.inputs if v is not None]
    data = [v for v in values if v.data is None]
    constants = [v.data for v in values if v.data is not None]
    if len(data) != 1 or not constants:
        return Refusal("it compares several activations")
    x = data[0]
    if any(c.size != 1 or c.ndim > x.type.rank for c in constants):
        return Refusal("it compares with a constant that is not a scalar")
    numbers = [float(c.item()) for c in constants]
    if not all(map(math.isfinite, numbers)):
        return Refusal("it compares with a number that is not finite")
    return (x, max(numbers), None) if node.op_type == "Max" else (x, None, min(numbers))


class PRelu(OpSpec[NoAttrs]):
    """``x`` where it is positive, ``slope * x`` elsewhere; the slope is a constant, broadcast.

    The two sides are two affine maps with multipliers of their own, so slopes are not rounded
    to a grid.
    """

    name = "PRelu"
    attrs_type = NoAttrs
    elementwise = True
    onnx = ("PRelu",)

    def is_pointwise(self, attrs: NoAttrs) -> bool:
        return True

    def infer(self, attrs: NoAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x, slope = require(inputs, 0), require(inputs, 1)
        require_float(x)
        if slope.data is None:
            raise ValueError("the slope is not constant")
        if broadcast(x.shape, slope.shape) != x.shape:
            raise ValueError(f"slope {slope.type} does not broadcast to {x.type}")
        return [x.type]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x, slope = node.input(0), node.input(1)
        if x is None or slope is None or slope.data is None:
            return Refusal("its slope is not constant")
        if not x.type.dtype.is_float:
            return Refusal(f"it works on {x.type.dtype.value} values")
        return to.emit(self.name, NoAttrs(), [x, slope])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        to.emit("PRelu", node.inputs, node.outputs)

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        slope = graph.values[node.inputs[1]].data
        if slope is None:
            return "its slope is not constant"
        if not np.isfinite(float64(slope)).all():
            return "its slope holds a value that is not finite"
        return integer_reason(node, graph)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        source, out = grid_of(q, node.inputs[0]), grid_of(q, node.outputs[0])
        ratio = source.scale / out.scale
        slope = float64(q.const(node.inputs[1]))
        above, shift_above = affine_tensors([ratio], 0.0, [source], out)
        below, shift_below = affine_tensors([slope * ratio], 0.0, [source], out)
        return IntLayer(
            node.name,
            node.op,
            [node.inputs[0]],
            list(node.outputs),
            {"shift_above": shift_above, "shift_below": shift_below},
            {
                "multiplier_above": above["multiplier_0"],
                "constant_above": above["constant"],
                "multiplier_below": below["multiplier_0"],
                "constant_below": below["constant"],
            },
            node.source,
        )

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        x = inputs[0]
        assert x is not None
        return [_piecewise(layer, x, params)]

    def real_form(
        self, layer: IntLayer, params: Mapping[str, QuantParams | None]
    ) -> RealForm | TableForm:
        source, out = params[layer.inputs[0]], params[layer.outputs[0]]
        if source is not None and out is not None and is_wide(source, out):
            factor = out.scale / source.scale * 2.0 ** -int(layer.attrs["shift_below"])
            real = (float64(layer.tensors["multiplier_below"]) * factor).astype(np.float32)
            return RealForm(self.name, NoAttrs(), [*layer.inputs, real])
        # one row for each slope, computed by the layer itself
        tensors = layer.tensors
        slopes, row = np.unique(tensors["multiplier_below"], return_inverse=True)
        every = np.arange(-128, 128, dtype=np.int8)
        table = []
        for slope in slopes:
            index = int(np.argmax(tensors["multiplier_below"].reshape(-1) == slope))
            constant = np.broadcast_to(tensors["constant_below"], tensors["multiplier_below"].shape)
            own = {
                "multiplier_below": np.asarray(slope),
                "constant_below": constant.reshape(-1)[index],
            }
            alone = replace(layer, tensors={**tensors, **own})
            table.append(_piecewise(alone, every, params))
        return TableForm(
            np.stack(table), row.reshape(tensors["multiplier_below"].shape).astype(np.int32)
        )

    def cases(self) -> Sequence[Case]:
        slopes = np.array([0.25, -0.5, 1.5], np.float32)
        return [
            Case("channel", NoAttrs(), [_act(1, 3, 4, 5), slopes.reshape(3, 1, 1)], bound=0.51),
            Case("scalar", NoAttrs(), [_act(2, 5), np.full((1,), 0.1, np.float32)], bound=0.51),
        ]


def _piecewise(layer: IntLayer, x: Array, params: Mapping[str, QuantParams | None]) -> Array:
    """Apply the affine map of the side of zero that each element is on."""
    out, source = params[layer.outputs[0]], params[layer.inputs[0]]
    assert out is not None and source is not None
    sides = [
        run_affine(
            IntLayer(
                layer.name,
                layer.op,
                layer.inputs,
                layer.outputs,
                {"shift": layer.attrs[f"shift_{side}"]},
                {
                    "multiplier_0": layer.tensors[f"multiplier_{side}"],
                    "constant": layer.tensors[f"constant_{side}"],
                },
            ),
            [x],
            out,
        )
        for side in ("above", "below")
    ]
    return np.where(x.astype(np.int32) >= source.zero_point, sides[0], sides[1])
