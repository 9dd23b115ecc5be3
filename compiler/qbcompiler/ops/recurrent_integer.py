"""The integer form of recurrent layers.

A step is two integer products, of the input with ``W`` and of the state with ``R``, brought to a
common scale of 2^-16, where the biases are. Gates are curves through 513 points of the sigmoid and
the hyperbolic tangent over [-16, 16], joined by straight lines, in steps of 2^-15:

* a gate is within ``2^-11`` of the function (the chord of a cell of 1/16 is at most
  ``max|f''| / 2048`` off) plus the rounding of its argument,
* the state of all three layers and the cell of an LSTM are kept in steps of 2^-15 between steps
  of time, never on the 8-bit grid of the output; only what leaves the layer is requantized.

What separates the result from the float layer is thus, above all, the rounding of the weights.
The scheme of 8-bit products with wider gates and cell is that of Li and Alvarez, "On the
quantization of recurrent neural networks" (2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir import Array, QuantParams
from .affine import MAX_RATIO
from .common import span_of
from .fixedpoint import fixed_multiplier, requantize, rescale, rescale_wide
from .spec import Kernels
from .weights import round_scales

__all__ = [
    "MAX_STATE",
    "STATE_BITS",
    "Steps",
    "clamp_cell",
    "clamp_state",
    "finish",
    "fixed",
    "product",
    "quantize_recurrent",
    "real_bias",
    "real_weights",
]

STATE_BITS = 15
"""Fraction bits of gates, state and cell."""

MAX_STATE = 1000
"""Units of a state for which its product with 8-bit weights stays below 2^32."""

_SUM_BITS = 16
_CELL = 12  # bits of a position within a cell of a curve: 2^12 / 2^16 = 1/16
_REACH = 16
_CELL_LIMIT = (1 << 31) - 1

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


def quantize_recurrent(
    w: Float64,
    r: Float64,
    bias: Float64,
    source: QuantParams,
    out: QuantParams,
    bits: int,
) -> dict[str, Array]:
    """Return the tensors of the integer layer but ``recurrent_bias``.

    Args:
        w, r: [directions, rows, inputs] and [directions, rows, units].
        bias: [directions, rows]: what is added to both products.
        source, out: grids of input and output.
        bits: of the weights, 4 or 8.

    Raises:
        ValueError: a weight is not finite, or a bit width is not served.
    """
    if bits not in (4, 8):
        raise ValueError(f"{bits}-bit weights are not supported, only 4 and 8")
    if not all(np.isfinite(a).all() for a in (w, r, bias)):
        raise ValueError("the weights or the bias hold a value that is not finite")
    room = 32 if source.bits <= 8 else 46  # an accumulator's bits, as for other products
    if w.shape[2] * 127 * span_of(source) >= 1 << room:
        raise ValueError(f"a sum of {w.shape[2]} products may overflow {room} bits")
    tensors: dict[str, Array] = {"bias": fixed(bias)}
    for prefix, data, step in (
        ("", w, source.scale),
        ("recurrent_", r, 2.0**-STATE_BITS),
    ):
        qmax = (1 << (bits - 1)) - 1
        scales = round_scales(np.abs(data).max(axis=2, initial=0.0) / qmax)
        levels = np.clip(np.rint(data / scales[:, :, None]), -qmax, qmax)
        ratio = np.minimum(scales * (step * 2.0**_SUM_BITS), MAX_RATIO)
        multiplier, shift = fixed_multiplier(ratio)
        tensors[f"{prefix}weight"] = levels.astype(np.int8)
        tensors[f"{prefix}multiplier"] = multiplier.astype(np.int32)
        tensors[f"{prefix}shift"] = shift
        tensors[f"{prefix}scale"] = scales.astype(np.float32)
    m, s = fixed_multiplier(min(2.0**-STATE_BITS / out.scale, MAX_RATIO))
    tensors["out_multiplier"], tensors["out_shift"] = m.astype(np.int32), s
    points = np.linspace(-_REACH, _REACH, (2 * _REACH << _SUM_BITS >> _CELL) + 1)
    one = 1 << STATE_BITS
    for name, curve in (("sigmoid", 1.0 / (1.0 + np.exp(-points))), ("tanh", np.tanh(points))):
        tensors[name] = np.clip(np.rint(curve * one), -one, one - 1).astype(np.int16)
    return tensors


def fixed(real: Float64) -> NDArray[np.int32]:
    """Return real numbers in steps of a sum; beyond the curves' reach they saturate."""
    limit = 1 << 30
    return np.clip(np.rint(real * (1 << _SUM_BITS)), -limit, limit).astype(np.int32)


