"""Evaluates layers whose inputs are all constants."""

from __future__ import annotations

from ..ir import Graph, Node, held_bytes
from ..ops import Registry
from .base import GraphPass, PassResult
from .common_subexpressions import RANDOM

__all__ = ["FoldConstants"]

GROWTH = 1 << 20
"""A result may exceed what it is made of by this many bytes."""


class FoldConstants(GraphPass):
    """Replaces layers of known result by constants.

    The front end folds source operators; this takes what lowering an operator to several layers
    has left. All layers are evaluated in one run of the float engine.
    """

    name = "fold_constants"

    def run(self, graph: Graph, registry: Registry) -> PassResult:
        result = PassResult(self.name)
        known = {v.name for v in graph.constants()}
        chosen: list[Node] = []
        for node in graph.nodes:
            if self._folds(node, graph, known):
                chosen.append(node)
                known.update(filter(None, node.outputs))
        if not chosen:
            return result
        made = {o for n in chosen for o in n.outputs if o}
        picked = {n.name for n in chosen}
        wanted = [
            o
            for n in chosen
            for o in n.outputs
            if o and (o in graph.outputs or any(u.name not in picked for u in graph.consumers(o)))
        ]
        from ..runtime.float_engine import FloatEngine

        sub = graph.subgraph("constants", chosen, wanted)
        found = FloatEngine(sub, registry=registry, optimization="none").run({})
        for node in chosen:
            graph.remove_node(node)
        for name in made:
            if name in found:
                graph.values[name].data = found[name]
        result.count = len(chosen)
        graph.prune()
        return result

    def _folds(self, node: Node, graph: Graph, known: set[str]) -> bool:
        if not any(node.inputs) or any(n and n not in known for n in node.inputs):
            return False
        if getattr(node.attrs, "op_type", "") in RANDOM or getattr(node.attrs, "captures", None):
            return False
        types = [graph.values[o].type for o in node.outputs if o]
        if any(d < 0 for t in types for d in t.shape):
            return False
        size = 0
        for name in filter(None, node.inputs):
            data = graph.values[name].data
            size += graph.values[name].type.nbytes if data is None else held_bytes(data)
        return sum(t.nbytes for t in types) <= size + GROWTH
