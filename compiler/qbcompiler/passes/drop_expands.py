"""Removes explicit broadcasting in front of layers that broadcast by themselves."""

from __future__ import annotations

import numpy as np

from ..ir import Graph, Node
from .base import Editor, Rewrite

__all__ = ["DropExpands"]

_BROADCASTS = ("Adding", "Sub", "Multiply", "Div", "Where", "TensorCmp")


class DropExpands(Rewrite[Node]):
    """``a + expand(b)`` is ``a + b`` where the sum has the same shape without."""

    name = "drop_expands"
    anchors = _BROADCASTS
    needs = ("Expand",)

    def match(self, graph: Graph, node: Node) -> Node | None:
        return node if _dispensable(graph, node) else None

    def rewrite(self, match: Node, editor: Editor) -> None:
        graph = editor.graph
        for index in _dispensable(graph, match)[:1]:
            expand = graph.producer(match.inputs[index])
            assert expand is not None
            inputs = list(match.inputs)
            inputs[index] = expand.inputs[0]
            editor.replace([match], match.op, match.attrs, inputs)
            out = expand.outputs[0]
            if not graph.consumers(out) and out not in graph.outputs:
                editor.drop([expand])


def _dispensable(graph: Graph, node: Node) -> list[int]:
    found = []
    shape = graph.values[node.outputs[0]].shape
    for index, name in enumerate(node.inputs):
        expand = graph.producer(name)
        if expand is None or expand.op != "Expand" or graph.values[expand.inputs[0]].is_const:
            continue
        shapes = [graph.values[n].shape for n in node.inputs]
        shapes[index] = graph.values[expand.inputs[0]].shape
        if tuple(np.broadcast_shapes(*shapes)) == shape:
            found.append(index)
    return found
