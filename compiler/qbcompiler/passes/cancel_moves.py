"""Removes layers that move nothing, and merges chains of moves into one."""

from __future__ import annotations

from ..ir import Graph, Node
from ..ops.shapes import CastAttrs, ReshapeAttrs, TransposeAttrs
from .base import Editor, Rewrite, can_bypass

__all__ = ["CancelMoves"]

_RESHAPES = ("Reshape", "Unsqueeze")


class CancelMoves(Rewrite[Node]):
    """Identity, casts to the same type, reshapes and transposes that undo each other.

    A transpose that only moves dimensions of 1 is a reshape, and two reshapes in a row are one.
    """

    name = "cancel_moves"
    anchors = ("Identity", "Cast", "Transpose", "Reshape", "Unsqueeze", "Expand")
    needs = ("Reshape", "Transpose")

    def match(self, graph: Graph, node: Node) -> Node | None:
        before = graph.producer(node.inputs[0])
        if _moves_nothing(graph, node):
            return node
        if node.op == "Transpose":
            merges = before is not None and before.op == "Transpose"
            return node if merges or _is_reshape(graph, node) else None
        if node.op in _RESHAPES:
            return node if before is not None and before.op in _RESHAPES else None
        return None

    def check(self, graph: Graph, match: Node) -> str | None:
        if _moves_nothing(graph, match) and not can_bypass(graph, match, match.inputs[0]):
            return "it gives an output its name"
        return None

    def rewrite(self, match: Node, editor: Editor) -> None:
        graph = editor.graph
        if _moves_nothing(graph, match):
            readers = graph.consumers(match.outputs[0])
            editor.bypass(match, match.inputs[0])
            # a chain may close around the gap
            editor.made.extend(n for n in readers if n.op in self.anchors)
            return
        x = match.inputs[0]
        before = graph.producer(x)
        shape = graph.values[match.outputs[0]].shape
        if match.op in _RESHAPES:
            assert before is not None
            editor.replace([match], "Reshape", ReshapeAttrs(shape), [before.inputs[0]])
        elif before is not None and before.op == "Transpose":
            first, second = _perm(before), _perm(match)
            perm = TransposeAttrs(tuple(first[p] for p in second))
            editor.replace([match], "Transpose", perm, [before.inputs[0]])
        else:
            editor.replace([match], "Reshape", ReshapeAttrs(shape), [x])
        if (
            before is not None
            and not graph.consumers(before.outputs[0])
            and before.outputs[0] not in graph.outputs
        ):
            editor.drop([before])


def _perm(node: Node) -> tuple[int, ...]:
    assert isinstance(node.attrs, TransposeAttrs)
    return node.attrs.perm


def _moves_nothing(graph: Graph, node: Node) -> bool:
    source, result = graph.values[node.inputs[0]].type, graph.values[node.outputs[0]].type
    if node.op == "Identity":
        return True
    if node.op == "Cast":
        attrs = node.attrs
        return isinstance(attrs, CastAttrs) and attrs.scale is None and source == result
    if node.op == "Transpose":
        return _perm(node) == tuple(range(source.rank))
    return source == result


def _is_reshape(graph: Graph, node: Node) -> bool:
    shape = graph.values[node.inputs[0]].shape
    moved = [p for p in _perm(node) if shape[p] != 1]
    return moved == sorted(moved)
