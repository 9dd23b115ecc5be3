"""Rotary position embedding, written out, to the one layer that it is.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021). Exporters write
``x * cos + rotated(x) * sin`` with ``rotated(x)`` a concatenation of the negated second half and
the first (or the same for neighbouring features); the tables are constants once the positions are.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import Graph, Node
from ..ops.rotary import RotaryAttrs
from ..ops.shapes import UnsqueezeAttrs
from ..ops.slicing import AxisAttrs, SliceAttrs
from .base import Editor, Rewrite

__all__ = ["FuseRotary"]


@dataclass(frozen=True, slots=True)
class _Rotary:
    x: str
    cos: str
    sin: str
    interleaved: bool
    nodes: list[Node]


class FuseRotary(Rewrite[_Rotary]):
    """``x * cos + concat(-x[D/2:], x[:D/2]) * sin``, and the form over neighbouring pairs."""

    name = "fuse_rotary"
    anchors = ("Adding",)
    needs = ("RotaryEmbedding", "MultiplyConstant", "Neg", "Concatenate", "Slice")
    requires = ("common_subexpressions",)

    def match(self, graph: Graph, node: Node) -> _Rotary | None:
        terms = [graph.producer(n) for n in node.inputs[:2]]
        for plain, turned in (terms, terms[::-1]):
            if plain is None or turned is None or plain is turned:
                continue
            if plain.op != "MultiplyConstant" or turned.op != "MultiplyConstant":
                continue
            x = plain.inputs[0]
            found = _rotated(graph, turned.inputs[0], x)
            if found is None:
                continue
            interleaved, inner = found
            return _Rotary(
                x, plain.inputs[1], turned.inputs[1], interleaved, [*inner, plain, turned, node]
            )
        return None

    def check(self, graph: Graph, match: _Rotary) -> str | None:
        shape = graph.values[match.x].shape
        for table in (match.cos, match.sin):
            own = graph.values[table].shape
            if own[-1:] != shape[-1:] or len(own) > len(shape):
                return "its tables do not say a number for each feature"
        inside = {n.name for n in match.nodes}
        for node in match.nodes[:-1]:
            out = node.outputs[0]
            readers = {n.name for n in graph.consumers(out)}
            if out in graph.outputs or not readers <= inside:
                return "something else reads an intermediate result"
        return None

    def rewrite(self, match: _Rotary, editor: Editor) -> None:
        order = {n.name: i for i, n in enumerate(editor.graph.nodes)}
        nodes = sorted(match.nodes, key=lambda n: order[n.name])
        attrs = RotaryAttrs(match.interleaved)
        editor.replace(nodes, "RotaryEmbedding", attrs, [match.x, match.cos, match.sin])


def _rotated(graph: Graph, name: str, x: str) -> tuple[bool, list[Node]] | None:
    """Return whether pairs are neighbours, and the layers that turn ``x`` by a right angle."""
    flat = graph.producer(name)
    if flat is None:
        return None
    if flat.op == "Concatenate":
        inner = _halves(graph, flat, x)
        return None if inner is None else (False, inner)
    if flat.op not in ("Reshape",) or graph.values[name].shape != graph.values[x].shape:
        return None
    joined = graph.producer(flat.inputs[0])
    if joined is None or joined.op != "Concatenate":
        return None
    inner = _pairs(graph, joined, x)
    return None if inner is None else (True, [*inner, flat])


def _halves(graph: Graph, joined: Node, x: str) -> list[Node] | None:
    shape = graph.values[x].shape
    if len(joined.inputs) != 2 or not shape or shape[-1] % 2 or not _along_last(joined, len(shape)):
        return None
    minus = graph.producer(joined.inputs[0])
    if minus is None or minus.op != "Neg":
        return None
    second, first = graph.producer(minus.inputs[0]), graph.producer(joined.inputs[1])
    half = shape[-1] // 2
    if not _part(graph, first, x, 0, half, 1) or not _part(graph, second, x, half, half, 1):
        return None
    assert first is not None and second is not None
    return [first, second, minus, joined]


def _pairs(graph: Graph, joined: Node, x: str) -> list[Node] | None:
    shape = graph.values[x].shape
    if len(joined.inputs) != 2 or not shape or shape[-1] % 2:
        return None
    if not _along_last(joined, len(shape) + 1):
        return None
    wide = [graph.producer(n) for n in joined.inputs]
    nodes: list[Node] = []
    inner: list[Node] = []
    for unsqueeze in wide:
        if unsqueeze is None or not _adds_last(graph, unsqueeze):
            return None
        below = graph.producer(unsqueeze.inputs[0])
        if below is None:
            return None
        nodes.append(unsqueeze)
        inner.append(below)
    minus, even = inner
    odd = graph.producer(minus.inputs[0]) if minus.op == "Neg" else None
    half = shape[-1] // 2
    if not _part(graph, even, x, 0, half, 2) or not _part(graph, odd, x, 1, half, 2):
        return None
    assert odd is not None
    return [even, odd, minus, *nodes, joined]


def _adds_last(graph: Graph, node: Node) -> bool:
    before, after = (graph.values[n].shape for n in (node.inputs[0], node.outputs[0]))
    if node.op == "Unsqueeze":
        assert isinstance(node.attrs, UnsqueezeAttrs)
    elif node.op != "Reshape":
        return False
    return after == (*before, 1)


def _along_last(node: Node, rank: int) -> bool:
    return isinstance(node.attrs, AxisAttrs) and node.attrs.axis == rank - 1


def _part(graph: Graph, node: Node | None, x: str, start: int, size: int, step: int) -> bool:
    if node is None or node.op != "Slice" or node.inputs[0] != x:
        return False
    assert isinstance(node.attrs, SliceAttrs)
    shape = graph.values[x].shape
    return node.attrs == SliceAttrs(
        (*(0 for _ in shape[:-1]), start), (*shape[:-1], size), (*(1 for _ in shape[:-1]), step)
    )
