"""What a scheme's program is to be: who computes what, which tensors stay on chip, which tiles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..ir import Box
from ..ir.boxes import contains, is_empty, whole
from ..ir.program import Place
from .chains import may_follow, tile_chain
from .layers import Layer, Model
from .machine import Machine
from .memory import Buffer, Gaps, MemoryPlan, aligned, live_bound, place
from .tiles import Tiling, split_axis, tile_layer

__all__ = ["Decisions", "Step", "decide"]

_ROUNDS = 200

_FAR = 24
"""How many steps before its own a step's constants may come in, where several cores' memories hold
a part of a network's constants that is worth it; a core alone would but delay what it needs."""

_SQUEEZES, _TIGHT = 8, 1.05
"""How often constants are placed again in less memory while they leave gaps, and what is no gap."""


@dataclass(slots=True)
class Step:
    """One layer of the program, or a chain of them.

    Attributes:
        layer: which; the last one of a chain.
        split: ``rows``, ``channels`` or ``none``.
        shares: each core's box of output 0; None for a core that does nothing.
        tilings: each core's tiles.
        ahead: how many steps before it its first constants are fetched; 0 for its own.
        before: the layers of a chain that come before its last one.
        held: parts of its constants that have a buffer each; 0 for as many as the tiles need.
    """

    layer: Layer
    split: str
    shares: list[Box | None]
    tilings: list[Tiling | None] = field(default_factory=list)
    ahead: int = 0
    before: list[Layer] = field(default_factory=list)
    held: int = 0

    @property
    def layers(self) -> list[Layer]:
        """All layers, in order."""
        return [*self.before, self.layer]

    def inputs(self) -> list[str]:
        """Return the tensors that it reads and does not make."""
        inner = {x.outputs[0] for x in self.before}
        return list(dict.fromkeys(n for x in self.layers for n in x.inputs if n not in inner))

    def slots(self) -> dict[str, tuple[int, int]]:
        """Return bytes and number of buffers by use, enough for every core."""
        found: dict[str, tuple[int, int]] = {}
        for tiling in self.tilings:
            for name, slot in (tiling.slots if tiling else {}).items():
                size, count = found.get(name, (0, 0))
                found[name] = (max(size, slot.size), max(count, slot.count))
        if "weights" in found:
            size, count = found["weights"]
            found["weights"] = (size, max(count, self.held))
        return found

    def weights(self) -> int:
        """Return the bytes of its buffers for constants."""
        slots = self.slots().items()
        return sum(size * count for use, (size, count) in slots if use.startswith("weights"))


@dataclass(slots=True)
class Decisions:
    """Everything that the instructions follow from.

    Attributes:
        steps: in order.
        parts: of each tensor by core, as its maker leaves it.
        kept: tensors that stay on chip: number of their buffer.
        slots: buffers of each step by use.
        chip: on-chip buffers.
        chip_bound: no placement of them needs less.
        external: places in external memory.
        external_plan: how they were placed.
    """

    steps: list[Step]
    parts: dict[str, list[Box | None]]
    kept: dict[str, int]
    slots: list[dict[str, list[int]]]
    chip: list[Place]
    chip_bound: int
    external: dict[str, Place]
    external_plan: MemoryPlan


def decide(model: Model, machine: Machine, cores: int) -> Decisions:
    """Decide a program for ``cores`` that share an input (1 for a core alone)."""
    steps = [_share(layer, model, machine, cores) for layer in model.layers if not layer.alias]
    if cores == 1:
        steps = _chained(model, machine, steps)
    return _decide(model, machine, steps, cores)


