"""Choose the layers that get 16 bits: the least arithmetic for a wanted accuracy.

The errors of single roundings (:mod:`~qbcompiler.quantization.sensitivity`) predict that of any
choice: what is left at 8 bits adds up, what has 16 bits counts for nothing. A step raises a tensor,
a layer's weights, or everything that one layer multiplies; the step with the most error less for
each multiply-add that it makes wide is taken, again and again. The integer graph then says, on
calibration samples, how many steps it really takes.

A multiply-add counts as wide when either factor has 16 bits: activations and weights of a layer
that is wide for one reason are raised for nothing more. What costs no multiply-add (the inputs of
sums and of functions) still costs memory: each element counts as one multiply-add in the choice,
not in the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

from ..ir import Graph, IntGraph, Node
from ..ops import Registry, default_registry
from .sensitivity import Noise, Sensitivity
from .settings import QuantSettings, matches

if TYPE_CHECKING:
    from ..config import CompileConfig

__all__ = [
    "AutoBits",
    "Choice",
    "Step",
    "Unit",
    "choose_steps",
    "list_units",
    "search_steps",
    "wide_layers",
    "wide_share",
]

_WORTH = 1e-3
"""A step that takes away less of what error is left is not worth a layer."""

_ENOUGH = 1e-4
"""Nor is any, once so little of the error is left."""

_MARGIN_DB = 1.0
"""Aimed at beyond the target: on other samples than those measured a little may be missing."""


@dataclass(frozen=True)
class AutoBits:
    """What is wanted.

    Attributes:
        target_db: SQNR of the worst output; None for as much as the budget gives.
        budget: share of multiply-adds that may be wide; None for any.
        samples: calibration samples to measure on.
    """

    target_db: float | None = None
    budget: float | None = None
    samples: int = 16

    @classmethod
    def from_config(cls, config: CompileConfig) -> Self | None:
        """Read the settings; None where bits are not to be chosen."""
        section = config.bit.auto
        if not section.apply:
            return None
        samples = config.calibration.max_sample_size_for_quant_scheme
        return cls(section.target_sqnr, section.budget, samples)

    @property
    def aim_db(self) -> float | None:
        """The target and a margin."""
        return None if self.target_db is None else self.target_db + _MARGIN_DB


@dataclass(frozen=True)
class Unit:
    """What one name in ``bit.layerOverrides`` raises.

    Attributes:
        kind: ``activation`` or ``weight``.
        name: of the layer, or of a model input.
        names: all that goes into the configuration: tensors on one grid have several makers.
        noise: error at the outputs that goes away.
        readers: layers with multiply-adds that read what is raised, by position.
        elements: elements raised.
    """

    kind: str
    name: str
    names: tuple[str, ...]
    noise: Noise
    readers: frozenset[int]
    elements: int

    @property
    def total(self) -> float:
        """The errors of all outputs."""
        return float(self.noise.sum())


@dataclass(frozen=True)
class Step:
    """Units raised together.

    Attributes:
        units: positions in the list of units.
        predicted_db: SQNR of the worst output after this step and those before.
        share: share of multiply-adds that are wide then.
    """

    units: tuple[int, ...]
    predicted_db: float
    share: float


@dataclass
class Choice:
    """The outcome.

    Attributes:
        units: everything that could be raised.
        steps: in the order in which they were taken.
        taken: how many of the steps the outcome has.
        measured: SQNR of the worst output, in dB, by number of steps, as far as it was measured.
    """

    units: list[Unit]
    steps: list[Step]
    taken: int = 0
    measured: dict[int, float] = field(default_factory=dict)

    def raised(self, count: int | None = None) -> list[Unit]:
        """Return the units of the first steps, in the order in which they were raised."""
        steps = self.steps[: self.taken if count is None else count]
        return [self.units[i] for step in steps for i in step.units]


def list_units(
    graph: Graph,
    settings: QuantSettings,
    classes: Mapping[str, str],
    sensitivity: Sensitivity,
    registry: Registry | None = None,
) -> tuple[list[Unit], dict[str, int]]:
    """Return what can be raised, and the multiply-adds of each layer.

    Args:
        graph: the float body.
        settings: bits that are set already; such layers are no units.
        classes: the grid class of each value.
        sensitivity: what single roundings do.
        registry: operators; the built-in ones by default.
    """
    specs = registry or default_registry()
    macs = {n.name: specs[n.op].macs(n, graph) for n in graph.nodes}
    place = {n.name: i for i, n in enumerate(graph.nodes)}
    called = _by_name(graph)
    groups = _grid_groups(graph, classes, called)
    known = settings.activation_bits(graph)
    wide_groups = {groups[n] for n in known if n in groups}
    units = []
    members: dict[str, list[str]] = {}
    for name in classes:
        members.setdefault(groups[name], []).append(name)
    for group, values in members.items():
        heard = [n for n in values if n in sensitivity.activations]
        if group in wide_groups or not heard:
            continue
        noise = np.sum([sensitivity.activations[n] for n in heard], axis=0)
        readers = {
            place[node.name] for n in values for node in graph.consumers(n) if macs[node.name]
        }
        names = _names_of(graph, values, classes)
        elements = sum(graph.values[n].type.size for n in heard)
        units.append(Unit("activation", names[0], names, noise, frozenset(readers), elements))
    pinned = [p for bits, patterns in settings.weight_bits for p in patterns]
    for name, noise in sensitivity.weights.items():
        node = graph.node(name)
        same = [n for n in called.get(name, [node]) if n.name in sensitivity.weights]
        if any(matches(n, p) for n in same for p in pinned):
            continue
        elements = sum(
            graph.values[i].type.size
            for n in same
            for i in n.inputs
            if i and graph.values[i].is_const
        )
        readers = {place[n.name] for n in same if macs[n.name]}
        units.append(Unit("weight", name, (name,), noise, frozenset(readers), elements))
    return units, macs


def choose_steps(
    units: Sequence[Unit],
    macs: Sequence[int],
    wanted: AutoBits,
    *,
    wide: Sequence[int] = (),
) -> list[Step]:
    """Return steps by falling gain for each multiply-add, as far as the budget goes.

    Args:
        units: what can be raised.
        macs: multiply-adds of each layer, by position.
        wanted: the budget. The target does not end the list: measuring does.
        wide: layers that are wide already.
    """
    if not units:
        return []
    every = max(1, sum(macs))
    left = sum((u.noise for u in units), np.zeros_like(units[0].noise))
    whole = float(left.sum())
    limit = every if wanted.budget is None else wanted.budget * every
    done: set[int] = set()
    widened = set(wide)
    used = sum(macs[i] for i in widened)
    by_reader: dict[int, list[int]] = {}
    for index, unit in enumerate(units):
        for reader in unit.readers:
            by_reader.setdefault(reader, []).append(index)
    moves: list[tuple[int, ...]] = [(i,) for i in range(len(units))]
    moves += [tuple(v) for _, v in sorted(by_reader.items()) if len(v) > 1]
    steps: list[Step] = []
    while True:
        best: tuple[float, tuple[int, ...], set[int], int] | None = None
        remaining = float(left.sum())
        for move in moves:
            fresh = tuple(i for i in move if i not in done)
            gain = sum(units[i].total for i in fresh)
            if not fresh or gain <= _WORTH * max(remaining, _ENOUGH * whole):
                continue
            reached = {r for i in fresh for r in units[i].readers} - widened
            cost = sum(macs[r] for r in reached)
            if used + cost > limit:
                continue
            rate = gain / (cost + sum(units[i].elements for i in fresh) + 1)
            if best is None or rate > best[0]:
                best = (rate, fresh, reached, cost)
        if best is None:
            return steps
        _, fresh, reached, cost = best
        done.update(fresh)
        widened |= reached
        used += cost
        for index in fresh:
            left = np.maximum(left - units[index].noise, 0.0)
        steps.append(Step(fresh, _decibels(left), used / every))


def search_steps(choice: Choice, aim_db: float | None, measure: Callable[[int], float]) -> int:
    """Return the least number of steps with which ``measure`` reaches the aim.

    It starts where the prediction does and closes in by halves. Without an aim, or where no number
    of steps reaches it, the number with the best figure among those measured.

    Args:
        choice: the steps; takes the figures measured.
        aim_db: what is to be reached; None for the best.
        measure: the SQNR in dB with so many steps.
    """
    last = len(choice.steps)

    def at(count: int) -> float:
        if count not in choice.measured:
            choice.measured[count] = round(measure(count), 2)
        return choice.measured[count]

    if aim_db is None:
        at(0)
        at(last)
        return _best(choice.measured)
    if at(0) >= aim_db:
        return 0
    guess = next((i + 1 for i, s in enumerate(choice.steps) if s.predicted_db >= aim_db), last)
    low, high, stride = 0, guess, max(1, guess // 4)
    while high < last and at(high) < aim_db:
        low, high, stride = high, min(last, high + stride), 2 * stride
    if last == 0 or at(high) < aim_db:
        return _best(choice.measured)
    while high - low > max(1, high // 32):
        middle = (low + high) // 2
        if at(middle) >= aim_db:
            high = middle
        else:
            low = middle
    return high


def wide_layers(int_graph: IntGraph) -> list[int]:
    """Return the positions of the layers that read a tensor, or have weights, of 16 bits."""
    found = []
    for index, layer in enumerate(int_graph.layers):
        grids = [int_graph.values[n].quant for n in layer.inputs if n]
        weight = layer.tensors.get("weight")
        if any(q is not None and q.bits > 8 for q in grids) or (
            weight is not None and weight.dtype.itemsize > 1
        ):
            found.append(index)
    return found


def wide_share(int_graph: IntGraph, macs: Mapping[str, int]) -> float:
    """Return the share of multiply-adds in such layers.

    Args:
        int_graph: the integer graph.
        macs: multiply-adds by layer; what is not in it has none.
    """
    counts = [macs.get(layer.name, 0) for layer in int_graph.layers]
    return sum(counts[i] for i in wide_layers(int_graph)) / max(1, sum(counts))


def _best(measured: Mapping[int, float]) -> int:
    return max(measured, key=lambda count: (measured[count], -count))


def _decibels(noise: Noise) -> float:
    worst = float(noise.max(initial=0.0))
    return round(-10.0 * float(np.log10(max(worst, 1e-20))), 2)


def _names_of(graph: Graph, values: Sequence[str], classes: Mapping[str, str]) -> tuple[str, ...]:
    """Return one name for each grid: of the layer that makes its first tensor, or of an input."""
    first = {classes[n]: n for n in reversed(values)}
    makers = [(n, graph.producer(n)) for n in reversed(first.values())]
    return tuple(dict.fromkeys(n if m is None else m.name for n, m in makers))


def _by_name(graph: Graph) -> dict[str, list[Node]]:
    """Return the layers that a plain name in the configuration stands for."""
    found: dict[str, dict[str, Node]] = {}
    for node in graph.nodes:
        for name in (node.name, *node.source):
            found.setdefault(name, {})[node.name] = node
    return {name: list(nodes.values()) for name, nodes in found.items()}


def _grid_groups(
    graph: Graph, classes: Mapping[str, str], called: Mapping[str, Sequence[Node]]
) -> dict[str, str]:
    """Join the classes that a name raises together."""
    parent = {c: c for c in classes.values()}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for node in graph.nodes:
        made = [o for n in called[node.name] for o in n.outputs if o in classes]
        for other in made[1:]:
            parent[root(classes[other])] = root(classes[made[0]])
    return {name: root(c) for name, c in classes.items()}
