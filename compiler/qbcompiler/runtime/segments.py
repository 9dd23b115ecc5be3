"""Cuts a graph into runs of layers that ONNX Runtime takes and layers that it refuses.

ONNX Runtime lacks some standard operators, element types and forms. A graph with such a layer is
executed in segments: its other layers in ONNX Runtime as before, that one in ONNX's reference
implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..ir import Array, Graph, Node

__all__ = ["Segment", "SegmentedEngine", "cut_segments"]


class Engine(Protocol):
    """Executes a graph."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Execute once."""
        ...


@dataclass(frozen=True)
class Segment:
    """Consecutive layers of one kind.

    Attributes:
        graph: the layers; inputs are what they read from before.
        outputs: what later segments, or the caller, read of them.
        refused: whether ONNX Runtime refuses the layers.
    """

    graph: Graph
    outputs: list[str]
    refused: bool


def cut_segments(
    graph: Graph, wanted: Sequence[str], refuses: Callable[[Node], bool]
) -> list[Segment]:
    """Return the layers that ``wanted`` needs, in segments and in execution order."""
    live: set[str] = set()
    work = list(wanted)
    while work:
        maker = graph.producer(work.pop())
        if maker is not None and maker.name not in live:
            live.add(maker.name)
            work.extend(filter(None, maker.inputs))
    runs: list[tuple[bool, list[Node]]] = []
    for node in graph.nodes:
        if node.name not in live:
            continue
        refused = refuses(node)
        if not runs or refused or runs[-1][0]:
            runs.append((refused, []))
        runs[-1][1].append(node)
    readers: dict[str, int] = {name: len(runs) for name in wanted}
    for index, (_, nodes) in enumerate(runs):
        for node in nodes:
            for name in filter(None, node.inputs):
                readers[name] = max(index, readers.get(name, 0))
    segments = []
    for index, (refused, nodes) in enumerate(runs):
        made = [o for n in nodes for o in n.outputs if o and readers.get(o, -1) > index]
        segments.append(Segment(graph.subgraph(f"segment{index}", nodes, made), made, refused))
    return segments


class SegmentedEngine:
    """Runs segments one after another.

    Args:
        segments: from :func:`cut_segments`.
        engines: one for each.
        wanted: what :meth:`run` returns.
    """

    def __init__(
        self, segments: Sequence[Segment], engines: Sequence[Engine], wanted: Sequence[str]
    ) -> None:
        self._parts = list(zip(segments, engines, strict=True))
        self._wanted = list(wanted)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Execute the graph once; values go as soon as no later segment reads them."""
        last: dict[str, int] = {}
        for index, (segment, _) in enumerate(self._parts):
            last.update(dict.fromkeys(segment.graph.inputs, index))
        values = dict(inputs)
        for index, (segment, engine) in enumerate(self._parts):
            values.update(engine.run({n: values[n] for n in segment.graph.inputs}))
            for name in segment.graph.inputs:
                if last[name] == index and name not in self._wanted:
                    values.pop(name, None)
        return {n: values[n] for n in self._wanted}
