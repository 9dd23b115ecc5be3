"""Fitting an array to a model's input: batch dimension, channel order, element type.

A fit is a transposition (or none) that gives the input's shape. When two fits give different
tensors the sample is refused: guessing would quantize another model's data without a word.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ir import Array, DType
from .spec import InputSpec, data_error

__all__ = ["Fit", "check_finite", "fit_layout", "fits", "to_dtype", "to_hwc"]

_IMAGE_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, slots=True)
class Fit:
    """A way to read an array: the name of its layout, and how to make the model's tensor of it."""

    layout: str
    array: Array


def fits(array: Array, spec: InputSpec, *, convert: bool = True) -> list[Fit]:
    """Return the different tensors of the model's shape that the array may mean.

    Args:
        array: a sample's tensor.
        spec: the input.
        convert: whether channel orders other than the model's may be read (``autoConvertFormat``).

    Returns:
        The fits whose results differ, the model's own order first.
    """
    target = spec.shape
    found: list[Fit] = []

    def offer(layout: str, candidate: Array) -> None:
        if candidate.shape == target and not any(_same(candidate, f.array) for f in found):
            found.append(Fit(layout, candidate))

    batched = len(target) > 0 and target[0] == 1
    own = spec.layout or "the model's own order"
    offer(own, array)
    if batched:
        offer(own[1:] if spec.layout else own, array[np.newaxis])
    if len(target) != 4 or not convert:
        return found
    whole = array if array.ndim == 4 else array[np.newaxis] if batched else None
    if whole is None or whole.ndim != 4:
        if array.ndim == 2 and batched and spec.image_channels == 1:
            axis = 1 if spec.layout == "NCHW" else 3
            offer("HW", np.expand_dims(array[np.newaxis], axis))
        return found
    drop = 0 if array.ndim == 4 else 1
    if spec.layout in ("NCHW", None):
        offer("NHWC"[drop:], whole.transpose(0, 3, 1, 2))
    if spec.layout in ("NHWC", None):
        offer("NCHW"[drop:], whole.transpose(0, 2, 3, 1))
    return found


def _same(a: Array, b: Array) -> bool:
    # moving a dimension of one element is no change; comparing the elements decides the rest
    return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


def fit_layout(
    array: Array,
    spec: InputSpec,
    sample: str,
    *,
    convert: bool = True,
    option: str = "preprocessing.autoConvertFormat=false",
) -> Array:
    """Return the array in the model's own shape.

    Raises:
        CalibrationDataError: no reading fits, or several do and differ.
    """
    found = fits(array, spec, convert=convert)
    if len(found) == 1:
        return found[0].array
    got = f"{array.dtype.name}{list(array.shape)}"
    if found:
        names = " or ".join(f.layout for f in found)
        raise data_error(
            f"input {spec.name!r}: the shape {list(array.shape)} can be read as {names}, "
            "and the result differs",
            sample=sample,
            input=spec.name,
            expected=str(spec),
            got=got,
            candidates=[f.layout for f in found],
            hint=f"set {option} when the samples are in the model's own order, "
            "or save them with the batch dimension of the model's shape",
        )
    raise data_error(
        f"input {spec.name!r} has shape {list(array.shape)}, which fits no layout of "
        f"{list(spec.shape)}",
        sample=sample,
        input=spec.name,
        expected=str(spec),
        got=got,
        hint=_shape_hint(array, spec),
    )


def _shape_hint(array: Array, spec: InputSpec) -> str:
    target = spec.shape
    if array.ndim == len(target) and array.shape[1:] == target[1:] and array.shape[0] > target[0]:
        return (
            f"the file holds {array.shape[0]} samples; save each as a file of its own: "
            "for i, x in enumerate(batch): np.save(f'{i:04d}.npy', x)"
        )
    if spec.image_size is not None and array.ndim in (2, 3):
        height, width = spec.image_size
        return (
            f"the input takes images of {height}x{width} (height x width): resize the samples, or "
            "give raw images and a preset or preprocessing pipeline with resize or letterbox"
        )
    return "save the samples with exactly the model's input shape"


def to_hwc(array: Array, channels: int | None, *, convert: bool) -> Array | None:
    """Return a raw picture array as [height, width, channels], None where it is not one.

    A leading dimension of 1 is dropped; a channel-first array is turned when ``convert`` is set
    and only one reading is possible.
    """
    if array.ndim == 4 and array.shape[0] == 1:
        array = array[0]
    if array.ndim == 2 and channels == 1:
        return array[..., np.newaxis]
    if array.ndim != 3:
        return None
    wanted = _IMAGE_CHANNELS if channels is None else (channels,)
    last, first = array.shape[2] in wanted, array.shape[0] in wanted
    if last and not first:
        return array
    if first and not last and convert:
        return array.transpose(1, 2, 0)
    return None


def to_dtype(array: Array, spec: InputSpec, sample: str) -> Array:
    """Return the array in the input's element type; values never change silently.

    Float inputs take float and uint8 arrays, integer inputs take integers that fit, boolean
    inputs take booleans and integers that are 0 or 1. Results are C-contiguous and finite.

    Raises:
        CalibrationDataError: another element type, a value out of range, a value not finite.
    """
    target = spec.dtype
    if target is DType.STRING:
        raise data_error(
            f"input {spec.name!r} takes text, which has no calibration",
            sample=sample,
            input=spec.name,
            expected="a numeric input",
            hint="cut the model so that it starts after the text processing",
        )
    kind = array.dtype.kind
    if target.is_float and (kind == "f" or array.dtype == np.uint8):
        with np.errstate(over="ignore"):
            result = np.ascontiguousarray(array, dtype=target.numpy).reshape(array.shape)
        check_finite(result, spec, sample, "the model's element type cannot hold it")
        return result
    if target.is_integer and kind in "iu":
        info = np.iinfo(target.value)
        if array.size and (int(array.min()) < info.min or int(array.max()) > info.max):
            raise data_error(
                f"input {spec.name!r} has values {int(array.min())}..{int(array.max())}, "
                f"which {target.value} cannot hold",
                sample=sample,
                input=spec.name,
                expected=f"{info.min}..{info.max}",
                got=f"{int(array.min())}..{int(array.max())}",
            )
        return np.ascontiguousarray(array, dtype=target.numpy).reshape(array.shape)
    if target is DType.BOOL and (
        kind == "b" or (kind in "iu" and array.size and bool(((array == 0) | (array == 1)).all()))
    ):
        return np.ascontiguousarray(array, dtype=np.bool_).reshape(array.shape)
    raise data_error(
        f"input {spec.name!r} has element type {array.dtype.name}, the model takes {target.value}",
        sample=sample,
        input=spec.name,
        expected=target.value,
        got=array.dtype.name,
        hint=f"save the samples as {target.value}: np.save(path, x.astype(np.{target.value}))",
    )


def check_finite(array: Array, spec: InputSpec, sample: str, why: str = "") -> None:
    """Refuse NaN and infinities; the error tells the first one's place in ``array``.

    Raises:
        CalibrationDataError: a value is not finite.
    """
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    where = np.argwhere(~np.isfinite(array))
    index = [int(i) for i in where[0]]
    value = float(array[tuple(index)])
    what = f"{'NaN' if np.isnan(value) else value} at index {index}"
    count = "a value that is" if len(where) == 1 else f"{len(where)} values that are"
    raise data_error(
        f"input {spec.name!r} has {count} not finite, first {what}{why and f' ({why})'}",
        sample=sample,
        input=spec.name,
        expected="finite values",
        got=what,
        hint="look at how the sample was made; remove it or replace the values",
    )
