"""Writes reductions in one form, for the passes that look for composed operators."""

from __future__ import annotations

import dataclasses

from ..ir import Graph, Node
from ..ops.reduce import ReduceAttrs
from .base import Editor, Rewrite, scalar_of
from .products import close

__all__ = ["KeepReducedDims", "SumToMean"]


class KeepReducedDims(Rewrite[Node]):
    """A reduction that drops dimensions, and a reshape that puts them back, keep them instead."""

    name = "keep_reduced_dims"
    anchors = ("Reshape", "Unsqueeze")
    needs = ("Reshape",)

    def match(self, graph: Graph, node: Node) -> Node | None:
        before = graph.producer(node.inputs[0])
        if before is None or not isinstance(before.attrs, ReduceAttrs) or before.attrs.keepdims:
            return None
        shape = list(graph.values[before.inputs[0]].shape)
        for axis in before.attrs.axes:
            shape[axis] = 1
        return node if list(graph.values[node.outputs[0]].shape) == shape else None

    def rewrite(self, match: Node, editor: Editor) -> None:
        before = editor.graph.producer(match.inputs[0])
        assert before is not None and isinstance(before.attrs, ReduceAttrs)
        attrs = dataclasses.replace(before.attrs, keepdims=True)
        old = [before, match] if editor.graph.sole_consumer(match.inputs[0]) else [match]
        editor.replace(old, before.op, attrs, [before.inputs[0]])


class SumToMean(Rewrite[Node]):
    """A sum times one over the number of its elements is a mean."""

    name = "sum_to_mean"
    anchors = ("MultiplyConstant", "DivConstant")
    needs = ("ReduceMean", "ReduceSum")

    def match(self, graph: Graph, node: Node) -> Node | None:
        total = graph.producer(node.inputs[0])
        number = scalar_of(graph, node.inputs[1])
        if total is None or total.op != "ReduceSum" or number is None:
            return None
        x, y = graph.values[total.inputs[0]].type, graph.values[total.outputs[0]].type
        if y.size == 0 or graph.values[node.outputs[0]].type != y or not x.dtype.is_float:
            return None
        count = x.size / y.size
        if node.op == "DivConstant":
            reverse = getattr(node.attrs, "reverse", False)
            return node if not reverse and close(number, count, 1e-6) else None
        return node if close(number * count, 1.0, 1e-6) else None

    def check(self, graph: Graph, match: Node) -> str | None:
        if graph.sole_consumer(match.inputs[0]) is None:
            return "something else reads the sum"
        return None

    def rewrite(self, match: Node, editor: Editor) -> None:
        total = editor.graph.producer(match.inputs[0])
        assert total is not None
        editor.replace([total, match], "ReduceMean", total.attrs, [total.inputs[0]])
