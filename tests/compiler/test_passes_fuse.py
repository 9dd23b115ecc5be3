"""Passes that recognise activations, normalizations and softmax written in their parts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from qbcompiler.ir import DType, Graph, TensorType
from qbcompiler.ops.activation import ClipAttrs
from qbcompiler.ops.arithmetic_const import ReversibleAttrs
from qbcompiler.ops.functions import PowAttrs
from qbcompiler.ops.normalization import InstanceNormAttrs
from qbcompiler.ops.reduce import ReduceAttrs
from qbcompiler.ops.shapes import ReshapeAttrs
from qbcompiler.ops.unary import HardSigmoidAttrs
from qbcompiler.passes.fuse_gelu import FuseGelu
from qbcompiler.passes.fuse_group_norm import FuseGroupNorm
from qbcompiler.passes.fuse_hard_sigmoid import FuseHardSigmoid
from qbcompiler.passes.fuse_hard_swish import FuseHardSwish
from qbcompiler.passes.fuse_mish import FuseMish, FuseSoftplus
from qbcompiler.passes.fuse_norm import FuseLayerNorm, FuseRmsNorm
from qbcompiler.passes.fuse_softmax import FuseSoftmax
from qbcompiler.passes.fuse_swish import FuseSwish
from qbcompiler.passes.merge_clips import MergeClips

from .pass_graphs import REGISTRY, Build, apply, body, ops, reasons

RELU6 = ClipAttrs(0.0, 6.0)
INTERMEDIATE = "something else reads an intermediate result"


def add(b: Build, x: str, number: float) -> str:
    return b.op("AddingConstant", x, b.const(number))


def times(b: Build, x: str, number: float) -> str:
    return b.op("MultiplyConstant", x, b.const(number))


def over(b: Build, x: str, number: float) -> str:
    return b.op("DivConstant", x, b.const(number), attrs=ReversibleAttrs())


# -- hard sigmoid and hard swish --------------------------------------------------------------


def relu6_of_x_plus_3(b: Build, x: str) -> str:
    return b.op("Clip", add(b, x, 3.0), attrs=RELU6)


HARD_SIGMOIDS: dict[str, tuple[Callable[[Build, str], str], tuple[float, float]]] = {
    "divided": (lambda b, x: over(b, relu6_of_x_plus_3(b, x), 6.0), (1 / 6, 0.5)),
    "multiplied": (lambda b, x: times(b, relu6_of_x_plus_3(b, x), 0.16666667), (1 / 6, 0.5)),
    "paddle": (
        lambda b, x: b.op("Clip", add(b, times(b, x, 0.2), 0.5), attrs=ClipAttrs(0.0, 1.0)),
        (0.2, 0.5),
    ),
    "inside": (
        lambda b, x: b.op("Clip", over(b, add(b, x, 3.0), 6.0), attrs=ClipAttrs(0.0, 1.0)),
        (1 / 6, 0.5),
    ),
}


@pytest.mark.parametrize("form", HARD_SIGMOIDS)
def test_hard_sigmoid(form: str) -> None:
    build, (alpha, beta) = HARD_SIGMOIDS[form]
    b = Build()
    g = b.done(build(b, b.x(1, 4, 5, 5)))
    (result,) = apply(g, FuseHardSigmoid())
    assert result.count == 1 and ops(g) == ["HardSigmoid"]
    attrs = g.nodes[0].attrs
    assert isinstance(attrs, HardSigmoidAttrs)
    assert math.isclose(attrs.alpha, alpha, rel_tol=1e-5)
    assert math.isclose(attrs.beta, beta, rel_tol=1e-5)


@pytest.mark.parametrize(
    "build",
    [
        lambda b, x: b.op("Clip", x, attrs=ClipAttrs(0.0, 1.0)),
        lambda b, x: times(b, relu6_of_x_plus_3(b, x), 0.5),
        lambda b, x: b.op("Clip", add(b, times(b, x, -1.0), 0.5), attrs=ClipAttrs(0.0, 1.0)),
        lambda b, x: over(b, b.op("Clip", add(b, x, 3.0), attrs=ClipAttrs(-1.0, 6.0)), 6.0),
    ],
)
def test_no_hard_sigmoid(build: Callable[[Build, str], str]) -> None:
    b = Build()
    g = b.done(build(b, b.x(1, 4)))
    before = body(g)
    (result,) = apply(g, FuseHardSigmoid())
    assert result.count == 0 and body(g) == before


def test_hard_sigmoid_is_refused_when_the_clamp_has_another_reader() -> None:
    b = Build()
    clip = relu6_of_x_plus_3(b, b.x(1, 4))
    g = b.done(over(b, clip, 6.0), b.op("Relu", clip))
    (result,) = apply(g, FuseHardSigmoid())
    assert result.count == 0 and reasons([result]) == [INTERMEDIATE]


HARD_SWISHES: dict[str, Callable[[Build, str], str]] = {
    "paddle": lambda b, x: over(b, b.op("Multiply", x, relu6_of_x_plus_3(b, x)), 6.0),
    "gate_scaled": lambda b, x: b.op("Multiply", x, times(b, relu6_of_x_plus_3(b, x), 1 / 6)),
    "x_scaled": lambda b, x: b.op("Multiply", over(b, x, 6.0), relu6_of_x_plus_3(b, x)),
    "swapped": lambda b, x: times(b, b.op("Multiply", relu6_of_x_plus_3(b, x), x), 0.16666667),
    "hard_sigmoid": lambda b, x: b.op(
        "Multiply", x, b.op("HardSigmoid", x, attrs=HardSigmoidAttrs(1 / 6, 0.5))
    ),
    "split_scale": lambda b, x: times(
        b, b.op("Multiply", times(b, x, 0.5), relu6_of_x_plus_3(b, x)), 1 / 3
    ),
}


@pytest.mark.parametrize("form", HARD_SWISHES)
@pytest.mark.parametrize("first", [True, False])
def test_hard_swish(form: str, first: bool) -> None:
    b = Build()
    g = b.done(HARD_SWISHES[form](b, b.x(1, 4, 5, 5)))
    steps = [FuseHardSigmoid(), FuseHardSwish()] if first else [FuseHardSwish()]
    results = apply(g, *steps)
    assert results[-1].count == 1
    assert body(g) == [f"%{g.outputs[0]}: float32[1,4,5,5] = HardSwish(%x)"]


def test_hard_swish_of_a_sum_stops_at_the_sum() -> None:
    b = Build()
    x = add(b, b.x(1, 4, 5, 5), 1.0)
    g = b.done(HARD_SWISHES["paddle"](b, x))
    apply(g, FuseHardSigmoid(), FuseHardSwish())
    assert ops(g) == ["AddingConstant", "HardSwish"]


@pytest.mark.parametrize("scale", [1 / 5, 1.0])
def test_other_scales_are_no_hard_swish(scale: float) -> None:
    b = Build()
    x = b.x(1, 4)
    g = b.done(times(b, b.op("Multiply", x, relu6_of_x_plus_3(b, x)), scale))
    (result,) = apply(g, FuseHardSwish())
    assert result.count == 0 and len(g) == 4


def test_another_input_is_no_hard_swish() -> None:
    b = Build()
    x, z = b.x(1, 4), b.x(1, 4, name="z")
    g = b.done(over(b, b.op("Multiply", z, relu6_of_x_plus_3(b, x)), 6.0))
    (result,) = apply(g, FuseHardSwish())
    assert result.count == 0


def test_hard_swish_is_refused_when_the_gate_has_another_reader() -> None:
    b = Build()
    x = b.x(1, 4)
    gate = relu6_of_x_plus_3(b, x)
    g = b.done(over(b, b.op("Multiply", x, gate), 6.0), b.op("Relu", gate))
    (result,) = apply(g, FuseHardSwish())
    assert result.count == 0 and reasons([result]) == [INTERMEDIATE]


# -- swish, gelu, mish --------------------------------------------------------------------------


def test_swish() -> None:
    b = Build()
    x = b.x(1, 4)
    g = b.done(b.op("Multiply", b.op("Sigmoid", x), x))
    (result,) = apply(g, FuseSwish())
    assert result.count == 1 and body(g) == ["%multiply: float32[1,4] = Swish(%x)"]


def test_quick_gelu() -> None:
    b = Build()
    x = b.x(1, 4)
    g = b.done(b.op("Multiply", x, b.op("Sigmoid", times(b, x, 1.702))))
    (result,) = apply(g, FuseSwish())
    assert result.count == 1 and ops(g) == ["QuickGelu"]


def test_a_shifted_gate_is_no_swish() -> None:
    b = Build()
    x = b.x(1, 4)
    g = b.done(b.op("Multiply", x, b.op("Sigmoid", add(b, x, 1.0))))
    (result,) = apply(g, FuseSwish())
    assert result.count == 0


def erf_gate(b: Build, x: str) -> str:
    return add(b, b.op("Erf", over(b, x, math.sqrt(2.0))), 1.0)


def tanh_gate(b: Build, x: str, cube: str) -> str:
    inner = b.op("Adding", x, times(b, cube, 0.044715))
    return add(b, b.op("Tanh", times(b, inner, math.sqrt(2 / math.pi))), 1.0)


GELUS: dict[str, tuple[Callable[[Build, str], str], str]] = {
    "torch": (lambda b, x: times(b, b.op("Multiply", x, erf_gate(b, x)), 0.5), "none"),
    "half_first": (lambda b, x: b.op("Multiply", times(b, x, 0.5), erf_gate(b, x)), "none"),
    "half_gate": (lambda b, x: b.op("Multiply", x, times(b, erf_gate(b, x), 0.5)), "none"),
    "tanh_pow": (
        lambda b, x: times(
            b,
            b.op("Multiply", x, tanh_gate(b, x, b.op("Pow", x, attrs=PowAttrs(3.0)))),
            0.5,
        ),
        "tanh",
    ),
    "tanh_mul": (
        lambda b, x: b.op(
            "Multiply",
            times(b, x, 0.5),
            tanh_gate(b, x, b.op("Multiply", b.op("Multiply", x, x), x)),
        ),
        "tanh",
    ),
    "tanh_factored": (
        lambda b, x: b.op(
            "Multiply",
            times(b, x, 0.5),
            add(
                b,
                b.op(
                    "Tanh",
                    b.op(
                        "Multiply",
                        times(b, x, math.sqrt(2 / math.pi)),
                        add(b, times(b, b.op("Multiply", x, x), 0.044715), 1.0),
                    ),
                ),
                1.0,
            ),
        ),
        "tanh",
    ),
}


@pytest.mark.parametrize("form", GELUS)
@pytest.mark.parametrize("moved", [False, True])
def test_gelu(form: str, moved: bool) -> None:
    build, approximate = GELUS[form]
    b = Build()
    x = b.x(2, 8)
    # an addition before it must not be taken for a part of it
    x = add(b, x, 0.25) if moved else x
    g = b.done(build(b, x))
    (result,) = apply(g, FuseGelu())
    assert result.count == 1
    assert ops(g) == (["AddingConstant"] if moved else []) + ["Gelu"]
    assert g.nodes[-1].attrs.to_dict() == {"approximate": approximate}


def test_a_wrong_cubic_term_is_no_gelu() -> None:
    b = Build()
    x = b.x(2, 8)
    cube = b.op("Pow", x, attrs=PowAttrs(3.0))
    inner = times(b, b.op("Adding", x, times(b, cube, 0.05)), math.sqrt(2 / math.pi))
    gate = add(b, b.op("Tanh", inner), 1.0)
    g = b.done(times(b, b.op("Multiply", x, gate), 0.5))
    (result,) = apply(g, FuseGelu())
    assert result.count == 0 and "Gelu" not in ops(g)


def test_softplus_and_mish() -> None:
    b = Build()
    x = b.x(2, 8)
    soft = b.op("Log", add(b, b.op("Exp", x), 1.0))
    g = b.done(b.op("Multiply", x, b.op("Tanh", soft)))
    results = apply(g, FuseSoftplus(), FuseMish())
    assert [r.count for r in results] == [1, 1] and ops(g) == ["Mish"]


# -- clamps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (None, ClipAttrs(None, 6.0), "Clip {min=0.0, max=6.0}"),
        (ClipAttrs(-1.0, None), None, "Relu"),
        (ClipAttrs(-1.0, 2.0), ClipAttrs(0.0, 3.0), "Clip {min=0.0, max=2.0}"),
        (ClipAttrs(0.0, 1.0), ClipAttrs(2.0, 3.0), "Clip {min=2.0, max=2.0}"),
        (ClipAttrs(2.0, 1.0), ClipAttrs(0.0, 3.0), "Clip {min=1.0, max=1.0}"),
        (ClipAttrs(None, 1.0), ClipAttrs(None, 3.0), "Clip {max=1.0}"),
    ],
)
def test_clamps_merge(first: ClipAttrs | None, second: ClipAttrs | None, expected: str) -> None:
    b = Build()
    x = b.x(1, 16)
    for attrs in (first, second):
        x = b.op("Relu", x) if attrs is None else b.op("Clip", x, attrs=attrs)
    g = b.done(x)
    (result,) = apply(g, MergeClips())
    assert result.count == 1
    op, _, attrs_text = expected.partition(" ")
    tail = f" {attrs_text}" if attrs_text else ""
    assert body(g) == [f"%{g.outputs[0]}: float32[1,16] = {op}(%x){tail}"]


def test_a_clamp_with_another_reader_stays() -> None:
    b = Build()
    x = b.op("Relu", b.x(1, 16))
    g = b.done(b.op("Clip", x, attrs=RELU6), b.op("Tanh", x))
    (result,) = apply(g, MergeClips())
    assert result.count == 0
    assert reasons([result]) == ["something else reads what the first clamp makes"]


# -- normalization, softmax ----------------------------------------------------------------------


def mean(b: Build, x: str, *axes: int) -> str:
    return b.op("ReduceMean", x, attrs=ReduceAttrs(axes))


def norm(
    b: Build, x: str, *axes: int, twice: bool = False, centred: bool = True, root: str = "div"
) -> str:
    c = b.op("Sub", x, mean(b, x, *axes)) if centred else x
    d = b.op("Sub", x, mean(b, x, *axes)) if twice else c
    square = b.op("Multiply", d, d) if root == "rsqrt" else b.op("Pow", d, attrs=PowAttrs(2.0))
    variance = add(b, mean(b, square, *axes), 1e-6)
    if root == "rsqrt":
        return b.op("Multiply", c, b.op("Rsqrt", variance))
    if root == "reciprocal":
        inverse = b.op(
            "DivConstant", b.op("Sqrt", variance), b.const(1.0), attrs=ReversibleAttrs(True)
        )
        return b.op("Multiply", inverse, c)
    return b.op("Div", c, b.op("Sqrt", variance))


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("root", ["div", "rsqrt", "reciprocal"])
@pytest.mark.parametrize("tail", ["none", "scale", "both"])
def test_layer_norm(twice: bool, root: str, tail: str) -> None:
    b = Build()
    y = norm(b, b.x(2, 5, 8), 2, twice=False, root=root)
    if twice:
        b = Build()
        x = b.x(2, 5, 8)
        m = mean(b, x, 2)
        c, d = b.op("Sub", x, m), b.op("Sub", x, m)
        variance = add(b, mean(b, b.op("Multiply", d, d), 2), 1e-6)
        y = b.op("Div", c, b.op("Sqrt", variance))
    if tail != "none":
        y = b.op("MultiplyConstant", y, b.normal(8))
    if tail == "both":
        y = b.op("AddingConstant", y, b.normal(1, 1, 8))
    g = b.done(y)
    (result,) = apply(g, FuseLayerNorm())
    assert result.count == 1 and ops(g) == ["LayerNormalization"]
    attrs = g.nodes[0].attrs.to_dict()
    assert attrs["axis"] == 2 and math.isclose(attrs["epsilon"], 1e-6, rel_tol=1e-5)
    assert len(g.nodes[0].inputs) == (3 if tail == "both" else 2)


def test_layer_norm_over_several_axes() -> None:
    b = Build()
    y = norm(b, b.x(2, 5, 8), 1, 2)
    g = b.done(b.op("MultiplyConstant", y, b.normal(5, 8)))
    apply(g, FuseLayerNorm())
    assert ops(g) == ["LayerNormalization"] and g.nodes[0].attrs.to_dict()["axis"] == 1


def test_a_scale_along_other_axes_stays_outside() -> None:
    b = Build()
    y = norm(b, b.x(2, 5, 8), 2)
    g = b.done(b.op("MultiplyConstant", y, b.normal(5, 1)))
    apply(g, FuseLayerNorm())
    assert ops(g) == ["LayerNormalization", "MultiplyConstant"]


@pytest.mark.parametrize("axes", [(0,), (0, 2)])
def test_normalizing_leading_axes_stays(axes: tuple[int, ...]) -> None:
    b = Build()
    g = b.done(norm(b, b.x(2, 5, 8), *axes))
    (result,) = apply(g, FuseLayerNorm())
    assert result.count == 0


@pytest.mark.parametrize("root", ["div", "rsqrt"])
@pytest.mark.parametrize("shape", [(2, 5, 8), (1, 6, 4, 4)])
@pytest.mark.parametrize("tail", ["none", "scalar", "channels"])
def test_layer_norm_of_each_pixel(shape: tuple[int, ...], root: str, tail: str) -> None:
    b = Build()
    y = norm(b, b.x(*shape), 1, root=root)
    if tail != "none":
        form = (1,) if tail == "scalar" else (shape[1], *(1,) * (len(shape) - 2))
        y = b.op("MultiplyConstant", y, b.normal(*form))
        y = b.op("AddingConstant", y, b.normal(*form))
    g = b.done(y)
    (result,) = apply(g, FuseLayerNorm())
    assert result.count == 1
    assert ops(g) == ["Transpose", "LayerNormalization", "Transpose"]
    assert all(n.source for n in g.nodes)


def test_a_scale_of_each_pixel_stays_outside() -> None:
    b = Build()
    y = b.op("MultiplyConstant", norm(b, b.x(1, 6, 4, 4), 1), b.normal(4, 4))
    g = b.done(y)
    apply(g, FuseLayerNorm())
    assert ops(g) == ["Transpose", "LayerNormalization", "Transpose", "MultiplyConstant"]


def test_rms_norm_of_each_pixel() -> None:
    b = Build()
    y = b.op("MultiplyConstant", norm(b, b.x(1, 6, 4, 4), 1, centred=False), b.normal(6, 1, 1))
    g = b.done(y)
    apply(g, FuseRmsNorm())
    assert ops(g) == ["Transpose", "RmsNormalization", "Transpose"]


def test_layer_norm_is_refused_when_the_variance_is_read() -> None:
    b = Build()
    x = b.x(2, 8)
    c = b.op("Sub", x, mean(b, x, 1))
    variance = mean(b, b.op("Multiply", c, c), 1)
    y = b.op("Div", c, b.op("Sqrt", add(b, variance, 1e-5)))
    g = b.done(y, variance)
    (result,) = apply(g, FuseLayerNorm())
    assert result.count == 0 and reasons([result]) == [INTERMEDIATE]


@pytest.mark.parametrize("root", ["div", "rsqrt", "reciprocal"])
def test_rms_norm(root: str) -> None:
    b = Build()
    y = norm(b, b.x(2, 5, 8), 2, centred=False, root=root)
    g = b.done(b.op("MultiplyConstant", y, b.normal(8)))
    (result,) = apply(g, FuseRmsNorm())
    assert result.count == 1 and ops(g) == ["RmsNormalization"]


@pytest.mark.parametrize("moved", [True, False])
def test_softmax(moved: bool) -> None:
    b = Build()
    x = b.x(2, 5, 8)
    z = b.op("Sub", x, b.op("ReduceMax", x, attrs=ReduceAttrs((2,)))) if moved else x
    e = b.op("Exp", z)
    g = b.done(b.op("Div", e, b.op("ReduceSum", e, attrs=ReduceAttrs((2,)))))
    (result,) = apply(g, FuseSoftmax())
    assert result.count == 1 and body(g) == ["%div: float32[2,5,8] = Softmax(%x) {axis=2}"]


@pytest.mark.parametrize("first", [True, False])
def test_softmax_by_the_reciprocal_of_the_sum(first: bool) -> None:
    b = Build()
    e = b.op("Exp", b.x(2, 5, 8))
    total = b.op("ReduceSum", e, attrs=ReduceAttrs((1,)))
    inverse = b.op("DivConstant", total, b.const(1.0), attrs=ReversibleAttrs(reverse=True))
    g = b.done(b.op("Multiply", *((e, inverse) if first else (inverse, e))))
    (result,) = apply(g, FuseSoftmax())
    assert result.count == 1 and body(g) == ["%multiply: float32[2,5,8] = Softmax(%x) {axis=1}"]


def test_twice_the_reciprocal_of_the_sum_is_no_softmax() -> None:
    b = Build()
    e = b.op("Exp", b.x(2, 5, 8))
    total = b.op("ReduceSum", e, attrs=ReduceAttrs((1,)))
    inverse = b.op("DivConstant", total, b.const(2.0), attrs=ReversibleAttrs(reverse=True))
    g = b.done(b.op("Multiply", e, inverse))
    (result,) = apply(g, FuseSoftmax())
    assert result.count == 0


def grouped(b: Build, x: str, groups: int) -> str:
    """Normalize groups of channels of [2, 6, 5, 4] as exporters write it."""
    apart = b.op("Reshape", x, attrs=ReshapeAttrs((2, groups, 6 // groups * 20)))
    ones, zeros = b.const(np.ones(groups)), b.const(np.zeros(groups))
    y = b.op("InstanceNormalization", apart, ones, zeros, attrs=InstanceNormAttrs(1e-3))
    return b.op("Reshape", y, attrs=ReshapeAttrs((2, 6, 5, 4)))


@pytest.mark.parametrize("scaled", [True, False])
def test_group_norm(scaled: bool) -> None:
    b = Build()
    y = grouped(b, b.x(2, 6, 5, 4), 3)
    if scaled:
        y = b.op(
            "AddingConstant", b.op("MultiplyConstant", y, b.normal(6, 1, 1)), b.normal(6, 1, 1)
        )
    g = b.done(y)
    (result,) = apply(g, FuseGroupNorm())
    assert result.count == 1 and ops(g) == ["GroupNormalization"]
    assert g.nodes[0].attrs.to_dict() == {"groups": 3, "epsilon": 1e-3}


def test_a_scale_of_each_column_stays_behind_a_group_norm() -> None:
    b = Build()
    g = b.done(b.op("MultiplyConstant", grouped(b, b.x(2, 6, 5, 4), 2), b.normal(4)))
    apply(g, FuseGroupNorm())
    assert ops(g) == ["GroupNormalization", "MultiplyConstant"]


def test_groups_that_are_read_stay_and_say_why() -> None:
    b = Build()
    y = grouped(b, b.x(2, 6, 5, 4), 2)
    g = b.done(y, b.op("Relu", b.graph.nodes[0].outputs[0]))
    (result,) = apply(g, FuseGroupNorm())
    assert result.count == 0 and reasons([result]) == ["something else reads the groups"]


def test_softmax_over_two_axes_stays() -> None:
    b = Build()
    e = b.op("Exp", b.x(2, 5, 8))
    g = b.done(b.op("Div", e, b.op("ReduceSum", e, attrs=ReduceAttrs((1, 2)))))
    (result,) = apply(g, FuseSoftmax())
    assert result.count == 0


def test_softmax_with_another_maximum_keeps_the_subtraction() -> None:
    b = Build()
    x = b.x(2, 5, 8)
    e = b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x, attrs=ReduceAttrs((1,)))))
    g = b.done(b.op("Div", e, b.op("ReduceSum", e, attrs=ReduceAttrs((2,)))))
    apply(g, FuseSoftmax())
    assert ops(g) == ["ReduceMax", "Sub", "Softmax"]


def test_half_precision_keeps_its_type() -> None:
    b = Build()
    b.graph.add_input("h", TensorType(DType.FLOAT16, (2, 8)))
    g: Graph = b.graph
    three = g.add_value("three", TensorType(DType.FLOAT16, ()), np.asarray(3, np.float16)).name
    six = g.add_value("six", TensorType(DType.FLOAT16, ()), np.asarray(6, np.float16)).name
    gate = b.op("Clip", b.op("AddingConstant", "h", three), attrs=RELU6)
    g = b.done(b.op("DivConstant", b.op("Multiply", "h", gate), six, attrs=ReversibleAttrs()))
    results = FuseHardSwish().run(g, REGISTRY)
    assert results.count == 1 and g.values[g.outputs[0]].type.dtype is DType.FLOAT16
