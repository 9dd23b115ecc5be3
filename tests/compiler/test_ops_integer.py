"""The integer forms against exact arithmetic: weights, affine sums, tables, division, softmax."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qbcompiler.ir import DType, Graph, IntLayer, NoAttrs, Node, QuantParams, TensorType
from qbcompiler.ops import Case, QuantRule, default_registry
from qbcompiler.ops.affine import affine_tensors, run_affine
from qbcompiler.ops.common import span_of
from qbcompiler.ops.fixedpoint import dequantize, quantize, round_scale
from qbcompiler.ops.interpolation import fixed_point_taps, source_coordinates, taps
from qbcompiler.ops.normalization import NormAttrs, isqrt
from qbcompiler.ops.slicing import AxisAttrs
from qbcompiler.ops.softmax import exp_table
from qbcompiler.ops.tables import build_table, by_channel, by_pair, lookup
from qbcompiler.ops.weights import ACC_LIMIT, WIDE_ACC_LIMIT, quantize_linear, round_scales
from qbcompiler.runtime.kernels import ExactKernels

from .ops_harness import (
    Context,
    build_layer,
    case_graph,
    draw,
    grid,
    run_float,
    run_layer,
)
from .reference_kernels import ReferenceKernels

REGISTRY = default_registry()
EVERY = np.arange(-128, 128).astype(np.int8)


def params(scale: float, zero_point: int = 0, bits: int = 8) -> QuantParams:
    return QuantParams((round_scale(scale),), zero_point, bits)


scales = st.floats(min_value=2.0**-20, max_value=2.0**12)
zero_points = st.integers(-128, 127)


# -- weights ------------------------------------------------------------------------------


@st.composite
def linear_layers(draw: Any) -> tuple[Any, Any, QuantParams, QuantParams, int]:
    channels, products = draw(st.integers(1, 6)), draw(st.sampled_from([1, 9, 300, 40000]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    rows = rng.normal(size=(channels, products))
    rows *= 10.0 ** rng.uniform(-12, 6, size=(channels, 1))
    if draw(st.booleans()):
        rows[draw(st.integers(0, channels - 1))] = 0.0
    if draw(st.booleans()):
        rows = np.sign(rows)  # every weight at the edge of the grid
    bias = rng.normal(size=channels) * 10.0 ** rng.uniform(-12, 8, size=channels)
    source = params(draw(scales), draw(zero_points), draw(st.sampled_from([8, 16])))
    out = params(draw(scales), draw(zero_points), draw(st.sampled_from([8, 16])))
    return rows, bias, source, out, draw(st.sampled_from([4, 8, 16]))


@settings(max_examples=80, deadline=None)
@given(linear_layers())
def test_no_accumulator_can_leave_its_bits(layer: Any) -> None:
    rows, bias, source, out, bits = layer
    parts = quantize_linear(rows, bias, source, out, bits)
    qmax = (1 << (bits - 1)) - 1
    wide = 16 in (bits, source.bits)
    assert parts.weight.dtype == (np.int16 if bits == 16 else np.int8)
    assert parts.bias.dtype == (np.int64 if wide else np.int32)
    assert np.abs(parts.weight.astype(int)).max() <= qmax
    worst = np.abs(parts.weight.astype(np.int64)).sum(axis=1) * span_of(source)
    limit = WIDE_ACC_LIMIT if wide else ACC_LIMIT
    assert (worst + np.abs(parts.bias.astype(np.int64)) <= limit).all()
    assert (parts.multiplier >= 1 << 29).all() and (parts.shift >= 1).all()
    assert (parts.scales == round_scales(parts.scales.astype(np.float64))).all()


def test_a_sum_of_many_products_raises_the_weight_scale() -> None:
    """70000 products of 127 * 255 exceed 2^31: only a coarser grid keeps the proof."""
    rows = np.ones((2, 70000))
    rows[1, 1:] = 0.0
    parts = quantize_linear(rows, None, params(1, -128), params(1))
    assert int(parts.weight[0].astype(np.int64).sum()) * 255 <= ACC_LIMIT
    assert parts.weight[0, 0] < 127 and parts.weight[1, 0] == 127


def test_a_channel_without_weights_keeps_its_bias_exactly() -> None:
    source, out = params(0.05), params(0.01)
    bias = np.array([0.313, -1.27, 1e-7, 0.0])
    parts = quantize_linear(np.zeros((4, 9)), bias, source, out)
    q = np.array(
        [
            (int(b) * int(m) + (1 << (int(r) - 1))) >> int(r)
            for b, m, r in zip(parts.bias, parts.multiplier, parts.shift, strict=True)
        ]
    )
    assert np.abs(q - bias / out.scale).max() <= 0.5 + 1e-6


def test_a_bias_beyond_32_bits_raises_the_weight_scale() -> None:
    source, out = params(2.0**-10), params(1.0)
    parts = quantize_linear(np.full((1, 1), 1e-9), np.array([100.0]), source, out)
    assert abs(int(parts.bias[0])) <= 1 << 30
    real = int(parts.bias[0]) * float(parts.scales[0]) * source.scale
    assert real == pytest.approx(100.0, rel=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    rows = np.ones((2, 3))
    rows[1, 2] = value
    with pytest.raises(ValueError, match="not finite"):
        quantize_linear(rows, None, params(1), params(1))
    with pytest.raises(ValueError, match="not finite"):
        quantize_linear(np.ones((1, 3)), np.array([value]), params(1), params(1))


def test_bit_widths_that_are_not_served_are_refused() -> None:
    rows = np.ones((1, 1))
    for bits in (2, 12, 32):
        with pytest.raises(ValueError, match=f"{bits}-bit weights"):
            quantize_linear(rows, None, params(1), params(1), bits)


@pytest.mark.parametrize("zero_point", [0, -128, 127, 5])
def test_a_convolution_rounds_once(zero_point: int) -> None:
    """Against float64 with the very weights that the layer holds: half a step at most."""
    spec = REGISTRY["GroupConvolution"]
    case = next(c for c in spec.cases() if c.id == "3x3")
    graph = case_graph(spec, case)
    grids = {"x0": params(0.03, zero_point), "y0": params(0.1, -zero_point // 2)}
    layer = build_layer(spec, graph, grids)
    x = np.random.default_rng(1).integers(-128, 128, size=graph.values["x0"].shape, dtype=np.int8)
    found = run_layer(spec, layer, graph, grids, {"x0": x})[0]
    acc = ReferenceKernels().conv(
        x.astype(np.int64) - zero_point,
        layer.tensors["weight"],
        strides=(1, 1),
        pads=(1, 1, 1, 1),
        dilations=(1, 1),
        groups=2,
    )
    scale = layer.tensors["weight_scale"].astype(np.float64)[:, None, None] * grids["x0"].scale
    real = (acc + layer.tensors["bias"][:, None, None]) * scale
    steps = real / grids["y0"].scale + grids["y0"].zero_point
    assert np.abs(found - np.clip(steps, -128, 127)).max() <= 0.5 + 1e-6


def test_four_bit_weights_stay_within_seven() -> None:
    spec = REGISTRY["MatMul"]
    graph = case_graph(spec, spec.cases()[0])
    grids = {"x0": params(0.03), "y0": params(0.1)}
    layer = build_layer(spec, graph, grids, bits=4)
    assert np.abs(layer.tensors["weight"].astype(int)).max() == 7


@pytest.mark.parametrize(
    "name", [s.name for s in REGISTRY.specs if s.weights and s.name not in ("LSTM", "GRU", "RNN")]
)
@pytest.mark.parametrize("bits", [8, 16])
def test_the_runtime_kernels_give_the_oracles_bits(name: str, bits: int) -> None:
    spec = REGISTRY[name]
    for case in spec.cases():
        graph = case_graph(spec, case)
        drawn = draw(graph, case)
        grids = {n: grid(x, zero_point=True, bits=bits) for n, x in drawn.items()}
        integers = {n: quantize(x, grids[n]) for n, x in drawn.items()}
        grids["y0"] = grid(run_float(graph, drawn)[0], zero_point=True)
        layer = build_layer(spec, graph, grids, bits)
        expected = run_layer(spec, layer, graph, grids, integers)[0]
        for threads in (1, 2):
            got = run_layer(spec, layer, graph, grids, integers, ExactKernels(threads))[0]
            assert np.array_equal(got, expected)


def test_a_table_of_16_bits_is_interpolated_as_documented() -> None:
    source, out = params(2.0**-12, 300, 16), params(2.0**-13, -5000, 16)
    table = build_table(np.tanh, source, out)
    assert table.dtype == np.int32 and table.shape == (513,)
    x = np.arange(-32768, 32768).astype(np.int16)
    got = lookup(table, x, out)
    assert got.dtype == np.int16
    for q in (-32768, -32767, -129, -1, 0, 5, 127, 128, 20001, 32767):
        k, f = (q + 32768) >> 7, (q + 32768) & 127
        y = ((128 - f) * int(table[k]) + f * int(table[k + 1]) + (1 << 14)) >> 15
        assert int(got[q + 32768]) == min(max(y - 5000, -32768), 32767)
    real = np.tanh((x.astype(np.float64) - 300) * source.scale) / out.scale - 5000
    chord = (128 * source.scale) ** 2 / 8 * 0.77 / out.scale  # |tanh''| is at most 0.77
    assert np.abs(got - real).max() <= 0.51 + chord


def test_a_table_of_16_bits_saturates_without_bending_what_is_inside() -> None:
    """The cell in which the grid ends is a chord of the function, not of the clamped one."""
    source, out = params(2.0**-12, 0, 16), params(2.0**-14, 0, 16)  # -8..8 onto -2..2
    x = np.arange(-32768, 32768).astype(np.int16)
    got = lookup(build_table(lambda v: 3.0 * v, source, out), x, out)
    real = np.clip(3.0 * x.astype(np.float64) * source.scale / out.scale, -32768, 32767)
    assert np.abs(got - real).max() <= 0.51


@pytest.mark.parametrize("op", ["Ceil", "Hardshrink", "Log", "Sqrt", "Rsqrt", "DivConstant"])
@pytest.mark.parametrize("out_bits", [8, 16])
def test_a_function_with_jumps_or_poles_has_every_integer_of_16_bits(
    op: str, out_bits: int
) -> None:
    """Against float64 on all 65536 inputs: half a step, also next to the jump or pole."""
    spec: Any = REGISTRY[op]
    case = next(c for c in spec.cases() if c.id not in ("scalar", "channel", "reverse"))
    case = Case(case.id, case.attrs, [TensorType(DType.FLOAT32, (1 << 16,)), *case.inputs[1:]])
    graph = case_graph(spec, case)
    grids = {"x0": params(2.0**-12, -321, 16), "y0": params(2.0**-4, 3, out_bits)}
    layer = build_layer(spec, graph, grids)
    assert layer.tensors["table"].shape[-1] == 1 << 16
    x = np.arange(-32768, 32768).astype(np.int16)
    got = run_layer(spec, layer, graph, grids, {"x0": x})[0]
    real = (x.astype(np.float64) + 321) * grids["x0"].scale
    with np.errstate(divide="ignore", invalid="ignore"):
        if op == "DivConstant":
            y = np.where(real == 0, np.inf, 1.0 / real)
        else:
            y = spec.function(case.attrs, real)
    low, high = grids["y0"].qmin, grids["y0"].qmax
    expected = np.clip(y / grids["y0"].scale + 3, low, high)
    assert np.abs(got - expected).max() <= 0.5


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_layer_takes_16_bits_in_and_gives_them(op: str) -> None:
    """Against the float layer with the integer weights: 2^-10 a step of time (``numerics.md``)."""
    spec: Any = REGISTRY[op]
    case = spec.cases()[0]
    graph = case_graph(spec, case)
    drawn = draw(graph, case)
    grids = {n: grid(x, zero_point=True, bits=16) for n, x in drawn.items()}
    grids["y0"] = params(2.0**-14, 0, 16)
    layer = build_layer(spec, graph, grids)
    integers = {n: quantize(x, grids[n]) for n, x in drawn.items()}
    found = dequantize(run_layer(spec, layer, graph, grids, integers)[0], grids["y0"])
    form = spec.real_form(_with_attrs(layer, case), grids)
    for name, data in zip(graph.nodes[0].inputs[1:], form.inputs[1:], strict=True):
        graph.values[name].data = np.asarray(data)
    real = {n: dequantize(q, grids[n]).astype(np.float32) for n, q in integers.items()}
    time = graph.values["x0"].shape[0]
    assert np.abs(found - run_float(graph, real)[0]).max() <= time * 2.0**-10
    for threads in (1, 2, 4):
        got = run_layer(spec, layer, graph, grids, integers, ExactKernels(threads))[0]
        assert np.array_equal(dequantize(got, grids["y0"]), found)


def _with_attrs(layer: IntLayer, case: Case) -> IntLayer:
    layer.real = case.attrs.to_dict()
    return layer


@pytest.mark.parametrize("name", [s.name for s in REGISTRY.specs])
def test_every_operator_with_an_integer_form_takes_16_bits(name: str) -> None:
    """And gives the same bits on 1, 2 and 4 threads."""
    spec = REGISTRY[name]
    for case in spec.cases():
        if case.bound is None:
            continue
        graph = case_graph(spec, case)
        drawn = draw(graph, case)
        grids = {n: grid(x, zero_point=True, bits=16) for n, x in drawn.items()}
        integers = {n: quantize(x, grids[n]) for n, x in drawn.items()}
        made = run_float(graph, drawn)
        moves = spec.rule_of(graph.nodes[0], graph) is QuantRule.MOVE
        for out, y in zip(graph.nodes[0].outputs, made, strict=True):
            grids[out] = grids["x0"] if moves else grid(y, zero_point=True, bits=16)
        layer = build_layer(spec, graph, grids)
        expected = run_layer(spec, layer, graph, grids, integers)
        for threads in (1, 2, 4):
            got = run_layer(spec, layer, graph, grids, integers, ExactKernels(threads))
            assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


# -- affine sums --------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(scales, scales, scales, zero_points, zero_points, zero_points, st.floats(-1e4, 1e4))
def test_an_affine_sum_is_the_nearest_step(
    s1: float, s2: float, s_out: float, z1: int, z2: int, z_out: int, constant: float
) -> None:
    a, b, out = params(s1, z1), params(s2, z2), params(s_out, z_out)
    ratios = [a.scale / out.scale, -b.scale / out.scale]
    tensors, shift = affine_tensors(ratios, constant / out.scale, [a, b], out)
    layer = IntLayer("n", "Sub", ["a", "b"], ["y"], {"shift": shift}, tensors)
    x, y = np.meshgrid(EVERY[::17], EVERY[::13])
    found = run_affine(layer, [x, y], out)
    real = (
        (x.astype(float) - z1) * a.scale - (y.astype(float) - z2) * b.scale + constant
    ) / out.scale + z_out
    spread = max(1.0, (a.scale + b.scale) * 256 / out.scale)
    assert np.abs(found - np.clip(real, -128, 127)).max() <= 0.5 + spread * 2.0**-20


def test_constants_cancel_a_far_larger_input() -> None:
    source, out = params(10.0), params(0.01)
    tensors, shift = affine_tensors([1000.0], -100.0 / 0.01, [source], out)
    layer = IntLayer("n", "AddingConstant", ["a"], ["y"], {"shift": shift}, tensors)
    found = run_affine(layer, [np.array([9, 10, 11], np.int8)], out)
    assert found.tolist() == [-128, 0, 127]


@pytest.mark.parametrize("constant,step", [(np.inf, 127), (-np.inf, -128), (1e30, 127)])
def test_constants_beyond_the_grid_saturate(constant: float, step: int) -> None:
    tensors, shift = affine_tensors([1.0], constant, [params(1)], params(1))
    layer = IntLayer("n", "AddingConstant", ["a"], ["y"], {"shift": shift}, tensors)
    assert set(run_affine(layer, [EVERY], params(1)).tolist()) == {step}


def test_a_constant_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not a number"):
        affine_tensors([1.0], np.nan, [params(1)], params(1))
    with pytest.raises(ValueError, match="not a number"):
        affine_tensors([np.nan], 0.0, [params(1)], params(1))


@pytest.mark.parametrize("count", [(), (1, 3, 1, 1), (1, 3, 4, 1)])
def test_gathering_gives_the_formulas_bits(count: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, size=(1, 3, 4, 5000), dtype=np.int8)
    m = rng.integers(-9, 9, size=count)

    def formula(q: Any) -> Any:
        return (np.clip(q.astype(np.int64) * m + 3, -128, 127)).astype(np.int8)

    got = by_channel(formula, x, np.shape(m))
    assert got.dtype == np.int8 and np.array_equal(got, formula(x))


def test_gathering_pairs_gives_the_formulas_bits() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-128, 128, size=(1, 8, 300, 300), dtype=np.int8)
    b = rng.integers(-128, 128, size=(1, 8, 1, 1), dtype=np.int8)

    def formula(p: Any, q: Any) -> Any:
        return ((p.astype(np.int64) * q.astype(np.int64)) >> 8).astype(np.int8)

    assert np.array_equal(by_pair(formula, a, b), formula(a, b))


# -- tables -------------------------------------------------------------------------------


def test_a_table_holds_the_nearest_step_and_saturates() -> None:
    source, out = params(0.05, 3), params(0.01, -7)
    table = build_table(np.exp, source, out)
    real = np.exp(dequantize(EVERY, source).astype(np.float64)) / out.scale - 7
    assert np.abs(table - np.clip(real, -128, 127)).max() <= 0.5 + 1e-6
    x = np.random.default_rng(0).integers(-128, 128, size=(3, 5), dtype=np.int8)
    assert np.array_equal(lookup(table, x, out), table[x.astype(int) + 128])


def test_a_function_with_holes_is_refused() -> None:
    with pytest.raises(ValueError, match="undefined"), np.errstate(invalid="ignore"):
        build_table(np.log, params(1), params(1))


@pytest.mark.parametrize("name", ["Log", "Sqrt", "Rsqrt"])
def test_tables_hold_the_limit_where_the_function_is_undefined(name: str) -> None:
    spec = REGISTRY[name]
    graph = case_graph(spec, spec.cases()[0])
    layer = build_layer(spec, graph, {"x0": params(0.05), "y0": params(0.02)})
    below = layer.tensors["table"][:129]  # -128 … 0
    expected = {"Log": -128, "Sqrt": 0, "Rsqrt": 127}[name]
    assert set(below.tolist()) == {expected}


# -- division -----------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(scales, scales, scales)
def test_division_rounds_the_exact_quotient_half_up(sa: float, sb: float, so: float) -> None:
    spec = REGISTRY["Div"]
    graph = Graph("g")
    type_ = TensorType(DType.FLOAT32, (256, 256))
    graph.add_input("x0", type_)
    graph.add_input("x1", type_)
    graph.add_value("y0", type_)
    graph.add_node(Node("n", "Div", ["x0", "x1"], ["y0"], NoAttrs()))
    grids = {"x0": params(sa), "x1": params(sb), "y0": params(so)}
    layer = build_layer(spec, graph, grids)
    a, b = (np.ascontiguousarray(v) for v in np.broadcast_arrays(EVERY[:, None], EVERY[None, :]))
    found = run_layer(spec, layer, graph, grids, {"x0": a, "x1": b})[0]
    sa, sb, so = (grids[n].scale for n in ("x0", "x1", "y0"))
    ratio = Fraction(sa) / (Fraction(sb) * Fraction(so))
    rng = np.random.default_rng(0)
    for i, j in rng.integers(0, 256, size=(200, 2)):
        p, q = int(EVERY[i]), int(EVERY[j])
        got = int(found[i, j])
        if q == 0:
            assert got == (127 if p > 0 else -128 if p < 0 else 0)
            continue
        exact = ratio * p / q
        slack = Fraction(1, 2) + abs(exact) * Fraction(1, 1 << 28) + Fraction(1, 1 << 20)
        assert abs(got - max(min(exact, 127), -128)) <= slack


# -- softmax ------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["Softmax", "LogSoftmax"]),
    st.floats(2.0**-10, 2.0),
    st.floats(2.0**-9, 2.0**-6),
    st.sampled_from([1, 2, 3, 5, 10, 100, 3000]),
    zero_points,
    st.integers(0, 1000),
)
def test_softmax_is_within_its_bound(
    name: str, s_in: float, s_out: float, size: int, z: int, seed: int
) -> None:
    spec = REGISTRY[name]
    rows = max(2, 4000 // size)
    case = Case("any", AxisAttrs(1), [TensorType(DType.FLOAT32, (rows, size))])
    graph = case_graph(spec, case)
    if name == "LogSoftmax":
        s_out = s_out * 32
    grids = {"x0": params(s_in, z), "y0": params(s_out, z // 2)}
    layer = build_layer(spec, graph, grids)
    x = np.random.default_rng(seed).integers(-128, 128, size=(rows, size), dtype=np.int8)
    found = run_layer(spec, layer, graph, grids, {"x0": x})[0]
    real = dequantize(x, grids["x0"]).astype(np.float64)
    real -= real.max(axis=1, keepdims=True)
    log = real - np.log(np.exp(real).sum(axis=1, keepdims=True))
    expected = np.exp(log) if name == "Softmax" else log
    out = grids["y0"]
    steps = np.clip(expected / out.scale + out.zero_point, -128, 127)
    bound = 2.0**-24 if name == "Softmax" else 4e-6
    assert np.abs(found - steps).max() <= 0.5 + bound / out.scale + 1e-9


def test_the_exponential_table_is_monotone_and_starts_at_one() -> None:
    table = exp_table(0.1)
    assert table[0] == 1 << 24 and (np.diff(table) <= 0).all()


# -- normalization ------------------------------------------------------------------------


@given(st.lists(st.integers(0, (1 << 62) - 1), min_size=1, max_size=50))
def test_integer_roots_are_exact(numbers: list[int]) -> None:
    edge = [n * n + d for n in (1, 2, 94906265, (1 << 31) - 2) for d in (-1, 0, 1)]
    every = np.array([*numbers, *edge], dtype=np.int64)
    assert isqrt(every).tolist() == [math.isqrt(n) for n in every.tolist()]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["LayerNormalization", "RmsNormalization"]),
    st.floats(2.0**-10, 2.0**4),
    st.sampled_from([1, 2, 7, 64, 768, 5000]),
    st.integers(1, 255),
    st.sampled_from([0.0, 1e-12, 1e-5, 1e-2, 10.0, 1e9]),
    zero_points,
)
def test_normalization_is_within_its_bound(
    name: str, s_in: float, size: int, spread: int, epsilon: float, z: int
) -> None:
    spec = REGISTRY[name]
    rng = np.random.default_rng(size + spread)
    inputs: list[Any] = [TensorType(DType.FLOAT32, (3, size))]
    gamma = rng.normal(size=size).astype(np.float32)
    beta = rng.normal(size=size).astype(np.float32)
    inputs += [gamma, beta] if name == "LayerNormalization" else [gamma]
    graph = case_graph(spec, Case("any", NormAttrs(1, epsilon), inputs))
    grids = {"x0": params(s_in, z), "y0": params(0.03, 4)}
    layer = build_layer(spec, graph, grids)
    low = int(rng.integers(-128, 128 - spread + 1))
    x = rng.integers(low, low + spread, size=(3, size)).astype(np.int8)
    x[0] = low  # a constant row
    found = run_layer(spec, layer, graph, grids, {"x0": x})[0]
    real = dequantize(x, grids["x0"]).astype(np.float64)
    if name == "LayerNormalization":
        real = real - real.mean(axis=1, keepdims=True)
    power = (real**2).mean(axis=1, keepdims=True) + epsilon
    safe = np.where(power == 0, 1.0, power)
    expected = np.where(power == 0, 0.0, real / np.sqrt(safe)) * gamma
    slack = 2.0**-13 * np.abs(expected) + 2.0**-16 * np.abs(gamma)
    if name == "LayerNormalization":
        expected = expected + beta
    out = grids["y0"]
    steps = np.clip(expected / out.scale + out.zero_point, -128, 127)
    assert (np.abs(found - steps) <= 0.5 + slack / out.scale + 1e-9).all()


# -- resizing -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolation_weights_sum_to_exactly_one(mode: str) -> None:
    for size, out in ((5, 13), (13, 5), (4, 8), (1, 6), (9, 1)):
        x = source_coordinates("half_pixel", size, out, out / size)
        index, weight = taps(x, size, mode)
        assert index.min() >= 0 and index.max() < size
        fixed = fixed_point_taps(weight, 11)
        assert (fixed.sum(axis=1) == 1 << 11).all()
        assert np.abs(fixed / 2048 - weight).max() <= 4 / 2048


def test_a_constant_image_stays_constant() -> None:
    spec = REGISTRY["Resize"]
    for case in spec.cases():
        if case.bound is None:
            continue
        graph = case_graph(spec, case)
        grids = {"x0": params(0.1, 3), "y0": params(0.1, 3)}
        layer = build_layer(spec, graph, grids)
        x = np.full(graph.values["x0"].shape, 101, np.int8)
        assert set(run_layer(spec, layer, graph, grids, {"x0": x})[0].ravel().tolist()) == {101}


# -- what grids are taken -----------------------------------------------------------------


@pytest.mark.parametrize("name", [s.name for s in REGISTRY.specs if s.name != "Onnx"])
def test_a_scale_for_each_channel_is_refused_or_moved(name: str) -> None:
    spec = REGISTRY[name]
    case = next((c for c in spec.cases() if c.bound is not None), None)
    if case is None:
        return
    graph = case_graph(spec, case)
    node = graph.nodes[0]
    grids = {n: params(0.1) for n in graph.values}
    rank = graph.values["y0"].type.rank
    if rank < 2:
        return
    per_channel = QuantParams((0.1,) * graph.values["y0"].shape[1], axis=1)
    with pytest.raises(ValueError):
        spec.quantize(node, Context(graph, {**grids, "y0": per_channel}))
