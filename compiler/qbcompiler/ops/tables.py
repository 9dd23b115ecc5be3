"""Tables over integers.

:func:`build_table` makes the tables that a file stores, computed in float64 at compile time: 256
entries for a function of an 8-bit number, 513 with linear interpolation for one of 16 bits, or all
65536 where it has jumps or poles, which chords would cut across.
:func:`by_channel` and :func:`by_pair` are a matter of speed alone: they evaluate an integer formula
over all inputs that can occur and gather from that, which gives equal bits for far less work on
large tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..ir import Array, QuantParams

__all__ = ["build_table", "by_channel", "by_pair", "lookup", "near_tie"]

Float64 = NDArray[np.float64]

_FRACTION = 8  # fraction bits of an interpolated table's entries
_FAR = 2.0**21  # output steps at which they are cut off; a 16-bit grid has 2^16

_TIE = 2.0**-11
"""Output steps that a float32 function and its scaling may be off."""


def build_table(
    function: Callable[[Float64], Float64],
    source: QuantParams,
    out: QuantParams,
    *,
    smooth: bool = True,
) -> Array:
    """Return the table of a function.

    For an 8-bit input ``y_q`` for ``x_q = -128 … 127``, in the output's type:
    ``clamp(round_half_even(f(x) / s_out) + z_out)``. Infinities saturate. The result is the nearest
    output step, so the error is at most half a step.

    For a 16-bit input ``round_half_even(2^8 f(x) / s_out)`` as int32 for every 128th ``x_q`` from
    -32768 to 32768, kept within 2^21 output steps; :func:`lookup` interpolates. The error is at
    most half a step, and what a chord over 128 input steps differs from the function. Where the
    function is not smooth, there is an entry for each of the 65536 integers, as for 8 bits.

    Args:
        function: vectorised, defined (not NaN) on the whole grid.
        source, out: grids of input and output, one scale each.
        smooth: whether chords come close to it.

    Raises:
        ValueError: the function is undefined somewhere.
    """
    chords = source.bits > 8 and smooth
    if chords:
        steps = np.arange(-(1 << 15), (1 << 15) + 1, 128)
    else:
        steps = np.arange(source.qmin, source.qmax + 1)
    x = (steps.astype(np.float64) - source.zero_point) * source.scale
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        y = np.asarray(function(x), dtype=np.float64) / out.scale
    if np.isnan(y).any():
        raise ValueError("the function is undefined on part of the input's grid")
    if chords:
        entries: Array = np.rint(np.clip(y, -_FAR, _FAR) * (1 << _FRACTION)).astype(np.int32)
        return entries
    q = np.clip(np.rint(y) + out.zero_point, out.qmin, out.qmax)
    result: Array = q.astype(out.dtype.numpy)
    return result


def near_tie(function: Callable[[Float64], Float64], source: QuantParams, out: QuantParams) -> bool:
    """Whether the error of a float32 function could move an entry of :func:`build_table`."""
    x = (np.arange(-128, 128, dtype=np.float64) - source.zero_point) * source.scale
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        y = np.asarray(function(x), dtype=np.float64) / out.scale + out.zero_point
    y = y[(y > out.qmin - 1) & (y < out.qmax + 1)]
    return bool((np.abs(y - np.floor(y) - 0.5) < _TIE).any())


def lookup(table: Array, x: Array, out: QuantParams) -> Array:
    """Return the function of :func:`build_table` for every integer of ``x``.

    ``table[q + 128]`` for int8; ``table[q + 32768]`` for int16 where the table has all integers;
    else, with ``k = (q + 32768) >> 7`` and ``f`` the low seven bits,
    ``clamp(z + (((128 - f) table[k] + f table[k + 1] + 2^14) >> 15))``.
    """
    if x.dtype == np.int16:
        at = x.astype(np.int32) + (1 << 15)
        if len(table) == 1 << 16:
            return np.asarray(np.take(table, at))
        k, f = at >> 7, (at & 127).astype(np.int64)
        wide = table.astype(np.int64)
        y = (wide[k] * (128 - f) + wide[k + 1] * f + (1 << (6 + _FRACTION))) >> (7 + _FRACTION)
        result: Array = np.clip(y + out.zero_point, out.qmin, out.qmax).astype(out.dtype.numpy)
        return result
    by_byte = np.concatenate([table[128:], table[:128]])
    return np.asarray(np.take(by_byte, x.view(np.uint8)))


def by_channel(
    formula: Callable[[Array], Array], x: Array, constants: tuple[int, ...] = ()
) -> Array:
    """Return ``formula(x)`` of an int8 tensor.

    Args:
        formula: elementwise in ``x``, broadcasting it with constants.
        x: int8.
        constants: the broadcast shape of the formula's constants.
    """
    shape = np.broadcast_shapes(x.shape, constants)
    count = math.prod(constants)
    if x.size < 512 or 512 * count > math.prod(shape):
        return formula(x)
    every = _every().reshape((256,) + (1,) * len(constants))
    table = formula(every).reshape(256, count)  # one column for each constant
    if count == 1:
        return np.take(table, x.view(np.uint8)).reshape(shape)
    index = x.view(np.uint8).astype(np.intp) * count + np.arange(count).reshape(constants)
    return np.take(table, index)


def by_pair(formula: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """Return ``formula(a, b)``, elementwise and broadcasting, of two tensors.

    Args:
        formula: elementwise, of integers.
        a, b: any integers; int8 ones are gathered from a table of all 65536 pairs.
    """
    size = math.prod(np.broadcast_shapes(a.shape, b.shape))
    if a.dtype != np.int8 or b.dtype != np.int8 or size < 1 << 19:
        return formula(a, b)
    table = formula(_every()[:, None], _every()[None, :]).reshape(1 << 16)
    index = (a.view(np.uint8).astype(np.uint16) << 8) | b.view(np.uint8)
    return np.take(table, index)


def _every() -> NDArray[np.int8]:
    """Return all int8 numbers in the order of their bytes."""
    return np.arange(256, dtype=np.uint8).view(np.int8)
