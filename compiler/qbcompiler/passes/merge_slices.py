"""Merges slices of slices and removes slices, pads and concatenations that do nothing."""

from __future__ import annotations

from ..ir import Graph, Node
from ..ops.slicing import SliceAttrs
from .base import Editor, Rewrite, can_bypass

__all__ = ["MergeSlices"]


class MergeSlices(Rewrite[Node]):
    """A slice of a slice is one slice; what takes or adds everything or nothing goes."""

    name = "merge_slices"
    anchors = ("Slice", "Pad", "Concatenate")
    needs = ("Slice",)

    def match(self, graph: Graph, node: Node) -> Node | None:
        if _does_nothing(graph, node):
            return node
        before = graph.producer(node.inputs[0])
        return node if node.op == "Slice" and before is not None and before.op == "Slice" else None

    def check(self, graph: Graph, match: Node) -> str | None:
        if _does_nothing(graph, match) and not can_bypass(graph, match, match.inputs[0]):
            return "it gives an output its name"
        return None

    def rewrite(self, match: Node, editor: Editor) -> None:
        graph = editor.graph
        if _does_nothing(graph, match):
            readers = graph.consumers(match.outputs[0])
            editor.bypass(match, match.inputs[0])
            editor.made.extend(n for n in readers if n.op in self.anchors)
            return
        first = graph.producer(match.inputs[0])
        assert first is not None
        outer, inner = first.attrs, match.attrs
        assert isinstance(outer, SliceAttrs) and isinstance(inner, SliceAttrs)
        merged = SliceAttrs(
            tuple(
                o + i * s for o, i, s in zip(outer.starts, inner.starts, outer.steps, strict=True)
            ),
            inner.sizes,
            tuple(o * i for o, i in zip(outer.steps, inner.steps, strict=True)),
        )
        editor.replace([match], "Slice", merged, [first.inputs[0]])


def _does_nothing(graph: Graph, node: Node) -> bool:
    if graph.values[node.inputs[0]].is_const:
        return False
    if node.op == "Concatenate":
        return len(node.inputs) == 1
    same = graph.values[node.inputs[0]].type == graph.values[node.outputs[0]].type
    if node.op == "Slice":
        assert isinstance(node.attrs, SliceAttrs)
        return same and all(
            step == 1 or size == 1
            for step, size in zip(node.attrs.steps, node.attrs.sizes, strict=True)
        )
    return same and not any(getattr(node.attrs, "pads", (1,)))
