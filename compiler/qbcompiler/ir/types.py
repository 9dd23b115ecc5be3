"""Element types and tensor types of the intermediate representation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "DType", "TensorType"]

Array = NDArray[np.generic]


class DType(StrEnum):
    """Element types; the values are NumPy's names, except ``string``."""

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

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy dtype (``object`` for strings)."""
        return np.dtype(object if self is DType.STRING else self.value)

    @property
    def itemsize(self) -> int:
        """Bytes of one element (0 for strings, which have no fixed size)."""
        return 0 if self is DType.STRING else self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        """Whether elements are floating point."""
        return self in (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)

    @property
    def is_integer(self) -> bool:
        """Whether elements are signed or unsigned integers (bool excluded)."""
        return not self.is_float and self not in (DType.BOOL, DType.STRING)

    @classmethod
    def of(cls, dtype: np.dtype[np.generic] | type) -> DType:
        """Return the element type of a NumPy dtype; ValueError for one that has none."""
        name = np.dtype(dtype).name
        if name in ("object",) or name.startswith("str"):
            return cls.STRING
        return cls(name)


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and fixed shape. Dimensions are bound at parse time, so all are ints >= 0."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed tensor."""
        return self.size * self.dtype.itemsize

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        """Return the same element type with another shape."""
        return TensorType(self.dtype, tuple(int(d) for d in shape))

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"
