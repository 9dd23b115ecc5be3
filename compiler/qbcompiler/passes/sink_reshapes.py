"""Moves reshapes that only drop or add dimensions of 1 behind transposes."""

from __future__ import annotations

from ..ir import Graph, Node
from ..ops.shapes import ReshapeAttrs, TransposeAttrs
from .base import Editor, Rewrite

__all__ = ["SinkReshapes"]

_RESHAPES = ("Reshape", "Unsqueeze")


class SinkReshapes(Rewrite[tuple[Node, Node]]):
    """``transpose(squeeze(x))`` to ``squeeze(transpose(x))``, where that lets moves cancel.

    Exporters of attention take the batch off before a transpose and put it back after; once the
    reshapes are side by side they go, and the transposes merge.
    """

    name = "sink_reshapes"
    anchors = ("Transpose",)
    needs = ("Reshape", "Transpose")

    def match(self, graph: Graph, node: Node) -> tuple[Node, Node] | None:
        reshape = graph.producer(node.inputs[0])
        if reshape is None or reshape.op not in _RESHAPES:
            return None
        before, after = (graph.values[n].shape for n in (reshape.inputs[0], reshape.outputs[0]))
        if [d for d in before if d != 1] != [d for d in after if d != 1] or 0 in before:
            return None
        above = graph.producer(reshape.inputs[0])
        below = graph.sole_consumer(node.outputs[0])
        useful = above is not None and above.op == "Transpose"
        useful |= below is not None and below.op in _RESHAPES
        return (reshape, node) if useful else None

    def check(self, graph: Graph, match: tuple[Node, Node]) -> str | None:
        if graph.sole_consumer(match[0].outputs[0]) is None:
            return "something else reads what is reshaped"
        return None

    def rewrite(self, match: tuple[Node, Node], editor: Editor) -> None:
        reshape, transpose = match
        graph = editor.graph
        assert isinstance(transpose.attrs, TransposeAttrs)
        before, after = (graph.values[n].shape for n in (reshape.inputs[0], reshape.outputs[0]))
        # which dimension of x each dimension of more than 1 is
        solid = iter(i for i, d in enumerate(before) if d != 1)
        origin = {i: next(solid) for i, d in enumerate(after) if d != 1}
        moved = [origin[p] for p in transpose.attrs.perm if p in origin]
        perm = [i for i, d in enumerate(before) if d == 1] + moved
        value = editor.emit(
            "Transpose",
            TransposeAttrs(tuple(perm)),
            [reshape.inputs[0]],
            name=f"{transpose.name}/moved",
            at=reshape,
            source=transpose.source,
        )
        shape = ReshapeAttrs(graph.values[transpose.outputs[0]].shape)
        editor.replace([reshape, transpose], "Reshape", shape, [value])
