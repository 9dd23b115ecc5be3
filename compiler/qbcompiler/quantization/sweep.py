"""Run an integer graph layer by layer, each on all samples before the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from ..ir import Array, IntGraph
from ..ops import Registry
from ..runtime.integer_engine import IntegerEngine, to_integers

__all__ = ["SWEEP_BYTES", "Sample", "Samples", "Sweep", "fitting"]

Sample = Mapping[str, Array]

SWEEP_BYTES = 512 << 20
"""What all samples' tensors may take at a time."""


class Samples(Protocol):
    """Inputs of the body by name, made when asked for."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def __getitem__(self, index: int, /) -> Sample:
        """Return one."""
        ...


class Sweep:
    """A run of a graph, whose layers may be changed before their turn comes.

    Args:
        graph: the graph.
        samples: its inputs.
        threads: threads of the integer engine; the result does not depend on it.
        registry: operators; the built-in ones by default.
    """

    def __init__(
        self,
        graph: IntGraph,
        samples: Sequence[Sample],
        threads: int,
        registry: Registry | None,
    ) -> None:
        self._engine = IntegerEngine(graph, threads, registry=registry)
        self._graph = graph
        self._last = _last_use(graph)
        self._live = [
            {n: to_integers(np.asarray(sample[n]), graph.values[n]) for n in graph.inputs}
            for sample in samples
        ]

    def inputs(self, name: str) -> list[Array]:
        """Return the integers of a tensor that a layer to come reads, for each sample."""
        return [live[name] for live in self._live]

    def run(self, index: int) -> list[dict[str, Array]]:
        """Return what a layer makes of each sample."""
        return [self._engine.run_layer(index, live) for live in self._live]

    def keep(self, index: int, made: Sequence[Mapping[str, Array]]) -> None:
        """Hold a layer's outputs for those who read them; let go of what nobody reads any more."""
        for live, outputs in zip(self._live, made, strict=True):
            live.update(outputs)
            for name in (*self._graph.layers[index].inputs, *outputs):
                if self._last.get(name, -1) <= index:
                    live.pop(name, None)


def _last_use(graph: IntGraph) -> dict[str, int]:
    return {n: i for i, layer in enumerate(graph.layers) for n in layer.inputs if n}


def fitting(graph: IntGraph, count: int) -> int:
    """Return how many samples' tensors may be held at once, of ``count``."""
    last = _last_use(graph)
    live = {n: graph.values[n].type.nbytes for n in graph.inputs}
    peak = 0
    for index, layer in enumerate(graph.layers):
        live.update((n, graph.values[n].type.nbytes) for n in layer.outputs if n)
        peak = max(peak, sum(live.values()))
        for name in (*layer.inputs, *layer.outputs):
            if last.get(name, -1) <= index:
                live.pop(name, None)
    return min(count, max(1, SWEEP_BYTES // max(peak, 1)))
