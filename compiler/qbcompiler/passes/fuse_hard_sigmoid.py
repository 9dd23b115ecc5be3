"""``clip(a * x + b, 0, h) / h`` to HardSigmoid."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import Graph, Node
from ..ops.unary import HardSigmoidAttrs
from .base import Editor, Rewrite
from .merge_clips import bounds_of
from .products import close, line_of, only_inside, scale_of

__all__ = ["FuseHardSigmoid"]


@dataclass(frozen=True, slots=True)
class _Match:
    x: str
    attrs: HardSigmoidAttrs
    nodes: list[Node]


class FuseHardSigmoid(Rewrite[_Match]):
    """``clip(x + 3, 0, 6) / 6``, ``clip(x / 6 + 0.5, 0, 1)`` and their kin."""

    name = "fuse_hard_sigmoid"
    anchors = ("Clip", "MultiplyConstant", "DivConstant")
    needs = ("HardSigmoid",)
    requires = ("merge_clips",)

    def match(self, graph: Graph, node: Node) -> _Match | None:
        clip, scale = node, 1.0
        after: list[Node] = []
        if node.op != "Clip":
            maker = graph.producer(node.inputs[0])
            factor = scale_of(graph, node)
            if maker is None or maker.op != "Clip" or factor is None:
                return None
            clip, scale, after = maker, factor, [node]
        low, high = bounds_of(clip)
        if low != 0.0 or high is None or scale <= 0 or not close(high * scale, 1.0):
            return None
        x, a, b, before = line_of(graph, clip.inputs[0])
        if not before or a <= 0:
            return None
        attrs = HardSigmoidAttrs(scale * a, scale * b)
        return _Match(x, attrs, [*before, clip, *after])

    def check(self, graph: Graph, match: _Match) -> str | None:
        if not only_inside(graph, match.nodes):
            return "something else reads an intermediate result"
        if not graph.values[match.x].type.dtype.is_float:
            return "it does not work on real numbers"
        return None

    def rewrite(self, match: _Match, editor: Editor) -> None:
        editor.replace(match.nodes, "HardSigmoid", match.attrs, [match.x])
