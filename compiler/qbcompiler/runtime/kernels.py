"""Exact integer convolutions and matrix products on a floating-point library.

A float32 number holds every integer of magnitude up to 2^24, a float64 number up to 2^53. When
the sum of the absolute values of all products of one output element stays below that bound,
every partial sum of them is such an integer too, whatever the order of summation and whether
or not multiply and add are fused: nothing rounds, so the library's result is the mathematical
one. That is proven here for each call from the weights (the sum of |w| for each output channel)
and the largest |x|. Where the proof fails, the operands are split until it holds:

* values wider than nine bits into balanced base-256 digits, ``x = sum(256^i * d_i)`` with
  ``d_i`` in [-128, 128];
* the summation (input channels, then kernel positions) into parts that are added as int64.

The proof needs an algorithm that only multiplies inputs by weights and adds. ONNX Runtime's CPU
kernels do (direct and im2col products; no Winograd or FFT, which would work on transformed
weights); a test compares them with int64 arithmetic at the bound.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from ..ir import Array
from .onnx_bytes import one_node_model

__all__ = ["ExactKernels"]

_F32_EXACT = 1 << 24
_F64_EXACT = 1 << 53
_I64_EXACT = 1 << 63
_ONE_DIGIT = 512  # up to here a value is cheaper whole than as two digits
_CACHE = 16

Int64 = NDArray[np.int64]


class ExactKernels:
    """The primitives of :class:`qbcompiler.ops.spec.Kernels`.

    Sessions with the weights built in are kept between calls, so one instance should serve one
    layer. Calls may come from several threads. The result does not depend on ``threads``.

    Args:
        threads: threads for one call.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = max(1, int(threads))
        self._lock = threading.Lock()
        self._plans: dict[tuple[Any, ...], list[_Plan]] = {}

    def conv(
        self,
        x: Array,
        w: Array,
        *,
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        groups: int,
    ) -> Int64:
        """Convolve ``x`` [N, C, D…] with ``w`` [O, C/groups, K…], ONNX ``Conv`` without bias.

        Raises:
            ValueError: the operands are not integers, or a result could exceed 63 bits.
        """
        attrs = _window(strides, pads, dilations, groups)
        return self._run("Conv", x, w, attrs, groups)

    def conv_transpose(
        self,
        x: Array,
        w: Array,
        *,
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        output_padding: Sequence[int],
        groups: int,
    ) -> Int64:
        """Transposed convolution of ``x`` [N, C, D…] with ``w`` [C, O/groups, K…], no bias.

        Raises:
            ValueError: the operands are not integers, or a result could exceed 63 bits.
        """
        attrs = _window(strides, pads, dilations, groups)
        attrs["output_padding"] = [int(v) for v in output_padding]
        return self._run("ConvTranspose", x, w, attrs, groups)

    def matmul(self, a: Array, b: Array) -> Int64:
        """Return ``numpy.matmul(a, b)`` of integer arrays, exactly.

        Raises:
            ValueError: the operands are not integers, or a result could exceed 63 bits.
        """
        _require_integers(a, b)
        depth = a.shape[-1]
        peak_a, peak_b = _peak(a), _peak(b)
        bound = depth * peak_a * peak_b
        if bound >= _F32_EXACT and b.size:
            # Tighter: the largest column sum of |b|, worth it only where it may decide.
            axis = -2 if b.ndim > 1 else 0
            bound = peak_a * int(np.abs(b.astype(np.int64)).sum(axis=axis).max())
        if bound >= _I64_EXACT:
            raise ValueError("a matrix product could exceed 63 bits")
        if bound >= _F64_EXACT or a.size == 0 or b.size == 0:
            whole: Int64 = np.matmul(a.astype(np.int64), b.astype(np.int64))
            return whole
        element = "float32" if bound < _F32_EXACT else "float64"
        session = _matmul_session(element, self._threads)
        y = session.run(None, {"a": _as_float(a, element), "b": _as_float(b, element)})[0]
        product: Int64 = np.asarray(y).astype(np.int64)
        return product

    def _run(self, op: str, x: Array, w: Array, attrs: dict[str, Any], groups: int) -> Int64:
        _require_integers(x, w)
        peak = _bucket(x)
        key = (op, peak, w.shape, tuple((k, str(v)) for k, v in attrs.items()))
        with self._lock:
            plans = self._plans.setdefault(key, [])
            plan = next((p for p in plans if p.weight is w), None) or next(
                (p for p in plans if np.array_equal(p.weight, w)), None
            )
            if plan is None:
                plan = _make_plan(op, w, peak, attrs, groups, self._threads)
                del plans[_CACHE:]
                plans.insert(0, plan)
        return plan.run(x)