def _decide(model: Model, machine: Machine, steps: list[Step], cores: int) -> Decisions:
    parts = _parts(model, steps, cores)
    lives = _lives(model, steps)
    banned = _banned(model, cores)
    memo: dict[tuple[int, int, int, frozenset[str], bool], Tiling] = {}
    depth = _FAR if cores > 1 else 1
    for _ in range(_ROUNDS):
        for step in steps:
            step.held = 0
        kept = _keep(model, machine, parts, lives, banned, cores)
        full = _tile(model, machine, steps, parts, lives, kept, memo)
        loose = [s for s in steps if s.before and not any(s.tilings)]
        if full is None and loose:
            # a chain does not fit beside what else is on chip: its layers go alone
            apart = [
                part
                for s in steps
                for part in (
                    [_share(x, model, machine, cores) for x in s.layers] if s in loose else [s]
                )
            ]
            return _decide(model, machine, apart, cores)
        if full is not None and full not in banned:
            banned.add(full)
            continue
        if depth > 1:
            found = _place_early(machine, steps, lives, kept, depth)
        else:
            _look_ahead(machine, steps, lives, kept, wanted=depth > 0)
            found = _place_on_chip(machine, steps, lives, kept)
        if found is not None:
            chip, numbers, slots, bound = found
            external, plan = _place_outside(model, machine, lives, kept)
            return Decisions(steps, parts, numbers, slots, chip, bound, external, plan)
        if depth:
            depth = 1 if depth > 1 else 0
        elif kept:
            banned.add(max(kept, key=lambda n: (kept[n], n)))
    raise AssertionError("buffers of single steps always fit")  # pragma: no cover


def _share(layer: Layer, model: Model, machine: Machine, cores: int) -> Step:
    """Split a layer between cores in the way that takes the fewest cycles."""
    box = whole(layer.shape)
    alone: list[Box | None] = [box, *[None] * (cores - 1)]
    if cores == 1:
        return Step(layer, "none", alone)
    best = (layer.cycles(box, machine.side), 2, Step(layer, "none", alone))
    choices = [(split_axis(layer, model, cores), "rows", 0)]
    if layer.channel_axis is not None and layer.channel_axis in layer.cuts:
        choices.append((layer.channel_axis, "channels", 1))
    for axis, name, order in choices:
        if axis is None:
            continue
        step, size = layer.cuts[axis], layer.shape[axis]
        unit = step
        if name == "channels" and step == 1 and size >= machine.side * cores:
            unit = machine.side
        length = math.ceil(size / unit / cores) * unit
        shares: list[Box | None] = []
        for core in range(cores):
            span = (min(core * length, size), min((core + 1) * length, size))
            shares.append((*box[:axis], span, *box[axis + 1 :]) if span[0] < span[1] else None)
        first = shares[0]
        assert first is not None
        cost = layer.cycles(first, machine.side)
        if (cost, order) < best[:2]:
            best = (cost, order, Step(layer, name, shares))
    return best[2]


_LONGEST = 8


def _chained(model: Model, machine: Machine, steps: list[Step]) -> list[Step]:
    """Join neighbouring layers where that takes less time than to compute each alone."""
    readers: dict[str, set[int]] = {}
    for layer in model.layers:
        for name in layer.inputs:
            readers.setdefault(model.root(name), set()).add(layer.index)
    for name in model.graph.outputs:
        readers.setdefault(model.root(name), set()).add(-1)
    parts, lives = _parts(model, steps, 1), _lives(model, steps)
    kept = _keep(model, machine, parts, lives, _banned(model, 1), 1)
    if _tile(model, machine, steps, parts, lives, kept, {}) is not None:
        return steps
    found: list[Step] = []
    at = 0
    while at < len(steps):
        best, length = 0.0, 1
        chain = [steps[at].layer]
        alone = _cost(steps[at])
        inner: set[str] = set()
        for end in range(at + 1, min(at + _LONGEST, len(steps))):
            if not may_follow(chain, steps[end].layer, readers):
                break
            inner.add(chain[-1].outputs[0])
            chain.append(steps[end].layer)
            alone += _cost(steps[end])
            if inner <= kept.keys():
                continue  # nothing of it leaves the chip anyway
            used = max(
                sum(
                    s for n, s in kept.items() if n not in inner and lives[n][0] <= i <= lives[n][1]
                )
                for i in range(at, end + 1)
            )
            made = chain[-1].outputs[0]
            tiling = tile_chain(
                chain,
                whole(chain[-1].shape),
                model,
                machine,
                machine.on_chip - used,
                local=[n for x in chain for n in x.inputs if model.root(n) in kept],
                kept=made in kept,
            )
            if tiling is not None and alone - tiling.cost > best:
                best, length = alone - tiling.cost, end + 1 - at
        last = steps[at + length - 1]
        last.before = [s.layer for s in steps[at : at + length - 1]]
        found.append(last)
        at += length
    return found


