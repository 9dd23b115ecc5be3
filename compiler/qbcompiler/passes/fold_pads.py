"""Takes zero padding into the convolution that follows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ..ir import Graph, Node
from ..ops.conv import ConvAttrs
from ..ops.pad import PadAttrs
from .affine import CONV_OPS
from .base import Editor, Rewrite, scalar_of

__all__ = ["FoldPads"]


@dataclass(frozen=True, slots=True)
class _Match:
    pad: Node
    conv: Node


class FoldPads(Rewrite[_Match]):
    """``conv(pad(x))`` to a convolution that pads by itself."""

    name = "fold_pads"
    anchors = CONV_OPS
    needs = ("Pad",)

    def match(self, graph: Graph, node: Node) -> _Match | None:
        pad = graph.producer(node.inputs[0])
        return None if pad is None or pad.op != "Pad" else _Match(pad, node)

    def check(self, graph: Graph, match: _Match) -> str | None:
        attrs = match.pad.attrs
        assert isinstance(attrs, PadAttrs)
        if attrs.mode != "constant":
            return f"the border before it is filled by {attrs.mode!r}, not with zeros"
        if len(match.pad.inputs) > 1 and scalar_of(graph, match.pad.inputs[1]) != 0.0:
            return "the border before it is not zero"
        rank = len(attrs.pads) // 2
        if any(attrs.pads[i] or attrs.pads[rank + i] for i in (0, 1)):
            return "the border before it is not spatial only"
        return None

    def rewrite(self, match: _Match, editor: Editor) -> None:
        attrs, border = match.conv.attrs, match.pad.attrs
        assert isinstance(attrs, ConvAttrs) and isinstance(border, PadAttrs)
        rank = len(border.pads) // 2
        spatial = rank - 2
        begin, end = border.pads[2:rank], border.pads[rank + 2 :]
        pads = tuple(
            attrs.pads[i] + (begin[i] if i < spatial else end[i - spatial])
            for i in range(2 * spatial)
        )
        inputs = [match.pad.inputs[0], *match.conv.inputs[1:]]
        # the border may have other readers: it goes when nothing reads it any more
        editor.replace([match.conv], match.conv.op, dataclasses.replace(attrs, pads=pads), inputs)
        out = match.pad.outputs[0]
        if not editor.graph.consumers(out) and out not in editor.graph.outputs:
            editor.drop([match.pad])
