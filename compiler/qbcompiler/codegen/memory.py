"""Where tensors live in one memory: offsets for buffers with lifetimes, as little as possible.

This is dynamic storage allocation, NP-hard in general. Greedy by size places the largest buffer
first, each at the lowest gap that is free during its whole life (Pisarchyk and Lee, "Efficient
Memory Management for Deep Neural Net Inference", 2020); a short local search over the order
follows. No plan can be below the largest sum of sizes alive at one time.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

__all__ = ["Buffer", "Gaps", "MemoryPlan", "aligned", "live_bound", "place"]

_SEARCH_STEPS = 400
_SEARCH_WORK = 8_000_000
_SEARCH_BUFFERS = 600
"""Above this many buffers the search would cost more than it saves."""


def aligned(size: int, alignment: int) -> int:
    """Return a size rounded up to a multiple of the alignment."""
    return -(-size // alignment) * alignment


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor's claim to memory.

    Attributes:
        name: unique.
        size: bytes, more than zero.
        first, last: the steps, inclusive, between which it must stay.
    """

    name: str
    size: int
    first: int
    last: int


@dataclass(frozen=True)
class MemoryPlan:
    """Offsets for buffers.

    Attributes:
        offsets: by buffer name, each a multiple of the alignment.
        size: bytes that the plan needs.
        bound: largest sum of (aligned) sizes alive at one step; no plan needs less.
    """

    offsets: dict[str, int]
    size: int
    bound: int

    @property
    def ratio(self) -> float:
        """How much more than the bound is needed; 1.0 is optimal."""
        return self.size / self.bound if self.bound else 1.0


def place(buffers: Iterable[Buffer], *, alignment: int = 1, enough: int = 0) -> MemoryPlan:
    """Return a plan; deterministic.

    Args:
        buffers: what to place.
        alignment: of offsets, and of sizes.
        enough: a size that need not be improved on.

    Raises:
        ValueError: two buffers of one name, an empty buffer, or a life that ends before it starts.
    """
    wanted = [replace(b, size=aligned(b.size, alignment)) for b in buffers]
    if len({b.name for b in wanted}) != len(wanted):
        raise ValueError("two buffers have one name")
    for b in wanted:
        if b.size <= 0 or b.first > b.last:
            raise ValueError(f"buffer {b.name!r} is empty or ends before it starts")
    bound = _bound(wanted)
    best = min(
        (
            _greedy(sorted(wanted, key=key))
            for key in (
                lambda b: (-b.size, b.first, b.name),
                lambda b: (-b.size * (b.last - b.first + 1), b.first, b.name),
                lambda b: (b.first - b.last, -b.size, b.name),
                lambda b: (b.first, -b.size, b.name),
            )
        ),
        key=lambda found: found[0],
    )
    if best[0] > max(bound, enough) and len(wanted) <= _SEARCH_BUFFERS:
        best = _search(wanted, best, max(bound, enough))
    size, offsets = best
    return MemoryPlan({b.name: offsets[b.name] for b in wanted}, size, bound)


def live_bound(buffers: Iterable[Buffer], alignment: int = 1) -> int:
    """Return the largest sum of (aligned) sizes alive at one step."""
    return _bound([replace(b, size=aligned(b.size, alignment)) for b in buffers])


def _bound(buffers: Sequence[Buffer]) -> int:
    changes: dict[int, int] = {}
    for b in buffers:
        changes[b.first] = changes.get(b.first, 0) + b.size
        changes[b.last + 1] = changes.get(b.last + 1, 0) - b.size
    alive = most = 0
    for step in sorted(changes):
        alive += changes[step]
        most = max(most, alive)
    return most


def _greedy(order: Sequence[Buffer]) -> tuple[int, dict[str, int]]:
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last; by offset
    offsets: dict[str, int] = {}
    size = 0
    for b in order:
        at = 0
        for offset, end, first, last in placed:
            if last < b.first or first > b.last:
                continue
            if at + b.size <= offset:
                break
            at = max(at, end)
        offsets[b.name] = at
        size = max(size, at + b.size)
        entry = (at, at + b.size, b.first, b.last)
        index = next((i for i, p in enumerate(placed) if p[0] > at), len(placed))
        placed.insert(index, entry)
    return size, offsets


def _search(
    buffers: Sequence[Buffer], best: tuple[int, dict[str, int]], bound: int
) -> tuple[int, dict[str, int]]:
    """Move buffers that reach the top to an earlier turn, keep what helps; a fixed seed."""
    rng = random.Random(0)  # noqa: S311 (a search order, no secret)
    order = sorted(buffers, key=lambda b: (-b.size, b.first, b.name))
    current = _greedy(order)
    for _ in range(min(_SEARCH_STEPS, _SEARCH_WORK // len(order) ** 2)):
        if best[0] <= bound:
            break
        size, offsets = current
        top = [i for i, b in enumerate(order) if offsets[b.name] + b.size == size]
        index = rng.choice(top)
        candidate = list(order)
        candidate.insert(rng.randrange(index + 1), candidate.pop(index))
        if rng.random() < 0.3:
            i, j = rng.randrange(len(candidate)), rng.randrange(len(candidate))
            candidate[i], candidate[j] = candidate[j], candidate[i]
        found = _greedy(candidate)
        if found[0] <= size:
            order, current = candidate, found
            best = min(best, found, key=lambda f: f[0])
    return best


class Gaps:
    """A memory that buffers come into one after the other, each as early as there is room for it.

    Args:
        size: of the memory.
        alignment: of offsets, and of sizes.
    """

    def __init__(self, size: int, alignment: int = 1) -> None:
        self._size, self._alignment = size, alignment
        self._rows = np.empty((64, 4), dtype=np.int64)  # offset, end, first, last
        self._count = 0

    def add(self, offset: int, size: int, first: int, last: int) -> None:
        """Take a place."""
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._rows[self._count] = offset, offset + aligned(size, self._alignment), first, last
        self._count += 1

    def take(self, size: int, earliest: int, last: int) -> tuple[int, int] | None:
        """Take a place until ``last``, from ``earliest`` on or as soon after as there is one.

        Returns:
            Offset and first step: the lowest offset of those with the earliest first step; None
            where there is no room at ``last`` itself.
        """
        size = aligned(size, self._alignment)
        rows = self._rows[: self._count]
        rows = rows[(rows[:, 2] <= last) & (rows[:, 3] >= earliest)]
        offsets = np.unique(np.concatenate([[0], rows[:, 1], rows[:, 0] - size]))
        offsets = offsets[(offsets >= 0) & (offsets + size <= self._size)]
        if not offsets.size:
            return None
        near = (offsets[:, None] < rows[:, 1]) & (rows[:, 0] < offsets[:, None] + size)
        firsts = np.where(near, rows[:, 3] + 1, earliest).max(axis=1, initial=earliest)
        best = int(np.argmin(firsts))
        if firsts[best] > last:
            return None
        offset, first = int(offsets[best]), int(firsts[best])
        self.add(offset, size, first, last)
        return offset, first