def _cost(step: Step) -> float:
    return sum(t.cost for t in step.tilings if t is not None)


def _parts(model: Model, steps: list[Step], cores: int) -> dict[str, list[Box | None]]:
    parts: dict[str, list[Box | None]] = {}
    for step in steps:
        for i, name in enumerate(step.layer.outputs):
            box = whole(model.graph.values[name].shape)
            parts[name] = list(step.shares) if i == 0 else [box, *[None] * (cores - 1)]
    return parts


def _lives(model: Model, steps: list[Step]) -> dict[str, tuple[int, int]]:
    lives: dict[str, tuple[int, int]] = {}
    for index, step in enumerate(steps):
        for name in (*step.inputs(), *step.layer.outputs):
            root = model.root(name)
            first, _ = lives.get(root, (index, index))
            lives[root] = (first, index)
    for name in model.graph.inputs:
        if model.root(name) in lives or name in model.graph.outputs:
            _, last = lives.get(model.root(name), (0, 0))
            lives[model.root(name)] = (0, last)
        else:
            lives[name] = (0, 0)
    for name in model.graph.outputs:
        root = model.root(name)
        lives[root] = (lives.get(root, (0, 0))[0], len(steps))
    return lives


def _banned(model: Model, cores: int) -> set[str]:
    """Return the tensors that must lie in external memory."""
    graph = model.graph
    found = {model.root(n) for n in (*graph.inputs, *graph.outputs)}
    if cores > 1:
        # another name of a tensor has other boxes than the parts that cores hold
        found |= set(model.aliases.values())
    return found


def _size(model: Model, machine: Machine, name: str, box: Box) -> int:
    size = model.layouts[name].size(box, machine.channel_alignment)
    return aligned(size, machine.alignment)


def _keep(
    model: Model,
    machine: Machine,
    parts: Mapping[str, list[Box | None]],
    lives: Mapping[str, tuple[int, int]],
    banned: set[str],
    cores: int,
) -> dict[str, int]:
    """Choose tensors that never leave the chip: short lives first, while all fit in half of it."""
    budget = machine.on_chip // 2
    used = [0] * (max((last for _, last in lives.values()), default=0) + 1)
    sizes = {
        name: max((_size(model, machine, name, b) for b in parts[name] if b is not None), default=0)
        for name in lives
        if name in parts and name not in banned
    }
    kept: dict[str, int] = {}
    for name in sorted(sizes, key=lambda n: (lives[n][1] - lives[n][0], sizes[n], n)):
        span = range(lives[name][0], lives[name][1] + 1)
        if sizes[name] and all(used[i] + sizes[name] <= budget for i in span):
            kept[name] = sizes[name]
            for i in span:
                used[i] += sizes[name]
    return kept


