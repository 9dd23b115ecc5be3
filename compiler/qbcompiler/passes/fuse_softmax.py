"""``exp(x - max(x)) / sum(exp(x - max(x)))`` to Softmax, however the division is written."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import Graph, Node
from ..ops.slicing import AxisAttrs
from .base import Editor, Rewrite, scalar_of
from .products import only_inside

__all__ = ["FuseSoftmax"]


@dataclass(frozen=True, slots=True)
class _Match:
    x: str
    axis: int
    nodes: list[Node]


class FuseSoftmax(Rewrite[_Match]):
    """Softmax in its parts, with or without the subtraction of the maximum."""

    name = "fuse_softmax"
    anchors = ("Div", "Multiply")
    needs = ("Softmax",)

    def match(self, graph: Graph, node: Node) -> _Match | None:
        for found in _divisions(graph, node):
            match = self._read(graph, *found)
            if match is not None:
                return match
        return None

    def _read(self, graph: Graph, exp: Node, total: Node, tail: list[Node]) -> _Match | None:
        if exp.op != "Exp" or total.inputs[0] != exp.outputs[0]:
            return None
        axis = _single_axis(total, "ReduceSum")
        if axis is None:
            return None
        moved = graph.producer(exp.inputs[0])
        if moved is not None and moved.op == "Sub":
            most = graph.producer(moved.inputs[1])
            same = most is not None and most.inputs[0] == moved.inputs[0]
            if most is not None and same and _single_axis(most, "ReduceMax") == axis:
                return _Match(moved.inputs[0], axis, [most, moved, exp, total, *tail])
        return _Match(exp.inputs[0], axis, [exp, total, *tail])

    def check(self, graph: Graph, match: _Match) -> str | None:
        if not only_inside(graph, match.nodes):
            return "something else reads an intermediate result"
        return None

    def rewrite(self, match: _Match, editor: Editor) -> None:
        editor.replace(match.nodes, "Softmax", AxisAttrs(match.axis), [match.x])


def _divisions(graph: Graph, node: Node) -> list[tuple[Node, Node, list[Node]]]:
    """Return the ways to read a layer as ``a / b``: their makers, and the layers that divide."""
    makers = [graph.producer(n) for n in node.inputs]
    a, b = makers
    if a is None or b is None:
        return []
    if node.op == "Div":
        return [(a, b, [node])]
    found = []
    for x, inverse in ((a, b), (b, a)):
        if inverse.op == "DivConstant" and getattr(inverse.attrs, "reverse", False):
            total = graph.producer(inverse.inputs[0])
            if total is not None and scalar_of(graph, inverse.inputs[1]) == 1.0:
                found.append((x, total, [inverse, node]))
    return found


def _single_axis(node: Node, op: str) -> int | None:
    axes = tuple(getattr(node.attrs, "axes", ()))
    if node.op != op or len(axes) != 1 or not getattr(node.attrs, "keepdims", True):
        return None
    return int(axes[0])
