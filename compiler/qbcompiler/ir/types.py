"""Element types and tensor types of the intermediate representation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "DType", "TensorType", "held_bytes"]

Array = NDArray[np.generic]


class DType(StrEnum):
    """Element types; the values are the names of NumPy and ``ml_dtypes``, except ``string``.

    Those of ``ml_dtypes`` (from bfloat16 on) appear on CPU layers only.
    """

    FLOAT16 = "float16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    BOOL = "bool"
    STRING = "string"
    BFLOAT16 = "bfloat16"
    FLOAT8E4M3FN = "float8_e4m3fn"
    FLOAT8E4M3FNUZ = "float8_e4m3fnuz"
    FLOAT8E5M2 = "float8_e5m2"
    FLOAT8E5M2FNUZ = "float8_e5m2fnuz"
    FLOAT8E8M0 = "float8_e8m0fnu"
    FLOAT4E2M1 = "float4_e2m1fn"
    INT4 = "int4"
    UINT4 = "uint4"
    INT2 = "int2"
    UINT2 = "uint2"

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy dtype (``object`` for strings); small types take a byte an element."""
        if self is DType.STRING:
            return np.dtype(object)
        if self in _EXTENDED:
            import ml_dtypes

            extended: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, self.value))
            return extended
        return np.dtype(self.value)

    @property
    def itemsize(self) -> int:
        """Bytes of one element (0 for strings, which have no fixed size)."""
        if self is DType.STRING:
            return 0
        if self in _EXTENDED:
            return 2 if self is DType.BFLOAT16 else 1
        return np.dtype(self.value).itemsize

    @property
    def is_extended(self) -> bool:
        """Whether it is a type that NumPy itself lacks."""
        return self in _EXTENDED

    @property
    def carrier(self) -> np.dtype[np.generic]:
        """The plain NumPy type that the bits of an element are stored in."""
        if self in _EXTENDED:
            return np.dtype(np.uint16 if self is DType.BFLOAT16 else np.uint8)
        return self.numpy

    @property
    def is_float(self) -> bool:
        """Whether elements are floating point of 16 bits or more, bfloat16 excluded."""
        return self in (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)

    @property
    def is_integer(self) -> bool:
        """Whether elements are signed or unsigned integers (bool excluded)."""
        return self in _INTEGERS

    @classmethod
    def of(cls, dtype: np.dtype[np.generic] | type) -> DType:
        """Return the element type of a NumPy dtype; ValueError for one that has none."""
        name = np.dtype(dtype).name
        if name in ("object",) or name.startswith("str"):
            return cls.STRING
        return cls(name)


_EXTENDED = frozenset(
    {
        DType.BFLOAT16,
        DType.FLOAT8E4M3FN,
        DType.FLOAT8E4M3FNUZ,
        DType.FLOAT8E5M2,
        DType.FLOAT8E5M2FNUZ,
        DType.FLOAT8E8M0,
        DType.FLOAT4E2M1,
        DType.INT4,
        DType.UINT4,
        DType.INT2,
        DType.UINT2,
    }
)
_INTEGERS = frozenset(
    {
        DType.INT8,
        DType.INT16,
        DType.INT32,
        DType.INT64,
        DType.UINT8,
        DType.UINT16,
        DType.UINT32,
        DType.UINT64,
        DType.INT4,
        DType.UINT4,
        DType.INT2,
        DType.UINT2,
    }
)


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and fixed shape.

    Dimensions are bound at parse time, so they are ints >= 0; but where a CPU layer's result
    depends on the data (the boxes that are left after suppression), -1 stands for that.
    """

    dtype: DType
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether no dimension depends on the data."""
        return all(d >= 0 for d in self.shape)

    @property
    def size(self) -> int:
        """Number of elements; 0 where that depends on the data."""
        return math.prod(self.shape) if self.is_static else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the packed tensor."""
        return self.size * self.dtype.itemsize

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        """Return the same element type with another shape."""
        return TensorType(self.dtype, tuple(int(d) for d in shape))

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"


def held_bytes(array: Array) -> int:
    """Return the bytes in memory behind an array, which may be one number spread out."""
    shape = zip(array.shape, array.strides, strict=True)
    count: int = math.prod(d for d, stride in shape if stride or d == 0)
    return int(array.itemsize) * count