def _tile(
    model: Model,
    machine: Machine,
    steps: list[Step],
    parts: Mapping[str, list[Box | None]],
    lives: Mapping[str, tuple[int, int]],
    kept: Mapping[str, int],
    memo: dict[tuple[int, int, int, frozenset[str], bool], Tiling],
) -> str | None:
    """Choose the tiles of every step; return a tensor that had better leave the chip, or None."""

    def tiled(index: int, core: int, share: Box, budget: int, stays: bool) -> Tiling | None:
        layer = steps[index].layer
        local: set[str] = set()
        near: set[str] = set()
        for name, read in zip(layer.inputs, layer.reads(share), strict=True):
            root = model.root(name)
            if root not in kept or is_empty(read):
                continue
            part = parts[root][core]
            alone = len(steps[index].shares) == 1
            is_own = alone or (part is not None and contains(part, read))
            (local if is_own else near).add(name)
        local -= near
        if steps[index].before:
            local = {n for n in steps[index].inputs() if model.root(n) in kept}
        key = (index, core, budget, frozenset([*local, *(f"near {n}" for n in near)]), stays)
        if key not in memo and steps[index].before:
            own = [n for n in steps[index].inputs() if model.root(n) in kept]
            found = tile_chain(
                steps[index].layers, share, model, machine, budget, local=own, kept=stays
            )
            if found is None:
                return None
            memo[key] = found
        if key not in memo:
            memo[key] = tile_layer(
                layer, share, model, machine, budget, local=local, kept=stays, near=near
            )
        return memo[key]

    for index, step in enumerate(steps):
        layer = step.layer
        alive = {n: s for n, s in kept.items() if lives[n][0] <= index <= lives[n][1]}
        room = (machine.on_chip - sum(alive.values())) // machine.alignment * machine.alignment
        stays = all(n in kept for n in layer.outputs)
        budget = room
        while True:
            step.tilings = [
                None if share is None else tiled(index, core, share, budget, stays)
                for core, share in enumerate(step.shares)
            ]
            # buffers lie at the same place on every core, each as large as any core wants it
            if sum(size * count for size, count in step.slots().values()) <= room:
                break
            budget = budget * 3 // 4
        if alive and any(t is not None and t.streamed for t in step.tilings):
            return max(alive, key=lambda n: (alive[n], n))
    return None


def _look_ahead(
    machine: Machine,
    steps: list[Step],
    lives: Mapping[str, tuple[int, int]],
    kept: Mapping[str, int],
    *,
    wanted: bool,
) -> None:
    """Mark the steps whose first constants fit beside the step before."""
    used = _used(steps, lives, kept)
    for index, step in enumerate(steps):
        step.ahead, size = 0, step.weights()
        if wanted and index and size and used[index - 1] + size <= machine.on_chip:
            used[index - 1] += size
            step.ahead = 1


def _used(
    steps: list[Step], lives: Mapping[str, tuple[int, int]], kept: Mapping[str, int]
) -> list[int]:
    """Return the bytes that each step needs on chip."""
    used = [sum(size * count for size, count in step.slots().values()) for step in steps]
    for name, size in kept.items():
        for i in range(lives[name][0], min(lives[name][1], len(steps) - 1) + 1):
            used[i] += size
    return used


Placed = tuple[list[Place], dict[str, int], list[dict[str, list[int]]], int]


def _place_on_chip(
    machine: Machine,
    steps: list[Step],
    lives: Mapping[str, tuple[int, int]],
    kept: Mapping[str, int],
) -> Placed | None:
    """Place every buffer, or return None where they do not fit."""
    buffers, numbers, slots = _buffers(steps, lives, kept)
    plan = place(buffers, alignment=machine.alignment, enough=machine.on_chip)
    if plan.ratio > _TIGHT:
        plan = place(buffers, alignment=machine.alignment, enough=int(plan.bound * _TIGHT))
    if plan.size > machine.on_chip:
        return None
    chip = [Place(plan.offsets[b.name], b.size, b.first, b.last) for b in buffers]
    return chip, numbers, slots, plan.bound


def _buffers(
    steps: list[Step], lives: Mapping[str, tuple[int, int]], kept: Mapping[str, int]
) -> tuple[list[Buffer], dict[str, int], list[dict[str, list[int]]]]:
    """Return all buffers, the numbers of kept tensors, and those of each step by use."""
    buffers = [Buffer(f"kept {n}", size, *lives[n]) for n, size in kept.items()]
    numbers = {n: i for i, n in enumerate(kept)}
    slots: list[dict[str, list[int]]] = []
    for index, step in enumerate(steps):
        mine: dict[str, list[int]] = {}
        for use, (size, count) in step.slots().items():
            first = index - step.ahead if use.startswith("weights") else index
            for k in range(count):
                mine.setdefault(use, []).append(len(buffers))
                buffers.append(Buffer(f"{index} {use} {k}", size, first, index))
        slots.append(mine)
    return buffers, numbers, slots


