"""Reshape, transpose, reshape to the one layer that they are.

Attention's head split and merge (Vaswani et al., "Attention Is All You Need", 2017), pixel
shuffling and cutting an image into patches are each written as such chains. A chain is known by
what it does to the elements, so that any spelling of it is found.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import Attrs, Graph, NoAttrs, Node
from ..ops.shapes import ReshapeAttrs, TransposeAttrs
from ..ops.views import BlockAttrs, HeaderViewAttrs, Regroup, patches, shuffled
from .base import Editor, Rewrite

__all__ = ["FuseBlocks", "FuseHeaderView", "FuseHeaderViewRevert", "FusePatches"]

_RESHAPES = ("Reshape", "Unsqueeze")


@dataclass(frozen=True, slots=True)
class _Chain:
    op: str
    attrs: Attrs
    nodes: list[Node]


class _Views(Rewrite[_Chain]):
    """Base: a chain is fused where nothing else reads what it makes on the way."""

    def check(self, graph: Graph, match: _Chain) -> str | None:
        for node in match.nodes[:-1]:
            out = node.outputs[0]
            if out in graph.outputs or len(graph.consumers(out)) != 1:
                return "something else reads an intermediate result"
        return None

    def rewrite(self, match: _Chain, editor: Editor) -> None:
        # a layer is named after the move that it is
        moves = [n for n in match.nodes if n.op == "Transpose"]
        x = match.nodes[0].inputs[0]
        editor.replace(match.nodes, match.op, match.attrs, [x], name=moves[0].name)


class FuseHeaderView(_Views):
    """[N, L, H * D] to [N, L, H, D] to [N, H, L, D], or to [N, H, D, L] as keys are read."""

    name = "fuse_header_view"
    anchors = ("Transpose",)
    needs = ("HeaderView", "Reshape", "Transpose")
    requires = ("cancel_moves",)

    def match(self, graph: Graph, node: Node) -> _Chain | None:
        perm = _perm(node)
        if perm not in ((0, 2, 1, 3), (0, 2, 3, 1)):
            return None
        split = graph.producer(node.inputs[0])
        if split is None or split.op not in _RESHAPES:
            return None
        source, apart = (graph.values[n].shape for n in (split.inputs[0], node.inputs[0]))
        n, tokens, heads, features = apart
        if source != (n, tokens, heads * features):
            return None
        attrs = HeaderViewAttrs(heads, transposed=perm == (0, 2, 3, 1))
        return _Chain("HeaderView", attrs, [split, node])


class FuseHeaderViewRevert(_Views):
    """[N, H, L, D] to [N, L, H, D] to [N, L, H * D]."""

    name = "fuse_header_view_revert"
    anchors = _RESHAPES
    needs = ("HeaderViewRevert", "Reshape", "Transpose")
    requires = ("cancel_moves",)

    def match(self, graph: Graph, node: Node) -> _Chain | None:
        turn = graph.producer(node.inputs[0])
        if turn is None or turn.op != "Transpose" or _perm(turn) != (0, 2, 1, 3):
            return None
        n, tokens, heads, features = graph.values[node.inputs[0]].shape
        if graph.values[node.outputs[0]].shape != (n, tokens, heads * features):
            return None
        return _Chain("HeaderViewRevert", NoAttrs(), [turn, node])


class FuseBlocks(_Views):
    """Composed pixel shuffling and its inverse, of rank 4 and with an image's order of axes."""

    name = "fuse_blocks"
    anchors = _RESHAPES
    needs = ("PixelShuffle", "OrderedPatchify", "Reshape", "Transpose")
    requires = ("cancel_moves",)

    def match(self, graph: Graph, node: Node) -> _Chain | None:
        turn = graph.producer(node.inputs[0])
        if turn is None or turn.op != "Transpose":
            return None
        split = graph.producer(turn.inputs[0])
        if split is None or split.op not in _RESHAPES:
            return None
        source, apart, final = (
            graph.values[n].shape for n in (split.inputs[0], turn.inputs[0], node.outputs[0])
        )
        if not len(source) == len(final) == 4 or source[0] != final[0] or source == final:
            return None
        found = _Squeezed.of(Regroup(apart, _perm(turn), final))
        (_, c, h, w), (_, k, y, x) = source, final
        if c > k and k and not (y % h or x % w) and k * y * x == c * h * w:
            block, op, moves = (y // h, x // w), "PixelShuffle", shuffled
        elif k > c and y and x and not (h % y or w % x) and k * y * x == c * h * w:
            block, op, moves = (h // y, w // x), "OrderedPatchify", patches
        else:
            return None
        for block_first in (False, True):
            attrs = BlockAttrs(block, block_first)
            if _Squeezed.of(moves(attrs, source)) == found:
                return _Chain(op, attrs, [split, turn, node])
        return None


class FusePatches(_Views):
    """[N, C, H, W] cut into patches that are tokens, [N, H / h * W / w, C * h * w].

    Cutting is ``OrderedPatchify``; taking its pixels as tokens moves nothing on a device, which
    stores channels last.
    """

    name = "fuse_patches"
    anchors = _RESHAPES
    needs = ("OrderedPatchify", "Reshape", "Transpose")
    requires = ("cancel_moves", "fuse_blocks")

    def match(self, graph: Graph, node: Node) -> _Chain | None:
        turn = graph.producer(node.inputs[0])
        split = None if turn is None else graph.producer(turn.inputs[0])
        if turn is None or turn.op != "Transpose" or split is None or split.op not in _RESHAPES:
            return None
        source, apart, final = (
            graph.values[n].shape for n in (split.inputs[0], turn.inputs[0], node.outputs[0])
        )
        if len(source) != 4 or len(apart) != 6 or apart[:2] != source[:2]:
            return None
        n, c, rows, height, columns, width = apart
        block, perm = (height, width), _perm(turn)
        if final != (n, rows * columns, c * height * width) or perm[:3] != (0, 2, 4):
            return None
        for block_first, order in ((False, (1, 3, 5)), (True, (3, 5, 1))):
            if perm[3:] == order and source[2:] == (rows * height, columns * width):
                attrs = BlockAttrs(block, block_first)
                return _Chain("OrderedPatchify", attrs, [split, turn, node])
        return None

    def rewrite(self, match: _Chain, editor: Editor) -> None:
        graph, (split, turn, last) = editor.graph, match.nodes
        final, source = graph.values[last.outputs[0]].shape, turn.source
        x = split.inputs[0]
        cut = editor.emit(match.op, match.attrs, [x], name=turn.name, at=split, source=source)
        there = TransposeAttrs((0, 2, 3, 1))
        name = f"{turn.name}/channels_last"
        turned = editor.emit("Transpose", there, [cut], name=name, at=turn, source=source)
        editor.replace(match.nodes, "Reshape", ReshapeAttrs(final), [turned], name=last.name)


@dataclass(frozen=True, slots=True)
class _Squeezed:
    """A regrouping without its dimensions of 1, with neighbours that stay together as one.

    Two regroupings of one shape move every element alike exactly if these are equal.
    """

    sizes: tuple[int, ...]
    perm: tuple[int, ...]

    @classmethod
    def of(cls, moves: Regroup) -> _Squeezed:
        kept = [i for i, d in enumerate(moves.apart) if d != 1]
        perm = [kept.index(p) for p in moves.perm if moves.apart[p] != 1]
        sizes = [moves.apart[i] for i in kept]
        runs: list[list[int]] = []
        for p in perm:
            if runs and runs[-1][-1] + 1 == p:
                runs[-1].append(p)
            else:
                runs.append([p])
        order = sorted(range(len(runs)), key=lambda i: runs[i][0])
        merged = []
        for i in order:
            size = 1
            for p in runs[i]:
                size *= sizes[p]
            merged.append(size)
        place = {run: number for number, run in enumerate(order)}
        return cls(tuple(merged), tuple(place[i] for i in range(len(runs))))


def _perm(node: Node) -> tuple[int, ...]:
    assert isinstance(node.attrs, TransposeAttrs)
    return node.attrs.perm
