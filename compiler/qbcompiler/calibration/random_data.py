"""Made-up samples for trial builds: seeded, and the same bits on every platform.

Only the raw output of PCG64 is used, which NumPy keeps stable; its distributions may change
between versions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..ir import Array, DType
from .preprocessing import Pipeline
from .spec import InputSpec

__all__ = ["RandomSpec", "random_sample"]


@dataclass(frozen=True, slots=True)
class RandomSpec:
    """How many samples are made up, and from which seed."""

    count: int = 16
    seed: int = 0


def random_sample(
    spec: InputSpec, pipeline: Pipeline | None, seed: int, index: int, position: int
) -> Array:
    """Return a made-up tensor for one input.

    Float inputs get values of mean 0, deviation 1 and magnitude below 6; where the input has a
    pipeline that normalizes, random pixels go through its value steps instead. Integer inputs get
    uniform values below ``spec.upper``, or 0 and 1 where the bound is not known.

    Args:
        spec: the input.
        pipeline: the input's preprocessing.
        seed, index, position: of the data set, the sample and the input; each gives another tensor.
    """
    bits = np.random.PCG64(np.random.SeedSequence([seed, index, position]))
    count = math.prod(spec.shape)
    if spec.dtype.is_float:
        size = spec.image_size
        if pipeline is not None and pipeline.normalizes and size is not None:
            channels = spec.shape[1] if spec.layout == "NCHW" else spec.shape[3]
            pixels = _bytes(bits, count).reshape(spec.shape[0], *size, channels)
            steps = pipeline.values_only()
            images = np.stack([steps.apply(p) for p in pixels])
            if spec.layout == "NCHW":
                images = images.transpose(0, 3, 1, 2)
            return np.ascontiguousarray(images, dtype=spec.dtype.numpy)
        return _normal(bits, count).reshape(spec.shape).astype(spec.dtype.numpy)
    if spec.dtype is DType.BOOL:
        return (_bytes(bits, count) & 1).reshape(spec.shape).astype(np.bool_)
    info = np.iinfo(spec.dtype.value)
    if spec.upper is not None:
        bound = max(1, min(spec.upper, int(info.max)))
    else:
        bound = 256 if spec.dtype is DType.UINT8 else 2
    raw = np.asarray(bits.random_raw(count), dtype=np.uint64)
    return (raw % np.uint64(bound)).reshape(spec.shape).astype(spec.dtype.numpy)


def _bytes(bits: np.random.PCG64, count: int) -> NDArray[np.uint8]:
    raw = np.asarray(bits.random_raw((count + 7) // 8), dtype="<u8")
    return raw.view(np.uint8)[:count]


def _normal(bits: np.random.PCG64, count: int) -> NDArray[np.float64]:
    """Return the sum of twelve uniform 16-bit integers, centred and scaled (Irwin and Hall).

    The sum is exact in integers, so no platform's rounding or logarithm enters.
    """
    raw = np.asarray(bits.random_raw(3 * count), dtype="<u8").view("<u2")
    total = raw.reshape(count, 12).astype(np.int64).sum(axis=1)
    centred: NDArray[np.float64] = total - 12 * 65535 / 2
    return centred / 65536
