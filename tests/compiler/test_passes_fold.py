"""Passes that fold scales, shifts, pads and constants into their neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qbcompiler.ir import Graph, NoAttrs
from qbcompiler.ops.arithmetic_const import BatchnormAttrs, ReversibleAttrs
from qbcompiler.ops.conv import ConvAttrs
from qbcompiler.ops.conv_transpose import ConvTransposeAttrs
from qbcompiler.ops.pad import PadAttrs
from qbcompiler.ops.shapes import ReshapeAttrs, TransposeAttrs, UnsqueezeAttrs
from qbcompiler.ops.slicing import AxisAttrs, SliceAttrs
from qbcompiler.passes.common_subexpressions import CommonSubexpressions
from qbcompiler.passes.dead_code import DeadCode
from qbcompiler.passes.fold_affine import FoldAffineAfter, FoldAffineBefore
from qbcompiler.passes.fold_constants import FoldConstants
from qbcompiler.passes.fold_pads import FoldPads
from qbcompiler.passes.fold_scale_through_moves import FoldScaleThroughMoves
from qbcompiler.passes.merge_affine import MergeAffine
from qbcompiler.passes.split_linear import SplitLinear

from .pass_graphs import REGISTRY, Build, apply, body, ops, reasons


def conv_attrs(pads: int = 0, groups: int = 1) -> ConvAttrs:
    return ConvAttrs((1, 1), (pads,) * 4, (1, 1), groups)


def batch_norm(b: Build, x: str, channels: int) -> str:
    return b.op(
        "Batchnorm",
        x,
        b.positive(channels, name="gamma"),
        b.normal(channels, name="beta"),
        b.normal(channels, name="mean"),
        b.positive(channels, name="var"),
        attrs=BatchnormAttrs(1e-3),
    )


CONVS: dict[str, tuple[str, tuple[int, ...], Any]] = {
    "dense": ("Convolution", (6, 4, 3, 3), conv_attrs(1)),
    "depthwise": ("DepthwiseConvolution", (4, 1, 3, 3), conv_attrs(1, 4)),
    "depthwise_multiplier": ("DepthwiseConvolution", (8, 1, 3, 3), conv_attrs(0, 4)),
    "group": ("GroupConvolution", (6, 2, 3, 3), conv_attrs(1, 2)),
    "transpose": (
        "TransposeConvolution",
        (4, 6, 2, 2),
        ConvTransposeAttrs((2, 2), (0, 0, 0, 0), (1, 1), (0, 0), 1),
    ),
    "transpose_group": (
        "TransposeConvolution",
        (4, 3, 2, 2),
        ConvTransposeAttrs((2, 2), (0, 0, 0, 0), (1, 1), (0, 0), 2),
    ),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", CONVS)
def test_batch_norm_folds_into_every_convolution(kind: str, bias: bool) -> None:
    op, weight, attrs = CONVS[kind]
    b = Build()
    x = b.x(1, 4, 7, 7)
    y = b.graph.values[b.op(op, x, b.normal(*weight), attrs=attrs)]
    channels = y.shape[1]
    if bias:
        y = b.graph.values[
            b.op(op, x, b.normal(*weight), b.normal(channels, name="bias"), attrs=attrs)
        ]
    g = b.done(batch_norm(b, y.name, channels))
    g.prune()
    (result,) = apply(g, FoldAffineAfter())
    assert result.count == 1
    assert ops(g) == [op]
    assert g.nodes[0].source[-1].startswith("L") and len(g.nodes[0].source) == 2


def test_golden_dump_of_a_folded_batch_norm() -> None:
    b = Build()
    y = b.op("Convolution", b.x(1, 4, 5, 5), b.normal(6, 4, 3, 3), attrs=conv_attrs(1))
    g = b.done(batch_norm(b, y, 6))
    apply(g, FoldAffineAfter())
    assert body(g) == [
        "%batchnorm: float32[1,6,5,5] = Convolution(%x, @w_1:float32[6,4,3,3],"
        " @L0/bias:float32[6]) {strides=[1, 1], pads=[1, 1, 1, 1], dilations=[1, 1], groups=1}"
    ]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("op", ["MultiplyConstant", "DivConstant", "AddingConstant", "SubConstant"])
@pytest.mark.parametrize("shape", [(), (6, 1, 1), (1, 6, 1, 1), (1,)])
def test_arithmetic_with_constants_folds_after(
    op: str, shape: tuple[int, ...], reverse: bool
) -> None:
    b = Build()
    y = b.op("Convolution", b.x(1, 4, 5, 5), b.normal(6, 4, 1, 1), attrs=conv_attrs())
    takes = op in ("DivConstant", "SubConstant")
    attrs = ReversibleAttrs(reverse) if takes else NoAttrs()
    g = b.done(b.op(op, y, b.positive(*shape), attrs=attrs))
    (result,) = apply(g, FoldAffineAfter())
    if op == "DivConstant" and reverse:
        assert result.count == 0 and ops(g) == ["Convolution", "DivConstant"]
        assert reasons([result]) == [
            "its constant does not have one number for each output channel"
        ]
    else:
        assert result.count == 1 and ops(g) == ["Convolution"]


def test_matmul_takes_scale_and_bias() -> None:
    b = Build()
    y = b.op("MatMul", b.x(1, 5, 8), b.normal(8, 6))
    y = b.op("MultiplyConstant", y, b.normal(6))
    g = b.done(b.op("AddingConstant", y, b.normal(1, 1, 6)))
    (result,) = apply(g, FoldAffineAfter())
    assert result.count == 2
    assert body(g) == [
        "%addingconstant: float32[1,5,6] = MatMul(%x, @w_3:float32[8,6], @L0/bias:float32[6])"
    ]


def refuse(g: Graph, step: Any, reason: str) -> None:
    before = body(g)
    results = apply(g, step)
    assert results[0].count == 0
    assert body(g) == before
    assert reason in reasons(results)


def test_after_is_refused_when_something_else_reads_the_convolution() -> None:
    b = Build()
    y = b.op("Convolution", b.x(1, 4, 5, 5), b.normal(6, 4, 1, 1), attrs=conv_attrs())
    z = b.op("MultiplyConstant", y, b.normal(6, 1, 1))
    g = b.done(z, b.op("Relu", y))
    refuse(g, FoldAffineAfter(), "something else reads what the layer before makes")


def test_after_is_refused_when_the_convolution_is_an_output() -> None:
    b = Build()
    y = b.op("Convolution", b.x(1, 4, 5, 5), b.normal(6, 4, 1, 1), attrs=conv_attrs())
    g = b.done(b.op("MultiplyConstant", y, b.normal(6, 1, 1)), y)
    refuse(g, FoldAffineAfter(), "something else reads what the layer before makes")


def test_after_is_refused_for_a_constant_along_another_axis() -> None:
    b = Build()
    y = b.op("Convolution", b.x(1, 4, 6, 6), b.normal(6, 4, 1, 1), attrs=conv_attrs())
    g = b.done(b.op("AddingConstant", y, b.normal(6)))
    refuse(g, FoldAffineAfter(), "its constant does not have one number for each output channel")


def test_after_is_refused_for_infinite_constants() -> None:
    b = Build()
    y = b.op("Convolution", b.x(1, 4, 6, 6), b.normal(6, 4, 1, 1), attrs=conv_attrs())
    g = b.done(b.op("AddingConstant", y, b.const(np.inf)))
    refuse(g, FoldAffineAfter(), "its constant is not finite")


@pytest.mark.parametrize("kind", ["dense", "depthwise", "depthwise_multiplier", "group"])
def test_scale_and_shift_fold_before_an_unpadded_convolution(kind: str) -> None:
    op, weight, attrs = CONVS[kind]
    b = Build()
    x = batch_norm(b, b.x(1, 4, 7, 7), 4)
    attrs = ConvAttrs(attrs.strides, (0,) * 4, attrs.dilations, attrs.groups)
    g = b.done(b.op(op, x, b.normal(*weight), attrs=attrs))
    (result,) = apply(g, FoldAffineBefore())
    assert result.count == 1 and ops(g) == [op]


def test_scale_alone_folds_before_padding_and_before_a_transposed_convolution() -> None:
    for kind in ("dense", "transpose_group"):
        op, weight, attrs = CONVS[kind]
        b = Build()
        x = b.op("MultiplyConstant", b.x(1, 4, 7, 7), b.normal(4, 1, 1))
        g = b.done(b.op(op, x, b.normal(*weight), attrs=attrs))
        (result,) = apply(g, FoldAffineBefore())
        assert result.count == 1 and ops(g) == [op]


def test_a_shift_does_not_fold_through_zero_padding() -> None:
    b = Build()
    x = b.op("AddingConstant", b.x(1, 4, 7, 7), b.normal(4, 1, 1))
    g = b.done(b.op("Convolution", x, b.normal(6, 4, 3, 3), attrs=conv_attrs(1)))
    refuse(g, FoldAffineBefore(), "it pads with zeros, which the shift before it does not reach")


def test_a_shift_does_not_fold_before_a_transposed_convolution() -> None:
    op, weight, attrs = CONVS["transpose"]
    b = Build()
    x = b.op("AddingConstant", b.x(1, 4, 7, 7), b.normal(4, 1, 1))
    g = b.done(b.op(op, x, b.normal(*weight), attrs=attrs))
    refuse(
        g,
        FoldAffineBefore(),
        "a shift before a transposed convolution does not reach its edges evenly",
    )


def test_before_a_matmul_along_its_inner_axis() -> None:
    b = Build()
    x = b.op("MultiplyConstant", b.x(2, 5, 8), b.normal(8))
    x = b.op("AddingConstant", x, b.normal(8))
    g = b.done(b.op("MatMul", x, b.normal(8, 3), b.normal(3)))
    (result,) = apply(g, FoldAffineBefore())
    assert result.count == 2 and ops(g) == ["MatMul"]


def test_what_cannot_fold_merges_into_one_affine_layer() -> None:
    b = Build()
    x = b.op("MultiplyConstant", b.x(1, 4, 7, 7), b.normal())
    x = b.op("AddingConstant", x, b.normal(4, 1, 1))
    g = b.done(batch_norm(b, x, 4))
    (result,) = apply(g, MergeAffine())
    assert result.count == 2
    assert (
        body(g)
        == [
            "%batchnorm: float32[1,4,7,7] = Batchnorm(%x, float32[4]"
            + "".join(
                str(g.values[n].data.tolist())  # type: ignore[union-attr]
                if i == 0
                else f", float32[4]{g.values[n].data.tolist()}"  # type: ignore[union-attr]
                for i, n in enumerate(g.nodes[0].inputs[1:])
            )
            + ") {epsilon=0.0}"
        ]
    )


def test_merging_is_refused_for_constants_of_another_axis() -> None:
    b = Build()
    x = b.op("MultiplyConstant", b.x(1, 4, 7, 7), b.normal(7))
    g = b.done(b.op("AddingConstant", x, b.normal(7)))
    refuse(g, MergeAffine(), "a constant does not have one number for each channel")


def test_a_zero_border_becomes_the_convolutions_own() -> None:
    b = Build()
    x = b.op("Pad", b.x(1, 4, 7, 7), attrs=PadAttrs((0, 0, 0, 1, 0, 0, 2, 3)))
    g = b.done(b.op("Convolution", x, b.normal(6, 4, 3, 3), attrs=conv_attrs(1)))
    (result,) = apply(g, FoldPads())
    assert result.count == 1
    assert body(g) == [
        "%convolution: float32[1,6,9,11] = Convolution(%x, @w:float32[6,4,3,3])"
        " {strides=[1, 1], pads=[1, 2, 3, 4], dilations=[1, 1], groups=1}"
    ]


def test_a_border_with_other_readers_stays_for_them() -> None:
    b = Build()
    x = b.op("Pad", b.x(1, 4, 7, 7), attrs=PadAttrs((0, 0, 1, 1, 0, 0, 1, 1)))
    y = b.op("Convolution", x, b.normal(6, 4, 3, 3), attrs=conv_attrs())
    g = b.done(y, b.op("Relu", x))
    (result,) = apply(g, FoldPads())
    assert result.count == 1 and ops(g) == ["Pad", "Convolution", "Relu"]


@pytest.mark.parametrize(
    ("attrs", "value", "reason"),
    [
        (
            PadAttrs((0, 0, 1, 1, 0, 0, 1, 1), "reflect"),
            None,
            "the border before it is filled by 'reflect', not with zeros",
        ),
        (PadAttrs((0, 0, 1, 1, 0, 0, 1, 1)), 1.0, "the border before it is not zero"),
        (PadAttrs((0, 1, 0, 0, 0, 0, 0, 0)), None, "the border before it is not spatial only"),
    ],
)
def test_other_borders_stay(attrs: PadAttrs, value: float | None, reason: str) -> None:
    b = Build()
    extra = [] if value is None else [b.const(value)]
    x = b.op("Pad", b.x(1, 4, 7, 7), *extra, attrs=attrs)
    channels = b.graph.values[x].shape[1]
    g = b.done(b.op("Convolution", x, b.normal(6, channels, 3, 3), attrs=conv_attrs()))
    refuse(g, FoldPads(), reason)


def test_constants_are_evaluated_once_for_all() -> None:
    b = Build()
    w = b.op("Reshape", b.normal(24), attrs=ReshapeAttrs((6, 4, 1, 1)))
    w = b.op("Relu", w)
    y = b.op("Convolution", b.x(1, 4, 5, 5), w, attrs=conv_attrs())
    g = b.done(y)
    (result,) = apply(g, FoldConstants())
    assert result.count == 2 and ops(g) == ["Convolution"]
    assert g.nodes[0].inputs[1] == "relu" and g.values["relu"].is_const


def test_a_constant_output_stays_an_output() -> None:
    b = Build()
    b.x(2)
    g = b.done(b.op("Relu", b.const([-1, 2])))
    apply(g, FoldConstants())
    assert len(g) == 0 and g.outputs == ["relu"]
    assert g.values["relu"].data is not None and g.values["relu"].data.tolist() == [0, 2]


def test_constants_do_not_grow_without_bound() -> None:
    b = Build()
    big = b.op("Expand", b.const([[1.0]]), attrs=ReshapeAttrs((1024, 1024)))
    g = b.done(b.op("Adding", b.x(1024, 1024), big))
    (result,) = apply(g, FoldConstants())
    assert result.count == 0 and ops(g) == ["Expand", "Adding"]


def test_equal_layers_are_computed_once() -> None:
    b = Build()
    x = b.x(1, 4, 5, 5)
    one, two = b.op("Relu", x), b.op("Relu", x)
    c1, c2 = b.const([1.0]), b.const([1.0])
    y = b.op("Multiply", b.op("AddingConstant", one, c1), b.op("AddingConstant", two, c2))
    g = b.done(y)
    (result,) = apply(g, CommonSubexpressions())
    assert result.count == 2 and ops(g) == ["Relu", "AddingConstant", "Multiply"]


def test_layers_that_give_outputs_their_names_stay() -> None:
    b = Build()
    x = b.x(1, 4)
    g = b.done(b.op("Relu", x), b.op("Relu", x))
    (result,) = apply(g, CommonSubexpressions())
    assert result.count == 0 and len(g) == 2


def test_dead_code_goes_and_inputs_stay() -> None:
    b = Build()
    x = b.x(1, 4)
    b.x(1, 4, name="unused")
    b.op("Relu", b.op("Relu", x))
    g = b.done(b.op("AddingConstant", x, b.normal(4)))
    (result,) = apply(g, DeadCode())
    assert result.count == 2 and ops(g) == ["AddingConstant"]
    assert g.inputs == ["x", "unused"]


def test_scalars_on_tokens_stay_apart() -> None:
    b = Build()
    x = b.op("MultiplyConstant", b.x(1, 5, 8), b.normal())
    g = b.done(b.op("AddingConstant", x, b.normal()))
    refuse(g, MergeAffine(), "its numbers are not for each channel")


# -- scales behind moves, and parts of products -----------------------------------------------


def projected(b: Build, x: str, heads: int = 2) -> str:
    """Project [1, 5, 8] and split it into heads."""
    y = b.op("MatMul", x, b.normal(8, 8), b.normal(8, name="bias"))
    y = b.op("Reshape", y, attrs=ReshapeAttrs((1, 5, heads, 8 // heads)))
    return b.op("Transpose", y, attrs=TransposeAttrs((0, 2, 1, 3)))


@pytest.mark.parametrize("op", ["MultiplyConstant", "DivConstant"])
def test_a_scale_behind_the_split_of_heads_folds_into_the_projection(op: str) -> None:
    b = Build()
    attrs = ReversibleAttrs() if op == "DivConstant" else NoAttrs()
    g = b.done(b.op("Relu", b.op(op, projected(b, b.x(1, 5, 8)), b.const(0.125), attrs=attrs)))
    (result,) = apply(g, FoldScaleThroughMoves())
    assert result.count == 1 and ops(g) == ["MatMul", "Reshape", "Transpose", "Relu"]
    assert len(g.nodes[0].source) == 2


def test_a_scale_of_scores_folds_into_the_queries() -> None:
    b = Build()
    x = b.x(1, 5, 8)
    q, k = projected(b, x), projected(b, x)
    k = b.op("Transpose", k, attrs=TransposeAttrs((0, 1, 3, 2)))
    g = b.done(b.op("Softmax", b.op("MultiplyConstant", b.op("MatMul", q, k), b.const(0.5)),
                    attrs=AxisAttrs(3)))  # fmt: skip
    (result,) = apply(g, FoldScaleThroughMoves())
    assert result.count == 1 and "MultiplyConstant" not in ops(g)


def test_a_scale_with_one_number_for_each_token_stays() -> None:
    b = Build()
    g = b.done(b.op("MultiplyConstant", projected(b, b.x(1, 5, 8)), b.normal(5, 1)))
    (result,) = apply(g, FoldScaleThroughMoves())
    assert result.count == 0


def test_what_others_read_is_not_scaled() -> None:
    b = Build()
    y = projected(b, b.x(1, 5, 8))
    g = b.done(b.op("Relu", b.op("MultiplyConstant", y, b.const(0.5))), b.op("Tanh", y))
    (result,) = apply(g, FoldScaleThroughMoves())
    assert result.count == 0 and reasons([result]) == ["something else reads what it scales"]


def test_a_scale_that_would_overflow_the_weights_stays() -> None:
    b = Build()
    x = b.op("MatMul", b.x(1, 5, 8), b.const(np.full((8, 8), 1e30)))
    y = b.op("Unsqueeze", x, attrs=UnsqueezeAttrs((0,)))
    g = b.done(b.op("Relu", b.op("MultiplyConstant", y, b.const(1e30))))
    result = FoldScaleThroughMoves().run(g, REGISTRY)
    assert result.count == 0 and reasons([result]) == ["the folded weights would overflow"]


def cut(b: Build, x: str, start: int, size: int, axis: int = 2) -> str:
    shape = list(b.graph.values[x].shape)
    starts = [0, 0, 0]
    starts[axis], shape[axis] = start, size
    return b.op("Slice", x, attrs=SliceAttrs(tuple(starts), tuple(shape), (1, 1, 1)))


def test_a_product_read_in_parts_is_a_product_for_each() -> None:
    b = Build()
    y = b.op("MatMul", b.x(1, 5, 8), b.normal(8, 12), b.normal(12, name="bias"))
    g = b.done(b.op("Relu", cut(b, y, 0, 4)), b.op("Tanh", cut(b, y, 4, 8)))
    (result,) = apply(g, SplitLinear())
    assert result.count == 1 and sorted(ops(g)) == ["MatMul", "MatMul", "Relu", "Tanh"]
    assert sorted(v.shape for v in g.constants()) == [(4,), (8,), (8, 4), (8, 8)]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([(0, 6, 2), (4, 8, 2)], "parts of its result overlap"),
        ([(0, 2, 1), (2, 3, 1)], "its result is cut along another dimension"),
    ],
)
def test_a_product_that_stays_whole_says_why(
    parts: list[tuple[int, int, int]], reason: str
) -> None:
    b = Build()
    y = b.op("MatMul", b.x(1, 5, 8), b.normal(8, 12))
    g = b.done(*(b.op("Relu", cut(b, y, *p)) for p in parts))
    (result,) = apply(g, SplitLinear())
    assert result.count == 0 and reasons([result]) == [reason]
