"""The fixed-point arithmetic that every integer kernel shares.

``x = s * (q - z)``; requantization follows the integer-only scheme of Jacob et al., "Quantization
and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference" (CVPR 2018),
with a 31-bit multiplier and one rounding shift in 64 bits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..ir import Array, QuantParams

__all__ = [
    "SCALE_BITS",
    "WIDE_BITS",
    "dequantize",
    "fixed_multiplier",
    "quantize",
    "requantize",
    "rescale",
    "rescale_wide",
    "round_scale",
]

SCALE_BITS = 12
"""Significant bits of a scale: hides last-bit noise of float calibration."""

WIDE_BITS = 46
"""Bits of an accumulator's magnitude where an operand has 16 bits."""

Int64 = NDArray[np.int64]

_PART = 1 << 15  # elements of a tensor worked on at a time


def round_scale(scale: float) -> float:
    """Round a positive scale to float32 with :data:`SCALE_BITS` significant bits.

    Zero, subnormal or non-finite input gives 1.0 (a tensor that is always zero has no scale).
    """
    if not math.isfinite(scale) or scale < 2.0**-100:
        return 1.0
    mantissa, exponent = math.frexp(scale)
    return float(np.float32(math.ldexp(round(mantissa * (1 << SCALE_BITS)), exponent - SCALE_BITS)))


def fixed_multiplier(real: ArrayLike) -> tuple[Int64, NDArray[np.int8]]:
    """Return ``M`` in [2^30, 2^31) and ``r`` such that ``M / 2^r`` is nearest to ``real``.

    Args:
        real: non-negative finite multipliers, any shape. Zero gives ``M = 0, r = 31``.

    Returns:
        ``(M, r)``: int64 and int8 arrays of that shape. ``r`` is kept within [1, 62]: a
        multiplier below 2^-32 would need more, rounds to nothing anyway and becomes ``M >> n``.

    Raises:
        ValueError: a multiplier is negative, not finite, or 2^30 or more.
    """
    values = np.asarray(real, dtype=np.float64)
    if not np.all(np.isfinite(values)) or np.any(values < 0):
        raise ValueError("multipliers must be finite and not negative")
    mantissa, exponent = np.frexp(values)
    m = np.rint(mantissa * float(1 << 31)).astype(np.int64)
    over = m == (1 << 31)
    m = np.where(over, m >> 1, m)
    exponent = np.where(over, exponent + 1, exponent)
    r = (31 - exponent).astype(np.int64)
    r = np.where(m == 0, 31, r)
    excess = np.maximum(r - 62, 0)
    m = np.where(excess > 0, m >> np.minimum(excess, 62), m)
    r = np.minimum(r, 62)
    if np.any(r < 1):
        raise ValueError("a multiplier of 2^30 or more has no fixed-point form")
    return m, r.astype(np.int8)


def rescale(acc: Array, m: ArrayLike, r: ArrayLike) -> Int64:
    """Return ``(acc * M + 2^(r-1)) >> r`` in 64 bits; ``M`` and ``r`` broadcast over ``acc``.

    ``acc * M`` must stay below 2^63: |acc| < 2^32 with the full 31-bit ``M``.
    """
    shift = np.asarray(r, dtype=np.int64)
    half = np.left_shift(np.int64(1), shift - 1)
    q: Int64 = np.asarray(np.multiply(acc, np.asarray(m, dtype=np.int64), dtype=np.int64))
    q += half
    q >>= shift
    return q


