"""Builds small graphs for the tests of passes, and compares a graph with its rewritten self."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qbcompiler.ir import Attrs, DType, Graph, NoAttrs, Node, TensorType, dump, verify
from qbcompiler.ops import default_registry
from qbcompiler.passes.base import GraphPass, PassResult
from qbcompiler.runtime.float_engine import FloatEngine

REGISTRY = default_registry()


class Build:
    """A graph under construction; methods return value names."""

    def __init__(self) -> None:
        self.graph = Graph(name="g")
        self._rng = np.random.default_rng(7)

    def x(self, *shape: int, name: str = "x") -> str:
        self.graph.add_input(name, TensorType(DType.FLOAT32, shape))
        return name

    def const(self, data: Any, name: str = "c") -> str:
        array = np.asarray(data, dtype=np.float32)
        name = self.graph.fresh(name)
        self.graph.add_value(name, TensorType(DType.FLOAT32, array.shape), array)
        return name

    def normal(self, *shape: int, name: str = "w") -> str:
        return self.const(self._rng.normal(size=shape), name)

    def positive(self, *shape: int, name: str = "p") -> str:
        return self.const(self._rng.uniform(0.5, 1.5, size=shape), name)

    def op(self, op: str, *inputs: str, attrs: Attrs | None = None, out: str = "") -> str:
        attrs = attrs or NoAttrs()
        values = [self.graph.values[n] if n else None for n in inputs]
        type_ = REGISTRY.infer(Node("", op, [], [], attrs), values)[0]
        name = self.graph.fresh(out or op.lower())
        self.graph.add_value(name, type_)
        layer = f"L{len(self.graph)}"
        self.graph.add_node(Node(layer, op, list(inputs), [name], attrs, (layer,)))
        return name

    def done(self, *outputs: str) -> Graph:
        self.graph.outputs = list(outputs)
        verify(self.graph, "simplified", REGISTRY.infer)
        return self.graph


def feeds(graph: Graph, seed: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        n: (rng.normal(size=graph.values[n].shape) * 2).astype(np.float32) for n in graph.inputs
    }


def apply(
    graph: Graph, *passes: GraphPass, rtol: float = 1e-4, atol: float = 1e-5
) -> list[PassResult]:
    """Run passes; outputs must keep their names and, up to rounding, their values."""
    feed = feeds(graph)
    names = list(graph.outputs)
    before = FloatEngine(graph, optimization="none").run(feed)
    results = []
    for step in passes:
        results.append(step.run(graph, REGISTRY))
        step.ensures(graph)
        verify(graph, "final", REGISTRY.infer)
    assert graph.outputs == names
    after = FloatEngine(graph, optimization="none").run(feed)
    for name in names:
        np.testing.assert_allclose(after[name], before[name], rtol=rtol, atol=atol)
    return results


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


def body(graph: Graph) -> list[str]:
    """The lines of the text dump between the inputs and the return."""
    lines = dump(graph).splitlines()
    start = lines.index(") {") + 1
    return [line.strip() for line in lines[start:-2]]


def reasons(results: Sequence[PassResult]) -> list[str]:
    return [reason for r in results for _, reason in r.refusals]
