"""Convolutions: ``Convolution``, ``DepthwiseConvolution``, ``GroupConvolution``, ``Convolution3d``.

Inputs: activation [N, C, D…], weights [O, C/groups, K…], optional bias [O], both constant. The
integer form accumulates exactly and requantizes each output channel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    Node,
    QuantParams,
    TensorType,
    Value,
)
from .common import (
    ax,
    centre,
    float64,
    grid_of,
    integer_reason,
    require,
    require_float,
    rounding_of,
)
from .regions import every_axis, replaced, spread, window_box, window_part
from .spec import (
    Case,
    Kernels,
    Lowering,
    OnnxEmitter,
    OpSpec,
    QuantContext,
    Quantized,
    RealForm,
    Refusal,
    SourceNode,
)
from .weights import LinearParts, finish_linear, quantize_linear
from .window import check_window, conv_output, ints, resolve_pads

__all__ = [
    "ConvAttrs",
    "Convolution",
    "Convolution3d",
    "DepthwiseConvolution",
    "GroupConvolution",
    "constant_weights_reason",
    "linear_tensors",
]


@dataclass(frozen=True, slots=True)
class ConvAttrs(Attrs):
    """Window of a convolution.

    Attributes:
        strides, dilations: one for each spatial dimension.
        pads: zeros added, begin of each dimension, then end of each.
        groups: number of groups.
    """

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1


def constant_weights_reason(node: Node, graph: Graph) -> str | None:
    """Return why the weights (input 1) or the bias (input 2) cannot be quantized, or None."""
    for index, what in ((1, "weights"), (2, "bias")):
        if index < len(node.inputs) and node.inputs[index]:
            value = graph.values[node.inputs[index]]
            if value.data is None:
                return f"its {what} are not constant" if index == 1 else "its bias is not constant"
    return None


def linear_tensors(parts: LinearParts, weight: Array) -> dict[str, Array]:
    """Return the tensors of a linear layer; ``weight`` in the kernel's own arrangement."""
    return {
        "weight": np.ascontiguousarray(weight),
        "bias": parts.bias,
        "multiplier": parts.multiplier,
        "shift": parts.shift,
        "weight_scale": parts.scales,
    }


def linear_inputs(
    layer: IntLayer, params: Mapping[str, QuantParams | None], axis: int, groups: int = 1
) -> list[str | Array | Quantized]:
    """Return the inputs of a linear layer's float form: activation, weights, bias.

    Args:
        layer: a layer with :func:`linear_tensors`.
        params: the grids.
        axis: the weights' axis of output channels.
        groups: how many times that axis goes over all output channels (transposed convolutions
            have the channels of one group there).
    """
    source = params[layer.inputs[0]]
    assert source is not None
    weight, scales = layer.tensors["weight"], layer.tensors["weight_scale"].astype(np.float32)
    data: Array | Quantized
    if groups == 1:
        data = Quantized(weight, scales, axis)
    else:
        # scales differ between groups, along another axis than a scale for each channel can
        parts = weight.reshape(groups, -1, *weight.shape[1:]).astype(np.float32)
        by_group = scales.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))
        data = (parts * by_group).reshape(weight.shape)
    found: list[str | Array | Quantized] = [layer.inputs[0], data]
    bias = layer.tensors["bias"]
    if bias.any():
        found.append(Quantized(bias, (scales * np.float32(source.scale)).astype(np.float32), 0))
    return found


def check_bias(inputs: Sequence[Value | None], channels: int) -> None:
    """ValueError where a bias (input 2) does not have one number for each output channel."""
    bias = inputs[2] if len(inputs) > 2 else None
    if bias is not None and bias.shape != (channels,):
        raise ValueError(f"the bias is {bias.type}, expected {channels} numbers")


