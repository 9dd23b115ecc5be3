"""Passes that know attention's heads, rotary embedding, pixel shuffling and patches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qbcompiler.ops.shapes import ReshapeAttrs, TransposeAttrs, UnsqueezeAttrs
from qbcompiler.ops.slicing import AxisAttrs, SliceAttrs
from qbcompiler.passes.cancel_moves import CancelMoves
from qbcompiler.passes.fuse_rotary import FuseRotary
from qbcompiler.passes.fuse_views import (
    FuseBlocks,
    FuseHeaderView,
    FuseHeaderViewRevert,
    FusePatches,
)
from qbcompiler.passes.split_heads import SplitHeads

from .pass_graphs import Build, apply, body, ops, reasons


def chain(b: Build, x: str, apart: Any, perm: Any, final: Any = None) -> str:
    x = b.op("Reshape", x, attrs=ReshapeAttrs(tuple(apart)))
    x = b.op("Transpose", x, attrs=TransposeAttrs(tuple(perm)))
    return x if final is None else b.op("Reshape", x, attrs=ReshapeAttrs(tuple(final)))


@pytest.mark.parametrize(
    ("perm", "line"),
    [
        ((0, 2, 1, 3), "%transpose: float32[1,3,5,4] = HeaderView(%x) {heads=3, transposed=False}"),
        ((0, 2, 3, 1), "%transpose: float32[1,3,4,5] = HeaderView(%x) {heads=3, transposed=True}"),
    ],
)
def test_heads_are_split_by_one_layer(perm: Any, line: str) -> None:
    b = Build()
    g = b.done(chain(b, b.x(1, 5, 12), (1, 5, 3, 4), perm))
    (result,) = apply(g, FuseHeaderView())
    assert result.count == 1 and body(g) == [line]


def test_heads_are_merged_by_one_layer() -> None:
    b = Build()
    x = b.op("Transpose", b.x(1, 3, 5, 4), attrs=TransposeAttrs((0, 2, 1, 3)))
    g = b.done(b.op("Reshape", x, attrs=ReshapeAttrs((1, 5, 12))))
    (result,) = apply(g, FuseHeaderViewRevert())
    assert result.count == 1
    assert body(g) == ["%reshape: float32[1,5,12] = HeaderViewRevert(%x)"]


def test_a_split_that_others_read_stays_and_says_why() -> None:
    b = Build()
    apart = b.op("Reshape", b.x(1, 5, 12), attrs=ReshapeAttrs((1, 5, 3, 4)))
    turned = b.op("Transpose", apart, attrs=TransposeAttrs((0, 2, 1, 3)))
    g = b.done(b.op("Relu", turned), b.op("Relu", apart))
    (result,) = apply(g, FuseHeaderView())
    assert result.count == 0 and reasons([result]) == [
        "something else reads an intermediate result"
    ]


@pytest.mark.parametrize(
    ("shape", "apart", "perm"),
    [
        ((1, 60), (1, 5, 3, 4), (0, 2, 1, 3)),  # tokens are not a dimension of their own
        ((1, 12, 5), (1, 5, 3, 4), (0, 2, 1, 3)),
        ((1, 5, 12), (1, 5, 3, 4), (0, 3, 1, 2)),
    ],
)
def test_other_moves_are_no_heads(shape: Any, apart: Any, perm: Any) -> None:
    b = Build()
    g = b.done(chain(b, b.x(*shape), apart, perm))
    (result,) = apply(g, FuseHeaderView())
    assert result.count == 0 and ops(g) == ["Reshape", "Transpose"]


BLOCKS = [
    # torch.nn.PixelShuffle, DepthToSpace, and one whose batch dimension is left out
    ((1, 12, 2, 3), (1, 3, 2, 2, 2, 3), (0, 1, 4, 2, 5, 3), (1, 3, 4, 6), "PixelShuffle", False),
    ((1, 12, 2, 3), (1, 2, 2, 3, 2, 3), (0, 3, 4, 1, 5, 2), (1, 3, 4, 6), "PixelShuffle", True),
    ((1, 12, 2, 3), (3, 2, 2, 2, 3), (0, 3, 1, 4, 2), (1, 3, 4, 6), "PixelShuffle", False),
    ((1, 3, 4, 6), (1, 3, 2, 2, 3, 2), (0, 1, 3, 5, 2, 4), (1, 12, 2, 3), "OrderedPatchify", False),
    ((1, 3, 4, 6), (1, 3, 2, 2, 3, 2), (0, 3, 5, 1, 2, 4), (1, 12, 2, 3), "OrderedPatchify", True),
    # one channel: both orders are one, and the first is taken
    ((1, 4, 2, 3), (1, 1, 2, 2, 2, 3), (0, 1, 4, 2, 5, 3), (1, 1, 4, 6), "PixelShuffle", False),
]


@pytest.mark.parametrize(("shape", "apart", "perm", "final", "op", "first"), BLOCKS)
def test_pixels_and_channels(
    shape: Any, apart: Any, perm: Any, final: Any, op: str, first: bool
) -> None:
    b = Build()
    g = b.done(chain(b, b.x(*shape), apart, perm, final))
    (result,) = apply(g, FuseBlocks())
    assert result.count == 1 and ops(g) == [op]
    (node,) = g.nodes
    assert node.attrs.to_dict() == {"block": [2, 2], "block_first": first}


@pytest.mark.parametrize(
    ("apart", "perm"),
    [
        ((1, 3, 2, 2, 2, 3), (0, 1, 4, 3, 5, 2)),  # rows and columns of the block exchanged
        ((1, 2, 3, 2, 2, 3), (0, 2, 4, 1, 5, 3)),  # the channel in the middle of the block
    ],
)
def test_other_orders_of_a_block_stay(apart: Any, perm: Any) -> None:
    b = Build()
    g = b.done(chain(b, b.x(1, 12, 2, 3), apart, perm, (1, 3, 4, 6)))
    (result,) = apply(g, FuseBlocks())
    assert result.count == 0 and len(g) == 3


def part(b: Build, x: str, start: int, size: int, step: int = 1) -> str:
    shape = b.graph.values[x].shape
    zeros, ones = [0] * (len(shape) - 1), [1] * (len(shape) - 1)
    attrs = SliceAttrs((*zeros, start), (*shape[:-1], size), (*ones, step))
    return b.op("Slice", x, attrs=attrs)


def halves(b: Build, x: str) -> str:
    last = len(b.graph.values[x].shape) - 1
    minus = b.op("Neg", part(b, x, 4, 4))
    return b.op("Concatenate", minus, part(b, x, 0, 4), attrs=AxisAttrs(last))


def pairs(b: Build, x: str) -> str:
    shape = b.graph.values[x].shape
    wide = [
        b.op("Unsqueeze", y, attrs=UnsqueezeAttrs((len(shape),)))
        for y in (b.op("Neg", part(b, x, 1, 4, 2)), part(b, x, 0, 4, 2))
    ]
    joined = b.op("Concatenate", *wide, attrs=AxisAttrs(len(shape)))
    return b.op("Reshape", joined, attrs=ReshapeAttrs(shape))


@pytest.mark.parametrize(("turn", "interleaved"), [(halves, False), (pairs, True)])
@pytest.mark.parametrize("swapped", [False, True])
def test_rotary_embedding_is_one_layer(turn: Any, interleaved: bool, swapped: bool) -> None:
    b = Build()
    x = b.x(1, 2, 5, 8)
    plain = b.op("MultiplyConstant", x, b.normal(1, 1, 5, 8))
    turned = b.op("MultiplyConstant", turn(b, x), b.normal(5, 8))
    g = b.done(b.op("Adding", *([turned, plain] if swapped else [plain, turned])))
    (result,) = apply(g, FuseRotary())
    assert result.count == 1
    tables = "@w:float32[1,1,5,8], @w_1:float32[5,8]"
    made = f"RotaryEmbedding(%x, {tables}) {{interleaved={interleaved}}}"
    assert body(g) == [f"%adding: float32[1,2,5,8] = {made}"]


def test_a_rotary_embedding_whose_rotation_is_read_stays() -> None:
    b = Build()
    x = b.x(1, 2, 5, 8)
    turned = halves(b, x)
    y = b.op(
        "Adding",
        b.op("MultiplyConstant", x, b.normal(5, 8)),
        b.op("MultiplyConstant", turned, b.normal(5, 8)),
    )
    g = b.done(y, b.op("Relu", turned))
    (result,) = apply(g, FuseRotary())
    assert result.count == 0 and reasons([result]) == [
        "something else reads an intermediate result"
    ]


def test_a_rotation_the_other_way_round_is_none() -> None:
    b = Build()
    x = b.x(1, 2, 5, 8)
    minus = b.op("Neg", part(b, x, 0, 4))
    turned = b.op("Concatenate", part(b, x, 4, 4), minus, attrs=AxisAttrs(3))
    y = b.op(
        "Adding",
        b.op("MultiplyConstant", x, b.normal(5, 8)),
        b.op("MultiplyConstant", turned, b.normal(5, 8)),
    )
    g = b.done(y)
    (result,) = apply(g, FuseRotary())
    assert result.count == 0 and len(g) == 7


def test_cancelled_moves_come_first() -> None:
    """A reshape to heads written in two steps is one reshape before the heads are looked for."""
    b = Build()
    x = b.op("Reshape", b.x(1, 5, 12), attrs=ReshapeAttrs((5, 12)))
    x = b.op("Reshape", x, attrs=ReshapeAttrs((1, 5, 3, 4)))
    g = b.done(b.op("Transpose", x, attrs=TransposeAttrs((0, 2, 1, 3))))
    apply(g, CancelMoves(), FuseHeaderView())
    assert ops(g) == ["HeaderView"]


def test_tables_of_another_kind_are_refused() -> None:
    b = Build()
    x = b.x(1, 2, 5, 8)
    y = b.op(
        "Adding",
        b.op("MultiplyConstant", x, b.const(np.full((1,), 0.5))),
        b.op("MultiplyConstant", halves(b, x), b.normal(5, 8)),
    )
    g = b.done(y)
    (result,) = apply(g, FuseRotary())
    assert reasons([result]) == ["its tables do not say a number for each feature"]


def heads_of_one_projection(b: Build, x: str, *numbers: int) -> list[str]:
    """Return some of three [2, 3, 5, 4], split from [2, 5, 36] as vision transformers do it."""
    whole = chain(b, x, (2, 5, 3, 3, 4), (2, 0, 3, 1, 4))
    one = (1, 2, 3, 5, 4)
    found = []
    for number in numbers:
        cut = b.op("Slice", whole, attrs=SliceAttrs((number, 0, 0, 0, 0), one, (1,) * 5))
        found.append(b.op("Reshape", cut, attrs=ReshapeAttrs(one[1:])))
    return found


def test_heads_of_one_projection_are_views_of_its_parts() -> None:
    b = Build()
    g = b.done(*(b.op("Relu", y) for y in heads_of_one_projection(b, b.x(2, 5, 36), 0, 1, 2)))
    first, second = apply(g, SplitHeads(), FuseHeaderView())
    assert (first.count, second.count) == (3, 3)
    assert sorted(ops(g)) == sorted(["Slice", "HeaderView", "Relu"] * 3)


def test_a_projection_that_is_read_whole_stays() -> None:
    b = Build()
    (q,) = heads_of_one_projection(b, b.x(2, 5, 36), 0)
    whole = next(n.outputs[0] for n in b.graph.nodes if n.op == "Transpose")
    g = b.done(q, b.op("Relu", whole))
    (result,) = apply(g, SplitHeads())
    assert result.count == 0 and reasons([result]) == ["something else reads the whole"]


@pytest.mark.parametrize("first", [False, True])
def test_patches_that_are_tokens(first: bool) -> None:
    b = Build()
    order = (0, 2, 4, 3, 5, 1) if first else (0, 2, 4, 1, 3, 5)
    g = b.done(chain(b, b.x(2, 3, 4, 6), (2, 3, 2, 2, 3, 2), order, (2, 6, 12)))
    (result,) = apply(g, FusePatches())
    assert result.count == 1 and ops(g) == ["OrderedPatchify", "Transpose", "Reshape"]
    assert g.nodes[0].attrs.to_dict() == {"block": [2, 2], "block_first": first}


def test_patches_of_another_order_stay() -> None:
    b = Build()
    g = b.done(chain(b, b.x(2, 3, 4, 6), (2, 3, 2, 2, 3, 2), (0, 2, 4, 1, 5, 3), (2, 6, 12)))
    (result,) = apply(g, FusePatches())
    assert result.count == 0


def test_patches_whose_pixels_are_read_stay_and_say_why() -> None:
    b = Build()
    g = chain(b, b.x(2, 3, 4, 6), (2, 3, 2, 2, 3, 2), (0, 2, 4, 1, 3, 5), (2, 6, 12))
    turned = next(n.outputs[0] for n in b.graph.nodes if n.op == "Transpose")
    graph = b.done(g, b.op("Relu", turned))
    (result,) = apply(graph, FusePatches())
    assert result.count == 0 and reasons([result]) == [
        "something else reads an intermediate result"
    ]


def test_a_merge_of_heads_that_others_read_stays_and_says_why() -> None:
    b = Build()
    x = b.op("Transpose", b.x(1, 3, 5, 4), attrs=TransposeAttrs((0, 2, 1, 3)))
    g = b.done(b.op("Reshape", x, attrs=ReshapeAttrs((1, 5, 12))), b.op("Relu", x))
    (result,) = apply(g, FuseHeaderViewRevert())
    assert result.count == 0 and reasons([result]) == [
        "something else reads an intermediate result"
    ]


def test_a_shuffle_that_others_read_stays_and_says_why() -> None:
    b = Build()
    y = chain(b, b.x(1, 12, 2, 3), (1, 3, 2, 2, 2, 3), (0, 1, 4, 2, 5, 3), (1, 3, 4, 6))
    turned = next(n.outputs[0] for n in b.graph.nodes if n.op == "Transpose")
    g = b.done(y, b.op("Relu", turned))
    (result,) = apply(g, FuseBlocks())
    assert result.count == 0 and reasons([result]) == [
        "something else reads an intermediate result"
    ]
