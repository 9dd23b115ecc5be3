"""Exact, mergeable counts over a fixed logarithmic grid of float values.

A float32 value falls into the bin that its sign, exponent and upper seven mantissa bits name:
128 bins an octave, so a bin is at most 1/128 of its value wide, over the whole range of float32.
The grid depends on no data. So one pass over the samples suffices, counts of different samples
add up exactly in any order, and small values are resolved as well as large ones - which bins of
equal width over the observed range cannot do when the range has outliers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ...ir import Array

__all__ = ["LogHistogram", "Span", "bin_edges"]

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

_BINS = 1 << 15
"""Bins of one sign; the last 128 would hold infinities and NaN, which are never counted."""

_CHUNK = 1 << 20
"""Elements counted at a time, which bounds the temporary indices to 8 MB."""


def bin_edges(first: int, last: int) -> Floats:
    """Return the ``last - first + 1`` edges of the bins ``first`` up to ``last``, ascending."""
    bits = np.arange(first, last + 1, dtype=np.uint32) << np.uint32(16)
    edges: Floats = bits.view(np.float32).astype(np.float64)
    return edges


@dataclass(frozen=True, eq=False)
class Span:
    """Counts of consecutive bins; bins outside are empty.

    Attributes:
        start: the first bin.
        counts: int64; first and last are not zero.
    """

    start: int
    counts: Counts

    @classmethod
    def of(cls, counts: Counts, start: int = 0) -> Self:
        """Build from counts of the bins from ``start`` on, trimming empty ones."""
        filled = np.flatnonzero(counts)
        if not filled.size:
            return cls(0, np.zeros(0, np.int64))
        first, last = int(filled[0]), int(filled[-1])
        return cls(start + first, counts[first : last + 1].astype(np.int64, copy=True))

    def __add__(self, other: Span) -> Span:
        """Return the sum of both."""
        if not self.counts.size:
            return other
        if not other.counts.size:
            return self
        start = min(self.start, other.start)
        stop = max(self.start + self.counts.size, other.start + other.counts.size)
        total = np.zeros(stop - start, np.int64)
        for part in (self, other):
            total[part.start - start : part.start - start + part.counts.size] += part.counts
        return Span(start, total)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Span)
            and self.start == other.start
            and bool(np.array_equal(self.counts, other.counts))
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def total(self) -> int:
        """How many values were counted."""
        return int(self.counts.sum())

    @property
    def edges(self) -> Floats:
        """The edges of the bins, one more than there are."""
        return bin_edges(self.start, self.start + self.counts.size)


@dataclass(frozen=True)
class LogHistogram:
    """Counts of a tensor's values.

    Attributes:
        zeros: values of magnitude below 2^-133, zero included.
        positive, negative: counts by magnitude.
    """

    zeros: int
    positive: Span
    negative: Span

    @classmethod
    def empty(cls) -> Self:
        """Return the counts of no value."""
        nothing = Span(0, np.zeros(0, np.int64))
        return cls(0, nothing, nothing)

    @classmethod
    def of(cls, array: Array) -> Self:
        """Count the values of an array of any float type; they must be finite in float32."""
        flat = np.ascontiguousarray(array, dtype="<f4").reshape(-1)
        keys = flat.view("<u2")[1::2]
        total = np.zeros(2 * _BINS, np.int64)
        for at in range(0, keys.size, _CHUNK):
            part = np.bincount(keys[at : at + _CHUNK])
            total[: part.size] += part
        zeros = int(total[0] + total[_BINS])
        total[0] = total[_BINS] = 0
        return cls(zeros, Span.of(total[:_BINS]), Span.of(total[_BINS:]))

    def __add__(self, other: LogHistogram) -> LogHistogram:
        """Return the counts of both."""
        return LogHistogram(
            self.zeros + other.zeros,
            self.positive + other.positive,
            self.negative + other.negative,
        )

    @property
    def total(self) -> int:
        """How many values were counted."""
        return self.zeros + self.positive.total + self.negative.total

    @property
    def magnitude(self) -> Span:
        """Counts of the absolute values, zeros left out."""
        return self.positive + self.negative

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and arrays."""
        return {
            "zeros": self.zeros,
            "positive_start": self.positive.start,
            "positive": self.positive.counts,
            "negative_start": self.negative.start,
            "negative": self.negative.counts,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build from :meth:`to_dict`; ValueError when it does not hold counts."""
        spans = []
        for side in ("positive", "negative"):
            start = int(data[f"{side}_start"])
            counts = np.asarray(data[side])
            if counts.ndim != 1 or (counts.size and counts.dtype.kind not in "iu"):
                raise ValueError(f"{side} does not hold counts")
            if counts.size and (start < 0 or start + counts.size > _BINS or counts.min() < 0):
                raise ValueError(f"{side} leaves the grid")
            spans.append(Span.of(counts.astype(np.int64), start))
        return cls(int(data["zeros"]), spans[0], spans[1])
