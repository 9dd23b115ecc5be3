"""Scales and rounding of weights by the error that they make in the layer's output.

Two methods, both on the Gram matrix ``H`` of what the layer reads (``gram``):

* **Scale search.** Rounding to a grid that reaches the largest weight spends range on few weights.
  For each output channel the scale is taken, among :data:`FACTORS` of that one, whose rounding
  error ``e`` has the least ``e H e^T``.
* **Rounding with feedback**, after E. Frantar et al., "GPTQ: Accurate Post-Training Quantization
  for Generative Pre-trained Transformers" (ICLR 2023), in the form of J. Chee et al., "QuIP"
  (NeurIPS 2023), who show it to be the same: columns are rounded one after the other, and each is
  shifted, before it is rounded, by what makes up best for the errors of those before it. With
  ``H = (U + I) D (U + I)^T``, ``U`` strictly upper triangular, column ``j`` of the result is
  ``round(w_j + sum_k<j (w_k - q_k) U_kj)``.

Both are the same on every machine and for any number of threads: ``H`` is exact, its decomposition
uses elementwise IEEE operations alone, and what goes through a library's matrix product is cut to
so many bits that all its partial sums are exact in float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "FACTORS",
    "Decomposition",
    "best_factor",
    "damped",
    "decompose",
    "round_with_feedback",
    "squared_error",
]

Float64 = NDArray[np.float64]

FACTORS: tuple[float, ...] = tuple((32 - i) / 32 for i in range(19))
"""Scales that are tried, as parts of the one that the largest weight gives; the largest first."""

_EXACT_BITS = 52
_ERROR_BITS = 16  # after the point, of an error in steps
_MOST_BITS = 6  # before it: more only where a weight was clipped
_SEARCH_BITS = 12
_GRAM_BITS = 20


class Decomposition(NamedTuple):
    """A Gram matrix ready for :func:`round_with_feedback`.

    Attributes:
        order: [blocks, columns], the order of rounding.
        feedback: [blocks, columns, columns], ``U`` in that order.
    """

    order: NDArray[np.int64]
    feedback: Float64


def damped(gram: Float64, share: float) -> Float64:
    """Add ``share`` of the mean diagonal to the diagonal; a Gram matrix of nothing becomes 1."""
    mean = np.trace(gram, axis1=1, axis2=2) / gram.shape[1]
    added = np.where(mean > 0, share * mean, 1.0)
    result: Float64 = gram + added[:, np.newaxis, np.newaxis] * np.eye(gram.shape[1])
    return result


def decompose(gram: Float64, *, by_size: bool = False) -> Decomposition:
    """Return the feedback of positive definite matrices.

    Args:
        gram: [blocks, columns, columns], symmetric and positive definite.
        by_size: round the columns with the largest diagonal first; else in their own order.
    """
    blocks, size = gram.shape[:2]
    order = np.broadcast_to(np.arange(size), (blocks, size))
    if by_size:
        order = np.argsort(-np.diagonal(gram, axis1=1, axis2=2), axis=1, kind="stable")
        picked = np.take_along_axis(gram, order[:, :, np.newaxis], axis=1)
        gram = np.take_along_axis(picked, order[:, np.newaxis, :], axis=2)
    rest = gram.copy()
    feedback = np.zeros_like(rest)
    for k in range(size - 1, 0, -1):
        pivot = rest[:, k, k, np.newaxis]
        column = rest[:, :k, k].copy()
        ratio = column / pivot
        feedback[:, :k, k] = ratio
        rest[:, :k, :k] -= ratio[:, :, np.newaxis] * column[:, np.newaxis, :]
    return Decomposition(order, feedback)


def round_with_feedback(
    steps: Float64, decomposition: Decomposition, qmax: int, block_size: int
) -> Float64:
    """Round weights column by column, each making up for the errors before it.

    Args:
        steps: [blocks, rows, columns], weights in steps of their scale.
        decomposition: of the columns' Gram matrices.
        qmax: largest integer.
        block_size: columns that are rounded before their errors reach all later ones at once; it
            decides the speed alone.

    Returns:
        Integers in ``-qmax..qmax``, in the arrangement of ``steps``.
    """
    order = decomposition.order[:, np.newaxis, :]
    wanted = np.take_along_axis(steps, order, axis=2)
    size = wanted.shape[2]
    # both factors of a product share 52 bits with the sum over all columns
    room = _EXACT_BITS - math.ceil(math.log2(size + 1)) - (_ERROR_BITS + _MOST_BITS + 1)
    largest = float(np.abs(decomposition.feedback).max(initial=0.0))
    unit = 2.0 ** (room - max(0, math.frexp(largest)[1]))
    feedback = np.rint(decomposition.feedback * unit) / unit
    fine, most = 2.0**_ERROR_BITS, 2.0**_MOST_BITS
    found = np.empty_like(wanted)
    errors = np.zeros_like(wanted)
    for start in range(0, size, block_size):
        stop = min(size, start + block_size)
        shift = np.matmul(errors[:, :, :start], feedback[:, :start, start:stop])
        for j in range(start, stop):
            inner = np.matmul(errors[:, :, start:j], feedback[:, start:j, j : j + 1])
            target = wanted[:, :, j] + (shift[:, :, j - start] + inner[:, :, 0])
            found[:, :, j] = np.clip(np.rint(target), -qmax, qmax)
            error = np.clip(wanted[:, :, j] - found[:, :, j], -most, most)
            errors[:, :, j] = np.rint(error * fine) / fine
    result = np.empty_like(found)
    np.put_along_axis(result, np.broadcast_to(order, found.shape), found, axis=2)
    return result


def squared_error(error: Float64, gram: Float64) -> Float64:
    """Return ``e H e^T`` for each row, up to one factor for all: [blocks, rows].

    ``H`` is cut to 20 bits and errors to 12 after the point, so that the products are exact.
    """
    largest = float(np.abs(gram).max(initial=0.0))
    coarse = np.rint(gram * (2.0**_GRAM_BITS / largest)) if largest > 0 else gram
    fine = 2.0**_SEARCH_BITS
    cut = np.rint(np.clip(error, -255.0, 255.0) * fine)
    total: Float64 = (np.matmul(cut, coarse) * cut).sum(axis=2)
    return total


def best_factor(errors: list[Float64]) -> NDArray[np.int64]:
    """Return, for each channel, which of :data:`FACTORS` has the least error; the first of equals.

    Args:
        errors: for each factor the errors of all channels, in the units of the weights.
    """
    found: NDArray[np.int64] = np.argmin(np.stack(errors), axis=0)
    return found
