"""Write the program of a scheme: loads, tiles and stores of each core, and where they wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..devices import Device
from ..devices.model import CORES_OF_SCHEME
from ..ir import Box, Graph, IntGraph
from ..ir.boxes import contains, intersect, is_empty, whole
from ..ir.program import (
    EXTERNAL,
    Copy,
    Fetch,
    Instruction,
    Load,
    Operand,
    Program,
    Store,
    Tile,
)
from ..ops import Registry
from .barriers import with_barriers
from .decide import Decisions, Step, decide
from .layers import Model, read_model
from .machine import Machine
from .tiles import Job, Tiling, weight_bytes

__all__ = ["generate", "generate_all", "programs_of"]


def generate_all(
    graph: Graph,
    device: Device,
    schemes: Sequence[str],
    *,
    integers: IntGraph | None = None,
    registry: Registry | None = None,
) -> dict[str, Program]:
    """Return the program of each scheme.

    Args:
        graph: a float graph whose layers all run on the NPU.
        device: the target.
        schemes: names of schemes that the device has.
        integers: the integer graph made of it; without it 8 bits are taken for every number.
        registry: operators; the built-in ones by default.
    """
    machine = Machine.of(device)
    model = read_model(graph, machine.channel_alignment, integers=integers, registry=registry)
    return programs_of(model, machine, schemes)


def programs_of(model: Model, machine: Machine, schemes: Sequence[str]) -> dict[str, Program]:
    """Return the program of each scheme."""
    alone: Decisions | None = None
    programs = {}
    for scheme in schemes:
        if scheme.startswith("global"):
            decisions = decide(model, machine, CORES_OF_SCHEME[scheme])
        else:
            # a core of a batch does what a core alone does
            decisions = alone = alone or decide(model, machine, 1)
        programs[scheme] = generate(model, machine, scheme, decisions)
    return programs


def generate(model: Model, machine: Machine, scheme: str, decisions: Decisions) -> Program:
    """Return the program that decisions lead to."""
    cores = CORES_OF_SCHEME[scheme]
    wide = scheme.startswith("global")
    count = cores if wide else 1
    writers = [_Writer(core, model, machine, decisions) for core in range(count)]
    by_step = [[w.step(i) for w in writers] for i in range(len(decisions.steps))]
    if count > 1:
        by_step = [_share_fetches(streams) for streams in by_step]
        by_step = with_barriers(by_step, decisions.chip, decisions.external, model.aliases)
    elif scheme == "multi":
        by_step = [[_shared(s) for s in streams] for streams in by_step]
    streams: list[list[Instruction]] = [[] for _ in range(count)]
    for parts in by_step:
        for stream, part in zip(streams, parts, strict=True):
            stream += part
    splits = dict.fromkeys(range(len(model.layers)), "none")
    splits |= {s.layer.index: s.split for s in decisions.steps}
    return Program(
        scheme=scheme,
        cores=cores,
        batch=1 if wide else (cores if scheme == "multi" else 1),
        on_chip=machine.on_chip,
        alignment=machine.alignment,
        channel_alignment=machine.channel_alignment,
        layers=model.names,
        external_size=decisions.external_plan.size,
        external=decisions.external,
        aliases=dict(model.aliases),
        chip=decisions.chip,
        streams=streams,
        chip_bound=decisions.chip_bound,
        external_bound=decisions.external_plan.bound,
        splits=[splits[i] for i in range(len(model.layers))],
    )


def _shared(stream: list[Instruction]) -> list[Instruction]:
    """Mark the constants that four cores fetch at once."""
    return [
        Fetch(x.layer, x.part, x.buffer, x.size, shared=True) if isinstance(x, Fetch) else x
        for x in stream
    ]


def _share_fetches(streams: list[list[Instruction]]) -> list[list[Instruction]]:
    """Mark transfers from external memory that several cores of a step want alike."""
    wanted: Counter[object] = Counter()
    for stream in streams:
        wanted.update({_content(x) for x in stream} - {None})
    found = []
    for stream in streams:
        marked: list[Instruction] = []
        for x in stream:
            if wanted[_content(x)] > 1:
                if isinstance(x, Fetch):
                    x = Fetch(x.layer, x.part, x.buffer, x.size, shared=True)
                elif isinstance(x, Load):
                    x = Load(x.layer, x.target, shared=True)
            marked.append(x)
        found.append(marked)
    return found


def _content(x: Instruction) -> object:
    if isinstance(x, Fetch):
        return (x.layer, x.part)
    if isinstance(x, Load):
        return (x.layer, x.target.tensor, x.target.box)
    return None


@dataclass(slots=True)
class _Ring:
    """Buffers of one use, filled in turn."""

    buffers: list[int]
    held: list[object] = field(default_factory=list)
    turn: int = 0
    busy: int = -1

    def __post_init__(self) -> None:
        self.held = [None] * len(self.buffers)

    def find(self, content: object) -> int | None:
        """Return the buffer that holds ``content``."""
        return self.buffers[self.held.index(content)] if content in self.held else None

    def use(self, content: object) -> int:
        """Return the buffer that holds ``content``, which the next tile reads."""
        self.busy = self.held.index(content)
        return self.buffers[self.busy]

    def take(self, content: object) -> int:
        """Return the buffer to fill next, not the one that is being read."""
        index = self.turn % len(self.buffers)
        if index == self.busy and len(self.buffers) > 1:
            index = (index + 1) % len(self.buffers)
        self.turn = index + 1
        self.held[index] = content
        return self.buffers[index]


class _Writer:
    """Writes one core's instructions, step by step."""

    def __init__(self, core: int, model: Model, machine: Machine, decisions: Decisions) -> None:
        self.core, self.model, self.machine, self.d = core, model, machine, decisions
        self._ahead: dict[int, dict[str, _Ring]] = {}
        self._due: dict[int, list[int]] = {}  # later steps whose constants a step fetches
        for later, step in enumerate(decisions.steps):
            if step.ahead:
                self._due.setdefault(later - step.ahead, []).append(later)

    def step(self, index: int) -> list[Instruction]:
        """Return the instructions of a step."""
        step = self.d.steps[index]
        out: list[Instruction] = []
        tiling = step.tilings[self.core]
        rings = {use: _Ring(b) for use, b in self.d.slots[index].items()}
        rings |= self._ahead.pop(index, {})
        jobs = tiling.jobs if tiling is not None else []
        if tiling is not None:
            self._fill(out, step, tiling, jobs[0], rings)
        for later in self._due.get(index, ()):
            self._look_ahead(out, later)
        for k, job in enumerate(jobs):
            assert tiling is not None
            if job.links:
                bound = {
                    n: rings[n].use(b)
                    for n, b in job.wants().items()
                    if self._in_slot(n, tiling, step)
                }
                if k + 1 < len(jobs):
                    self._fill(out, step, tiling, jobs[k + 1], rings)
                self._links(out, tiling, job, rings, bound)
                continue
            # what this tile reads stays where it is while the next one's operands come in
            inputs = self._inputs(step, tiling, job, rings)
            weights = self._weights(step, tiling, job, rings)
            if k + 1 < len(jobs):
                self._fill(out, step, tiling, jobs[k + 1], rings)
            self._tile(out, step, tiling, job, rings, inputs, weights)
        return out

    def _look_ahead(self, out: list[Instruction], index: int) -> None:
        """Fetch the first constants of a later step."""
        step = self.d.steps[index]
        tiling = step.tilings[self.core]
        if tiling is None:
            return
        if step.before:
            uses = [u for u in tiling.slots if u.startswith("weights")]
            rings = self._ahead[index] = {u: _Ring(self.d.slots[index][u]) for u in uses}
            self._constants(out, step, rings)
            return
        if "weights" not in tiling.slots:
            return
        ring = _Ring(self.d.slots[index]["weights"])
        self._ahead[index] = {"weights": ring}
        for job in tiling.jobs[: len(ring.buffers)]:
            self._fetch(out, step, job, ring)

    def _fetch(self, out: list[Instruction], step: Step, job: Job, ring: _Ring) -> None:
        content = (job.part,)
        if ring.find(content) is None:
            layer = step.layer
            size = weight_bytes(layer, job.part, self.machine.alignment)
            out.append(Fetch(layer.index, job.part, ring.take(content), size))

    def _fill(
        self, out: list[Instruction], step: Step, tiling: Tiling, job: Job, rings: dict[str, _Ring]
    ) -> None:
        """Bring in what a tile reads and its buffers do not hold yet."""
        layer = step.layer
        if job.links:
            self._constants(out, step, rings)
            inner = {x.outputs[0] for x in step.before}
            wanted = [(n, b) for n, b in job.wants().items() if n not in inner]
        else:
            wanted = list(zip(layer.inputs, job.reads, strict=True))
        if "weights" in tiling.slots:
            self._fetch(out, step, job, rings["weights"])
        for name, read in wanted:
            if is_empty(read) or name not in tiling.slots:
                continue
            root = self.model.root(name)
            if self._is_own(root, read):
                continue
            ring = rings[name]
            if ring.find(read) is not None:
                continue
            buffer = ring.take(read)
            if root not in self.d.kept:
                out.append(Load(layer.index, Operand(name, read, buffer, read)))
                continue
            for core, part in enumerate(self.d.parts[root]):
                shared = None if part is None else intersect(part, read)
                if part is not None and shared is not None:
                    target = Operand(name, shared, buffer, read)
                    out.append(Copy(layer.index, target, core, self.d.kept[root], part))

    def _constants(self, out: list[Instruction], step: Step, rings: dict[str, _Ring]) -> None:
        """Fetch the constants of a chain's layers, once each."""
        for layer in step.layers:
            ring = rings.get(f"weights {layer.index}")
            if ring is not None and ring.find((None,)) is None:
                size = weight_bytes(layer, None, self.machine.alignment)
                out.append(Fetch(layer.index, None, ring.take((None,)), size))

    def _in_slot(self, name: str, tiling: Tiling, step: Step) -> bool:
        """Whether a tensor that a chain reads is brought into a buffer of the step."""
        return name in tiling.slots and all(name != x.outputs[0] for x in step.before)

    def _links(
        self,
        out: list[Instruction],
        tiling: Tiling,
        job: Job,
        rings: dict[str, _Ring],
        bound: dict[str, int],
    ) -> None:
        """Compute a tile of a chain, layer by layer."""
        made: dict[str, Operand] = {}
        wants = job.wants()
        for link in job.links:
            layer = link.layer
            inputs: list[Operand | None] = []
            for name, read in zip(layer.inputs, link.reads, strict=True):
                if is_empty(read):
                    inputs.append(None)
                elif name in made:
                    inputs.append(Operand(name, read, made[name].buffer, made[name].frame))
                elif name in bound:
                    inputs.append(Operand(name, read, bound[name], wants[name]))
                else:
                    root = self.model.root(name)
                    inputs.append(Operand(name, read, self.d.kept[root], self._frame(name)))
            name = layer.outputs[0]
            if name in self.d.kept:
                target = Operand(name, link.box, self.d.kept[name], self._frame(name))
            else:
                target = Operand(name, link.box, rings[name].take(None), link.box)
            made[name] = target
            ring = rings.get(f"weights {layer.index}")
            weights = EXTERNAL if ring is None else ring.use((None,))
            cycles = layer.cycles(link.box, self.machine.side)
            out.append(Tile(layer.index, cycles, link.box, tuple(inputs), (target,), weights, None))
        last = job.links[-1].layer
        if last.outputs[0] not in self.d.kept:
            out.append(Store(last.index, made[last.outputs[0]]))

    def _is_own(self, root: str, read: Box) -> bool:
        """Whether this core's part of a tensor that is kept on chip holds a box."""
        if root not in self.d.kept:
            return False
        if len(self.d.parts[root]) == 1:
            return True
        part = self.d.parts[root][self.core]
        return part is not None and contains(part, read)

    def _frame(self, name: str) -> Box:
        """Return the part of a kept tensor that this core has."""
        if len(self.d.parts[self.model.root(name)]) == 1:
            return whole(self.model.graph.values[name].shape)
        part = self.d.parts[name][self.core]
        assert part is not None
        return part

    def _inputs(
        self, step: Step, tiling: Tiling, job: Job, rings: dict[str, _Ring]
    ) -> tuple[Operand | None, ...]:
        found: list[Operand | None] = []
        for name, read in zip(step.layer.inputs, job.reads, strict=True):
            root = self.model.root(name)
            if is_empty(read):
                found.append(None)
            elif self._is_own(root, read):
                found.append(Operand(name, read, self.d.kept[root], self._frame(name)))
            elif name in tiling.slots:
                found.append(Operand(name, read, rings[name].use(read), read))
            else:
                shape = self.model.graph.values[name].shape
                found.append(Operand(name, read, EXTERNAL, whole(shape)))
        return tuple(found)

    def _weights(self, step: Step, tiling: Tiling, job: Job, rings: dict[str, _Ring]) -> int:
        if "weights" not in tiling.slots:
            return EXTERNAL
        return rings["weights"].use((job.part,))

    def _tile(
        self,
        out: list[Instruction],
        step: Step,
        tiling: Tiling,
        job: Job,
        rings: dict[str, _Ring],
        inputs: tuple[Operand | None, ...],
        weights: int,
    ) -> None:
        layer = step.layer
        outputs: list[Operand] = []
        stores: list[Operand] = []
        for i, name in enumerate(layer.outputs if job.last else ()):
            shape = self.model.graph.values[name].shape
            box = job.box if i == 0 else whole(shape)
            if name in self.d.kept:
                outputs.append(Operand(name, box, self.d.kept[name], self._frame(name)))
            elif name in tiling.slots:
                outputs.append(Operand(name, box, rings[name].take(None), box))
                stores.append(outputs[-1])
            else:
                outputs.append(Operand(name, box, EXTERNAL, whole(shape)))
        cycles = layer.cycles(job.box, self.machine.side, job.share)
        sums = rings["sums"].buffers[0] if "sums" in tiling.slots else None
        out.append(
            Tile(
                layer.index, cycles, job.box, inputs, tuple(outputs), weights, job.part, sums,
                job.first, job.last,
            )
        )  # fmt: skip
        out += [Store(layer.index, operand) for operand in stores]
