"""``DequantizeLinear(QuantizeLinear(x))`` to a cast through the grid, which the NPU runs.

A model that was quantized elsewhere keeps its scales that way: the cast rounds in floating point as
the two operators do, and in integers it is the grid of its tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ir import Array, DType, Graph, Node
from ..ops.onnx_layer import OnnxAttrs
from ..ops.shapes import CastAttrs
from .base import Editor, Rewrite

__all__ = ["FuseQdq"]

_STORED = (DType.INT8, DType.UINT8)


@dataclass(frozen=True, slots=True)
class _Match:
    first: Node
    second: Node


class FuseQdq(Rewrite[_Match]):
    """``QuantizeLinear`` and ``DequantizeLinear`` on one grid to one ``Cast`` through it."""

    name = "fuse_qdq"
    anchors = ("Onnx",)
    needs = ("Cast",)

    def match(self, graph: Graph, node: Node) -> _Match | None:
        first = graph.producer(node.inputs[0]) if node.inputs else None
        if not _is(node, "DequantizeLinear") or first is None or not _is(first, "QuantizeLinear"):
            return None
        return _Match(first, node)

    def check(self, graph: Graph, match: _Match) -> str | None:
        stored = graph.values[match.second.inputs[0]].type.dtype
        if stored not in _STORED:
            return f"its integers are {stored.value}, not of 8 bits"
        ends = match.first.inputs[0], match.second.outputs[0]
        if any(graph.values[n].type.dtype is not DType.FLOAT32 for n in ends):
            return "its real numbers are not float32"
        for index, what in ((1, "scale"), (2, "zero point")):
            one, other = _constant(graph, match.first, index), _constant(graph, match.second, index)
            if one is None or other is None:
                return f"its {what} is not constant"
            if one.size != 1 or other.size != 1:
                return f"it has a {what} for each channel"
            if one.item() != other.item():
                return f"it comes back on another {what}"
        scale = _constant(graph, match.first, 1)
        assert scale is not None
        if not (np.isfinite(scale.item()) and scale.item() > 0):
            return "its scale is not a positive number"
        return None

    def rewrite(self, match: _Match, editor: Editor) -> None:
        graph, first = editor.graph, match.first
        scale, zero = (_constant(graph, first, i) for i in (1, 2))
        assert scale is not None and zero is not None
        between = match.second.inputs[0]
        stored = graph.values[between].type.dtype.value
        attrs = CastAttrs("float32", float(scale.item()), int(zero.item()), stored)
        alone = graph.sole_consumer(between) is match.second
        old = [first, match.second] if alone else [match.second]
        editor.replace(old, "Cast", attrs, [first.inputs[0]])


def _is(node: Node, op_type: str) -> bool:
    return isinstance(node.attrs, OnnxAttrs) and node.attrs.op_type == op_type


def _constant(graph: Graph, node: Node, index: int) -> Array | None:
    """Return scale or zero point; an absent zero point is 0."""
    name = node.inputs[index] if index < len(node.inputs) else ""
    return graph.values[name].data if name else np.zeros((), np.int8)
