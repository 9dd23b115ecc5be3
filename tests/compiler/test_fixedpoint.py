"""Fixed-point arithmetic against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qbcompiler.ir import QuantParams
from qbcompiler.ops.fixedpoint import (
    dequantize,
    fixed_multiplier,
    quantize,
    requantize,
    rescale,
    rescale_wide,
    round_scale,
)


@given(st.floats(min_value=2.0**-99, max_value=2.0**60))
def test_scales_keep_twelve_significant_bits(x: float) -> None:
    s = round_scale(x)
    mantissa, _ = math.frexp(s)
    assert (mantissa * 4096) == int(mantissa * 4096)
    assert abs(s - x) <= x * 2.0**-12
    assert round_scale(s) == s
    assert s == float(np.float32(s))


@pytest.mark.parametrize("x", [0.0, float("nan"), float("inf"), 1e-300])
def test_a_scale_that_is_none_becomes_one(x: float) -> None:
    assert round_scale(x) == 1.0


@given(st.floats(min_value=2.0**-31, max_value=2.0**29))
def test_multiplier_is_the_nearest_in_its_range(real: float) -> None:
    m, r = fixed_multiplier(real)
    m, r = int(m), int(r)
    assert (1 << 30) <= m < (1 << 31)
    error = abs(Fraction(m, 1 << r) - Fraction(real))
    assert error <= Fraction(1, 1 << (r + 1))


def test_zero_and_vanishing_multipliers() -> None:
    m, r = fixed_multiplier([0.0, 2.0**-40])
    assert m.tolist() == [0, 1 << 22] and r.tolist() == [31, 62]


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), 2.0**30])
def test_multipliers_that_have_no_form_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="multiplier"):
        fixed_multiplier(bad)


@settings(max_examples=300)
@given(
    st.integers(-(2**31), 2**31 - 1),
    st.floats(min_value=2.0**-40, max_value=4.0),
)
def test_rescale_is_exact_rounding_half_up(acc: int, real: float) -> None:
    m, r = fixed_multiplier(real)
    got = int(rescale(np.array(acc, np.int64), m, r))
    assert got == math.floor(Fraction(acc * int(m), 1 << int(r)) + Fraction(1, 2))


@given(
    st.integers(-(2**46), 2**46),
    st.floats(2.0**-40, 2.0**29),
    st.integers(-300, 300),
    st.sampled_from([8, 16]),
)
def test_wide_accumulators_are_rescaled_exactly(
    acc: int, real: float, zero: int, bits: int
) -> None:
    m, r = fixed_multiplier(real)
    out = QuantParams((1.0,), max(min(zero, 127), -128), bits)
    exact = ((acc * int(m) + (1 << (int(r) - 1))) >> int(r)) + out.zero_point
    got = requantize(np.array([acc]), m, r, out, wide=True)
    assert int(got[0]) == min(max(exact, out.qmin), out.qmax)


def test_both_ways_of_rescaling_agree() -> None:
    acc = np.random.default_rng(0).integers(-(2**31), 2**31, size=(5, 300))
    m, r = fixed_multiplier(np.geomspace(2.0**-36, 2.0**14, 5))
    plain, wide = (f(acc, m[:, None], r[:, None]) for f in (rescale, rescale_wide))
    small = np.abs(plain) < 1 << 20
    assert small.any() and np.array_equal(plain[small], wide[small])


@given(st.floats(-1e4, 1e4, width=32), st.floats(2.0**-20, 10.0))
def test_quantize_rounds_half_to_even_and_saturates(x: float, s: float) -> None:
    p = QuantParams((round_scale(s),))
    want = min(max(round(float(np.float32(x)) / p.scale), -128), 127)
    assert int(quantize(np.array(x, np.float32), p)) == want


def test_quantize_then_dequantize_per_channel() -> None:
    p = QuantParams((0.5, 2.0), zero_point=3, axis=1)
    x = np.array([[1.0, 4.0], [-1.0, 400.0]], np.float32)
    q = quantize(x, p)
    assert q.tolist() == [[5, 5], [1, 127]]
    assert dequantize(q, p).tolist() == [[1.0, 4.0], [-1.0, 248.0]]


def test_non_finite_reals_have_a_defined_integer() -> None:
    p = QuantParams((1.0,), zero_point=7)
    assert quantize(np.array([np.nan, np.inf, -np.inf]), p).tolist() == [7, 127, -128]


def test_requantize_adds_the_zero_point_and_clamps() -> None:
    m, r = fixed_multiplier(0.5)
    out = QuantParams((1.0,), zero_point=-10)
    acc = np.array([1000, -1000, 3, -3], np.int32)
    assert requantize(acc, m, r, out).tolist() == [127, -128, -8, -11]