# -- plans --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Part:
    """One exact call: input channels ``start:stop`` of each group, digit ``digit`` of x."""

    digit: int
    shift: int  # the result counts 256^shift times
    start: int
    stop: int
    session: ort.InferenceSession


@dataclass(slots=True)
class _Plan:
    """A convolution as exact calls whose results add up."""

    weight: Array
    digits: int
    channels: int  # input channels of one group
    groups: int
    parts: list[_Part] = field(default_factory=list)

    def run(self, x: Array) -> Int64:
        digits = _digits(x, self.digits)
        total: Int64 | None = None
        for part in self.parts:
            piece = _take_channels(digits[part.digit], part, self.channels, self.groups)
            y = np.asarray(part.session.run(None, {"x": _as_float(piece, "float32")})[0])
            term = y.astype(np.int64)
            if part.shift:
                term <<= 8 * part.shift
            if total is None:
                total = term
            else:
                total += term
        assert total is not None  # a plan has at least one part
        return total


def _make_plan(
    op: str, w: Array, peak: int, attrs: dict[str, Any], groups: int, threads: int
) -> _Plan:
    by_channel = _by_channel(op, w, groups)
    reach = int(np.abs(by_channel).sum(axis=(2, 3), dtype=np.int64).max(initial=0)) * peak
    if reach >= _I64_EXACT:
        raise ValueError("a convolution could exceed 63 bits")
    x_digits = _digit_count(peak)
    w_peak = _peak(w)
    w_digits = _digit_count(w_peak)
    channels = by_channel.shape[2]
    plan = _Plan(w, x_digits, channels, groups)
    digit_peak = peak if x_digits == 1 else 128
    for j, weight in enumerate(_digits(w, w_digits)):
        if j and not np.any(weight):
            continue
        for start, stop, piece in _split(op, weight, groups, digit_peak):
            session = _session(
                one_node_model(
                    op,
                    inputs=["x"],
                    constants={"w": piece.astype(np.float32)},
                    attrs=attrs,
                ),
                threads,
            )
            for i in range(x_digits):
                plan.parts.append(_Part(i, i + j, start, stop, session))
    return plan


def _split(op: str, w: Array, groups: int, peak: int) -> list[tuple[int, int, Array]]:
    """Cut the sum over input channels into runs that are exact in float32.

    Returns ``(first channel, end, weights of that run)``; a channel whose own kernel exceeds
    the bound appears several times, each time with some of its kernel positions set to zero.
    """
    by_channel = np.abs(_by_channel(op, w, groups).astype(np.int64))
    limit = (_F32_EXACT - 1) // peak
    # worst[c]: sums of channel c for each (group, output channel)
    sums = by_channel.sum(axis=3)
    runs: list[tuple[int, int]] = []
    start = 0
    current = np.zeros(sums.shape[:2], dtype=np.int64)
    for c in range(sums.shape[2]):
        grown = current + sums[:, :, c]
        if c > start and grown.max(initial=0) > limit:
            runs.append((start, c))
            start, grown = c, sums[:, :, c].copy()
        current = grown
    runs.append((start, sums.shape[2]))
    parts: list[tuple[int, int, Array]] = []
    for first, stop in runs:
        piece = _weight_channels(op, w, groups, first, stop)
        alone = sums[:, :, first:stop].sum(axis=2)
        if alone.max(initial=0) <= limit:
            parts.append((first, stop, piece))
            continue
        for mask in _kernel_masks(by_channel[:, :, first, :], limit):
            kept = piece * mask.reshape((1, 1, *piece.shape[2:])).astype(piece.dtype)
            parts.append((first, stop, kept))
    return parts


