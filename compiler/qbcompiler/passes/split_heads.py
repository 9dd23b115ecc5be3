"""Queries, keys and values that are split from one projection after their heads are."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import Graph, Node
from ..ops.shapes import ReshapeAttrs, TransposeAttrs
from ..ops.slicing import SliceAttrs
from .base import Editor, Rewrite

__all__ = ["SplitHeads"]


@dataclass(frozen=True, slots=True)
class _Part:
    split: Node
    turn: Node
    part: Node
    squeeze: Node
    number: int


class SplitHeads(Rewrite[_Part]):
    """One of ``[N, L, P * H * D]`` to ``[N, L, P, H, D]`` to ``[P, N, H, L, D]`` by itself.

    The part is cut from the features first, and its heads are split then: the form that
    :class:`~.fuse_views.FuseHeaderView` knows, of four dimensions. Vision transformers write
    their queries, keys and values so.
    """

    name = "split_heads"
    anchors = ("Slice",)
    needs = ("Slice", "Reshape", "Transpose")

    def match(self, graph: Graph, node: Node) -> _Part | None:
        turn = graph.producer(node.inputs[0])
        if turn is None or turn.op != "Transpose":
            return None
        assert isinstance(turn.attrs, TransposeAttrs) and isinstance(node.attrs, SliceAttrs)
        split, squeeze = graph.producer(turn.inputs[0]), graph.sole_consumer(node.outputs[0])
        if turn.attrs.perm != (2, 0, 3, 1, 4) or split is None or split.op != "Reshape":
            return None
        if squeeze is None or squeeze.op != "Reshape":
            return None
        n, length, parts, heads, features = graph.values[turn.inputs[0]].shape
        if graph.values[split.inputs[0]].shape != (n, length, parts * heads * features):
            return None
        one = (1, n, heads, length, features)
        if node.attrs.sizes != one or graph.values[squeeze.outputs[0]].shape != one[1:]:
            return None
        return _Part(split, turn, node, squeeze, node.attrs.starts[0])

    def check(self, graph: Graph, match: _Part) -> str | None:
        whole = (match.split.outputs[0], match.turn.outputs[0])
        if any(name in graph.outputs for name in whole):
            return "the whole is an output"
        readers = graph.consumers(match.turn.outputs[0])
        if len(graph.consumers(match.split.outputs[0])) > 1 or any(
            n.op != "Slice" for n in readers
        ):
            return "something else reads the whole"
        return None

    def rewrite(self, match: _Part, editor: Editor) -> None:
        graph = editor.graph
        n, heads, length, features = graph.values[match.squeeze.outputs[0]].shape
        width = heads * features
        name, source = match.part.name, match.part.source
        cut = SliceAttrs((0, 0, match.number * width), (n, length, width), (1, 1, 1))
        x = match.split.inputs[0]
        part = editor.emit("Slice", cut, [x], name=f"{name}/part", at=match.part, source=source)
        apart = editor.emit(
            "Reshape",
            ReshapeAttrs((n, length, heads, features)),
            [part],
            name=f"{name}/heads",
            at=match.part,
            source=match.split.source,
        )
        perm = TransposeAttrs((0, 2, 1, 3))
        editor.replace([match.part, match.squeeze], "Transpose", perm, [apart])
