"""How long a program takes, by the model of the device: a simulation, instruction by instruction.

Each core has four engines, which work beside each other, each in program order: one fetches
constants, one brings activations in, one computes, one stores. An instruction begins when its
engine is free and its buffers are: what it reads has been written, what it overwrites has been
read. External memory serves one transfer at a time at full bandwidth, the one that is ready first.
A shared transfer is paid by the core that asks first. Copies between cores take the reading core's
link alone. A barrier waits for all but constants on their way: no other core reads them.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from ..ir.program import (
    EXTERNAL,
    Copy,
    Fetch,
    Instruction,
    Layouts,
    Load,
    Operand,
    Program,
    Store,
    Sync,
    Tile,
)
from .machine import Machine

__all__ = ["Span", "Timing", "simulate"]

Engine = Literal["constants", "in", "compute", "out", "wait"]


@dataclass(frozen=True, slots=True)
class Span:
    """What an engine does for a while.

    Attributes:
        core: of the first group.
        engine: which of its engines; ``wait`` is a barrier.
        start, end: cycles.
        layer: index of the layer that it serves; -1 for a barrier.
        kind: ``load``, ``fetch``, ``copy``, ``tile``, ``store`` or ``sync``.
        size: bytes moved; 0 for tiles.
    """

    core: int
    engine: Engine
    start: float
    end: float
    layer: int
    kind: str
    size: int = 0


@dataclass
class Timing:
    """What a simulation found, for one batch of the first group.

    Attributes:
        cycles: from the first transfer to the last.
        spans: of the first group's cores, where they were asked for.
        compute: cycles of tiles by layer, of the core that has most; barriers count for the layer
            that waits.
        outside: bytes to and from external memory by layer.
        linked: bytes between cores by layer, of the core that has most.
        tiles: tiles by layer, of the core that has most.
        barriers: their number.
        copied: cycles of copies of the core that has most.
    """

    cycles: int
    spans: list[Span] = field(default_factory=list)
    compute: Counter[int] = field(default_factory=Counter)
    outside: Counter[int] = field(default_factory=Counter)
    linked: Counter[int] = field(default_factory=Counter)
    tiles: Counter[int] = field(default_factory=Counter)
    barriers: int = 0
    copied: int = 0


def simulate(
    program: Program,
    layouts: Layouts,
    machine: Machine,
    *,
    groups: int = 1,
    constants: Sequence[int] = (),
    spans: bool = False,
) -> Timing:
    """Simulate a program.

    Args:
        program: of one scheme.
        layouts: of its tensors.
        machine: the device.
        groups: groups of cores that each run the program at the same time, on inputs of their own,
            and share external memory.
        constants: bytes of each layer's constants, which a tile streams that has no buffer of them.
        spans: whether to keep what each engine of the first group does.
    """
    return _Simulation(program, layouts, machine, groups, constants, spans).run()


class _Core:
    """One core's engines and buffers."""

    def __init__(self, group: int, number: int, stream: Sequence[Instruction], count: int) -> None:
        self.group, self.number, self.stream = group, number, stream
        self.at = 0
        self.free: dict[str, float] = dict.fromkeys(get_args(Engine), 0.0)
        self.written = [0.0] * count
        self.busy = np.zeros(count)  # when a buffer was last read or written
        self.times: Counter[object] = Counter()

    def wrote(self, buffer: int, end: float) -> None:
        """Note that a buffer is written until ``end``."""
        self.written[buffer] = end
        self.used(buffer, end)

    def used(self, buffer: int, end: float) -> None:
        """Note that a buffer is in use until ``end``."""
        self.busy[buffer] = max(self.busy[buffer], end)

    @property
    def now(self) -> float:
        """When it may pass a barrier: all its engines but that of constants are free."""
        return max(end for engine, end in self.free.items() if engine != "constants")