def _kernel_masks(kernel: Int64, limit: int) -> list[NDArray[np.bool_]]:
    """Cut the kernel positions of one input channel, [groups, outputs, positions], into runs."""
    positions = kernel.shape[2]
    masks: list[NDArray[np.bool_]] = []
    start = 0
    current = np.zeros(kernel.shape[:2], dtype=np.int64)
    for k in range(positions):
        grown = current + kernel[:, :, k]
        if k > start and grown.max(initial=0) > limit:
            masks.append(_mask(positions, start, k))
            start, grown = k, kernel[:, :, k].copy()
        current = grown
    masks.append(_mask(positions, start, positions))
    return masks


def _mask(size: int, start: int, stop: int) -> NDArray[np.bool_]:
    mask = np.zeros(size, dtype=np.bool_)
    mask[start:stop] = True
    return mask


def _by_channel(op: str, w: Array, groups: int) -> Array:
    """Return the weights as [groups, outputs of a group, inputs of a group, positions]."""
    if op == "Conv":
        return w.reshape(groups, w.shape[0] // groups, w.shape[1], -1)
    inputs = w.shape[0] // groups
    return w.reshape(groups, inputs, w.shape[1], -1).transpose(0, 2, 1, 3)


def _weight_channels(op: str, w: Array, groups: int, start: int, stop: int) -> Array:
    if op == "Conv":
        return w[:, start:stop]
    inputs = w.shape[0] // groups
    by_group = w.reshape(groups, inputs, *w.shape[1:])[:, start:stop]
    return by_group.reshape(groups * (stop - start), *w.shape[1:])


def _take_channels(x: Array, part: _Part, channels: int, groups: int) -> Array:
    if part.start == 0 and part.stop == channels:
        return x
    by_group = x.reshape(x.shape[0], groups, channels, *x.shape[2:])
    taken = by_group[:, :, part.start : part.stop]
    return taken.reshape(x.shape[0], groups * (part.stop - part.start), *x.shape[2:])


# -- digits and bounds --------------------------------------------------------------------


def _require_integers(*arrays: Array) -> None:
    for array in arrays:
        if array.dtype.kind not in "iu":
            raise ValueError(f"integer kernels take integers, got {array.dtype}")


def _peak(x: Array) -> int:
    """Return the largest |x|; 128 for int8 without looking."""
    if x.dtype == np.int8:
        return 128
    if x.size == 0:
        return 0
    return max(int(x.max()), -int(x.min()))


def _bucket(x: Array) -> int:
    """Return a bound of |x| that stays the same from run to run: 128 or a power of two."""
    peak = _peak(x)
    return 128 if peak <= 128 else 1 << (peak - 1).bit_length()


def _digit_count(peak: int) -> int:
    if peak <= _ONE_DIGIT:
        return 1
    count = 1
    while peak > 128 * 256 ** (count - 1):
        count += 1
    return count


def _digits(x: Array, count: int) -> list[Array]:
    """Return balanced base-256 digits, lowest first; ``[x]`` for one digit."""
    if count == 1:
        return [x]
    rest = x.astype(np.int64)
    digits: list[Array] = []
    for _ in range(count - 1):
        low = ((rest + 128) & 255) - 128
        digits.append(low)
        rest = (rest - low) >> 8
    digits.append(rest)
    return digits


def _as_float(x: Array, element: str) -> Array:
    return np.ascontiguousarray(x, dtype=np.dtype(element))


# -- sessions -----------------------------------------------------------------------------


def _window(
    strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int], groups: int
) -> dict[str, Any]:
    return {
        "strides": [int(v) for v in strides],
        "pads": [int(v) for v in pads],
        "dilations": [int(v) for v in dilations],
        "group": int(groups),
    }


def _session(model: bytes, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # One session a layer: an arena and a memory pattern each would keep every layer's buffers,
    # and spinning pools would fight each other for the cores.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # The default, stated because exactness rests on it: no bfloat16 products on Arm.
    options.add_session_config_entry("mlas.enable_gemm_fastmath_arm64_bfloat16", "0")
    options.log_severity_level = 4  # failures come back as exceptions
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@lru_cache(maxsize=16)
def _matmul_session(element: str, threads: int) -> ort.InferenceSession:
    return _session(one_node_model("MatMul", inputs=["a", "b"], element=element), threads)
