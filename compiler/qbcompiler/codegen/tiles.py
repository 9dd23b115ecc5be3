"""Cut a layer into tiles that fit on-chip memory, in the way that takes the least time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..ir import Box
from ..ir.boxes import box_size, contains, is_empty, union
from ..ir.program import Part
from .layers import Layer, Model
from .machine import Machine
from .memory import aligned

__all__ = [
    "Job",
    "Link",
    "Slot",
    "Tiling",
    "around",
    "inside",
    "row_axes",
    "split_axis",
    "tile_layer",
    "weight_bytes",
]

_TILE_CYCLES = 200
"""What starting a tile is taken to cost when tilings are compared."""


@dataclass(frozen=True, slots=True)
class Link:
    """One layer's part of a tile of a chain: what it computes, and what that reads."""

    layer: Layer
    box: Box
    reads: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """One tile of a layer, or of a chain of layers.

    Attributes:
        box: of the output.
        reads: of each input, empty where it reads nothing.
        part: which weights; None for all constants.
        share: of each sum that is taken here.
        first, last: whether it begins the sum, whether it ends it.
        links: each layer's part, where it is a chain's; ``box`` and ``reads`` are the last one's.
    """

    box: Box
    reads: tuple[Box, ...]
    part: Part | None
    share: float = 1.0
    first: bool = True
    last: bool = True
    links: tuple[Link, ...] = ()

    def wants(self) -> dict[str, Box]:
        """Return the box around all that a chain's tile reads of each tensor."""
        found: dict[str, Box] = {}
        for link in self.links:
            for name, read in zip(link.layer.inputs, link.reads, strict=True):
                if not is_empty(read):
                    found[name] = union(found[name], read) if name in found else read
        return found


@dataclass(frozen=True, slots=True)
class Slot:
    """Buffers of one kind: so many bytes, so many of them."""

    size: int
    count: int


@dataclass(slots=True)
class Tiling:
    """How a core computes its share of a layer.

    Attributes:
        jobs: its tiles, in order.
        slots: buffers by use: an input's or output's name, ``weights`` and ``sums``.
        cost: cycles that it is taken to need.
        streamed: whether operands are read and written in external memory: nothing fits.
    """

    jobs: list[Job]
    slots: dict[str, Slot] = field(default_factory=dict)
    cost: float = 0.0
    streamed: bool = False

    @property
    def size(self) -> int:
        """Bytes of all slots."""
        return sum(s.size * s.count for s in self.slots.values())


def row_axes(layer: Layer, model: Model) -> list[int]:
    """Return the axes to cut into bands, outermost in memory first."""
    storage = model.layouts[layer.outputs[0]].storage
    return [
        a for a in storage if a in layer.cuts and a != layer.channel_axis and layer.shape[a] > 1
    ]


def split_axis(layer: Layer, model: Model, cores: int) -> int | None:
    """Return the axis whose rows cores share most evenly, or None."""
    found = [(math.ceil(layer.shape[a] / cores) / layer.shape[a], i, a)
             for i, a in enumerate(row_axes(layer, model)[:3]) if layer.cuts[a] == 1]  # fmt: skip
    return min(found)[2] if found else None


def _chunks(span: tuple[int, int], length: int) -> list[tuple[int, int]]:
    return [(a, min(a + length, span[1])) for a in range(span[0], span[1], length)]


