"""Reads layers as ``k * x + b`` along one axis, and convolutions and products as linear maps.

Shared by the passes that fold scales and shifts. All arithmetic is done in float64 and rounded
to the weights' type once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir import Array, Graph, Node

__all__ = ["AFFINE_OPS", "CONV_OPS", "LINEAR_OPS", "Affine", "Linear", "affine_of", "linear_of"]

Float64 = NDArray[np.float64]

AFFINE_OPS = (
    "Batchnorm",
    "MultiplyConstant",
    "DivConstant",
    "AddingConstant",
    "SubConstant",
)
CONV_OPS = ("Convolution", "DepthwiseConvolution", "GroupConvolution", "Convolution3d")
LINEAR_OPS = (*CONV_OPS, "TransposeConvolution", "MatMul")


@dataclass(frozen=True, slots=True)
class Affine:
    """``k * x + b`` for each index along an axis: float64 arrays of the axis' length."""

    k: Float64
    b: Float64

    @property
    def is_finite(self) -> bool:
        """Whether every number is finite."""
        return bool(np.isfinite(self.k).all() and np.isfinite(self.b).all())

    def then(self, other: Affine) -> Affine:
        """Return this map followed by ``other``."""
        return Affine(other.k * self.k, other.k * self.b + other.b)


def affine_of(graph: Graph, node: Node, axis: int) -> Affine | None:
    """Return the map of a layer that is affine for each index along ``axis`` of its input.

    None when the layer is not of that kind, its constants vary along another axis, or they grow
    the shape.
    """
    if node.op not in AFFINE_OPS:
        return None
    x = graph.values[node.inputs[0]]
    if x.data is not None or not x.type.dtype.is_float or not -x.type.rank <= axis < x.type.rank:
        return None
    axis %= x.type.rank
    size = x.shape[axis]
    if graph.values[node.outputs[0]].shape != x.shape:
        return None
    if node.op == "Batchnorm":
        return _batch_norm(graph, node) if axis == 1 else None
    constant = graph.values[node.inputs[1]].data
    if constant is None:
        return None
    c = _along(constant, x.type.rank, axis, size)
    if c is None:
        return None
    zero, one = np.zeros(size), np.ones(size)
    reverse = bool(getattr(node.attrs, "reverse", False))
    if node.op == "MultiplyConstant":
        return Affine(c, zero)
    if node.op == "AddingConstant":
        return Affine(one, c)
    if node.op == "SubConstant":
        return Affine(-one, c) if reverse else Affine(one, -c)
    if reverse or not np.all(c):
        return None
    return Affine(1.0 / c, zero)


def _batch_norm(graph: Graph, node: Node) -> Affine | None:
    values = [graph.values[n].data for n in node.inputs[1:5]]
    if any(v is None for v in values):
        return None
    scale, bias, mean, var = (np.asarray(v, dtype=np.float64) for v in values)
    with np.errstate(all="ignore"):
        k = scale / np.sqrt(var + float(getattr(node.attrs, "epsilon", 1e-5)))
    return Affine(k, bias - mean * k)


def _along(constant: Array, rank: int, axis: int, size: int) -> Float64 | None:
    """Return a constant that varies along ``axis`` only as a vector of ``size``."""
    if constant.ndim > rank:
        return None
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if any(d != 1 for i, d in enumerate(shape) if i != axis) or shape[axis] not in (1, size):
        return None
    return np.broadcast_to(np.asarray(constant, dtype=np.float64).reshape(-1), (size,))


