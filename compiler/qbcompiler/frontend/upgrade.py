"""Rewrites operators of old opsets as opset 21 has them (the opset that exports are written in).

ONNX Runtime gives each operator the meaning of the model's opset, so a layer that is kept whole
must be rewritten when its meaning or its form changed. The list follows ONNX's change log
(docs/Changelog.md of onnx); changes that only allow more types or add an attribute whose default
keeps the old meaning need nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir import Value
from ..ops import EXPORT_OPSET
from .op import Op, constant

__all__ = ["CannotUpgradeError", "upgrade"]


class CannotUpgradeError(Exception):
    """An old form has no equivalent in newer opsets."""


def upgrade(op: Op) -> list[Op]:
    """Return the operators that ``op`` stands for at opset 21 or later, in order.

    The last one makes ``op.outputs``. Operators of other domains come back unchanged.

    Raises:
        CannotUpgradeError: with the reason.
    """
    if op.domain != "" or op.version >= EXPORT_OPSET:
        return [op]
    steps = [op]
    for before, change in _CHANGES.get(op.op_type, ()):
        if op.version < before:
            steps = change(op)
    for step in steps:
        step.version = EXPORT_OPSET
    return steps


Change = Callable[[Op], list[Op]]


def _ints_to_input(attribute: str, index: int) -> Change:
    """An integer-list attribute became the input at ``index``."""

    def change(op: Op) -> list[Op]:
        values = op.attrs.pop(attribute, None)
        if values is not None:
            _set_input(op, index, constant(np.asarray(values, dtype=np.int64)))
        return [op]

    return change


def _set_input(op: Op, index: int, value: Value | None) -> None:
    while len(op.inputs) <= index:
        op.inputs.append(None)
    op.inputs[index] = value


def _clip(op: Op) -> list[Op]:
    x = op.value(0)
    for index, key in ((1, "min"), (2, "max")):
        bound = op.attrs.pop(key, None)
        if bound is not None and x is not None and abs(bound) < 3.4e38:
            _set_input(op, index, constant(np.asarray(bound, dtype=x.type.dtype.numpy)))
    return [op]


def _pad(op: Op) -> list[Op]:
    pads = op.attrs.pop("pads", op.attrs.pop("paddings", None))
    value = op.attrs.pop("value", 0.0)
    x = op.value(0)
    dtype = np.dtype(np.float32) if x is None else x.type.dtype.numpy
    _set_input(op, 1, constant(np.asarray(pads, dtype=np.int64)))
    if op.attrs.get("mode", "constant") == "constant":
        _set_input(op, 2, constant(np.asarray(value, dtype=dtype)))
    return [op]


def _slice(op: Op) -> list[Op]:
    starts, ends = op.attrs.pop("starts"), op.attrs.pop("ends")
    axes = op.attrs.pop("axes", None) or list(range(len(starts)))
    for index, values in enumerate((starts, ends, axes), 1):
        _set_input(op, index, constant(np.asarray(values, dtype=np.int64)))
    return [op]


def _top_k(op: Op) -> list[Op]:
    _set_input(op, 1, constant(np.asarray([op.attrs.pop("k")], dtype=np.int64)))
    return [op]


def _split(op: Op) -> list[Op]:
    if len(op.inputs) < 2 or op.inputs[1] is None:
        op.attrs["num_outputs"] = len(op.outputs)
    return [op]


def _flattened(op: Op) -> list[Op]:
    """Softmax and its kin worked on the tensor flattened to two dimensions at ``axis``."""
    x = op.value(0)
    axis = op.attrs.get("axis", 1)
    if x is None:
        raise CannotUpgradeError(f"{op.op_type} of a sequence")
    rank = x.type.rank
    axis += rank if axis < 0 else 0
    shape = x.shape
    if all(d == 1 for d in shape[axis + 1 :]):
        op.attrs["axis"] = axis
        return [op]
    if any(d < 0 for d in shape):
        raise CannotUpgradeError("its input has a data-dependent shape")
    flat = [math.prod(shape[:axis]), math.prod(shape[axis:])]
    before = _step(op, "Reshape", [x, _shape(flat)], "flat")
    middle = _step(op, op.op_type, [None], "rows", axis=-1)
    after = _step(op, "Reshape", [None, _shape(shape)], "")
    after.outputs = op.outputs
    return [before, middle, after]


def _step(op: Op, op_type: str, inputs: list[Any], suffix: str, **attrs: Any) -> Op:
    """Return one of several operators; input None at index 0 reads the step before."""
    output = f"{op.name}/{suffix}" if suffix else ""
    name = f"{op.name}/{op_type}" if op_type != op.op_type else op.name
    return Op(name, op_type, "", op.version, attrs, inputs, [output], op.source)


def _shape(dims: Sequence[int]) -> Value:
    return constant(np.asarray(dims, dtype=np.int64))


def _upsample(op: Op) -> list[Op]:
    scales = op.attrs.pop("scales", None)
    if scales is not None:
        _set_input(op, 1, constant(np.asarray(scales, dtype=np.float32)))
    op.op_type = "Resize"
    return _resize_10(op)


def _resize_10(op: Op) -> list[Op]:
    scales = op.const(1)
    shrinks = scales is not None and bool(np.any(scales.astype(np.float64) < 1))
    op.inputs = [op.inputs[0], None, op.inputs[1]]
    mode = op.attrs.get("mode", "nearest")
    op.attrs["mode"] = "linear" if mode in ("bilinear", "linear") else mode
    op.attrs["coordinate_transformation_mode"] = "asymmetric"
    # ONNX Runtime, which defined this form in practice, rounds up when it shrinks
    op.attrs["nearest_mode"] = "ceil" if shrinks else "floor"
    return [op]


def _resize_11(op: Op) -> list[Op]:
    # tf_half_pixel_for_nn left the standard in opset 13; ONNX Runtime still has it
    for index in (1, 2, 3):
        # an empty tensor stood for an absent input
        value = op.const(index)
        if value is not None and value.size == 0:
            op.inputs[index] = None
    return [op]


def _batch_norm(op: Op) -> list[Op]:
    if op.attrs.pop("spatial", 1) == 0:
        raise CannotUpgradeError("spatial=0 was removed in opset 9")
    if len(op.outputs) > 1 and any(op.outputs[1:]):
        raise CannotUpgradeError("it is in training mode")
    op.outputs = op.outputs[:1]
    return [op]


def _drop_training(op: Op) -> list[Op]:
    for key in ("seed", "ratio", "is_test"):
        op.attrs.pop(key, None)
    return [op]


def _broadcast(op: Op) -> list[Op]:
    """Up to opset 6 the second input was laid along the first from an axis on, when asked."""
    wanted, axis = op.attrs.pop("broadcast", 0), op.attrs.pop("axis", None)
    a, b = op.value(0), op.value(1)
    if not wanted or axis is None or a is None or b is None or b.type.rank == 0:
        return [op]
    at = int(axis) % a.type.rank
    return _lay_along(op, b, a.type.rank - at - b.type.rank)


def _lay_along(op: Op, b: Value, after: int) -> list[Op]:
    """Give the second input dimensions of 1 behind its own."""
    if after <= 0:
        return [op]
    if b.data is not None:
        op.inputs[1] = constant(b.data.reshape(*b.shape, *[1] * after))
        return [op]
    axes = constant(np.arange(b.type.rank, b.type.rank + after, dtype=np.int64))
    op.chained = 1
    return [_step(op, "Unsqueeze", [b, axes], "laid"), op]


def _prelu(op: Op) -> list[Op]:
    """Up to opset 6 the slope was one number for each channel."""
    x, slope = op.value(0), op.value(1)
    if x is None or slope is None or slope.type.rank != 1 or slope.shape == (1,):
        return [op]
    return _lay_along(op, slope, x.type.rank - 2)


def _gemm(op: Op) -> list[Op]:
    op.attrs.pop("broadcast", None)
    return [op]


def _inference(op: Op) -> list[Op]:
    for key in ("is_test", "consumed_inputs"):
        op.attrs.pop(key, None)
    return [op]


def _renamed(op_type: str) -> Change:
    def change(op: Op) -> list[Op]:
        op.op_type = op_type
        return [op]

    return change


def _grid_sample(op: Op) -> list[Op]:
    mode = op.attrs.get("mode", "bilinear")
    op.attrs["mode"] = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return [op]


def _roi_align(op: Op) -> list[Op]:
    op.attrs.setdefault("coordinate_transformation_mode", "output_half_pixel")
    return [op]


def _group_norm(op: Op) -> list[Op]:
    """Scale and bias were one for each group; they are one for each channel now."""
    x = op.value(0)
    groups = int(op.attrs["num_groups"])
    if x is None or x.shape[1] < 0:
        raise CannotUpgradeError("its channel count is unknown")
    for index in (1, 2):
        values = op.const(index)
        if values is None:
            raise CannotUpgradeError("scale and bias for each group are not constant")
        op.inputs[index] = constant(np.repeat(values, x.shape[1] // groups))
    return [op]


def _dft(op: Op) -> list[Op]:
    axis = op.attrs.pop("axis", 1)
    _set_input(op, 2, constant(np.asarray(axis, dtype=np.int64)))
    return [op]


def _scan_8(op: Op) -> list[Op]:
    raise CannotUpgradeError("Scan of opset 8 works on batches")


_REDUCE: tuple[tuple[int, Change], ...] = ((18, _ints_to_input("axes", 1)),)
_AXES: tuple[tuple[int, Change], ...] = ((13, _ints_to_input("axes", 1)),)
_SOFTMAX: tuple[tuple[int, Change], ...] = ((13, _flattened),)

_BROADCAST: tuple[tuple[int, Change], ...] = ((7, _broadcast),)

_CHANGES: dict[str, tuple[tuple[int, Change], ...]] = {
    "Add": _BROADCAST,
    "And": _BROADCAST,
    "BatchNormalization": ((7, _inference), (14, _batch_norm)),
    "Div": _BROADCAST,
    "Equal": _BROADCAST,
    "Gemm": ((7, _gemm),),
    "Greater": _BROADCAST,
    "Less": _BROADCAST,
    "Mul": _BROADCAST,
    "Or": _BROADCAST,
    "PRelu": ((7, _prelu),),
    "Pow": _BROADCAST,
    "Sub": _BROADCAST,
    "Xor": _BROADCAST,
    "Clip": ((11, _clip),),
    "DFT": ((20, _dft),),
    "Dropout": ((12, _drop_training),),
    "GridSample": ((20, _grid_sample),),
    "GroupNormalization": ((21, _group_norm),),
    "Hardmax": _SOFTMAX,
    "LogSoftmax": _SOFTMAX,
    "Pad": ((11, _pad),),
    "ReduceL1": _REDUCE,
    "ReduceL2": _REDUCE,
    "ReduceLogSum": _REDUCE,
    "ReduceLogSumExp": _REDUCE,
    "ReduceMax": _REDUCE,
    "ReduceMean": _REDUCE,
    "ReduceMin": _REDUCE,
    "ReduceProd": _REDUCE,
    "ReduceSum": _AXES,
    "ReduceSumSquare": _REDUCE,
    "Resize": ((13, _resize_11), (11, _resize_10)),
    "RoiAlign": ((16, _roi_align),),
    "Scan": ((9, _scan_8),),
    "Scatter": ((22, _renamed("ScatterElements")),),
    "Slice": ((10, _slice),),
    "Softmax": _SOFTMAX,
    "Split": ((13, _ints_to_input("split", 1)), (18, _split)),
    "Squeeze": _AXES,
    "TopK": ((10, _top_k),),
    "Unsqueeze": _AXES,
    "Upsample": ((22, _upsample),),
}