class _Conv(OpSpec[ConvAttrs]):
    """What all convolutions share."""

    attrs_type = ConvAttrs
    onnx = ("Conv",)
    weights = (1,)
    channel_first = True

    def accepts(self, spatial: int, channels: int, groups: int) -> str | None:
        """Return why a convolution is not of this kind, or None."""
        raise TypeError(f"{self.name} does not say what it accepts")

    def infer(self, attrs: ConvAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x, w = require(inputs, 0), require(inputs, 1)
        dtype = require_float(x)
        spatial = x.type.rank - 2
        if spatial < 1 or w.type.rank != x.type.rank:
            raise ValueError(f"cannot convolve {x.type} with {w.type}")
        kernel = w.shape[2:]
        check_window(spatial, attrs.strides, attrs.pads, attrs.dilations, kernel)
        groups = attrs.groups
        if groups < 1 or x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
            raise ValueError(f"{groups} groups do not fit input {x.type} and weights {w.type}")
        reason = self.accepts(spatial, x.shape[1], groups)
        if reason:
            raise ValueError(reason)
        check_bias(inputs, w.shape[0])
        out = conv_output(x.shape[2:], kernel, attrs.strides, attrs.pads, attrs.dilations)
        return [TensorType(dtype, (x.shape[0], w.shape[0], *out))]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x, w = node.input(0), node.input(1)
        if x is None or w is None or x.type.rank < 3:
            return Refusal("it lacks an image or weights")
        if w.data is None:
            return Refusal("its weights are not constant")
        kernel = w.shape[2:]
        spatial = len(kernel)
        groups = int(node.attrs.get("group", 1))
        reason = self.accepts(spatial, x.shape[1], groups)
        if reason:
            return Refusal(reason)
        strides = ints(node.attrs, "strides", [1] * spatial)
        dilations = ints(node.attrs, "dilations", [1] * spatial)
        pads = resolve_pads(node.attrs, x.shape[2:], kernel, strides, dilations)
        if min(pads, default=0) < 0:
            return Refusal("it has negative pads")
        attrs = ConvAttrs(strides, pads, dilations, groups)
        return to.emit(self.name, attrs, [x, w, *([b] if (b := node.input(2)) else [])])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        a = self.attrs_of(node)
        to.emit(
            "Conv",
            node.inputs,
            node.outputs,
            kernel_shape=list(graph.values[node.inputs[1]].shape[2:]),
            strides=list(a.strides),
            pads=list(a.pads),
            dilations=list(a.dilations),
            group=a.groups,
        )

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        return constant_weights_reason(node, graph) or integer_reason(node, graph)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        a = self.attrs_of(node)
        w = q.const(node.inputs[1])
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        parts = quantize_linear(
            float64(w).reshape(w.shape[0], -1),
            float64(q.const(bias)) if bias else None,
            grid_of(q, node.inputs[0]),
            grid_of(q, node.outputs[0]),
            q.weight_bits(node),
        )
        return IntLayer(
            node.name,
            node.op,
            [node.inputs[0]],
            list(node.outputs),
            a.to_dict(),
            linear_tensors(parts, parts.weight.reshape(w.shape)),
            node.source,
        )

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        shape = graph.values[node.outputs[0]].shape
        groups = self.attrs_of(node).groups
        return {**every_axis(shape), 1: shape[1] // groups if groups > 1 else 1}

    def reads(self, node: Node, graph: Graph, box: Box) -> list[Box]:
        a = self.attrs_of(node)
        shape, w = (graph.values[n].shape for n in node.inputs[:2])
        channels = (0, w[1])
        if a.groups > 1:
            each = w[0] // a.groups
            channels = (box[1][0] // each * w[1], box[1][1] // each * w[1])
        spatial = window_box(box, shape, w[2:], a.strides, a.pads, a.dilations)
        return [(box[0], channels, *spatial)]

    def part(
        self,
        layer: IntLayer,
        box: Box,
        reads: Sequence[Box],
        shapes: Mapping[str, Sequence[int]],
    ) -> IntLayer:
        weight, groups = layer.tensors["weight"], int(layer.attrs["groups"])
        outputs = slice(*box[1])
        attrs: dict[str, Any] = {}
        inputs = slice(None)
        if groups > 1:
            attrs["groups"] = (box[1][1] - box[1][0]) * groups // weight.shape[0]
        elif reads[0][1] != (0, weight.shape[1]):
            inputs = slice(*reads[0][1])
        both = shapes[layer.inputs[0]], shapes[layer.outputs[0]]
        attrs |= window_part(layer, box, reads[0], both, weight.shape[2:])
        tensors = {r: layer.tensors[r][outputs] for r in ("bias", "multiplier", "shift")}
        tensors["weight"] = np.ascontiguousarray(weight[outputs, inputs])
        return replaced(layer, attrs=attrs, tensors=tensors)

    def sum_axis(self, node: Node, graph: Graph) -> int | None:
        return 1 if self.attrs_of(node).groups == 1 else None

    def accumulate(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> NDArray[np.int64]:
        x = inputs[0]
        assert x is not None
        return kernels.conv(
            spread(centre(x, params[layer.inputs[0]]), layer.attrs.get("margins"), 0),
            layer.tensors["weight"],
            strides=layer.attrs["strides"],
            pads=layer.attrs["pads"],
            dilations=layer.attrs["dilations"],
            groups=layer.attrs["groups"],
        )

    def finish(
        self, layer: IntLayer, acc: NDArray[np.int64], params: Mapping[str, QuantParams | None]
    ) -> list[Array]:
        out = params[layer.outputs[0]]
        assert out is not None
        return [finish_linear(acc, layer.tensors, out, 1)]

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        return self.finish(layer, self.accumulate(layer, inputs, params, kernels), params)

    def real_form(self, layer: IntLayer, params: Mapping[str, QuantParams | None]) -> RealForm:
        attrs = ConvAttrs.from_dict(layer.real)
        shape = ax(2 + len(attrs.strides), 1)
        rounding = rounding_of(layer.tensors, shape)
        return RealForm(self.name, attrs, linear_inputs(layer, params, 0), rounding)

    def macs(self, node: Node, graph: Graph) -> int:
        weight = graph.values[node.inputs[1]].shape
        return graph.values[node.outputs[0]].type.size * math.prod(weight[1:])


def _case(
    id: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    *,
    strides: tuple[int, ...] = (1, 1),
    pads: tuple[int, ...] = (0, 0, 0, 0),
    dilations: tuple[int, ...] = (1, 1),
    groups: int = 1,
    bias: bool = True,
    bound: float = 2.0,
) -> Case:
    rng = np.random.default_rng(len(id) + sum(w))
    inputs: list[TensorType | Array | None] = [
        TensorType(DType.FLOAT32, x),
        rng.normal(size=w).astype(np.float32),
    ]
    if bias:
        inputs.append(rng.normal(size=w[0]).astype(np.float32))
    return Case(id, ConvAttrs(strides, pads, dilations, groups), inputs, bound=bound)


class Convolution(_Conv):
    """A dense convolution in one or two dimensions."""

    name = "Convolution"

    def accepts(self, spatial: int, channels: int, groups: int) -> str | None:
        if groups != 1:
            return f"it has {groups} groups"
        return None if spatial in (1, 2) else f"it has {spatial} spatial dimensions"

    def cases(self) -> Sequence[Case]:
        tiny = np.full((4, 3, 3, 3), 1e-3, np.float32)
        tiny[1] = 0.0
        tiny[2] *= 1e-12
        tiny[3] *= 1e3
        return [
            _case("3x3", (1, 3, 9, 8), (5, 3, 3, 3), pads=(1, 1, 1, 1)),
            _case("1x1", (1, 8, 5, 5), (16, 8, 1, 1)),
            _case("stride", (1, 3, 11, 10), (4, 3, 3, 3), strides=(2, 3), pads=(1, 1, 1, 1)),
            _case("asymmetric", (1, 3, 9, 8), (4, 3, 3, 2), pads=(0, 1, 2, 0), bias=False),
            _case("dilated", (1, 3, 12, 12), (4, 3, 3, 3), dilations=(2, 3), pads=(2, 3, 2, 3)),
            _case("batch", (2, 3, 6, 6), (4, 3, 3, 3)),
            _case("1d", (1, 4, 20), (6, 4, 5), strides=(2,), pads=(2, 1), dilations=(1,)),
            Case(
                "uneven_channels",
                ConvAttrs((1, 1), (1, 1, 1, 1), (1, 1)),
                [
                    TensorType(DType.FLOAT32, (1, 3, 6, 6)),
                    tiny,
                    np.array([0.1, 3.0, -2.0, 0.0], np.float32),
                ],
                bound=2.0,
            ),
        ]


class DepthwiseConvolution(_Conv):
    """A convolution with as many groups as input channels."""

    name = "DepthwiseConvolution"

    def accepts(self, spatial: int, channels: int, groups: int) -> str | None:
        if groups == 1 or groups != channels:
            return f"it has {groups} groups and {channels} input channels"
        return None if spatial in (1, 2) else f"it has {spatial} spatial dimensions"

    def cases(self) -> Sequence[Case]:
        return [
            _case("3x3", (1, 6, 9, 8), (6, 1, 3, 3), pads=(1, 1, 1, 1), groups=6),
            _case(
                "stride", (1, 6, 9, 8), (6, 1, 5, 5), strides=(2, 1), pads=(2, 2, 2, 2), groups=6
            ),
            _case("multiplier", (1, 3, 7, 7), (6, 1, 3, 3), groups=3, bias=False),
            _case("1d", (1, 4, 16), (4, 1, 3), strides=(1,), pads=(1, 1), dilations=(1,), groups=4),
        ]


class GroupConvolution(_Conv):
    """A convolution in groups of several input channels."""

    name = "GroupConvolution"

    def accepts(self, spatial: int, channels: int, groups: int) -> str | None:
        if groups == 1 or groups == channels:
            return f"it has {groups} groups and {channels} input channels"
        return None if spatial in (1, 2) else f"it has {spatial} spatial dimensions"

    def cases(self) -> Sequence[Case]:
        return [
            _case("3x3", (1, 6, 9, 8), (4, 3, 3, 3), pads=(1, 1, 1, 1), groups=2),
            _case("1x1", (1, 8, 5, 5), (12, 2, 1, 1), groups=4, bias=False),
            _case(
                "1d",
                (1, 4, 16),
                (6, 2, 3),
                strides=(2,),
                pads=(1, 0),
                dilations=(2,),
                groups=2,
            ),
        ]


class Convolution3d(_Conv):
    """A convolution in three dimensions, grouped or not."""

    name = "Convolution3d"

    def accepts(self, spatial: int, channels: int, groups: int) -> str | None:
        return None if spatial == 3 else f"it has {spatial} spatial dimensions"

    def cases(self) -> Sequence[Case]:
        one = (1, 1, 1)
        return [
            _case(
                "3x3x3",
                (1, 2, 5, 6, 7),
                (4, 2, 3, 3, 3),
                strides=(1, 2, 1),
                pads=(1, 1, 1, 1, 0, 1),
                dilations=one,
            ),
            _case(
                "depthwise",
                (1, 2, 4, 5, 5),
                (2, 1, 3, 3, 3),
                strides=one,
                pads=(0,) * 6,
                dilations=one,
                groups=2,
            ),
        ]
