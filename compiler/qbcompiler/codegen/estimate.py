"""Cycles and memory of a model on a device, for each inference scheme: its program, timed.

Whatever the device file assumes is named in the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..devices import Device
from ..devices.model import CORES_OF_SCHEME
from ..ir import Graph, IntGraph
from ..ir.program import Program
from ..ops import Registry
from .generate import programs_of
from .layers import Model, read_model
from .machine import Machine
from .timing import Timing, simulate

__all__ = [
    "Compiled",
    "Estimate",
    "LayerEstimate",
    "SchemeEstimate",
    "compile_programs",
    "estimate",
]


@dataclass(frozen=True, slots=True)
class LayerEstimate:
    """One layer under one scheme.

    Attributes:
        name, op: the layer.
        macs: multiply-adds of one input.
        compute, transfer: cycles of a core's arithmetic and barriers, of transfers.
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
        on_chip_bytes, on_chip_bound: end of the last on-chip buffer; no placement needs less than
            the second.
        activation_bytes, activation_bound: the same of one input's tensors in external memory.
        barriers: how often cores wait for each other.
        note: what keeps the scheme from the gain that its cores promise; empty where nothing does.
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
    on_chip_bytes: int
    on_chip_bound: int
    activation_bytes: int
    activation_bound: int
    barriers: int
    note: str
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
            "on_chip_bytes": self.on_chip_bytes,
            "on_chip_bytes_lower_bound": self.on_chip_bound,
            "activation_bytes": self.activation_bytes,
            "activation_bytes_lower_bound": self.activation_bound,
            "barriers": self.barriers,
            "note": self.note,
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
        macs_per_cycle: multiply-adds that one core can do in a cycle.
        bytes_per_cycle: what external memory carries in a cycle.
        clock: cycles a second.
        schemes: one entry for each scheme.
        assumptions: figures of the device that are not public, with the reasoning.
    """

    device: str
    macs: int
    weight_bytes: int
    macs_per_cycle: int
    bytes_per_cycle: float
    clock: int
    schemes: tuple[SchemeEstimate, ...]
    assumptions: Mapping[str, str]

    @property
    def on_chip_bytes(self) -> int:
        """Most bytes of a core's on-chip memory that a scheme uses."""
        return max(s.on_chip_bytes for s in self.schemes)

    @property
    def activation_bytes(self) -> int:
        """Most bytes of external memory that one input's tensors take under a scheme."""
        return max(s.activation_bytes for s in self.schemes)

    @property
    def activation_ratio(self) -> float:
        """How much more than its lower bound a scheme's external memory takes at most."""
        return max(s.activation_bytes / max(1, s.activation_bound) for s in self.schemes)

    def summary(self) -> dict[str, Any]:
        """Return the sums as JSON data, without the layers; ``assumed`` names the figures."""
        first = self.schemes[0]
        return {
            "device": self.device,
            "estimate": True,
            "macs": self.macs,
            "weight_bytes": self.weight_bytes,
            "activation_bytes": first.activation_bytes,
            "activation_bytes_lower_bound": first.activation_bound,
            "on_chip_bytes": self.on_chip_bytes,
            "cycle": {
                "macs": self.macs_per_cycle,
                "bytes": round(self.bytes_per_cycle, 4),
                "hz": self.clock,
            },
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


@dataclass(frozen=True)
class Compiled:
    """The programs of a model on a device, and what they cost.

    Attributes:
        programs: by scheme.
        cost: the estimate.
        timings: by scheme, with what each engine does.
    """

    programs: dict[str, Program]
    cost: Estimate
    timings: dict[str, Timing]


def estimate(
    graph: Graph, device: Device, schemes: Sequence[str], *, registry: Registry | None = None
) -> Estimate:
    """Estimate an NPU body on a device; see :func:`compile_programs`."""
    return compile_programs(graph, device, schemes, registry=registry).cost


def compile_programs(
    graph: Graph,
    device: Device,
    schemes: Sequence[str],
    *,
    integers: IntGraph | None = None,
    registry: Registry | None = None,
) -> Compiled:
    """Generate the program of each scheme and estimate what it costs.

    Args:
        graph: a float graph whose layers all run on the NPU.
        device: the target.
        schemes: names of schemes that the device has.
        integers: the integer graph made of it; without it 8 bits are taken for every number.
        registry: operators; the built-in ones by default.
    """
    machine = Machine.of(device)
    model = read_model(graph, machine.channel_alignment, integers=integers, registry=registry)
    programs = programs_of(model, machine, schemes)
    constants = [layer.constant_bytes for layer in model.layers]

    def timed(program: Program, groups: int, *, spans: bool = False) -> Timing:
        return simulate(
            program, model.layouts, machine, groups=groups, constants=constants, spans=spans
        )

    timings = {name: timed(p, 1, spans=True) for name, p in programs.items()}
    alone = timings.get("single")
    found = []
    for name, program in programs.items():
        groups = max(1, machine.cores // CORES_OF_SCHEME[name])
        busy = timings[name].cycles if groups == 1 else timed(program, groups).cycles
        found.append(_scheme(program, model, machine, timings[name], busy, groups, alone))
    cost = Estimate(
        device=device.name,
        macs=sum(x.work.macs for x in model.layers),
        weight_bytes=sum(constants),
        macs_per_cycle=machine.macs_per_cycle,
        bytes_per_cycle=machine.bytes_per_cycle,
        clock=machine.clock,
        schemes=tuple(found),
        assumptions=dict(device.assumptions),
    )
    return Compiled(programs, cost, timings)


def _scheme(
    program: Program,
    model: Model,
    machine: Machine,
    timing: Timing,
    busy: int,
    groups: int,
    alone: Timing | None,
) -> SchemeEstimate:
    layers = []
    for layer in model.layers:
        i = layer.index
        transfer = timing.outside[i] / machine.bytes_per_cycle
        transfer += timing.linked[i] / machine.link_bytes_per_cycle
        layers.append(
            LayerEstimate(
                name=layer.node.name,
                op=layer.node.op,
                macs=layer.work.macs,
                compute=timing.compute[i],
                transfer=round(transfer),
                external_bytes=timing.outside[i],
                tiles=timing.tiles[i],
                split=program.splits[i],
            )
        )
    macs = sum(x.macs for x in layers)
    return SchemeEstimate(
        scheme=program.scheme,
        cores=program.cores,
        batch=program.batch,
        cycles=timing.cycles,
        latency_ms=1000.0 * timing.cycles / machine.clock,
        inputs_per_s=groups * program.batch * machine.clock / busy,
        utilisation=macs * program.batch / (busy * program.cores * machine.macs_per_cycle),
        external_bytes=sum(timing.outside.values()),
        on_chip_bytes=program.chip_size,
        on_chip_bound=program.chip_bound,
        activation_bytes=program.external_size,
        activation_bound=program.external_bound,
        barriers=timing.barriers,
        note=_note(program, machine, timing, alone),
        layers=tuple(layers),
    )


def _note(program: Program, machine: Machine, timing: Timing, alone: Timing | None) -> str:
    """Return what keeps cores that work together from gaining what they should."""
    if alone is None or program.cores == 1:
        return ""
    gain = program.batch * alone.cycles / timing.cycles
    wanted = 0.9 * program.cores if program.batch > 1 else min(4.0, 0.75 * program.cores)
    if gain >= wanted:
        return ""
    outside = sum(timing.outside.values()) / machine.bytes_per_cycle
    arithmetic = sum(alone.compute.values()) / max(1, sum(timing.compute.values()))
    what = "throughput" if program.batch > 1 else "latency"
    parts = [f"external memory {100 * outside / timing.cycles:.0f}%"]
    if timing.copied:
        parts.append(f"copies between cores {100 * timing.copied / timing.cycles:.0f}%")
    if timing.barriers:
        waits = timing.barriers * machine.sync
        parts.append(f"{timing.barriers} barriers {100 * waits / timing.cycles:.0f}%")
    text = f"{what} {gain:.1f} times that of a core alone; of the time, transfers beside the "
    text += f"arithmetic take: {', '.join(parts)}"
    if program.batch == 1:
        text += f" (arithmetic and barriers alone: {arithmetic:.1f} times faster)"
    return text
