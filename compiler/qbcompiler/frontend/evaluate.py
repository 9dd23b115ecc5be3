"""Constant folding: evaluates one ONNX operator on known arrays.

The arithmetic that shape computations consist of is done in NumPy here; any other operator goes
through ONNX's reference implementation, which loads on first use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir import Array, Value, held_bytes
from .dtypes import dtype_of
from .op import Op

__all__ = ["FOLD_BYTES", "can_fold", "evaluate"]

FOLD_BYTES = 1 << 20
"""A result of more bytes is kept only when it is no larger than what it was made of."""

SPREAD_BYTES = 1 << 30
"""One number spread over a shape costs nothing here (a view), up to this size once written."""

WORK_BYTES = 64 << 20
"""Only movement operators are evaluated on more input bytes."""

_RANDOM = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
_CHEAP = frozenset(
    {
        "Cast",
        "Concat",
        "DequantizeLinear",
        "Flatten",
        "Gather",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)


_DECODES = frozenset({"Cast", "DequantizeLinear"})
"""Operators that turn stored weights into real ones: these may take four times the bytes."""


def can_fold(op: Op) -> bool:
    """Whether every input is known and evaluating is deterministic and worth while."""
    if op.domain not in ("", "ai.onnx.ml") or op.op_type in _RANDOM or not op.outputs:
        return False
    if not op.inputs or any(
        not isinstance(e, Value) or e.data is None for e in op.inputs if e is not None
    ):
        return False
    if any(hasattr(v, "node") for v in op.attrs.values()):  # a sub-graph
        return False
    values = [e for e in op.inputs if isinstance(e, Value)]
    if sum(v.type.nbytes for v in values) <= WORK_BYTES:
        return True
    spread = any(v.data is not None and held_bytes(v.data) < v.data.nbytes for v in values)
    return op.op_type in _CHEAP and not spread


def evaluate(op: Op) -> list[Array] | None:
    """Return the outputs, None when they cannot be had or are too large to keep."""
    arrays = [e.data if isinstance(e, Value) else None for e in op.inputs]
    if _grows(op, arrays):
        return None
    with np.errstate(all="ignore"):
        outputs = _fast(op, arrays)
        if outputs is None and not _would_grow(op, arrays):
            outputs = _reference(op, arrays)
    if outputs is None or len(outputs) < len(op.outputs):
        return None
    outputs = [np.asarray(o) for o in outputs[: len(op.outputs)]]
    growth = 4 if op.op_type in _DECODES else 1
    if _too_large(sum(held_bytes(o) for o in outputs), arrays, growth):
        return None
    try:
        for output in outputs:
            if output.dtype != object:
                np.dtype(output.dtype.name)
    except TypeError:
        return None
    return outputs


def _too_large(size: int, arrays: Sequence[Array | None], growth: int = 1) -> bool:
    held = sum(held_bytes(a) for a in arrays if a is not None)
    return size > max(FOLD_BYTES, growth * held)


def _grows(op: Op, arrays: Sequence[Array | None]) -> bool:
    """Whether a fast operator that can make much of little would make too much."""
    shape = arrays[1] if len(arrays) > 1 else None
    if op.op_type == "ConstantOfShape" and arrays[0] is not None:
        return math.prod(int(d) for d in arrays[0]) * 8 > SPREAD_BYTES
    if op.op_type == "Expand" and arrays[0] is not None and shape is not None:
        return math.prod(max(1, int(d)) for d in shape) * arrays[0].nbytes > SPREAD_BYTES
    if op.op_type == "Range" and all(a is not None and a.size == 1 for a in arrays[:3]):
        start, limit, delta = (float(a.item()) for a in arrays[:3] if a is not None)
        return bool(delta) and _too_large(8 * int(abs(limit - start) / abs(delta)), arrays)
    return False


def _would_grow(op: Op, arrays: Sequence[Array | None]) -> bool:
    """Whether ONNX's inference says, before anything is computed, that a result is too large."""
    from .infer import InferenceError, infer_types

    try:
        types = infer_types(op)
    except InferenceError:
        return True
    growth = 4 if op.op_type in _DECODES else 1
    return _too_large(sum(t.nbytes for t in types if t is not None), arrays, growth)


Fast = Callable[[Op, Sequence[Any]], list[Array] | None]


def _fast(op: Op, arrays: Sequence[Any]) -> list[Array] | None:
    function = _FAST.get(op.op_type) if op.domain == "" else None
    if function is None:
        return None
    try:
        return function(op, arrays)
    except (ValueError, IndexError, TypeError, OverflowError, AttributeError):
        return None  # an unusual form, or an input that is absent: let the reference decide


def _binary(function: Callable[..., Any]) -> Fast:
    def run(op: Op, arrays: Sequence[Any]) -> list[Array] | None:
        a, b = arrays
        return [np.asarray(function(a, b), dtype=a.dtype)] if a.dtype == b.dtype else None

    return run