class _Simulation:
    def __init__(
        self,
        program: Program,
        layouts: Layouts,
        machine: Machine,
        groups: int,
        constants: Sequence[int],
        spans: bool,
    ) -> None:
        self.p, self.layouts, self.machine = program, layouts, machine
        self.constants, self.keep = constants, spans
        streams = program.streams * program.cores if program.batch > 1 else program.streams
        count = len(program.chip)
        self.cores = [[_Core(g, i, s, count) for i, s in enumerate(streams)] for g in range(groups)]
        starts = np.array([b.offset for b in program.chip], dtype=np.int64)
        ends = starts + np.array([b.size for b in program.chip], dtype=np.int64)
        self.near = [
            np.flatnonzero((starts < a.offset + a.size) & (ends > a.offset)) for a in program.chip
        ]
        self.bus = 0.0
        self.stored: dict[tuple[int, str], float] = defaultdict(float)
        self.paid: dict[object, float] = {}
        self.result = Timing(0)
        self._compute: list[Counter[int]] = [Counter() for _ in streams]
        self._linked: list[Counter[int]] = [Counter() for _ in streams]
        self._tiles: list[Counter[int]] = [Counter() for _ in streams]
        self._sizes: dict[tuple[str, object], int] = {}

    def run(self) -> Timing:
        """Simulate to the end."""
        queue: list[tuple[float, int, int]] = []
        for cores in self.cores:
            for core in cores:
                self._advance(core, queue)
            self._release(cores, queue)
        while queue:
            _, group, number = heapq.heappop(queue)
            core = self.cores[group][number]
            self._transfer(core)
            self._advance(core, queue)
            self._release(self.cores[group], queue)
        found = self.result
        found.cycles = max(1, math.ceil(max(max(c.free.values()) for g in self.cores for c in g)))
        for mine, total in (
            (self._compute, found.compute),
            (self._linked, found.linked),
            (self._tiles, found.tiles),
        ):
            for by_layer in mine:
                for layer, value in by_layer.items():
                    total[layer] = max(total[layer], value)
        linked = max((sum(c.values()) for c in self._linked), default=0)
        found.copied = math.ceil(linked / self.machine.link_bytes_per_cycle)
        return found

    # -- order -----------------------------------------------------------------------------

    def _advance(self, core: _Core, queue: list[tuple[float, int, int]]) -> None:
        """Follow a core up to its next barrier or transfer to or from external memory."""
        while core.at < len(core.stream):
            x = core.stream[core.at]
            if isinstance(x, Sync):
                return
            if isinstance(x, (Load, Fetch, Store)) or (isinstance(x, Tile) and self._streams(x)):
                heapq.heappush(queue, (self._ready(core, x), core.group, core.number))
                return
            if isinstance(x, Tile):
                start = self._ready(core, x)
                self._end(core, x, "compute", start, start + x.cycles)
            elif isinstance(x, Copy):
                start = self._ready(core, x)
                size = self._bytes(x.target)
                self._end(core, x, "in", start, start + size / self.machine.link_bytes_per_cycle)
            core.at += 1

    def _release(self, cores: Sequence[_Core], queue: list[tuple[float, int, int]]) -> None:
        """Let the cores of a group pass a barrier when all of them have come to it."""
        while all(c.at < len(c.stream) and isinstance(c.stream[c.at], Sync) for c in cores):
            start = max(c.now for c in cores)
            end = start + self.machine.sync
            for c in cores:
                if c.group == 0 and self.keep:
                    self.result.spans.append(Span(c.number, "wait", c.now, end, -1, "sync"))
                c.free = {engine: max(free, end) for engine, free in c.free.items()}
                c.at += 1
                if c.group == 0:
                    waiting = c.stream[c.at] if c.at < len(c.stream) else None
                    if waiting is not None and not isinstance(waiting, Sync):
                        self._compute[c.number][waiting.layer] += self.machine.sync
            if cores[0].group == 0:
                self.result.barriers += 1
            for c in cores:
                self._advance(c, queue)

    def _transfer(self, core: _Core) -> None:
        x = core.stream[core.at]
        start = self._ready(core, x)
        key: object = None
        if isinstance(x, (Load, Fetch)) and x.shared:
            what = (x.layer, x.part) if isinstance(x, Fetch) else (x.layer, x.target)
            core.times[what] += 1
            key = (core.group, what, core.times[what])
        size = self._moved(x)
        engine: Engine = "constants" if isinstance(x, Fetch) else "in"
        if key is not None and key in self.paid:
            self._end(core, x, engine, start, max(start, self.paid[key]), size=0)
        else:
            start = max(start, self.bus)
            length = size / self.machine.bytes_per_cycle
            if isinstance(x, Tile):
                length = max(length, x.cycles)
            end = self.bus = start + length
            if isinstance(x, Store):
                engine = "out"
            elif isinstance(x, Tile):
                engine = "compute"
            self._end(core, x, engine, start, end, size=size)
            if key is not None:
                self.paid[key] = end
        core.at += 1

    # -- one instruction -------------------------------------------------------------------

    def _streams(self, x: Tile) -> bool:
        return any(o is not None and o.buffer == EXTERNAL for o in (*x.inputs, *x.outputs)) or (
            x.weights == EXTERNAL and bool(self._constant(x))
        )

    def _constant(self, x: Tile) -> int:
        return self.constants[x.layer] if x.layer < len(self.constants) else 0

    def _ready(self, core: _Core, x: Instruction) -> float:
        """Return when an instruction's engine and buffers are free."""
        if isinstance(x, (Load, Fetch, Copy)):
            buffer = x.buffer if isinstance(x, Fetch) else x.target.buffer
            engine = "constants" if isinstance(x, Fetch) else "in"
            times = [core.free[engine], self._idle(core, buffer)]
            if isinstance(x, Load):
                times.append(self.stored[core.group, self.p.root(x.target.tensor)])
            elif isinstance(x, Copy):
                times.append(self.cores[core.group][x.core].written[x.buffer])
            return max(times)
        if isinstance(x, Store):
            return max(core.free["out"], core.written[x.source.buffer])
        assert isinstance(x, Tile)
        times = [core.free["compute"]]
        for o in x.inputs:
            if o is not None:
                outside = o.buffer == EXTERNAL
                times.append(
                    self.stored[core.group, self.p.root(o.tensor)]
                    if outside
                    else core.written[o.buffer]
                )
        times += [self._idle(core, o.buffer) for o in x.outputs if o.buffer != EXTERNAL]
        if x.weights != EXTERNAL:
            times.append(core.written[x.weights])
        if x.sums is not None:
            times.append(self._idle(core, x.sums))
        return max(times)

    def _idle(self, core: _Core, buffer: int) -> float:
        """Return when nothing reads or writes the bytes of a buffer any more."""
        return float(core.busy[self.near[buffer]].max())

    def _end(
        self, core: _Core, x: Instruction, engine: Engine, start: float, end: float, size: int = 0
    ) -> None:
        """Note that an instruction takes from ``start`` to ``end``."""
        core.free[engine] = end
        layer, kind = -1, type(x).__name__.lower()
        if isinstance(x, (Load, Copy)):
            layer = x.layer
            core.wrote(x.target.buffer, end)
            if isinstance(x, Copy):
                size = self._bytes(x.target)
                if core.group == 0:
                    self._linked[core.number][layer] += size
        elif isinstance(x, Fetch):
            layer = x.layer
            core.wrote(x.buffer, end)
        elif isinstance(x, Store):
            layer = x.layer
            core.used(x.source.buffer, end)
            key = core.group, self.p.root(x.source.tensor)
            self.stored[key] = max(self.stored[key], end)
        elif isinstance(x, Tile):
            layer = x.layer
            for b in [x.weights, *(o.buffer for o in x.inputs if o is not None)]:
                if b != EXTERNAL:
                    core.used(b, end)
            for o in x.outputs:
                if o.buffer == EXTERNAL:
                    key = core.group, self.p.root(o.tensor)
                    self.stored[key] = max(self.stored[key], end)
                else:
                    core.wrote(o.buffer, end)
            if x.sums is not None:
                core.wrote(x.sums, end)
            if core.group == 0:
                self._compute[core.number][layer] += x.cycles
                self._tiles[core.number][layer] += 1
        if core.group == 0:
            if not isinstance(x, Copy):
                self.result.outside[layer] += size
            if self.keep:
                self.result.spans.append(Span(core.number, engine, start, end, layer, kind, size))

    def _moved(self, x: Instruction) -> int:
        """Return the bytes that an instruction moves to or from external memory."""
        if isinstance(x, Load):
            return self._bytes(x.target)
        if isinstance(x, Store):
            return self._bytes(x.source)
        if isinstance(x, Fetch):
            return x.size
        assert isinstance(x, Tile)
        operands = [o for o in (*x.inputs, *x.outputs) if o is not None and o.buffer == EXTERNAL]
        size = sum(map(self._bytes, operands))
        return size + (self._constant(x) if x.weights == EXTERNAL else 0)

    def _bytes(self, x: Operand) -> int:
        key = (x.tensor, x.box)
        if key not in self._sizes:
            layout = self.layouts[x.tensor]
            self._sizes[key] = layout.size(x.box, self.p.channel_alignment)
        return self._sizes[key]
