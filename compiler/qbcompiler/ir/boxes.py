"""Boxes: rectangular parts of tensors, in logical dimension order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

__all__ = [
    "Box",
    "box_shape",
    "box_size",
    "contains",
    "covers",
    "intersect",
    "is_empty",
    "shifted",
    "slices",
    "union",
    "whole",
]

Box = tuple[tuple[int, int], ...]
"""For each dimension the first index and the one past the last."""


def whole(shape: Sequence[int]) -> Box:
    """Return the box of all elements of a shape."""
    return tuple((0, d) for d in shape)


def box_shape(box: Box) -> tuple[int, ...]:
    """Return the lengths of a box."""
    return tuple(stop - start for start, stop in box)


def box_size(box: Box) -> int:
    """Return the number of elements."""
    return math.prod(stop - start for start, stop in box)


def is_empty(box: Box) -> bool:
    """Whether a box has no elements."""
    return any(stop <= start for start, stop in box)


def intersect(a: Box, b: Box) -> Box | None:
    """Return what two boxes share, or None."""
    found = []
    for (a0, a1), (b0, b1) in zip(a, b, strict=True):
        start, stop = max(a0, b0), min(a1, b1)
        if stop <= start:
            return None
        found.append((start, stop))
    return tuple(found)


def contains(outer: Box, inner: Box) -> bool:
    """Whether all of ``inner`` is in ``outer``."""
    return all(a <= c and d <= b for (a, b), (c, d) in zip(outer, inner, strict=True))


def union(a: Box, b: Box) -> Box:
    """Return the smallest box around two."""
    return tuple((min(p, r), max(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))


def shifted(box: Box, origin: Box) -> Box:
    """Return ``box`` counted from the first element of ``origin``."""
    return tuple(
        (start - first, stop - first) for (start, stop), (first, _) in zip(box, origin, strict=True)
    )


def slices(box: Box) -> tuple[slice, ...]:
    """Return the box as an index."""
    return tuple(slice(start, stop) for start, stop in box)


def covers(parts: Iterable[Box], box: Box) -> bool:
    """Whether ``parts`` together hold every element of ``box``."""
    left = [box]
    for part in parts:
        rest: list[Box] = []
        for piece in left:
            shared = intersect(part, piece)
            if shared is None:
                rest.append(piece)
            else:
                rest += _without(piece, shared)
        left = rest
        if not left:
            return True
    return not left


def _without(box: Box, hole: Box) -> list[Box]:
    """Return ``box`` without ``hole``, which is inside it, as disjoint boxes."""
    found: list[Box] = []
    core = list(box)
    for axis, ((start, stop), (first, last)) in enumerate(zip(box, hole, strict=True)):
        if start < first:
            found.append((*core[:axis], (start, first), *core[axis + 1 :]))
        if last < stop:
            found.append((*core[:axis], (last, stop), *core[axis + 1 :]))
        core[axis] = (first, last)
    return found
