"""Cycles and memory of a model on a device, for each inference scheme.

A layer is cut into bands of output rows and groups of output channels that fit on-chip memory
twice (one tile is computed while the next is loaded), in the way that moves the fewest bytes. Its
time is the longer of its arithmetic and its transfers, the usual roofline (Williams, Waterman and
Patterson, 2009); the first load and the last store of the model overlap with nothing. Tensors that
live shortly stay on chip. Whatever the device file assumes is named in the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..devices import Device
from ..devices.model import CORES_OF_SCHEME
from ..ir import Graph
from ..ops import Registry
from .memory import Buffer, MemoryPlan, place
from .work import Work, list_work

__all__ = ["Estimate", "LayerEstimate", "SchemeEstimate", "estimate"]

_ACCUMULATOR_BYTES = 4


@dataclass(frozen=True, slots=True)
class LayerEstimate:
    """One layer under one scheme.

    Attributes:
        name, op: the layer.
        macs: multiply-adds of one input.
        compute, transfer: cycles of a core's arithmetic, of external memory.
        external_bytes: bytes moved to and from external memory.
        tiles: tiles that the layer is cut into on one core.
        split: how cores share it: ``rows``, ``channels`` or ``none``.
    """

    name: str
    op: str
    macs: int
    compute: int
    transfer: int
    external_bytes: int
    tiles: int
    split: str

    @property
    def cycles(self) -> int:
        """The longer of the two."""
        return max(self.compute, self.transfer)

    @property
    def bound(self) -> str:
        """What the layer waits for: ``compute`` or ``memory``; ``none`` when it costs nothing."""
        if self.cycles == 0:
            return "none"
        return "compute" if self.compute >= self.transfer else "memory"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "op": self.op,
            "macs": self.macs,
            "compute_cycles": self.compute,
            "transfer_cycles": self.transfer,
            "external_bytes": self.external_bytes,
            "tiles": self.tiles,
            "split": self.split,
            "bound": self.bound,
        }


@dataclass(frozen=True, slots=True)
class SchemeEstimate:
    """The model under one scheme.

    Attributes:
        scheme: its name.
        cores, batch: cores that work together, inputs that they take at a time.
        cycles: from a batch's first load to its last store, nothing else running.
        latency_ms: the same in milliseconds.
        inputs_per_s: with every core of the device busy, sharing external memory.
        utilisation: share of the busy cores' multiply-adds that are used, in that case.
        external_bytes: moved for one batch.
        layers: each layer, for one batch with nothing else running.
    """

    scheme: str
    cores: int
    batch: int
    cycles: int
    latency_ms: float
    inputs_per_s: float
    utilisation: float
    external_bytes: int
    layers: tuple[LayerEstimate, ...]

    def as_dict(self, *, layers: bool = True) -> dict[str, Any]:
        """Return the JSON form."""
        plain: dict[str, Any] = {
            "scheme": self.scheme,
            "cores": self.cores,
            "batch": self.batch,
            "cycles": self.cycles,
            "latency_ms": round(self.latency_ms, 4),
            "inputs_per_s": round(self.inputs_per_s, 1),
            "utilisation": round(self.utilisation, 4),
            "external_bytes": self.external_bytes,
            "memory_bound_layers": sum(1 for x in self.layers if x.bound == "memory"),
        }
        if layers:
            plain["layers"] = [x.as_dict() for x in self.layers]
        return plain


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a model costs on a device.

    Attributes:
        device: its name.
        macs: multiply-adds of one input.
        weight_bytes: constants in external memory.
        memory: the plan of activations in external memory, for one input.
        on_chip_bytes: most bytes of on-chip memory in use at a time, on one core.
        schemes: one entry for each scheme.
        assumptions: figures of the device that are not public, with the reasoning.
    """

    device: str
    macs: int
    weight_bytes: int
    memory: MemoryPlan
    on_chip_bytes: int
    schemes: tuple[SchemeEstimate, ...]
    assumptions: Mapping[str, str]

    def summary(self) -> dict[str, Any]:
        """Return the sums as JSON data, without the layers; ``assumed`` names the figures."""
        return {
            "device": self.device,
            "estimate": True,
            "macs": self.macs,
            "weight_bytes": self.weight_bytes,
            "activation_bytes": self.memory.size,
            "activation_bytes_lower_bound": self.memory.bound,
            "on_chip_bytes": self.on_chip_bytes,
            "schemes": [s.as_dict(layers=False) for s in self.schemes],
            "assumed": list(self.assumptions),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON data: each layer too, and the reasoning of each assumption."""
        return {
            **self.summary(),
            "schemes": [s.as_dict() for s in self.schemes],
            "assumptions": dict(self.assumptions),
        }


@dataclass(frozen=True, slots=True)
class _Machine:
    """The device's figures, as numbers."""

    macs_per_cycle: int
    side: int
    clock: int
    on_chip: int
    bytes_per_cycle: float
    sync: int
    cores: int
    clusters: int

    @classmethod
    def of(cls, device: Device) -> _Machine:
        clock = device.figure("compute.clock_hz")
        macs = device.figure("compute.macs_per_cycle")
        return cls(
            macs_per_cycle=macs,
            side=max(1, math.isqrt(macs)),
            clock=clock,
            on_chip=device.figure("memory.on_chip_bytes"),
            bytes_per_cycle=device.figure("memory.bandwidth_bytes_per_s") / clock,
            sync=device.figure("compute.sync_cycles"),
            cores=device.cores,
            clusters=device.clusters,
        )


@dataclass(frozen=True, slots=True)
class _Tiling:
    bands: int
    groups: int
    activations: int
    weights: int
    on_chip: int


def estimate(
    graph: Graph,
    device: Device,
    schemes: Sequence[str],
    *,
    registry: Registry | None = None,
) -> Estimate:
    """Estimate an NPU body on a device.

    Args:
        graph: a float graph whose layers all run on the NPU, batch 1.
        device: the target.
        schemes: names of schemes that the device has.
        registry: operators; the built-in ones by default.
    """
    machine = _Machine.of(device)
    works = list_work(
        graph, channel_alignment=device.figure("memory.channel_alignment"), registry=registry
    )
    alias = _aliases(works)
    lives = _lives(graph, works, alias)
    kept, kept_most = _keep_on_chip(works, lives, machine.on_chip // 2, graph, alias)
    memory = place(
        (b for b in lives.values() if b.name not in kept),
        alignment=device.figure("memory.alignment_bytes"),
    )
    tilings = [_tile(w, machine.on_chip // 2, machine.side, kept, alias) for w in works]

    def under(scheme: str) -> SchemeEstimate:
        shared = CORES_OF_SCHEME[scheme] if scheme.startswith("global") else 1
        if shared == 1:
            return _scheme(scheme, works, tilings, machine)
        # cores that share an input hold a part of each tensor: together they keep more of them
        together, _ = _keep_on_chip(works, lives, shared * machine.on_chip // 2, graph, alias)
        cut = [_tile(w, machine.on_chip // 2, machine.side, together, alias) for w in works]
        return _scheme(scheme, works, cut, machine)

    return Estimate(
        device=device.name,
        macs=sum(w.macs for w in works),
        weight_bytes=sum(w.weight_bytes for w in works),
        memory=memory,
        on_chip_bytes=kept_most + max((t.on_chip for t in tilings), default=0),
        schemes=tuple(under(name) for name in schemes),
        assumptions=dict(device.assumptions),
    )


# -- memory ---------------------------------------------------------------------------------


def _aliases(works: Sequence[Work]) -> dict[str, str]:
    """Return the buffer of each tensor: a view's output has its input's."""
    alias: dict[str, str] = {}
    for work in works:
        for tensor in (*work.inputs, *work.outputs):
            alias.setdefault(tensor.name, tensor.name)
        if work.kind == "view" and work.inputs and work.outputs:
            alias[work.outputs[0].name] = alias[work.inputs[0].name]
    return alias


def _lives(graph: Graph, works: Sequence[Work], alias: Mapping[str, str]) -> dict[str, Buffer]:
    lives: dict[str, Buffer] = {}

    def touch(name: str, size: int, step: int) -> None:
        buffer = alias[name]
        old = lives.get(buffer)
        if old is None:
            lives[buffer] = Buffer(buffer, max(1, size), step, step)
        else:
            lives[buffer] = replace(
                old, size=max(old.size, size), first=min(old.first, step), last=max(old.last, step)
            )

    for step, work in enumerate(works):
        for tensor in (*work.inputs, *work.outputs):
            touch(tensor.name, tensor.size, step)
    last = len(works)
    for name in graph.inputs:
        if name in alias:
            touch(name, 0, -1)
    for name in graph.outputs:
        if name in alias:
            touch(name, 0, last)
    return lives


def _keep_on_chip(
    works: Sequence[Work],
    lives: Mapping[str, Buffer],
    budget: int,
    graph: Graph,
    alias: Mapping[str, str],
) -> tuple[frozenset[str], int]:
    """Choose tensors that never leave the chip: short lives first, while all fit the budget."""
    fixed = {alias[n] for n in (*graph.inputs, *graph.outputs) if n in alias}
    used = [0] * (len(works) + 1)
    kept: set[str] = set()
    for b in sorted(lives.values(), key=lambda b: (b.last - b.first, b.size, b.name)):
        if b.name in fixed or b.size > budget:
            continue
        span = range(max(0, b.first), b.last + 1)
        if all(used[i] + b.size <= budget for i in span):
            kept.add(b.name)
            for i in span:
                used[i] += b.size
    return frozenset(kept), max(used, default=0)


# -- tiles ----------------------------------------------------------------------------------


def _tile(
    work: Work, budget: int, side: int, kept: frozenset[str], alias: Mapping[str, str]
) -> _Tiling:
    """Cut a layer so that a tile fits ``budget`` twice and the fewest bytes are moved."""
    if work.kind == "view" or not work.outputs:
        return _Tiling(0, 0, 0, 0, 0)
    outside_in = [t for t in work.inputs if alias[t.name] not in kept]
    outside_out = [t for t in work.outputs if alias[t.name] not in kept]
    rows = max(t.rows for t in work.outputs)
    in_row = sum(t.row_bytes for t in outside_in)
    in_all = sum(t.size for t in outside_in)
    out_row = sum(t.row_bytes for t in outside_out)
    out_all = sum(t.size for t in outside_out)
    most_groups = max(1, -(-work.channels // side)) if work.kind != "vector" else 1
    best: _Tiling | None = None
    for groups in _steps(most_groups):
        weights = -(-work.weight_bytes // groups)
        room = budget // 2 - weights
        if work.whole:
            room -= in_all
            per_row, extra = -(-out_row // groups), 0
        else:
            per_row = in_row * work.stride + -(-out_row // groups)
            extra = in_row * work.halo
        band = rows if per_row == 0 else (room - extra) // per_row
        if band < 1:
            continue
        bands = -(-rows // min(rows, band))
        again = (bands - 1) * in_row * work.halo
        once = in_all + again
        if groups == 1 or bands == 1:
            activations, moved = once + out_all, work.weight_bytes
        elif once * groups + work.weight_bytes <= once + work.weight_bytes * bands:
            activations, moved = once * groups + out_all, work.weight_bytes
        else:
            activations, moved = once + out_all, work.weight_bytes * bands
        used = 2 * (weights + extra + per_row * min(rows, band) + (in_all if work.whole else 0))
        found = _Tiling(bands, groups, activations, moved, min(used, budget))
        if best is None or activations + moved < best.activations + best.weights:
            best = found
    if best is not None:
        return best
    # not even one row of one group fits: the input channels are split too, and partial sums
    # go out and come back
    weights = -(-work.weight_bytes // most_groups)
    need = in_row * (work.stride + work.halo) + weights + -(-out_row // most_groups)
    parts = -(-need * 2 // budget) + 1
    sums = 2 * (parts - 1) * out_all * _ACCUMULATOR_BYTES
    return _Tiling(
        rows * parts, most_groups, in_all * most_groups + out_all + sums, work.weight_bytes, budget
    )


def _steps(most: int) -> list[int]:
    steps = [1]
    while steps[-1] * 2 < most:
        steps.append(steps[-1] * 2)
    return steps if most == 1 else [*steps, most]


# -- cycles ---------------------------------------------------------------------------------


def _compute(
    work: Work, machine: _Machine, *, rows: float = 1.0, channels: int | None = None
) -> int:
    """Return the cycles of one core's share: ``rows`` of the rows, or some output channels."""
    side = machine.side
    if work.kind == "view":
        return 0
    if work.kind == "vector":
        return math.ceil(work.elements * rows / side)
    if work.kind == "depthwise":
        # each channel has inputs of its own: one side of the array has nothing to share
        part = rows if channels is None else channels / work.channels
        return math.ceil(work.macs * part / side)
    share = work.channels if channels is None else channels
    # output positions, each a number of blocks of channels by blocks of the sum
    positions = work.macs / (work.channels * work.reduce) * rows
    return math.ceil(positions * math.ceil(share / side) * math.ceil(work.reduce / side))


def _layer(
    work: Work, tiling: _Tiling, machine: _Machine, cores: int, batch: int, share: float
) -> LayerEstimate:
    """Estimate a layer; ``share`` of the external bandwidth is this group's."""
    speed = machine.bytes_per_cycle * share
    moved = tiling.activations * batch + tiling.weights
    split, compute, sync = "none", _compute(work, machine), 0
    if cores > batch and work.kind != "view":
        rows = max((t.rows for t in work.outputs), default=1)
        by_rows = _compute(work, machine, rows=math.ceil(rows / cores) / rows)
        channels = math.ceil(work.channels / cores)
        by_channels = (
            _compute(work, machine, channels=channels) if work.kind != "vector" else by_rows
        )
        if not work.whole and by_rows <= by_channels:
            split, compute = "rows", by_rows
            halo = sum(t.row_bytes for t in work.inputs) * work.halo * (cores - 1)
            moved += halo if tiling.activations else 0
        elif work.kind != "vector":
            split, compute = "channels", by_channels
        # cores that only read rows of their own need not wait for each other
        alone = split == "rows" and work.halo == 0 and work.stride == 1
        sync = 0 if split == "none" or alone else machine.sync
    return LayerEstimate(
        name=work.name,
        op=work.op,
        macs=work.macs,
        compute=compute + sync,
        transfer=math.ceil(moved / speed),
        external_bytes=moved,
        tiles=tiling.bands * tiling.groups,
        split=split,
    )


def _scheme(
    name: str, works: Sequence[Work], tilings: Sequence[_Tiling], machine: _Machine
) -> SchemeEstimate:
    cores = CORES_OF_SCHEME[name]
    batch = cores if name == "multi" else 1
    groups = max(1, machine.cores // cores)

    def run(share: float) -> tuple[tuple[LayerEstimate, ...], int]:
        layers = tuple(
            _layer(w, t, machine, cores, batch, share) for w, t in zip(works, tilings, strict=True)
        )
        total = sum(x.cycles for x in layers)
        costly = [x for x in layers if x.tiles]
        if costly:
            # the first tile's load and the last one's store overlap with nothing
            total += costly[0].transfer // max(1, costly[0].tiles)
            total += costly[-1].transfer // max(1, costly[-1].tiles)
        return layers, max(1, total)

    layers, alone = run(1.0)
    _, busy = run(1.0 / groups)
    macs = sum(w.macs for w in works)
    return SchemeEstimate(
        scheme=name,
        cores=cores,
        batch=batch,
        cycles=alone,
        latency_ms=1000.0 * alone / machine.clock,
        inputs_per_s=groups * batch * machine.clock / busy,
        utilisation=macs * batch / (busy * cores * machine.macs_per_cycle),
        external_bytes=sum(x.external_bytes for x in layers),
        layers=layers,
    )