def _place_early(
    machine: Machine,
    steps: list[Step],
    lives: Mapping[str, tuple[int, int]],
    kept: Mapping[str, int],
    depth: int,
) -> Placed | None:
    """Place constants after all else, each where it may come in earliest; None if they do not fit.

    They come in the order of the steps, so that none waits for what is wanted later.
    """
    used = _used(steps, lives, kept)
    for index, step in enumerate(steps):
        step.ahead, size = 0, step.weights()
        if not size:
            continue
        # with a buffer for each part, all of a layer's constants can come early
        step.held = max(len({j.part for j in t.jobs}) for t in step.tilings if t is not None)
        if used[index] + step.weights() - size > machine.on_chip:
            step.held = 0
    buffers, numbers, slots = _buffers(steps, lives, kept)
    constants = [
        [n for use, ns in own.items() if use.startswith("weights") for n in ns] for own in slots
    ]
    late = {n for own in constants for n in own}
    plan = place([b for n, b in enumerate(buffers) if n not in late], alignment=machine.alignment)
    found: tuple[list[Buffer], list[int], int] | None = None
    top = machine.on_chip
    size, least = machine.on_chip, 0
    for _ in range(_SQUEEZES):
        early = _place_constants(buffers, constants, plan, size, machine.alignment, depth)
        if early is not None:
            found = early
            top = max((o + b.size for b, o in zip(*early[:2], strict=True)), default=0)
            if top <= early[2] * _TIGHT:
                break
            size = max(early[2], (top + least) // 2)  # what they fill at most may be enough
        elif found is None:
            return None
        else:
            least = size
            size = (size + top) // 2
        size = size // machine.alignment * machine.alignment
    assert found is not None
    lived, offsets, bound = found
    for index, own in enumerate(constants):
        if own:
            steps[index].ahead = index - lived[own[0]].first
    chip = [Place(o, b.size, b.first, b.last) for b, o in zip(lived, offsets, strict=True)]
    return chip, numbers, slots, bound


def _place_constants(
    buffers: list[Buffer],
    constants: list[list[int]],
    plan: MemoryPlan,
    size: int,
    alignment: int,
    depth: int,
) -> tuple[list[Buffer], list[int], int] | None:
    """Return buffers with the lives that they find, offsets, and the bound; None without room.

    Args:
        buffers: all.
        constants: numbers of those of each step that are for constants.
        plan: where the others are.
        size, alignment: of the memory.
        depth: as in :func:`_place_early`.
    """
    memory = Gaps(size, alignment)
    offsets = [plan.offsets.get(b.name, 0) for b in buffers]
    for b, offset in zip(buffers, offsets, strict=True):
        if b.name in plan.offsets:
            memory.add(offset, b.size, b.first, b.last)
    lived, earliest = list(buffers), 0
    for index, own in enumerate(constants):
        firsts = []
        for n in own:
            gap = memory.take(buffers[n].size, max(earliest, index - depth), index)
            if gap is None:
                return None
            offsets[n] = gap[0]
            firsts.append(gap[1])
        if own:
            earliest = max(firsts)
            for n in own:
                lived[n] = replace(buffers[n], first=earliest)
    return lived, offsets, live_bound(lived, alignment)


def _place_outside(
    model: Model,
    machine: Machine,
    lives: Mapping[str, tuple[int, int]],
    kept: Mapping[str, int],
) -> tuple[dict[str, Place], MemoryPlan]:
    buffers = []
    for name, (first, last) in lives.items():
        if name not in kept:
            shape = model.graph.values[name].shape
            size = max(1, _size(model, machine, name, whole(shape)))
            buffers.append(Buffer(name, size, first, last))
    plan = place(buffers, alignment=machine.alignment)
    places = {b.name: Place(plan.offsets[b.name], b.size, b.first, b.last) for b in buffers}
    return places, plan
