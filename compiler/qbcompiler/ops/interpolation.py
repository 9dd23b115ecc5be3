"""Where a resized element comes from: source indices and weights of each output index.

Follows the ONNX ``Resize`` definition. Coordinates are computed in float32, as runtimes do, so
that ties of the nearest modes fall on the same side as in the float reference. (Where sizes have
no simple ratio, a runtime whose division is not correctly rounded may still see a tie one unit in
the last place aside, and pick the neighbouring element.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "COORDINATES",
    "MODES",
    "NEAREST",
    "fixed_point_taps",
    "source_coordinates",
    "taps",
]

COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
"""Coordinate modes."""

NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
"""Rounding modes of nearest interpolation."""

MODES = ("nearest", "linear", "cubic")
"""Interpolation modes."""

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


def source_coordinates(
    mode: str, size: int, out: int, scale: float, roi: tuple[float, float] = (0.0, 1.0)
) -> Float32:
    """Return the input coordinate of each of ``out`` output indices.

    Args:
        mode: one of :data:`COORDINATES`.
        size, out: lengths of the axis before and after.
        scale: the axis's scale factor.
        roi: start and end of the region of interest, for ``tf_crop_and_resize``.
    """
    f = np.float32
    x = np.arange(out, dtype=np.float32)
    s, half = f(scale), f(0.5)
    if mode == "tf_crop_and_resize":
        begin, end = f(roi[0]), f(roi[1])
        if out > 1:
            return begin * f(size - 1) + x * (end - begin) * f(size - 1) / f(out - 1)
        return np.full(1, half * (begin + end) * f(size - 1), dtype=np.float32)
    if s == 1:
        return x
    if mode == "asymmetric":
        return x / s
    if mode == "align_corners":
        return np.zeros(1, f) if out == 1 else x * f(size - 1) / f(out - 1)
    if mode == "pytorch_half_pixel" and out == 1:
        return np.zeros(1, f)
    if mode == "tf_half_pixel_for_nn":
        return (x + half) / s
    if mode == "half_pixel_symmetric":
        adjustment = f(out) / (s * f(size))
        offset = f(size) / f(2) * (f(1) - adjustment)
        wide = float(offset) + (np.arange(out) + 0.5) / float(s) - 0.5
        return wide.astype(np.float32)
    return (x + half) / s - half


def taps(
    x: Float32,
    size: int,
    mode: str,
    *,
    nearest: str = "round_prefer_floor",
    cubic_a: float = -0.75,
    exclude_outside: bool = False,
) -> tuple[Int64, Float64]:
    """Return source indices and weights, each [outputs, taps]; the weights of a row sum to 1.

    Args:
        x: input coordinates.
        size: length of the input axis.
        mode: one of :data:`MODES`.
        nearest: one of :data:`NEAREST`.
        cubic_a: the cubic kernel's parameter (Keys 1981).
        exclude_outside: whether cubic taps outside the input have no weight.
    """
    if mode == "nearest":
        index = np.clip(_round(x, nearest), 0, size - 1)
        return index[:, None], np.ones((len(x), 1))
    if mode == "linear":
        inside = np.clip(x, np.float32(0), np.float32(size - 1))
        low: Int64 = np.floor(inside).astype(np.int64)
        high = np.minimum(low + 1, size - 1)
        part = inside.astype(np.float64) - low
        return np.stack([low, high], axis=1), np.stack([1.0 - part, part], axis=1)
    base: Int64 = np.floor(x).astype(np.int64)
    index = base[:, None] + np.arange(-1, 3)[None, :]
    distance = np.abs(x.astype(np.float64)[:, None] - index)
    a = cubic_a
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    weight = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
    if exclude_outside:
        weight = np.where((index >= 0) & (index < size), weight, 0.0)
        weight = weight / weight.sum(axis=1, keepdims=True)
    return np.clip(index, 0, size - 1), weight


def _round(x: Float32, mode: str) -> Int64:
    floor = np.floor(x)
    if mode == "floor":
        found = floor
    elif mode == "ceil":
        found = np.ceil(x)
    elif mode == "round_prefer_ceil":
        found = np.floor(x + np.float32(0.5))
    else:
        found = np.where(x - floor <= np.float32(0.5), floor, floor + 1)
    result: Int64 = found.astype(np.int64)
    return result


def fixed_point_taps(weight: Float64, bits: int) -> NDArray[np.int32]:
    """Round weights to ``bits`` fraction bits so that each row still sums to exactly 1."""
    one = 1 << bits
    fixed: Int64 = np.rint(weight * one).astype(np.int64)
    rest = one - fixed.sum(axis=1)
    fixed[np.arange(len(fixed)), np.argmax(np.abs(weight), axis=1)] += rest
    return fixed.astype(np.int32)


def scaled_size(size: int, scale: float) -> int:
    """Return ``floor(size * scale)`` as runtimes compute it, in float32."""
    return int(np.float32(size) * np.float32(scale))


def resized(shape: Sequence[int], scales: Sequence[float]) -> tuple[int, ...]:
    """Return the shape that scale factors give."""
    return tuple(scaled_size(d, s) for d, s in zip(shape, scales, strict=True))
