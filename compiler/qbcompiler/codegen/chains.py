"""Chains of layers that pass over a tile together: what is between them never leaves the chip.

Depth first: a band of the last layer's output is traced back through the layers to what it reads of
the chain's inputs, and all of them compute their part of that before the next band begins. Rows
that neighbouring bands share are computed twice (Alwani et al., "Fused-Layer CNN Accelerators",
2016). A chain pays where its inner tensors would not fit on chip whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

from ..ir import Box
from ..ir.boxes import is_empty, union
from .layers import Layer, Model
from .machine import Machine
from .memory import aligned
from .tiles import Job, Link, Slot, Tiling, row_axes, weight_bytes

__all__ = ["may_follow", "tile_chain"]

_TILE_CYCLES = 200


def may_follow(chain: Sequence[Layer], layer: Layer, readers: Mapping[str, set[int]]) -> bool:
    """Whether a layer can be added to a chain.

    Args:
        chain: layers, in order.
        layer: the one that comes next.
        readers: indices of the layers that read a tensor; -1 for the host.
    """
    made = chain[-1].outputs
    return (
        len(layer.outputs) == 1
        and len(made) == 1
        and bool(layer.cuts)
        and bool(chain[-1].cuts)
        and made[0] in layer.inputs
        and readers.get(made[0], set()) == {layer.index}
    )


def _trace(chain: Sequence[Layer], box: Box) -> tuple[Link, ...] | None:
    """Return each layer's part of what ``box`` of the last one needs, or None."""
    needed: dict[str, Box] = {chain[-1].outputs[0]: box}
    found: list[Link] = []
    inner = {x.outputs[0]: x for x in chain[:-1]}
    for layer in reversed(chain):
        part = needed.get(layer.outputs[0])
        if part is None or is_empty(part):
            return None
        for axis, step in layer.cuts.items():
            if part[axis][0] % step or (
                part[axis][1] % step and part[axis][1] != layer.shape[axis]
            ):
                return None
        for axis, (low, high) in enumerate(part):
            if axis not in layer.cuts and (low, high) != (0, layer.shape[axis]):
                return None
        reads = tuple(layer.reads(part))
        found.append(Link(layer, part, reads))
        for name, read in zip(layer.inputs, reads, strict=True):
            if name in inner and not is_empty(read):
                needed[name] = union(needed[name], read) if name in needed else read
    return tuple(reversed(found))


def tile_chain(
    chain: Sequence[Layer],
    box: Box,
    model: Model,
    machine: Machine,
    budget: int,
    *,
    local: Collection[str],
    kept: bool,
) -> Tiling | None:
    """Return the tiles of a chain, or None where no band of it fits.

    Args:
        chain: layers, in order.
        box: of the last one's output.
        model: the graph.
        machine: the device.
        budget: bytes of on-chip memory for buffers.
        local: inputs that are in the core's own memory.
        kept: whether the output stays on chip.
    """
    last = chain[-1]
    best: Tiling | None = None
    for axis in row_axes(last, model)[:1]:
        step, size = last.cuts[axis], box[axis][1] - box[axis][0]
        for count in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64):
            length = -(-size // count // step) * step
            if length < step or count > size // step:
                break
            spans = [(a, min(a + length, box[axis][1])) for a in range(*box[axis], length)]
            jobs = []
            for span in spans:
                links = _trace(chain, (*box[:axis], span, *box[axis + 1 :]))
                if links is None:
                    return None
                jobs.append(Job(links[-1].box, links[-1].reads, None, links=links))
            found = _rate(jobs, chain, model, machine, budget, local, kept)
            if found is not None and (best is None or found.cost < best.cost):
                best = found
    return best


def _rate(
    jobs: list[Job],
    chain: Sequence[Layer],
    model: Model,
    machine: Machine,
    budget: int,
    local: Collection[str],
    kept: bool,
) -> Tiling | None:
    def size_of(name: str, box: Box) -> int:
        size = model.layouts[name].size(box, machine.channel_alignment)
        return aligned(size, machine.alignment)

    slots: dict[str, Slot] = {}
    moved = 0
    inner = {x.outputs[0] for x in chain[:-1]}
    for name in dict.fromkeys(n for x in chain for n in x.inputs if n not in inner):
        if name in local:
            continue
        boxes = [b for j in jobs if (b := j.wants().get(name)) is not None]
        if not boxes:
            continue
        different = 1 + sum(a != b for a, b in itertools.pairwise(boxes))
        slots[name] = Slot(max(size_of(name, b) for b in boxes), min(2, different))
        moved += sum(size_of(name, b) for b in boxes)
    for i, layer in enumerate(chain[:-1]):
        name = layer.outputs[0]
        slots[name] = Slot(max(size_of(name, j.links[i].box) for j in jobs), 1)
    out = chain[-1].outputs[0]
    if not kept:
        slots[out] = Slot(max(size_of(out, j.box) for j in jobs), min(2, len(jobs)))
        moved += sum(size_of(out, j.box) for j in jobs)
    for layer in chain:
        if layer.constant_bytes:
            size = weight_bytes(layer, None, machine.alignment)
            slots[f"weights {layer.index}"] = Slot(size, 1)
            moved += size
    found = Tiling(jobs, slots)
    if found.size > budget:
        return None
    compute = sum(x.layer.cycles(x.box, machine.side) for j in jobs for x in j.links)
    transfer = moved / machine.bytes_per_cycle
    found.cost = max(compute, transfer) + transfer / len(jobs)
    found.cost += _TILE_CYCLES * len(jobs) * len(chain)
    return found