def rescale_wide(acc: Array, m: ArrayLike, r: ArrayLike) -> Int64:
    """Return the same as :func:`rescale` for accumulators of up to :data:`WIDE_BITS` bits.

    The product has up to 77 bits, so it is taken in halves: with ``acc = 2^16 a + b``,
    ``floor((2^16 a M + b M + 2^(r-1)) / 2^r) = (a M + ((b M + 2^(r-1)) >> 16)) >> (r - 16)``.
    For ``r < 16``, ``a M`` is clamped to 2^40 before it is shifted left: what is beyond saturates
    every grid.
    """
    wide = np.asarray(acc, dtype=np.int64)
    factor, shift = np.asarray(m, dtype=np.int64), np.asarray(r, dtype=np.int64)
    up = np.maximum(16 - shift, 0)
    low = (wide & 0xFFFF) * factor + np.left_shift(np.int64(1), shift - 1)
    low = (low << up) >> 16
    high = (wide >> 16) * factor
    if up.any():
        limit = 1 << 40
        high = np.where(up > 0, np.clip(high, -limit, limit) << up, high)
    q: Int64 = np.asarray((high + low) >> np.maximum(shift - 16, 0))
    return q


def requantize(
    acc: Array, m: ArrayLike, r: ArrayLike, out: QuantParams, *, wide: bool = False
) -> Array:
    """Return ``clamp(z + ((acc * M + 2^(r-1)) >> r))`` in the output's storage type.

    ``M`` and ``r`` broadcast over ``acc``. Works through large tensors in parts that stay in the
    cache, which changes no bit.

    Args:
        acc: integers of magnitude below 2^32, or 2^:data:`WIDE_BITS` where ``wide``.
        m, r: as :func:`fixed_multiplier` gives them.
        out: the output's grid.
        wide: whether the accumulators may need more than 32 bits: an operand has 16.
    """
    multiplier, shift = np.asarray(m, dtype=np.int64), np.asarray(r, dtype=np.int64)
    result: Array = np.empty(acc.shape, dtype=out.dtype.numpy)
    if acc.size <= _PART or acc.ndim < 2:
        _requantize_part(acc, multiplier, shift, out, result, wide)
        return result
    multiplier = np.broadcast_to(multiplier, acc.shape)
    shift = np.broadcast_to(shift, acc.shape)
    rows = max(1, _PART * acc.shape[0] * acc.shape[1] // acc.size)
    for i in range(acc.shape[0]):
        for start in range(0, acc.shape[1], rows):
            part = (i, slice(start, start + rows))
            _requantize_part(acc[part], multiplier[part], shift[part], out, result[part], wide)
    return result


def _requantize_part(
    acc: Array, m: Int64, r: Int64, out: QuantParams, result: Array, wide: bool
) -> None:
    q = rescale_wide(acc, m, r) if wide else rescale(acc, m, r)
    if out.zero_point:
        q += out.zero_point
    np.maximum(q, out.qmin, out=q)
    np.minimum(q, out.qmax, out=q)
    result[...] = q


def quantize(x: Array, params: QuantParams) -> Array:
    """Return ``clamp(round_half_even(x / s) + z, qmin, qmax)``.

    The division is done in float64 on a float32 scale; NaN becomes the zero point.
    """
    real = np.asarray(x)
    result: Array = np.empty(real.shape, dtype=params.dtype.numpy)
    if params.axis is not None or real.ndim == 0:
        scales = params.scale_array(real.ndim).astype(np.float64)
        result[...] = _on_grid(real.astype(np.float64) / scales, params)
        return result
    scale = np.float64(np.float32(params.scale))
    flat, out = real.reshape(-1), result.reshape(-1)
    for start in range(0, flat.size, _PART):
        part = flat[start : start + _PART].astype(np.float64)
        part /= scale
        out[start : start + _PART] = _on_grid(part, params)
    return result


def _on_grid(scaled: NDArray[np.float64], params: QuantParams) -> NDArray[np.float64]:
    q = np.rint(scaled)
    q += params.zero_point
    q = np.minimum(np.maximum(q, params.qmin), params.qmax)
    return np.where(np.isnan(q), float(params.zero_point), q) if np.isnan(q).any() else q


def dequantize(q: Array, params: QuantParams) -> NDArray[np.float32]:
    """Return ``s * (q - z)`` as float32."""
    real: NDArray[np.float32] = q.astype(np.float32)
    if params.zero_point:
        real -= np.float32(params.zero_point)
    real *= params.scale_array(q.ndim)
    return real
