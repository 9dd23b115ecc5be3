"""How far an integer result is from the float one: sums that grow with the samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir import Array

__all__ = ["DB_LIMIT", "Agreement", "Difference", "is_classifier"]

DB_LIMIT = 200.0
"""SQNR is kept within plus and minus this: equal tensors would have none."""

Float64 = NDArray[np.float64]

_BLOCK = 1 << 15  # elements that stay in the cache


@dataclass(slots=True)
class Difference:
    """Sums over all compared elements.

    Attributes:
        signal: sum of squares of the float values.
        noise: sum of squares of the differences.
        other: sum of squares of the integer graph's values.
        product: sum of products.
        peak: largest absolute difference.
        count: elements.
    """

    signal: float = 0.0
    noise: float = 0.0
    other: float = 0.0
    product: float = 0.0
    peak: float = 0.0
    count: int = 0

    def add(self, expected: Array, got: Array) -> None:
        """Compare two tensors of one shape; sums are in float64 and independent of threads."""
        a = np.asarray(expected).reshape(-1)
        b = np.asarray(got).reshape(-1)
        for start in range(0, a.size, _BLOCK):
            self._block(
                a[start : start + _BLOCK].astype(np.float64),
                b[start : start + _BLOCK].astype(np.float64),
            )
        self.count += a.size

    def _block(self, a: Float64, b: Float64) -> None:
        # einsum without BLAS: the same order of summation for any number of threads
        self.signal += float(np.einsum("i,i->", a, a))
        self.other += float(np.einsum("i,i->", b, b))
        self.product += float(np.einsum("i,i->", a, b))
        error = np.subtract(a, b)
        self.noise += float(np.einsum("i,i->", error, error))
        self.peak = max(self.peak, float(error.max()), -float(error.min()))

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise ratio in decibels, within plus and minus 200."""
        if self.noise <= 0.0:
            return DB_LIMIT
        if self.signal <= 0.0:
            return -DB_LIMIT
        db = 10.0 * math.log10(self.signal / self.noise)
        return min(max(db, -DB_LIMIT), DB_LIMIT)

    @property
    def cosine(self) -> float:
        """Cosine of the angle between the two results; 1 where both are zero."""
        if self.signal <= 0.0 or self.other <= 0.0:
            return 1.0 if self.noise <= 0.0 else 0.0
        return self.product / math.sqrt(self.signal * self.other)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures, rounded so that last-bit noise of float does not show."""
        return {
            "sqnr_db": round(self.sqnr_db, 2),
            "cosine": round(self.cosine, 6),
            "max_abs_error": float(f"{self.peak:.4g}"),
        }


@dataclass(slots=True)
class Agreement:
    """How often the largest class is the same.

    Attributes:
        same: rows in which it is.
        rows: rows compared.
    """

    same: int = 0
    rows: int = 0

    def add(self, expected: Array, got: Array) -> None:
        """Compare the rows of two [N, classes, 1…] tensors."""
        a = expected.reshape(expected.shape[0], -1).argmax(axis=1)
        b = got.reshape(got.shape[0], -1).argmax(axis=1)
        self.same += int((a == b).sum())
        self.rows += len(a)

    @property
    def share(self) -> float:
        """Rows in agreement over all rows."""
        return self.same / self.rows if self.rows else 1.0


def is_classifier(shape: tuple[int, ...]) -> bool:
    """Whether an output looks like class scores: [N, classes], perhaps with trailing ones."""
    return len(shape) >= 2 and shape[0] >= 1 and shape[1] >= 2 and all(d == 1 for d in shape[2:])