def _compare(function: Callable[..., Any]) -> Fast:
    return lambda op, arrays: [np.asarray(function(arrays[0], arrays[1]))]


def _div(op: Op, arrays: Sequence[Any]) -> list[Array] | None:
    a, b = arrays
    if a.dtype.kind == "f":
        return [np.asarray(a / b, dtype=a.dtype)]
    if a.dtype.kind not in "iu" or np.any(b == 0):
        return None
    quotient = a // b
    # ONNX truncates towards zero, NumPy floors
    return [np.asarray(quotient + ((a % b != 0) & ((a < 0) != (b < 0))), dtype=a.dtype)]


def _cast(op: Op, arrays: Sequence[Any]) -> list[Array] | None:
    dtype = dtype_of(int(op.attrs["to"]))
    source = arrays[0].dtype.kind
    if dtype is None or source not in "fiub" or dtype.numpy.kind not in "fiub":
        return None
    if source == "f" and dtype.is_integer and not np.all(np.isfinite(arrays[0])):
        return None
    return [arrays[0].astype(dtype.numpy)]


def _concat(op: Op, arrays: Sequence[Any]) -> list[Array] | None:
    return [np.concatenate(list(arrays), axis=int(op.attrs["axis"]))]


def _gather(op: Op, arrays: Sequence[Any]) -> list[Array] | None:
    return [np.asarray(np.take(arrays[0], arrays[1], axis=int(op.attrs.get("axis", 0))))]


def _reshape(op: Op, arrays: Sequence[Any]) -> list[Array] | None:
    data, shape = arrays
    dims = [int(d) for d in shape]
    if not op.attrs.get("allowzero", 0):
        dims = [data.shape[i] if d == 0 else d for i, d in enumerate(dims)]
    return [data.reshape(dims)]


def _squeeze(op: Op, arrays: Sequence[Any]) -> list[Array] | None:
    data = arrays[0]
    if len(arrays) < 2 or arrays[1] is None:
        return [np.squeeze(data)]
    return [np.squeeze(data, axis=tuple(int(a) for a in np.atleast_1d(arrays[1])))]


def _unsqueeze(op: Op, arrays: Sequence[Any]) -> list[Array] | None:
    return [np.expand_dims(arrays[0], tuple(int(a) for a in np.atleast_1d(arrays[1])))]


def _slice(op: Op, arrays: Sequence[Any]) -> list[Array] | None:
    data, starts, ends = arrays[:3]
    axes = arrays[3] if len(arrays) > 3 and arrays[3] is not None else range(len(starts))
    steps = arrays[4] if len(arrays) > 4 and arrays[4] is not None else [1] * len(starts)
    index: list[Any] = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        step, start, end = int(step), int(start), int(end)
        # for a negative step, an end before the first element means "through it"
        stop = None if step < 0 and end < -data.shape[axis] else end
        index[int(axis)] = slice(start, stop, step)
    return [data[tuple(index)]]


def _transpose(op: Op, arrays: Sequence[Any]) -> list[Array] | None:
    return [np.ascontiguousarray(np.transpose(arrays[0], op.attrs.get("perm")))]


def _where(op: Op, arrays: Sequence[Any]) -> list[Array] | None:
    return [np.where(*arrays)] if arrays[1].dtype == arrays[2].dtype else None


def _range(op: Op, arrays: Sequence[Any]) -> list[Array] | None:
    start, limit, delta = (a.item() for a in arrays[:3])
    if arrays[0].dtype.kind != "i":
        return None
    return [np.arange(start, limit, delta, dtype=arrays[0].dtype)]


def _constant_of_shape(op: Op, arrays: Sequence[Any]) -> list[Array] | None:
    value = op.attrs.get("value")
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value)
    return [np.broadcast_to(fill.reshape(-1)[0], tuple(int(d) for d in arrays[0]))]


def _expand(op: Op, arrays: Sequence[Any]) -> list[Array] | None:
    shape = np.broadcast_shapes(arrays[0].shape, tuple(int(d) for d in arrays[1]))
    return [np.broadcast_to(arrays[0], shape)]


_FAST: dict[str, Fast] = {
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Div": _div,
    "Equal": _compare(np.equal),
    "Greater": _compare(np.greater),
    "Less": _compare(np.less),
    "Not": lambda op, arrays: [np.logical_not(arrays[0])],
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Gather": _gather,
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}


def _reference(op: Op, arrays: Sequence[Any]) -> list[Array] | None:
    from onnx import reference

    from .infer import node_proto

    node = node_proto(op)
    feeds = {f"i{k}": a for k, a in enumerate(arrays) if a is not None}
    try:
        evaluator = reference.ReferenceEvaluator(node, opsets={op.domain: op.version})
        outputs = evaluator.run(None, feeds)
    except Exception:
        # the reference lacks the operator or this form of it: it stays a layer
        return None
    if not all(isinstance(o, (np.ndarray, np.generic)) for o in outputs):
        return None
    return [np.asarray(o) for o in outputs]
