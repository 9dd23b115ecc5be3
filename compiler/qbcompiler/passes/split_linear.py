"""Cuts a matrix product whose result is only read in parts into a product for each part."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ..ir import Graph, Node
from ..ops.slicing import SliceAttrs
from .affine import Linear, linear_of
from .base import Editor, Rewrite

__all__ = ["SplitLinear"]


@dataclass(frozen=True, slots=True)
class _Parts:
    linear: Linear
    slices: tuple[Node, ...]


class SplitLinear(Rewrite[_Parts]):
    """``slice(linear(x))`` to ``linear'(x)`` with the part of the weights.

    One projection for queries, keys and values, or for a value and its gate, becomes one for
    each: nothing is copied, and each has a range of its own when it is quantized.
    """

    name = "split_linear"
    anchors = ("MatMul",)
    needs = ("Slice",)
    requires = ("fold_affine_after",)

    def match(self, graph: Graph, node: Node) -> _Parts | None:
        linear = linear_of(graph, node)
        readers = graph.consumers(node.outputs[0])
        if linear is None or not readers or any(n.op != "Slice" for n in readers):
            return None
        return _Parts(linear, tuple(readers))

    def check(self, graph: Graph, match: _Parts) -> str | None:
        node = match.linear.node
        if node.outputs[0] in graph.outputs:
            return "its result is an output"
        shape = graph.values[node.outputs[0]].shape
        spans = []
        for part in match.slices:
            attrs = part.attrs
            assert isinstance(attrs, SliceAttrs)
            if attrs.sizes[:-1] != shape[:-1] or any(s != 1 for s in attrs.steps):
                return "its result is cut along another dimension"
            spans.append((attrs.starts[-1], attrs.starts[-1] + attrs.sizes[-1]))
        spans.sort()
        if any(end > start for (_, end), (start, _) in itertools.pairwise(spans)):
            return "parts of its result overlap"
        return None

    def rewrite(self, match: _Parts, editor: Editor) -> None:
        graph, linear = editor.graph, match.linear
        node = linear.node
        for part in match.slices:
            attrs = part.attrs
            assert isinstance(attrs, SliceAttrs)
            span = slice(attrs.starts[-1], attrs.starts[-1] + attrs.sizes[-1])
            weight = np.ascontiguousarray(linear.weight[..., span])
            inputs = [node.inputs[0], editor.const(weight, f"{part.name}/weight").name]
            if linear.bias is not None:
                bias = linear.bias[span].copy()
                inputs.append(editor.const(bias, f"{part.name}/bias").name)
            made = editor.replace([part], node.op, node.attrs, inputs)
            made.source = tuple(dict.fromkeys((*node.source, *made.source)))
        graph.remove_node(node)
        graph.remove_value(node.outputs[0])
