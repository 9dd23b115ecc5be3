"""What a linear layer multiplies its weights with, summed up as a Gram matrix.

A linear layer computes ``y = W x`` for many ``x``: the pixels of a window, the features of a token.
An error ``E`` of its weights moves the outputs by ``E x``, whose square summed over all ``x`` is
``E H E^T`` with ``H = sum(x x^T)``. The ``x`` are the integers that the layer reads, zero point
removed, so that every sum is exact in float64 and ``H`` depends neither on threads nor on the order
of summation.

Weights are looked at as blocks [block, rows, columns] that share no column of ``x``: one for each
group of a convolution. A block of more than :data:`MAX_COLUMNS` columns is cut along its input
channels; what its parts have in common is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..ir import Array, IntLayer, QuantParams
from ..ops.common import centre

__all__ = ["MAX_COLUMNS", "Gram", "WeightView", "gram_of", "view_of"]

Float64 = NDArray[np.float64]

MAX_COLUMNS = 1152
"""Columns of a block: 128 channels of a 3 x 3 window; the work grows with their cube."""

_ROWS_PER_COLUMN = 8
_MIN_ROWS = 4096


@dataclass(frozen=True)
class WeightView:
    """A layer's weights as blocks.

    Attributes:
        kind: ``conv``, ``transposed`` or ``matmul``.
        shape: of the weights, in the kernel's own arrangement.
        groups: of a convolution; 1 otherwise.
        cuts: ends of the runs of input channels (of one group) that are looked at together.
        positions: kernel positions that belong to a column's channel; 1 for ``transposed``, whose
            positions are rows.
    """

    kind: str
    shape: tuple[int, ...]
    groups: int
    cuts: tuple[int, ...]
    positions: int

    def blocks(self, weight: Array) -> list[Float64]:
        """Return [groups, rows, columns] for each run of input channels."""
        full = self._full(weight.astype(np.float64))
        starts = (0, *self.cuts[:-1])
        return [
            full[:, :, a * self.positions : b * self.positions]
            for a, b in zip(starts, self.cuts, strict=True)
        ]

    def weight(self, blocks: Sequence[Float64]) -> Float64:
        """Return what :meth:`blocks` was made of."""
        full = np.concatenate(list(blocks), axis=2)
        if self.kind == "matmul":
            return np.ascontiguousarray(full[0].T)
        if self.kind == "conv":
            return full.reshape(self.shape)
        inputs = self.shape[0] // self.groups
        parts = full.reshape(self.groups, self.shape[1], -1, inputs)
        return np.ascontiguousarray(parts.transpose(0, 3, 1, 2)).reshape(self.shape)

    def by_row(self, per_channel: Float64) -> Float64:
        """Spread one number for each output channel over [groups, rows, 1]."""
        rows = per_channel.reshape(self.groups, -1)
        if self.kind == "transposed":
            rows = np.repeat(rows, math.prod(self.shape[2:]), axis=1)
        return rows[:, :, np.newaxis]

    def by_channel(self, per_row: Float64) -> Float64:
        """Sum up one number for each row, [groups, rows], to one for each output channel."""
        if self.kind == "transposed":
            per_row = per_row.reshape(self.groups, self.shape[1], -1).sum(axis=2)
        return per_row.reshape(-1)

    def _full(self, weight: Float64) -> Float64:
        if self.kind == "matmul":
            return weight.T[np.newaxis]
        if self.kind == "conv":
            return weight.reshape(self.groups, self.shape[0] // self.groups, -1)
        inputs = self.shape[0] // self.groups
        parts = weight.reshape(self.groups, inputs, self.shape[1], -1)
        return parts.transpose(0, 2, 3, 1).reshape(self.groups, -1, inputs)


def view_of(layer: IntLayer) -> WeightView | str:
    """Return how a layer's weights are looked at, or why they are not."""
    if not {"weight", "bias", "multiplier", "weight_scale"} <= set(layer.tensors):
        return "it has no constant weights with a scale for each output channel"
    shape = tuple(layer.tensors["weight"].shape)
    if layer.op == "MatMul":
        if len(shape) != 2:
            return "its weights are a batch of matrices"
        return WeightView("matmul", shape, 1, _cuts(shape[0], 1), 1)
    groups = int(layer.attrs["groups"])
    if layer.op == "TransposeConvolution":
        return WeightView("transposed", shape, groups, _cuts(shape[0] // groups, 1), 1)
    positions = math.prod(shape[2:])
    return WeightView("conv", shape, groups, _cuts(shape[1], positions), positions)


def _cuts(channels: int, positions: int) -> tuple[int, ...]:
    most = max(1, MAX_COLUMNS // positions)
    parts = -(-channels // most)
    return tuple(channels * (i + 1) // parts for i in range(parts))


class Gram(NamedTuple):
    """Sums of products.

    Attributes:
        sums: for each of a view's blocks the Gram matrices, [groups, columns, columns], exact.
        totals: for each block the sums of the vectors, [groups, 1, columns], exact.
        vectors: how many vectors were summed up.
    """

    sums: list[Float64]
    totals: list[Float64]
    vectors: int

    def means(self) -> list[Float64]:
        """Return the mean vectors, [groups, 1, columns] for each block."""
        return [total / self.vectors for total in self.totals]

    def centred(self) -> Gram:
        """Return the sums of the vectors less their mean, which a bias can make up for."""
        products = [
            gram - mean.transpose(0, 2, 1) * total
            for gram, mean, total in zip(self.sums, self.means(), self.totals, strict=True)
        ]
        return Gram(products, [np.zeros_like(t) for t in self.totals], self.vectors)

    def shrunk(self) -> list[Float64]:
        """Return the matrices with less of what is off their diagonals the fewer vectors there are.

        Of ``n`` columns, ``v`` vectors tell much less than all that is off the diagonal when ``v``
        is not far above ``n``: rounding would fit these samples alone. What is off the diagonal
        counts ``v / (v + n)``, a shrinkage towards the diagonal as in O. Ledoit and M. Wolf, "A
        well-conditioned estimator for large-dimensional covariance matrices" (2004), with a share
        that does not look at the values.
        """
        found = []
        for gram in self.sums:
            size = gram.shape[1]
            kept = self.vectors / (self.vectors + size)
            found.append(gram * np.where(np.eye(size, dtype=bool), 1.0, kept))
        return found


def gram_of(
    layer: IntLayer, view: WeightView, inputs: Iterable[Array], quant: QuantParams, count: int
) -> Gram:
    """Return the Gram matrices of what a layer multiplies its weights with.

    Of each input as many positions are taken, evenly spread, as make some for each column in all:
    far fewer than the 2^21 whose sums of squares of 16-bit integers could leave 53 bits.

    Args:
        layer: the layer.
        view: its :func:`view_of`.
        inputs: integers that it reads, one array for each sample.
        quant: their grid.
        count: how many samples there are.
    """
    width = max(b - a for a, b in zip((0, *view.cuts[:-1]), view.cuts, strict=True))
    wanted = max(_MIN_ROWS, _ROWS_PER_COLUMN * width * view.positions)
    share = -(-wanted // max(count, 1))
    sums: list[Float64] | None = None
    totals: list[Float64] = []
    vectors = 0
    for x in inputs:
        taken = centre(x, quant).astype(np.float64)
        rows = _rows(layer, view, taken, share)
        vectors += rows.shape[1]
        starts = (0, *view.cuts[:-1])
        products, added = [], []
        for a, b in zip(starts, view.cuts, strict=True):
            part = rows[:, :, a * view.positions : b * view.positions]
            products.append(np.matmul(part.transpose(0, 2, 1), part))
            added.append(part.sum(axis=1, keepdims=True))
        if sums is None:
            sums, totals = products, added
        else:
            sums = [s + p for s, p in zip(sums, products, strict=True)]
            totals = [t + p for t, p in zip(totals, added, strict=True)]
    assert sums is not None
    return Gram(sums, totals, vectors)


def _rows(layer: IntLayer, view: WeightView, x: Float64, share: int) -> Float64:
    """Return [groups, vectors, columns]: what the weights are multiplied with."""
    if view.kind == "matmul":
        flat = x.reshape(1, -1, x.shape[-1])
        return flat[:, _spread(flat.shape[1], share)]
    batch, channels = x.shape[:2]
    inputs = channels // view.groups
    if view.kind == "transposed":
        pixels = x.reshape(batch, view.groups, inputs, -1).transpose(1, 0, 3, 2)
        flat = pixels.reshape(view.groups, -1, inputs)
        return flat[:, _spread(flat.shape[1], share)]
    kernel, attrs = view.shape[2:], layer.attrs
    rank = len(kernel)
    pads = attrs["pads"]
    edges = [(0, 0), (0, 0), *[(int(pads[i]), int(pads[i + rank])) for i in range(rank)]]
    padded = np.pad(x, edges)
    reach = [(k - 1) * int(d) + 1 for k, d in zip(kernel, attrs["dilations"], strict=True)]
    every = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(2, 2 + rank)))
    steps = tuple(slice(None, None, int(s)) for s in attrs["strides"])
    holes = tuple(slice(None, None, int(d)) for d in attrs["dilations"])
    windows = every[(slice(None), slice(None), *steps, *holes)]
    places = windows.shape[2 : 2 + rank]
    size = math.prod(places)
    chosen = np.unravel_index(_spread(batch * size, share), (batch, *places))
    # advanced indices on both sides of the channels: they come first
    place: tuple[Any, ...] = (chosen[0], slice(None), *chosen[1:])
    taken: Float64 = windows[place]
    return (
        taken.reshape(len(chosen[0]), view.groups, inputs * view.positions)
        .transpose(1, 0, 2)
        .copy()
    )


def _spread(size: int, share: int) -> NDArray[np.int64]:
    count = min(size, share)
    return np.arange(count, dtype=np.int64) * size // count
