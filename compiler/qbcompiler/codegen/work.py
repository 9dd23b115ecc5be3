"""What each layer has to do, in the terms of the device: arithmetic, elements, bytes, rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..ir import Graph, Node, storage_orders
from ..ops import Registry, default_registry

__all__ = ["Tensor", "Work", "list_work"]

Kind = Literal["matrix", "depthwise", "vector", "view"]

_MATRIX = frozenset(
    {"Convolution", "Convolution3d", "GroupConvolution", "TransposeConvolution", "MatMul"}
)
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_VIEWS = frozenset({"Reshape", "ReshapeV2", "Unsqueeze", "Identity"})
"""Only the name of the data changes: no work, and output and input share their memory."""

_PASSES: Mapping[str, int] = {
    # passes over the data: maximum, exponentials and sum, division
    "Softmax": 3,
    "LogSoftmax": 3,
    "MaskSoftmax": 3,
    # mean, deviation, scaling
    "LayerNormalization": 3,
    "RmsNormalization": 2,
    "InstanceNormalization": 3,
    "GroupNormalization": 3,
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as it lies in external memory.

    Attributes:
        name: of the value.
        rows: how often it can be cut along its height (dimension 1 as stored).
        row_bytes: bytes of one row, channels padded to the device's alignment.
    """

    name: str
    rows: int
    row_bytes: int

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class Work:
    """One layer's work.

    Attributes:
        name, op: the layer.
        kind: ``matrix`` runs on the multiplier array, ``depthwise`` too, but fills one of its
            sides only; ``vector`` runs a row of elements a cycle; ``view`` costs nothing.
        macs: multiply-adds.
        elements: elements that vector work passes over, all passes counted.
        inputs, outputs: activations.
        weight_bytes: constants.
        reduce, channels: products that one output sums over, and output channels that share
            their inputs; what the array's two sides take.
        halo: input rows that neighbouring output rows share.
        stride: input rows between two output rows.
        whole: needs all of each input at once (it cannot be cut into rows).
    """

    name: str
    op: str
    kind: Kind
    macs: int
    elements: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weight_bytes: int
    reduce: int = 1
    channels: int = 1
    halo: int = 0
    stride: int = 1
    whole: bool = False


def list_work(
    graph: Graph, *, channel_alignment: int, registry: Registry | None = None, bits: int = 8
) -> list[Work]:
    """Return the work of each layer of an NPU body, in order.

    Args:
        graph: a float graph whose layers all run on the NPU.
        channel_alignment: to which the last stored dimension is padded.
        registry: operators; the built-in ones by default.
        bits: bits of activations and weights.
    """
    specs = registry or default_registry()
    orders = storage_orders(graph, lambda node: specs[node.op].channel_first)
    width = bits // 8

    def tensor(name: str) -> Tensor:
        shape = graph.values[name].shape
        order = orders.get(name) or tuple(range(len(shape)))
        stored = [shape[i] for i in order]
        if not stored:
            return Tensor(name, 1, channel_alignment * width)
        padded = -(-stored[-1] // channel_alignment) * channel_alignment
        if len(stored) == 1:
            return Tensor(name, 1, padded * width)
        # [N, H, …, C]: rows are N x H; [N, C]: rows are N
        rows = math.prod(stored[:2]) if len(stored) > 2 else stored[0]
        rest = math.prod(stored[2:-1]) if len(stored) > 2 else 1
        return Tensor(name, max(1, rows), max(1, rest) * padded * width)

    return [_work(node, graph, specs, tensor) for node in graph.nodes]


def _work(node: Node, graph: Graph, specs: Registry, tensor: Any) -> Work:
    spec = specs[node.op]
    constants = [graph.values[n] for n in node.inputs if n and graph.values[n].is_const]
    inputs = tuple(
        tensor(n) for n in dict.fromkeys(node.inputs) if n and not graph.values[n].is_const
    )
    outputs = tuple(tensor(n) for n in node.outputs if n)
    macs = spec.macs(node, graph)
    elements = sum(graph.values[n].type.size for n in node.outputs if n)
    moved = max(
        [elements]
        + [graph.values[n].type.size for n in node.inputs if n and not graph.values[n].is_const]
    )
    weight = sum(v.type.size for v in constants)
    common: dict[str, Any] = {
        "name": node.name,
        "op": node.op,
        "inputs": inputs,
        "outputs": outputs,
        "weight_bytes": weight,
    }
    if node.op in _VIEWS:
        return Work(kind="view", macs=0, elements=0, **common)
    window: dict[str, Any] = _window(node, graph)
    if node.op == "DepthwiseConvolution":
        channels = graph.values[node.outputs[0]].shape[1]
        return Work(kind="depthwise", macs=macs, elements=0, channels=channels, **window, **common)
    if node.op in _MATRIX and macs:
        reduce, channels = _sides(node, graph)
        return Work(
            kind="matrix", macs=macs, elements=0, reduce=reduce, channels=channels,
            whole=node.op == "MatMul" and not constants, **window, **common,
        )  # fmt: skip
    if node.op in _RECURRENT:
        # each step waits for the one before: the sequence is not cut into rows
        rows, width = graph.values[node.inputs[2]].shape[1:]
        return Work(
            kind="matrix", macs=macs, elements=0, reduce=width, channels=rows, whole=True, **common
        )  # fmt: skip
    passes = _PASSES.get(node.op, 1)
    taps = 1
    if node.op == "Pooling":
        kernel = getattr(node.attrs, "kernel", ())
        taps = max(1, math.prod(int(k) for k in kernel)) if kernel else 1
    same_rows = all(t.rows == outputs[0].rows for t in inputs) if outputs else True
    return Work(
        kind="vector",
        macs=0,
        elements=max(moved * passes, elements * taps),
        whole=not same_rows and not window,
        **window,
        **common,
    )


def _sides(node: Node, graph: Graph) -> tuple[int, int]:
    """Return how many products one output sums over, and how many channels share its inputs."""
    weight = graph.values[node.inputs[1]].shape
    if node.op == "MatMul":
        return weight[-2] if len(weight) > 1 else weight[-1], weight[-1] if len(weight) > 1 else 1
    groups = int(getattr(node.attrs, "groups", 1))
    if node.op == "TransposeConvolution":
        # each output position sums over about 1 / stride of the window
        return max(1, weight[0] // groups), weight[1]
    return math.prod(weight[1:]), max(1, weight[0] // groups)


def _window(node: Node, graph: Graph) -> dict[str, int]:
    """Return halo and stride in rows of a layer that slides a window, else nothing."""
    strides = getattr(node.attrs, "strides", None)
    if not strides or node.op == "TransposeConvolution":
        return {}
    dilations = getattr(node.attrs, "dilations", None) or (1,)
    if node.op == "Pooling":
        kernel = getattr(node.attrs, "kernel", None) or (1,)
        height = int(kernel[0])
    else:
        height = int(graph.values[node.inputs[1]].shape[2])
    reach = (height - 1) * int(dilations[0]) + 1
    return {"halo": max(0, reach - int(strides[0])), "stride": int(strides[0])}
