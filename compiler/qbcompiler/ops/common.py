"""Checks and small rules that the operator families share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..ir import Array, DType, Graph, Node, QuantParams, Value
from .spec import QuantContext, Refusal, Rounding, SourceNode

__all__ = [
    "activations",
    "ax",
    "broadcast",
    "centre",
    "constant_axes",
    "float64",
    "grid_of",
    "int_list",
    "integer_reason",
    "is_wide",
    "normalize_axes",
    "normalize_axis",
    "require",
    "require_float",
    "require_same_dtype",
    "rounding_of",
    "span_of",
]


def require(inputs: Sequence[Value | None], index: int) -> Value:
    """Return the input at ``index``; ValueError where it is absent."""
    value = inputs[index] if index < len(inputs) else None
    if value is None:
        raise ValueError(f"input {index} is missing")
    return value


def require_float(value: Value) -> DType:
    """Return the element type; ValueError where it is not floating point."""
    if not value.type.dtype.is_float:
        raise ValueError(f"expected floating-point elements, got {value.type}")
    return value.type.dtype


def require_same_dtype(values: Sequence[Value]) -> DType:
    """Return the one element type of all values; ValueError where they differ."""
    dtypes = {v.type.dtype for v in values}
    if len(dtypes) != 1:
        raise ValueError("inputs differ in element type: " + ", ".join(str(v.type) for v in values))
    return dtypes.pop()


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the common NumPy broadcast shape; ValueError where there is none."""
    try:
        return tuple(int(d) for d in np.broadcast_shapes(*shapes))
    except ValueError:
        raise ValueError(f"shapes {list(map(list, shapes))} do not broadcast") from None


def normalize_axis(axis: int, rank: int) -> int:
    """Return ``axis`` counted from the front; ValueError where it is out of range."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def normalize_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return sorted axes counted from the front; ValueError for one out of range or twice."""
    found = sorted(normalize_axis(int(a), rank) for a in axes)
    if len(set(found)) != len(found):
        raise ValueError(f"axes {list(axes)} name one axis twice")
    return tuple(found)


def ax(rank: int, axis: int, size: int = -1) -> tuple[int, ...]:
    """Return a shape that lays a vector along ``axis`` of a tensor of ``rank``."""
    shape = [1] * rank
    shape[axis] = size
    return tuple(shape)


def int_list(data: Array) -> list[int]:
    """Return an integer tensor (scalars included) as a flat list."""
    return [int(v) for v in np.asarray(data).reshape(-1).tolist()]


def constant_axes(node: SourceNode, index: int = 1) -> list[int] | Refusal | None:
    """Return the axes that input ``index`` holds; None where the node gives none."""
    if node.input(index) is None:
        return None
    data = node.const(index)
    return Refusal("its axes are not constant") if data is None else int_list(data)


# -- integer form -------------------------------------------------------------------------


def integer_reason(node: Node, graph: Graph, data: Sequence[int] = (0,)) -> str | None:
    """Return why the tensors of a node rule out integer arithmetic, or None.

    Args:
        node: the layer.
        graph: its graph.
        data: indices of the inputs that must be activations.
    """
    values: list[Value] = []
    for index in data:
        value = graph.values[node.inputs[index]]
        if value.is_const:
            return f"its input {index} is a constant"
        values.append(value)
    values += [graph.values[o] for o in node.outputs if o]
    for value in values:
        if not value.type.dtype.is_float:
            return f"it works on {value.type.dtype.value} values, not real ones"
        if value.type.size == 0:
            return "one of its tensors has no elements"
    return None


def activations(node: Node, q: QuantContext) -> list[str]:
    """Return the inputs that are not constant, the inputs of the integer layer."""
    return [n for n in node.inputs if n and not q.is_const(n)]


def grid_of(q: QuantContext, value: str) -> QuantParams:
    """Return the activation grid of ``value``; ValueError for one with a scale per channel."""
    params = q.params(value)
    if params.axis is not None:
        raise ValueError(f"{value!r} has a scale for each channel, which this operator cannot take")
    return params


def span_of(params: QuantParams) -> int:
    """Return the largest ``|q - z|`` of a grid."""
    return max(params.qmax - params.zero_point, params.zero_point - params.qmin)


def is_wide(*grids: QuantParams | None) -> bool:
    """Whether a grid has 16 bits, so that accumulators over it need more than 32."""
    return any(g is not None and g.bits > 8 for g in grids)


def centre(x: Array, params: QuantParams | None) -> Array:
    """Return ``q - z``, as it is where the zero point is 0."""
    if params is None or params.zero_point == 0:
        return x
    if params.bits <= 8:
        return x.astype(np.int16) - np.int16(params.zero_point)
    return x.astype(np.int32) - np.int32(params.zero_point)


def rounding_of(tensors: Mapping[str, Array], shape: Sequence[int] | None = None) -> Rounding:
    """Return how an accumulator is rounded that ``multiplier`` and ``shift`` requantize.

    Args:
        tensors: the layer's.
        shape: how the two are laid over the output; as they are by default.
    """
    ratio = np.ldexp(float64(tensors["multiplier"]), -tensors["shift"].astype(np.int64))
    return Rounding(np.asarray(ratio) if shape is None else ratio.reshape(shape))


def float64(data: Array) -> NDArray[np.float64]:
    """Return constant data in float64."""
    return np.asarray(data, dtype=np.float64)
