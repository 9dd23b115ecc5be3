"""Removes guards against numbers that cannot occur."""

from __future__ import annotations

from ..ir import Graph, Node
from ..ops.onnx_layer import OnnxAttrs
from .base import Editor, Rewrite, can_bypass

__all__ = ["DropNanGuards"]


class DropNanGuards(Rewrite[tuple[Node, Node]]):
    """``where(isnan(s), c, s)`` of a softmax ``s`` is ``s``.

    Attention exported by PyTorch guards each softmax so. A softmax is not a number only where a
    whole row is minus infinity: a token that may look at nothing, not even at itself.
    """

    name = "drop_nan_guards"
    anchors = ("Where",)
    needs = ("Softmax",)

    def match(self, graph: Graph, node: Node) -> tuple[Node, Node] | None:
        condition, replaced, kept = node.inputs
        test = graph.producer(condition)
        if test is None or not isinstance(test.attrs, OnnxAttrs) or test.attrs.op_type != "IsNaN":
            return None
        source = graph.producer(kept)
        if test.inputs[0] != kept or source is None or source.op != "Softmax":
            return None
        same = graph.values[kept].type == graph.values[node.outputs[0]].type
        return (test, node) if same and graph.values[replaced].is_const else None

    def check(self, graph: Graph, match: tuple[Node, Node]) -> str | None:
        if not can_bypass(graph, match[1], match[1].inputs[2]):
            return "it gives an output its name"
        return None

    def rewrite(self, match: tuple[Node, Node], editor: Editor) -> None:
        test, guard = match
        editor.bypass(guard, guard.inputs[2])
        out = test.outputs[0]
        if not editor.graph.consumers(out) and out not in editor.graph.outputs:
            editor.drop([test])