@dataclass(frozen=True, slots=True)
class Linear:
    """A layer with constant weights and an optional constant bias.

    Attributes:
        node: the layer.
        weight: its weights as stored.
        bias: its bias, None where it has none.
        inputs, outputs: sizes of the channel axes.
        in_axis, out_axis: the channel axis of the input and the output.
    """

    node: Node
    weight: Array
    bias: Array | None
    inputs: int
    outputs: int
    in_axis: int
    out_axis: int

    def scaled_out(self, k: Float64) -> Array:
        """Return the weights with each output channel multiplied."""
        weight = self.weight
        if self.node.op == "MatMul":
            return self._scaled(weight, k)
        if self.node.op == "TransposeConvolution":
            # [in, out / groups, …], the input channels in groups
            groups = self._groups
            parts = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
            factor = k.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))
            return self._scaled(parts, factor).reshape(weight.shape)
        return self._scaled(weight, k.reshape(-1, *[1] * (weight.ndim - 1)))

    def scaled_in(self, k: Float64) -> Array:
        """Return the weights with what each input channel contributes multiplied."""
        weight = self.weight
        if self.node.op == "MatMul":
            return self._scaled(weight, k[:, None])
        if self.node.op == "TransposeConvolution":
            return self._scaled(weight, k.reshape(-1, *[1] * (weight.ndim - 1)))
        return self._scaled(weight, self._per_group(k))

    def bounded(self, k: Float64) -> bool:
        """Whether no weight times one of ``k`` can leave the weights' type.

        Looks at the extremes alone, which costs a fraction of scaling the weights.
        """
        if self.weight.dtype.kind != "f" or not self.weight.size:
            return False
        peak = max(-float(self.weight.min()), float(self.weight.max()))
        largest: Any = np.finfo(self.weight.dtype).max  # type: ignore[type-var]
        limit = float(largest) / 2  # rounding to the type included
        return peak * float(np.abs(k).max(initial=0.0)) < limit

    def response(self, b: Float64) -> Float64:
        """Return what a constant input ``b[channel]`` adds to each output (without padding)."""
        weight = self.weight
        if self.node.op == "MatMul":
            total = np.zeros((*weight.shape[:-2], weight.shape[-1]))
            for index, factor in enumerate(b):  # in this order on every machine, unlike a product
                total += weight[..., index, :] * factor
            return total
        factors = self._per_group(b)
        rows = (w.astype(np.float64) * f for w, f in zip(weight, factors, strict=True))
        return np.fromiter((row.sum() for row in rows), np.float64, weight.shape[0])

    def bias64(self) -> Float64:
        """Return the bias in float64, zeros where there is none."""
        return np.zeros(self.outputs) if self.bias is None else self.bias.astype(np.float64)

    def _per_group(self, per_input: Float64) -> Float64:
        """Arrange one number for each input channel to broadcast over convolution weights."""
        weight = self.weight
        groups = self._groups
        table = per_input.reshape(groups, weight.shape[1])
        rows = np.repeat(table, weight.shape[0] // groups, axis=0)
        return rows.reshape(*rows.shape, *[1] * (weight.ndim - 2))

    @property
    def _groups(self) -> int:
        return int(getattr(self.node.attrs, "groups", 1))

    def _scaled(self, weight: Array, factor: Float64) -> Array:
        """Return ``weight * factor``, calculated in float64 without a copy in float64."""
        result: Array = np.empty(weight.shape, dtype=weight.dtype)
        with np.errstate(over="ignore"):
            np.multiply(weight, factor, out=result, dtype=np.float64, casting="same_kind")
        return result


def linear_of(graph: Graph, node: Node) -> Linear | None:
    """Return a layer as a linear map; None where weights or bias are not constant."""
    if node.op not in LINEAR_OPS:
        return None
    x, w = graph.values[node.inputs[0]], graph.values[node.inputs[1]]
    bias_name = node.inputs[2] if len(node.inputs) > 2 else ""
    bias: Any = graph.values[bias_name].data if bias_name else None
    if w.data is None or x.data is not None or (bias_name and bias is None):
        return None
    out = graph.values[node.outputs[0]]
    if node.op == "MatMul":
        if w.type.rank < 2 or x.type.rank < 2:
            return None
        inputs, outputs = w.shape[-2], w.shape[-1]
        return Linear(node, w.data, bias, inputs, outputs, x.type.rank - 1, out.type.rank - 1)
    return Linear(node, w.data, bias, x.shape[1], out.shape[1], 1, 1)


def fits(array: Array, dtype: Any, limits: Sequence[float] = ()) -> bool:
    """Whether casting to ``dtype`` keeps every number finite."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.asarray(array).astype(dtype)).all())
