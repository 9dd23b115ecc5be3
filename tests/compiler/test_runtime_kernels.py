"""The exact kernels against plain int64 arithmetic, in the middle and at the proof's edge."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qbcompiler.runtime import ExactKernels
from qbcompiler.runtime import kernels as module


def conv_oracle(x, w, strides, pads, dilations, groups):
    """Direct convolution in int64, any rank, written from the definition."""
    x = x.astype(np.int64)
    w = w.astype(np.int64)
    rank = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0)] + [(pads[i], pads[i + rank]) for i in range(rank)])
    outputs, per_group = w.shape[:2]
    size = [
        (x.shape[2 + i] - dilations[i] * (w.shape[2 + i] - 1) - 1) // strides[i] + 1
        for i in range(rank)
    ]
    y = np.zeros((x.shape[0], outputs, *size), dtype=np.int64)
    for o in range(outputs):
        base = (o // (outputs // groups)) * per_group
        for c in range(per_group):
            for k in np.ndindex(*w.shape[2:]):
                window = tuple(
                    slice(
                        k[i] * dilations[i],
                        k[i] * dilations[i] + (size[i] - 1) * strides[i] + 1,
                        strides[i],
                    )
                    for i in range(rank)
                )
                y[:, o] += w[(o, c, *k)] * x[(slice(None), base + c, *window)]
    return y


def conv_transpose_oracle(x, w, strides, pads, dilations, output_padding, groups):
    x = x.astype(np.int64)
    w = w.astype(np.int64)
    rank = x.ndim - 2
    per_group = w.shape[1]
    in_group = x.shape[1] // groups
    full = [
        (x.shape[2 + i] - 1) * strides[i]
        + dilations[i] * (w.shape[2 + i] - 1)
        + 1
        + output_padding[i]
        for i in range(rank)
    ]
    y = np.zeros((x.shape[0], per_group * groups, *full), dtype=np.int64)
    for c in range(x.shape[1]):
        group = c // in_group
        for o in range(per_group):
            for k in np.ndindex(*w.shape[2:]):
                window = tuple(
                    slice(
                        k[i] * dilations[i],
                        k[i] * dilations[i] + (x.shape[2 + i] - 1) * strides[i] + 1,
                        strides[i],
                    )
                    for i in range(rank)
                )
                y[(slice(None), group * per_group + o, *window)] += w[(c, o, *k)] * x[:, c]
    crop = tuple(slice(pads[i], full[i] - pads[i + rank]) for i in range(rank))
    return y[(slice(None), slice(None), *crop)]


@st.composite
def conv_cases(draw):
    rank = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    per_group = draw(st.integers(1, 4))
    outputs = groups * draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    strides = [draw(st.integers(1, 2)) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    pads = [draw(st.integers(0, 2)) for _ in range(2 * rank)]
    size = tuple(
        d * (k - 1) + 1 + draw(st.integers(0, 3)) for d, k in zip(dilations, kernel, strict=True)
    )
    x_bits = draw(st.sampled_from([8, 8, 9, 16]))
    w_bits = draw(st.sampled_from([4, 8, 16]))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    x_limit, w_limit = 1 << (x_bits - 1), 1 << (w_bits - 1)
    x = rng.integers(-x_limit, x_limit, (draw(st.integers(1, 2)), groups * per_group, *size))
    x = x.astype(np.int8 if x_bits == 8 else np.int32)
    return x, (outputs, per_group, *kernel), w_limit, rng, strides, pads, dilations, groups


@settings(max_examples=60, deadline=None)
@given(conv_cases())
def test_conv_equals_int64(case):
    x, shape, limit, rng, strides, pads, dilations, groups = case
    w = rng.integers(-limit, limit, shape).astype(np.int16)
    got = ExactKernels().conv(x, w, strides=strides, pads=pads, dilations=dilations, groups=groups)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, conv_oracle(x, w, strides, pads, dilations, groups))


@settings(max_examples=60, deadline=None)
@given(conv_cases(), st.data())
def test_conv_transpose_equals_int64(case, data):
    x, shape, limit, rng, strides, pads, dilations, groups = case
    outputs, per_group, *kernel = shape
    w = rng.integers(-limit, limit, (groups * per_group, outputs // groups, *kernel))
    w = w.astype(np.int32)
    rank = len(kernel)
    padding = [data.draw(st.integers(0, strides[i] - 1)) for i in range(rank)]
    full = [
        (x.shape[2 + i] - 1) * strides[i] + dilations[i] * (kernel[i] - 1) + 1 + padding[i]
        for i in range(rank)
    ]
    pads = [min(p, (full[i % rank] - 1) // 2) for i, p in enumerate(pads)]
    got = ExactKernels().conv_transpose(
        x,
        w,
        strides=strides,
        pads=pads,
        dilations=dilations,
        output_padding=padding,
        groups=groups,
    )
    want = conv_transpose_oracle(x, w, strides, pads, dilations, padding, groups)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("channels", [113, 114, 115, 512])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_conv_at_the_largest_values(channels, sign, threads):
    """3x3 over 114 channels at |x| = 128, |w| = 127 is the last sum below 2^24; then it splits."""
    x = np.full((1, channels, 6, 7), -128, dtype=np.int8)
    w = np.full((4, channels, 3, 3), 127 * sign, dtype=np.int8)
    w[1, ::2] *= -1
    kernels = ExactKernels(threads)
    geometry = {"strides": [1, 1], "dilations": [1, 1], "groups": 1, "pads": [1, 1, 1, 1]}
    got = kernels.conv(x, w, **geometry)
    np.testing.assert_array_equal(got, conv_oracle(x, w, [1, 1], [1] * 4, [1, 1], 1))
    (plans,) = kernels._plans.values()
    assert len(plans[0].parts) == -(-channels // 114)
    assert kernels.conv(x, w.copy(), **geometry).sum() == got.sum()
    assert len(plans) == 1, "equal weights must not build a second session"


def test_odd_sums_just_below_and_above_the_bound():
    """Sums of 2^24 - 1 and 2^24 + 1: the second does not exist in float32."""
    for reach in ((1 << 24) - 1, (1 << 24) + 1):
        x = np.array([1, reach // 3], dtype=np.int32).reshape(1, 2, 1, 1)
        w = np.array([reach - 3 * (reach // 3), 3], dtype=np.int32).reshape(1, 2, 1, 1)
        got = ExactKernels().conv(x, w, strides=[1, 1], pads=[0] * 4, dilations=[1, 1], groups=1)
        assert got.item() == reach


def test_one_channel_whose_kernel_exceeds_the_bound():
    x = np.full((1, 1, 40, 40), 127, dtype=np.int8)
    w = np.full((2, 1, 40, 40), 127, dtype=np.int8)
    w[1] = -127
    kernels = ExactKernels()
    got = kernels.conv(x, w, strides=[1, 1], pads=[0] * 4, dilations=[1, 1], groups=1)
    assert got.ravel().tolist() == [127 * 127 * 1600, -127 * 127 * 1600]
    ((plan,),) = kernels._plans.values()
    assert len(plan.parts) == 2


def test_sixteen_bit_operands_at_their_limits():
    x = np.array([-32768, 32767, -32768, 12345], dtype=np.int16).reshape(1, 4, 1, 1)
    w = np.array([[-32768, 32767, 32767, -1], [1, 2, 3, 4]], dtype=np.int16).reshape(2, 4, 1, 1)
    got = ExactKernels().conv(x, w, strides=[1, 1], pads=[0] * 4, dilations=[1, 1], groups=1)
    want = (w.reshape(2, 4).astype(np.int64) * x.reshape(4).astype(np.int64)).sum(axis=1)
    assert got.ravel().tolist() == want.tolist()


def test_typical_network_layers_are_exact_and_whole():
    """The shapes for which libraries pick special kernels: 3x3, 1x1, 5x5 and 7x7 depthwise."""
    rng = np.random.default_rng(5)
    for channels, outputs, kernel, groups in [
        (64, 64, 3, 1),
        (64, 96, 1, 1),
        (48, 48, 5, 48),
        (48, 48, 7, 48),
        (64, 64, 3, 4),
        (3, 16, 3, 1),
    ]:
        x = rng.integers(-128, 128, (1, channels, 14, 14)).astype(np.int8)
        w = rng.integers(-127, 128, (outputs, channels // groups, kernel, kernel)).astype(np.int8)
        pads = [kernel // 2] * 4
        kernels = ExactKernels(2)
        got = kernels.conv(x, w, strides=[1, 1], pads=pads, dilations=[1, 1], groups=groups)
        np.testing.assert_array_equal(got, conv_oracle(x, w, [1, 1], pads, [1, 1], groups))
        ((plan,),) = kernels._plans.values()
        assert len(plan.parts) == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([8, 16, 24]), st.booleans())
def test_matmul_equals_int64(seed, bits, batched):
    rng = np.random.default_rng(seed)
    m, k, n = rng.integers(1, 9), rng.integers(1, 3000), rng.integers(1, 9)
    limit = 1 << (bits - 1)
    lead = (2,) if batched else ()
    a = rng.integers(-limit, limit, (*lead, m, k)).astype(np.int32)
    b = rng.integers(-limit, limit, (k, n)).astype(np.int32)
    np.testing.assert_array_equal(
        ExactKernels().matmul(a, b), np.matmul(a.astype(np.int64), b.astype(np.int64))
    )


@pytest.mark.parametrize("depth", [1023, 1024, 1025, 5000])
def test_matmul_at_the_largest_values(depth):
    a = np.full((3, depth), -128, dtype=np.int8)
    b = np.full((depth, 2), -128, dtype=np.int8)
    b[0, 1] = 127
    want = np.matmul(a.astype(np.int64), b.astype(np.int64))
    np.testing.assert_array_equal(ExactKernels().matmul(a, b), want)


def test_matmul_beyond_float64():
    a = np.array([[(1 << 31) - 1, 1 << 30]], dtype=np.int64)
    b = np.array([[(1 << 30) + 1], [3]], dtype=np.int64)
    assert ExactKernels().matmul(a, b).item() == ((1 << 31) - 1) * ((1 << 30) + 1) + 3 * (1 << 30)
    with pytest.raises(ValueError, match="63 bits"):
        ExactKernels().matmul(np.full((1, 4), 1 << 31), np.full((4, 1), 1 << 31))


def test_floats_are_refused():
    with pytest.raises(ValueError, match="float32"):
        ExactKernels().matmul(np.ones((1, 1), np.float32), np.ones((1, 1), np.int8))


def test_digits_recompose():
    x = np.arange(-(1 << 17), 1 << 17, dtype=np.int64)
    low, middle, high = module._digits(x, 3)
    assert max(np.abs(low).max(), np.abs(middle).max(), np.abs(high).max()) <= 128
    np.testing.assert_array_equal(low + 256 * middle + 65536 * high, x)