def _even(length: int, at_most: int, step: int = 1) -> int:
    """Return the length of even pieces of at most ``at_most``, a multiple of ``step``."""
    count = math.ceil(length / max(step, at_most // step * step))
    return math.ceil(length / count / step) * step


def tile_layer(
    layer: Layer,
    box: Box,
    model: Model,
    machine: Machine,
    budget: int,
    *,
    local: Collection[str],
    kept: bool,
    near: Collection[str] = (),
) -> Tiling:
    """Return the tiles of ``box`` of a layer's output.

    Args:
        layer: the layer.
        box: the core's share of output 0.
        model: the graph.
        machine: the device.
        budget: bytes of on-chip memory for buffers.
        local: inputs that are whole, as far as the share reads them, in the core's own memory.
        kept: whether the output stays on chip.
        near: inputs that other cores have on chip.
    """
    search = _Search(layer, box, model, machine, budget, set(local), kept, set(near))
    best: Tiling | None = None
    for jobs in search.candidates():
        found = search.rate(jobs)
        if found is not None and (best is None or found.cost < best.cost):
            best = found
    if best is not None:
        return best
    reads = tuple(layer.reads(box))
    part = _part(layer, box, None)
    cycles = layer.cycles(box, machine.side)
    return Tiling([Job(box, reads, part)], {}, cycles + _TILE_CYCLES, streamed=True)


def _part(layer: Layer, box: Box, sums: tuple[int, int] | None) -> Part | None:
    axis = layer.channel_axis
    if axis is None or not layer.is_linear:
        return None
    low, high = box[axis]
    if sums is None and (low, high) == (0, layer.shape[axis]):
        return None
    return (low, high, *(sums or (0, layer.work.reduce)))


@dataclass(slots=True)
class _Search:
    layer: Layer
    box: Box
    model: Model
    machine: Machine
    budget: int
    local: set[str]
    kept: bool
    near: set[str]

    def candidates(self) -> list[list[Job]]:
        """Return cuts to compare, each as its tiles in order."""
        layer, box = self.layer, self.box
        if len(layer.outputs) != 1 or not layer.cuts:
            return [[self._job(box)]]
        axis = layer.channel_axis
        groups: list[int] = [0]
        if axis is not None and axis in layer.cuts:
            width, step = box[axis][1] - box[axis][0], layer.cuts[axis]
            unit = step if step > 1 else min(self.machine.side, width)
            most = math.ceil(width / unit)
            counts = {c for c in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, most) if c <= most}
            widths = {_even(width, math.ceil(most / c) * unit, step) for c in counts}
            groups = sorted(widths, reverse=True)
        found: list[list[Job]] = []
        for width in groups:
            found += self._bands(width)
        if not found and layer.sum_axis is not None:
            found = self._split_sums(groups[-1])
        return found

    def _bands(self, width: int) -> list[list[Job]]:
        layer, box = self.layer, self.box
        axes = row_axes(layer, self.model)
        lengths = {a: box[a][1] - box[a][0] for a in axes}
        fixed: dict[int, int] = {}
        found: list[list[Job]] = []
        for axis in axes:
            step = layer.cuts[axis]
            low, high = 0, lengths[axis] // step
            while low < high:
                middle = (low + high + 1) // 2
                if self._fits({**fixed, axis: middle * step}, width):
                    low = middle
                else:
                    high = middle - 1
            if low:
                count = lengths[axis] // step
                for wanted in dict.fromkeys((low, count // 4, count // 8)):
                    if 0 < wanted <= low:
                        length = _even(lengths[axis], wanted * step, step)
                        found.append(self._grid({**fixed, axis: length}, width))
                return found
            fixed[axis] = step
        if self._fits(fixed, width):
            found.append(self._grid(fixed, width))
        return found

    def _fits(self, pieces: dict[int, int], width: int) -> bool:
        """Whether a first tile of that size can fit at all (with a second one beside it)."""
        job = self._grid(pieces, width, only_first=True)[0]
        whole = all(self.box[a][1] - self.box[a][0] <= n for a, n in pieces.items())
        double = 1 if whole and (not width or job.part is None or job.box == self.box) else 2
        size = 0
        for name, read in zip(self.layer.inputs, job.reads, strict=True):
            if name not in self.local and not is_empty(read):
                size += self._bytes(name, read) * double
        if not self.kept:
            size += self._bytes(self.layer.outputs[0], job.box) * double
        alone = job.box == self.box or width == 0 or job.part is None
        size += self._weights(job.part) * (1 if alone else 2)
        return size <= self.budget

    def _grid(self, pieces: dict[int, int], width: int, only_first: bool = False) -> list[Job]:
        layer, box = self.layer, self.box
        spans: list[list[tuple[int, int]]] = []
        for a, span in enumerate(box):
            length = pieces.get(a, span[1] - span[0])
            if a == layer.channel_axis and width:
                length = width
            spans.append(_chunks(span, length) if length else [span])
        if only_first:
            # a tile from the middle has a halo on both sides
            return [self._job(tuple(s[len(s) // 2] for s in spans))]
        order = list(self.model.layouts[layer.outputs[0]].storage)
        axis = layer.channel_axis
        if axis is not None and axis in order and len(spans[axis]) > 1:
            order.remove(axis)
            # weights stay while all rows pass, or rows while all weights do: what moves less
            bands = math.prod(len(s) for i, s in enumerate(spans) if i != axis)
            inputs = sum(
                self._bytes(n, r)
                for n, r in zip(layer.inputs, layer.reads(box), strict=True)
                if n not in self.local and not is_empty(r)
            )
            rows_first = layer.constant_bytes * (bands - 1) < inputs * (len(spans[axis]) - 1)
            order = [*order, axis] if rows_first else [axis, *order]
        jobs = []
        for choice in itertools.product(*(spans[a] for a in order)):
            by_axis = dict(zip(order, choice, strict=True))
            jobs.append(self._job(tuple(by_axis[a] for a in range(len(box)))))
        return jobs

    def _job(self, box: Box) -> Job:
        return Job(box, tuple(self.layer.reads(box)), _part(self.layer, box, None))

    def _split_sums(self, width: int) -> list[list[Job]]:
        """Return tiles whose sums are taken in parts, of a row and a group of channels each."""
        layer = self.layer
        axis = layer.sum_axis
        assert axis is not None
        axes = row_axes(layer, self.model)
        grid = self._grid({a: layer.cuts[a] for a in axes}, width)
        length = grid[0].reads[0][axis][1]
        parts = 2
        while parts <= length:
            piece = math.ceil(length / parts)
            jobs = []
            for job in grid:
                cuts = _chunks((0, length), piece)
                for i, cut in enumerate(cuts):
                    read = (*job.reads[0][:axis], cut, *job.reads[0][axis + 1 :])
                    # a part's sums: inputs of the axis, each with all positions of the window
                    taps = max(1, layer.work.reduce // length)
                    part = _part(layer, job.box, (cut[0] * taps, cut[1] * taps))
                    share = (cut[1] - cut[0]) / length
                    jobs.append(Job(job.box, (read,), part, share, i == 0, i == len(cuts) - 1))
            if self.rate(jobs) is not None:
                return [jobs]
            parts *= 2
        return []

    def _bytes(self, name: str, box: Box) -> int:
        size = self.model.layouts[name].size(box, self.machine.channel_alignment)
        return aligned(size, self.machine.alignment)

    def _weights(self, part: Part | None) -> int:
        return weight_bytes(self.layer, part, self.machine.alignment)

    def rate(self, jobs: Sequence[Job]) -> Tiling | None:
        """Return the tiling with its buffers and its cost, or None where it does not fit."""
        layer = self.layer
        slots: dict[str, Slot] = {}
        moved = linked = 0
        for i, name in enumerate(layer.inputs):
            boxes = [j.reads[i] for j in jobs if not is_empty(j.reads[i])]
            if name in self.local or name in slots or not boxes:
                continue
            different = 1 + sum(a != b for a, b in itertools.pairwise(boxes))
            size = max(self._bytes(name, b) for b in set(boxes))
            slots[name] = Slot(size, min(2, different))
            fetched = sum(
                self._bytes(name, b) for k, b in enumerate(boxes) if not k or boxes[k - 1] != b
            )
            if name in self.near:
                linked += fetched
            else:
                moved += fetched
        if not self.kept:
            for name in layer.outputs:
                boxes = [j.box for j in jobs if j.last]
                if len(layer.outputs) > 1:
                    boxes = [tuple((0, d) for d in layer.graph.values[name].shape)]
                size = max(self._bytes(name, b) for b in boxes)
                slots[name] = Slot(size, min(2, len(boxes)))
                moved += sum(self._bytes(name, b) for b in boxes)
        if layer.constant_bytes:
            parts = [j.part for j in jobs]
            different = 1 + sum(a != b for a, b in itertools.pairwise(parts))
            slots["weights"] = Slot(max(self._weights(p) for p in set(parts)), min(2, different))
            moved += sum(
                self._weights(p) for k, p in enumerate(parts) if not k or parts[k - 1] != p
            )
        if any(not j.last for j in jobs):
            most = max(box_size(j.box) for j in jobs) * layer.sum_bytes
            slots["sums"] = Slot(aligned(most, self.machine.alignment), 1)
        found = Tiling(list(jobs), slots)
        if found.size > self.budget:
            return None
        compute = sum(layer.cycles(j.box, self.machine.side, j.share) for j in jobs)
        transfer = moved / self.machine.bytes_per_cycle + linked / self.machine.link_bytes_per_cycle
        edge = transfer / len(jobs)
        found.cost = max(compute, transfer) + edge + _TILE_CYCLES * len(jobs)
        return found


def weight_bytes(layer: Layer, part: Part | None, alignment: int) -> int:
    """Return the bytes of a part of a layer's weights, with the rest of its constants."""
    size = layer.constant_bytes
    axis = layer.channel_axis
    if part is not None and axis is not None:
        share = (part[1] - part[0]) / layer.shape[axis]
        share *= (part[3] - part[2]) / max(1, layer.work.reduce)
        size = math.ceil(size * share)
    return aligned(size, alignment)


def inside(part: Box | None, box: Box) -> bool:
    """Whether a core's part of a tensor holds a box."""
    return part is not None and not is_empty(part) and contains(part, box)


def around(boxes: Sequence[Box]) -> Box:
    """Return the smallest box around several."""
    found = boxes[0]
    for box in boxes[1:]:
        found = union(found, box)
    return found
