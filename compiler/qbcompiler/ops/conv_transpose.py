"""``TransposeConvolution``: activation [N, C, D…], constant weights [C, O/groups, K…], bias [O]."""

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
    Node,
    QuantParams,
    TensorType,
    Value,
)
from ..ir.boxes import whole
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
from .conv import check_bias, constant_weights_reason, linear_inputs, linear_tensors
from .regions import replaced
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
from .weights import finish_linear, quantize_linear
from .window import check_window, ints, transpose_output, transpose_pads

__all__ = ["ConvTransposeAttrs", "TransposeConvolution"]


@dataclass(frozen=True, slots=True)
class ConvTransposeAttrs(Attrs):
    """Window of a transposed convolution.

    Attributes:
        strides, dilations: one for each spatial dimension.
        pads: rows taken off the full output, begin of each dimension, then end of each.
        output_padding: rows added at the end of each dimension.
        groups: number of groups.
    """

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int = 1


class TransposeConvolution(OpSpec[ConvTransposeAttrs]):
    """The gradient of a convolution with respect to its input, used to upsample."""

    name = "TransposeConvolution"
    attrs_type = ConvTransposeAttrs
    onnx = ("ConvTranspose",)
    weights = (1,)
    channel_first = True

    def infer(self, attrs: ConvTransposeAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x, w = require(inputs, 0), require(inputs, 1)
        dtype = require_float(x)
        spatial = x.type.rank - 2
        if spatial < 1 or w.type.rank != x.type.rank:
            raise ValueError(f"cannot convolve {x.type} with {w.type}")
        kernel = w.shape[2:]
        check_window(spatial, attrs.strides, attrs.pads, attrs.dilations, kernel)
        extra = attrs.output_padding
        if len(extra) != spatial or min(extra) < 0:
            raise ValueError(f"output padding {list(extra)} does not fit {spatial} dimensions")
        if attrs.groups < 1 or x.shape[1] != w.shape[0] or w.shape[0] % attrs.groups:
            raise ValueError(f"{attrs.groups} groups do not fit {x.type} and weights {w.type}")
        channels = w.shape[1] * attrs.groups
        check_bias(inputs, channels)
        out = transpose_output(
            x.shape[2:], kernel, attrs.strides, attrs.pads, attrs.dilations, extra
        )
        return [TensorType(dtype, (x.shape[0], channels, *out))]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x, w = node.input(0), node.input(1)
        if x is None or w is None or x.type.rank < 3:
            return Refusal("it lacks an image or weights")
        if w.data is None:
            return Refusal("its weights are not constant")
        kernel = w.shape[2:]
        spatial = len(kernel)
        strides = ints(node.attrs, "strides", [1] * spatial)
        dilations = ints(node.attrs, "dilations", [1] * spatial)
        pads, extra = transpose_pads(
            node.attrs,
            x.shape[2:],
            kernel,
            strides,
            dilations,
            ints(node.attrs, "output_padding", [0] * spatial),
        )
        if min(pads) < 0:
            return Refusal("it has negative pads")
        groups = int(node.attrs.get("group", 1))
        attrs = ConvTransposeAttrs(strides, pads, dilations, extra, groups)
        return to.emit(self.name, attrs, [x, w, *([b] if (b := node.input(2)) else [])])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        a = self.attrs_of(node)
        to.emit(
            "ConvTranspose",
            node.inputs,
            node.outputs,
            kernel_shape=list(graph.values[node.inputs[1]].shape[2:]),
            strides=list(a.strides),
            pads=list(a.pads),
            dilations=list(a.dilations),
            output_padding=list(a.output_padding),
            group=a.groups,
        )

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        return constant_weights_reason(node, graph) or integer_reason(node, graph)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        a = self.attrs_of(node)
        w = q.const(node.inputs[1])
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        grouped = float64(w).reshape(a.groups, w.shape[0] // a.groups, w.shape[1], -1)
        by_output = grouped.transpose(0, 2, 1, 3)  # groups, outputs, inputs, positions
        parts = quantize_linear(
            by_output.reshape(a.groups * w.shape[1], -1),
            float64(q.const(bias)) if bias else None,
            grid_of(q, node.inputs[0]),
            grid_of(q, node.outputs[0]),
            q.weight_bits(node),
        )
        weight = parts.weight.reshape(by_output.shape).transpose(0, 2, 1, 3).reshape(w.shape)
        return IntLayer(
            node.name,
            node.op,
            [node.inputs[0]],
            list(node.outputs),
            a.to_dict(),
            linear_tensors(parts, weight),
            node.source,
        )

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        return {0: 1, 1: 1} if self.attrs_of(node).groups == 1 else {0: 1}

    def reads(self, node: Node, graph: Graph, box: Box) -> list[Box]:
        return [(box[0], *whole(graph.values[node.inputs[0]].shape[1:]))]

    def part(
        self,
        layer: IntLayer,
        box: Box,
        reads: Sequence[Box],
        shapes: Mapping[str, Sequence[int]],
    ) -> IntLayer:
        if int(layer.attrs["groups"]) > 1:
            return layer
        cut = slice(*box[1])
        tensors = {r: layer.tensors[r][cut] for r in ("bias", "multiplier", "shift")}
        tensors["weight"] = np.ascontiguousarray(layer.tensors["weight"][:, cut])
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
        acc = kernels.conv_transpose(
            centre(x, params[layer.inputs[0]]),
            layer.tensors["weight"],
            strides=layer.attrs["strides"],
            pads=layer.attrs["pads"],
            dilations=layer.attrs["dilations"],
            output_padding=layer.attrs["output_padding"],
            groups=layer.attrs["groups"],
        )
        return [finish_linear(acc, layer.tensors, out, 1)]

    def real_form(self, layer: IntLayer, params: Mapping[str, QuantParams | None]) -> RealForm:
        attrs = ConvTransposeAttrs.from_dict(layer.real)
        shape = ax(2 + len(attrs.strides), 1)
        inputs = linear_inputs(layer, params, 1, attrs.groups)
        return RealForm(self.name, attrs, inputs, rounding_of(layer.tensors, shape))

    def macs(self, node: Node, graph: Graph) -> int:
        weight = graph.values[node.inputs[1]].shape
        return graph.values[node.inputs[0]].type.size * math.prod(weight[1:])

    def cases(self) -> Sequence[Case]:
        return [
            _case("2x2", (1, 4, 5, 6), (4, 3, 2, 2), strides=(2, 2)),
            _case("3x3", (1, 3, 5, 6), (3, 4, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
            _case(
                "output_padding",
                (1, 3, 5, 6),
                (3, 4, 3, 3),
                strides=(2, 3),
                pads=(1, 0, 1, 2),
                extra=(1, 2),
            ),
            _case("groups", (1, 4, 5, 5), (4, 3, 3, 3), groups=2, bias=False),
            _case("dilated", (1, 2, 5, 5), (2, 3, 3, 3), dilations=(2, 1), strides=(1, 2)),
            _case(
                "1d",
                (1, 3, 9),
                (3, 5, 4),
                strides=(3,),
                pads=(1, 1),
                dilations=(1,),
                extra=(0,),
            ),
        ]


def _case(
    id: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    *,
    strides: tuple[int, ...] = (1, 1),
    pads: tuple[int, ...] = (0, 0, 0, 0),
    dilations: tuple[int, ...] = (1, 1),
    extra: tuple[int, ...] = (0, 0),
    groups: int = 1,
    bias: bool = True,
) -> Case:
    rng = np.random.default_rng(sum(w) + len(id))
    inputs: list[TensorType | Array | None] = [
        TensorType(DType.FLOAT32, x),
        rng.normal(size=w).astype(np.float32),
    ]
    if bias:
        inputs.append(rng.normal(size=w[1] * groups).astype(np.float32))
    attrs = ConvTransposeAttrs(strides, pads, dilations, extra, groups)
    return Case(id, attrs, inputs, bound=2.0)
