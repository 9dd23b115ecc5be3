"""Layers as the code generator sees them: what can be cut, what it costs, what it moves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..ir import Box, Graph, IntGraph, Node, storage_orders
from ..ir.boxes import box_size
from ..ir.program import Layouts, TensorLayout, layouts_of, same_bytes
from ..ops import OpSpec, Registry, default_registry
from .work import Work, list_work

__all__ = ["Layer", "Model", "read_model"]

_MOVES = frozenset({"Reshape", "ReshapeV2", "Unsqueeze", "Identity"})
_LINEAR = frozenset({"Convolution", "Convolution3d", "MatMul", "TransposeConvolution"})


@dataclass(eq=False)
class Layer:
    """One layer.

    Attributes:
        index: its place in the graph.
        node, spec, graph: the float layer.
        inputs: names of the integer layer's inputs.
        outputs: names of what it makes.
        work: arithmetic and sizes.
        constant_bytes: of its weights and other tensors.
        sum_bytes: of a partial sum.
        alias: whether its output is its input under another name.
    """

    index: int
    node: Node
    spec: OpSpec[Any]
    graph: Graph
    inputs: list[str]
    outputs: list[str]
    work: Work
    constant_bytes: int
    sum_bytes: int
    alias: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of output 0."""
        return self.graph.values[self.outputs[0]].shape

    @cached_property
    def cuts(self) -> Mapping[int, int]:
        """Axes along which it can be cut, each with the step of the cuts."""
        return self.spec.cuts(self.node, self.graph) if len(self.outputs) == 1 else {}

    @cached_property
    def sum_axis(self) -> int | None:
        """The axis of input 0 along which its sums can be split."""
        return self.spec.sum_axis(self.node, self.graph)

    @cached_property
    def channel_axis(self) -> int | None:
        """The axis of output channels that its weights go along."""
        if self.work.kind == "depthwise" or self.node.op == "GroupConvolution":
            return 1
        if self.node.op in _LINEAR and self.work.kind == "matrix":
            return len(self.shape) - 1 if self.node.op == "MatMul" else 1
        return None

    @property
    def is_linear(self) -> bool:
        """Whether a part's weights are a box of output channels and inputs of the sums."""
        return self.channel_axis is not None and self.constant_bytes > 0

    def reads(self, box: Box) -> list[Box]:
        """Return what a box of output 0 reads of each input."""
        return self.spec.reads(self.node, self.graph, box)

    def cycles(self, box: Box, side: int, share: float = 1.0) -> int:
        """Return the cycles of a part on one core; ``share`` is that of each sum."""
        work = self.work
        size = math.prod(self.shape)
        part = box_size(box) / size if size else 1.0
        if work.kind == "view":
            # a view that does not keep its bytes in place is a copy
            return 0 if self.alias else math.ceil(size * part / side)
        if work.kind == "vector":
            return math.ceil(work.elements * part / side)
        if work.kind == "depthwise":
            return math.ceil(work.macs * part * share / side)
        positions = work.macs / max(1, work.channels * work.reduce) * part
        channels = work.channels
        axis = self.channel_axis
        if axis is not None and self.node.op in _LINEAR and self.shape[axis] == channels:
            channels = box[axis][1] - box[axis][0]
            positions *= work.channels / channels
        return math.ceil(
            positions * math.ceil(channels / side) * math.ceil(work.reduce * share / side)
        )


@dataclass(eq=False)
class Model:
    """A graph, read for the code generator.

    Attributes:
        graph: the float graph.
        layers: its layers.
        layouts: of its tensors.
        aliases: tensors that are another name of a tensor: that tensor.
        names: of the layers.
    """

    graph: Graph
    layers: list[Layer]
    layouts: Layouts
    aliases: dict[str, str]

    @property
    def names(self) -> list[str]:
        """The names of the layers."""
        return [layer.node.name for layer in self.layers]

    def root(self, tensor: str) -> str:
        """Return the tensor that ``tensor`` is a name of."""
        return self.aliases.get(tensor, tensor)


def read_model(
    graph: Graph,
    channel_alignment: int,
    *,
    integers: IntGraph | None = None,
    registry: Registry | None = None,
) -> Model:
    """Read an NPU body.

    Args:
        graph: the float graph.
        channel_alignment: of stored rows, in elements.
        integers: what was made of it; without it 8 bits are taken for every number.
        registry: operators; the built-in ones by default.
    """
    specs = registry or default_registry()
    works = list_work(graph, channel_alignment=channel_alignment, registry=specs)
    if integers is not None:
        layouts: dict[str, TensorLayout] = layouts_of(integers)
    else:
        orders = storage_orders(graph, lambda node: specs[node.op].channel_first)
        layouts = {
            n: TensorLayout(
                v.shape, tuple(orders[n]), 1 if v.type.dtype.is_float else v.type.dtype.itemsize
            )
            for n, v in graph.values.items()
            if not v.is_const
        }
    aliases: dict[str, str] = {}
    layers = []
    for index, (node, work) in enumerate(zip(graph.nodes, works, strict=True)):
        outputs = [n for n in node.outputs if n]
        inputs = [n for n in node.inputs if n and not graph.values[n].is_const]
        constant_bytes, sum_bytes = work.weight_bytes, 4
        if integers is not None:
            layer = integers.layers[index]
            inputs = list(layer.inputs)
            halved = layer.attrs.get("weight_bits") == 4
            constant_bytes = sum(
                -(-t.nbytes // 2) if halved and r == "weight" else t.nbytes
                for r, t in layer.tensors.items()
                if not r.endswith("scale")
            )
            if "bias" in layer.tensors and layer.tensors["bias"].dtype.itemsize > 4:
                sum_bytes = 8
        alias = (
            node.op in _MOVES
            and len(inputs) == 1
            and len(outputs) == 1
            and same_bytes(layouts[inputs[0]], layouts[outputs[0]], channel_alignment)
        )
        if alias:
            aliases[outputs[0]] = aliases.get(inputs[0], inputs[0])
        layers.append(
            Layer(
                index, node, specs[node.op], graph, inputs, outputs, work, constant_bytes,
                sum_bytes, alias,
            )
        )  # fmt: skip
    return Model(graph, layers, layouts, aliases)
