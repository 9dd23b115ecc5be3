"""Sums of scaled integers: ``y = clamp((x_1*M_1 + x_2*M_2 + ... + C) >> r)``.

Adding, subtracting, scaling, shifting and re-gridding activations are all of this form: with
``x_i = s_i * (q_i - z_i)`` and ``y = s_y * (q_y - z_y)``,

    q_y = z_y + sum(k_i * s_i / s_y * (q_i - z_i)) + c / s_y.

The ratios ``k_i * s_i / s_y`` become integers ``M_i`` with one common shift ``r``; the constant,
the zero points and the rounding half go into ``C``. Real constants thus enter at the resolution
of ``2^-r`` output steps and cost no accuracy. ``r`` is the largest shift for which every ``M_i``
fits 31 bits and no sum can leave 62 bits, so the result is within ``0.5 + span * 2^-30`` steps
of the real one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..ir import Array, IntLayer, Node, QuantParams
from .common import activations, float64, grid_of, span_of
from .spec import Affine, QuantContext
from .tables import by_channel, by_pair

__all__ = ["MAX_RATIO", "affine_form", "affine_layer", "affine_tensors", "run_affine"]

MAX_RATIO = 2.0**29
"""Ratios are clamped here: one input step already saturates any output grid."""

_MAX_SHIFT = 48
_LIMIT = 2.0**61

Int64 = NDArray[np.int64]


def affine_tensors(
    ratios: Sequence[ArrayLike],
    constant: ArrayLike,
    inputs: Sequence[QuantParams],
    out: QuantParams,
) -> tuple[dict[str, Array], int]:
    """Return the tensors ``multiplier_I`` and ``constant``, and the shift.

    Args:
        ratios: for each input its real factor in output steps per input step, a scalar or an
            array that broadcasts over the input.
        constant: real constant in output steps; infinities saturate.
        inputs: the inputs' grids.
        out: the output's grid.

    Raises:
        ValueError: a ratio or the constant is not a number.
    """
    factors = [np.clip(float64(np.asarray(k)), -MAX_RATIO, MAX_RATIO) for k in ratios]
    offset = float64(np.asarray(constant))
    if any(np.isnan(k).any() for k in factors) or np.isnan(offset).any():
        raise ValueError("a constant is not a number")
    # A constant beyond what the inputs can make up for saturates the output: nothing is lost
    # by clamping it to that point, and the sum stays bounded.
    reach = sum(
        float(np.abs(k).max(initial=0.0)) * span_of(p) for k, p in zip(factors, inputs, strict=True)
    )
    bound = reach + 4.0 * (out.qmax - out.qmin + 1)
    offset = np.clip(offset, -bound, bound)
    largest = max((float(np.abs(k).max(initial=0.0)) for k in factors), default=0.0)
    shift = _MAX_SHIFT
    if largest > 0.0:
        shift = min(shift, 31 - math.frexp(largest)[1])
        if round(largest * 2.0**shift) >= 1 << 31:
            shift -= 1
    shift = min(shift, math.floor(math.log2(_LIMIT / (2.0 * bound))))
    shift = max(shift, 1)
    unit = 2.0**shift
    tensors: dict[str, Array] = {}
    total: Int64 = np.rint(offset * unit).astype(np.int64)
    for index, (factor, params) in enumerate(zip(factors, inputs, strict=True)):
        m: Int64 = np.rint(factor * unit).astype(np.int64)
        tensors[f"multiplier_{index}"] = m.astype(np.int32)
        if params.zero_point:
            total = total - m * params.zero_point
    total = total + (out.zero_point << shift) + (1 << (shift - 1))
    tensors["constant"] = np.asarray(total, dtype=np.int64)
    return tensors, shift


def affine_layer(
    node: Node,
    q: QuantContext,
    factors: Sequence[ArrayLike],
    constant: ArrayLike = 0.0,
    *,
    attrs: Mapping[str, Any] | None = None,
) -> IntLayer:
    """Build the layer ``y = sum(factor_i * x_i) + constant`` from real factors and constant."""
    names = activations(node, q)
    grids = [grid_of(q, n) for n in names]
    out = grid_of(q, node.outputs[0])
    ratios = [
        float64(np.asarray(k)) * (g.scale / out.scale) for k, g in zip(factors, grids, strict=True)
    ]
    tensors, shift = affine_tensors(ratios, float64(np.asarray(constant)) / out.scale, grids, out)
    return IntLayer(
        node.name,
        node.op,
        names,
        list(node.outputs),
        {"shift": shift, **(attrs or {})},
        tensors,
        node.source,
    )


def affine_form(
    layer: IntLayer,
    params: Mapping[str, QuantParams | None],
    *,
    inputs: Sequence[str] | None = None,
    tensors: Mapping[str, Array] | None = None,
    shift: int | None = None,
) -> Affine:
    """Return an affine layer over centred integers.

    Args:
        layer: the layer.
        params: the grids.
        inputs, tensors, shift: those of a part of the layer, with the tensors' names as
            :func:`affine_tensors` has them; the layer's own by default.
    """
    out = params[layer.outputs[0]]
    assert out is not None
    names = layer.inputs if inputs is None else inputs
    found = layer.tensors if tensors is None else tensors
    by = int(layer.attrs["shift"]) if shift is None else shift
    total: Int64 = np.asarray(found["constant"], dtype=np.int64) - (out.zero_point << by)
    multipliers: list[Int64] = []
    for index, name in enumerate(names):
        source = params[name]
        assert source is not None
        m: Int64 = np.asarray(found[f"multiplier_{index}"], dtype=np.int64)
        multipliers.append(m)
        total = total + m * source.zero_point
    return Affine(list(names), multipliers, np.asarray(total), by)


def run_affine(
    layer: IntLayer,
    inputs: Sequence[Array | None],
    out: QuantParams,
    *,
    low: int | None = None,
    high: int | None = None,
) -> Array:
    """Execute an affine layer; ``low`` and ``high`` narrow the clamp."""
    qmin = out.qmin if low is None else low
    qmax = out.qmax if high is None else high
    shift = int(layer.attrs["shift"])
    c = layer.tensors["constant"].astype(np.int64, copy=False)
    factors = [
        layer.tensors[f"multiplier_{i}"].astype(np.int64, copy=False) for i in range(len(inputs))
    ]

    def formula(*terms: Array) -> Array:
        total = terms[0].astype(np.int64) * factors[0]
        for x, m in zip(terms[1:], factors[1:], strict=True):
            total = total + x.astype(np.int64) * m
        return _finish(total + c, shift, qmin, qmax, out)

    data = [x for x in inputs if x is not None]
    constants = np.broadcast_shapes(c.shape, *(m.shape for m in factors))
    if len(data) == 1 and data[0].dtype == np.int8:
        return by_channel(formula, data[0], constants)
    if len(data) == 2 and math.prod(constants) == 1:
        return by_pair(formula, data[0], data[1])
    return formula(*data)


def _finish(total: Int64, shift: int, qmin: int, qmax: int, out: QuantParams) -> Array:
    total = np.asarray(total)  # arithmetic makes scalars of tensors of rank 0
    total >>= shift
    # min last: where a clamp's bounds cross, the upper one wins, as in ONNX
    np.maximum(total, qmin, out=total)
    np.minimum(total, qmax, out=total)
    result: Array = total.astype(out.dtype.numpy)
    return result