def real_weights(tensors: Mapping[str, Array], prefix: str = "") -> NDArray[np.float32]:
    """Return the float weights that the integers stand for."""
    levels = tensors[f"{prefix}weight"].astype(np.float64)
    scales = tensors[f"{prefix}scale"].astype(np.float64)
    real: NDArray[np.float32] = (levels * scales[:, :, None]).astype(np.float32)
    return real


def real_bias(fixed_bias: Array) -> NDArray[np.float32]:
    """Reverse :func:`fixed`."""
    real: NDArray[np.float32] = (fixed_bias.astype(np.float64) / (1 << _SUM_BITS)).astype(
        np.float32
    )
    return real


@dataclass(slots=True)
class Steps:
    """The arithmetic of one direction of a layer.

    Attributes:
        tensors: the layer's.
        direction: index of the direction.
        kernels: exact primitives.
        wide: whether the input has 16 bits, so that its sums need more than 32.
    """

    tensors: Mapping[str, Array]
    direction: int
    kernels: Kernels
    wide: bool = False

    def __getitem__(self, name: str) -> Array:
        part: Array = self.tensors[name][self.direction]
        return part

    def inputs(self, x: Array) -> Int64:
        """Return ``W x + b`` of all steps, [time, batch, rows], in steps of a sum."""
        acc = self.kernels.matmul(x, np.ascontiguousarray(self["weight"].T))
        scaled = rescale_wide if self.wide else rescale
        total = scaled(acc, self["multiplier"], self["shift"])
        total += self["bias"].astype(np.int64)
        return total

    def state(self, h: Int64, rows: slice) -> Int64:
        """Return ``R h`` of some rows, [batch, rows], in steps of a sum."""
        weight = np.ascontiguousarray(self["recurrent_weight"][rows].T)
        acc = self.kernels.matmul(h.astype(np.int16), weight)
        return rescale(acc, self["recurrent_multiplier"][rows], self["recurrent_shift"][rows])

    def curve(self, name: str, x: Int64) -> Int64:
        """Return ``sigmoid`` or ``tanh`` of a sum, in steps of a state."""
        table = self.tensors[name].astype(np.int64)
        place = np.clip(x + (_REACH << _SUM_BITS), 0, (2 * _REACH << _SUM_BITS) - 1)
        cell, part = place >> _CELL, place & ((1 << _CELL) - 1)
        low = table[cell]
        y: Int64 = low + (((table[cell + 1] - low) * part + (1 << (_CELL - 1))) >> _CELL)
        return y

    def tanh_of_cell(self, c: Int64) -> Int64:
        """Return ``tanh`` of an LSTM's cell."""
        return self.curve("tanh", c << (_SUM_BITS - STATE_BITS))


def product(*pairs: tuple[Int64, Int64]) -> Int64:
    """Return the rounded sum of products of numbers in steps of a state."""
    total: Int64 = np.asarray(sum(a * b for a, b in pairs), dtype=np.int64)
    total += 1 << (STATE_BITS - 1)
    total >>= STATE_BITS
    return total


def clamp_cell(c: Int64) -> Int64:
    """Keep an LSTM's cell within 32 bits."""
    clamped: Int64 = np.clip(c, -_CELL_LIMIT, _CELL_LIMIT)
    return clamped


def clamp_state(h: Int64) -> Int64:
    """Keep a state within 16 bits."""
    one = 1 << STATE_BITS
    clamped: Int64 = np.clip(h, -one + 1, one - 1)
    return clamped


def finish(state: Int64, tensors: Mapping[str, Any], out: QuantParams) -> Array:
    """Return states on the output's grid."""
    return requantize(state, tensors["out_multiplier"], tensors["out_shift"], out)
