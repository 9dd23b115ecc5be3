"""Constant weights on integer grids, with the proof that the accumulator cannot overflow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..ir import Array, QuantParams
from .common import span_of
from .fixedpoint import SCALE_BITS, WIDE_BITS, fixed_multiplier, requantize

__all__ = [
    "ACC_LIMIT",
    "WIDE_ACC_LIMIT",
    "LinearParts",
    "finish_linear",
    "quantize_linear",
    "round_scales",
]

ACC_LIMIT = (1 << 31) - 1
"""Largest magnitude of an int32 accumulator, bias included."""

WIDE_ACC_LIMIT = (1 << WIDE_BITS) - 1
"""The same where weights or input have 16 bits."""

# An accumulator step is never finer than this part of an output step: it would add nothing, and
# keeps the scale of channels whose weights are (almost) all zero well defined.
_FINEST = 2.0**-24
_FINEST_WIDE = 2.0**-31
_MAX_RATIO = 2.0**29

Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LinearParts:
    """Integer weights of a linear layer.

    Attributes:
        weight: int8 (int16 for 16 bits), [output channels, products of one output].
        bias: int32 (int64 where weights or input have 16 bits), one for each output channel, at
            scale ``s_in * scales[c]``.
        multiplier, shift: int32 and int8, the requantization of each channel.
        scales: float32 weight scales.
    """

    weight: Array
    bias: Array
    multiplier: NDArray[np.int32]
    shift: NDArray[np.int8]
    scales: NDArray[np.float32]


def round_scales(scales: Float64) -> Float64:
    """Round positive scales as :func:`~qbcompiler.ops.fixedpoint.round_scale` does, vectorised."""
    mantissa, exponent = np.frexp(scales)
    rounded = np.ldexp(np.rint(mantissa * (1 << SCALE_BITS)), exponent - SCALE_BITS)
    return np.where(scales < 2.0**-100, 1.0, rounded).astype(np.float32).astype(np.float64)


def quantize_linear(
    rows: Float64,
    bias: Float64 | None,
    source: QuantParams,
    out: QuantParams,
    bits: int = 8,
    steps: Float64 | None = None,
) -> LinearParts:
    """Quantize weights symmetrically, one scale for each output channel.

    The scale is ``max|w| / qmax``, or what ``steps`` wants, raised where the bias or the
    accumulator would not fit:
    ``sum|w_q| * max|x_q - z| + |bias_q|`` is at most 2^31 - 1, or 2^46 - 1 where weights or input
    have 16 bits, for every channel of the result, whatever the input.

    Args:
        rows: [output channels, products of one output].
        bias: [output channels], real; None for zero.
        source, out: grids of input and output.
        bits: 4, 8 or 16.
        steps: [output channels], scales to take in place of those that the largest weight gives;
            what they do not reach is clipped.

    Raises:
        ValueError: a weight or bias is not finite, or the bit width is not served.
    """
    if bits not in (4, 8, 16):
        raise ValueError(f"{bits}-bit weights are not supported, only 4, 8 and 16")
    wide = bits > 8 or source.bits > 8
    limit = WIDE_ACC_LIMIT if wide else ACC_LIMIT
    finest = _FINEST_WIDE if wide or out.bits > 8 else _FINEST
    offset = np.zeros(len(rows)) if bias is None else bias
    if not (np.isfinite(rows).all() and np.isfinite(offset).all()):
        raise ValueError("the weights or the bias hold a value that is not finite")
    qmax = (1 << (bits - 1)) - 1
    wanted = np.abs(rows).max(axis=1, initial=0.0) / qmax if steps is None else steps
    nudge = 1.0 + 2.0 ** (1 - SCALE_BITS)  # rounding the scale must not undo a raise
    raised = np.maximum(
        np.abs(offset) * (nudge / (source.scale * ((limit + 1) / 2))),
        out.scale / source.scale * finest,
    )
    scales = round_scales(np.maximum(wanted, raised))
    span = span_of(source)
    while True:
        weight = np.clip(np.rint(rows / scales[:, None]), -qmax, qmax)
        offset_q = np.rint(offset / (source.scale * scales))
        total = np.abs(weight).sum(axis=1) * span + np.abs(offset_q)
        bad = total > limit
        if not bad.any():
            break
        scales = np.where(bad, round_scales(scales * (total / limit) * nudge), scales)
    real = np.minimum(source.scale * scales / out.scale, _MAX_RATIO)
    multiplier, shift = fixed_multiplier(real)
    return LinearParts(
        weight.astype(np.int16 if bits > 8 else np.int8),
        offset_q.astype(np.int64 if wide else np.int32),
        multiplier.astype(np.int32),
        shift,
        scales.astype(np.float32),
    )


def finish_linear(
    acc: NDArray[np.int64], tensors: dict[str, Array], out: QuantParams, axis: int
) -> Array:
    """Add the bias along ``axis`` and requantize each channel; ``acc`` is overwritten."""
    shape = [1] * acc.ndim
    shape[axis] = -1
    acc += tensors["bias"].reshape(shape).astype(np.int64)
    return requantize(
        acc,
        tensors["multiplier"].reshape(shape).astype(np.int64),
        tensors["shift"].reshape(shape).astype(np.int64),
        out,
        wide=tensors["bias"].dtype == np.int64,
    )
