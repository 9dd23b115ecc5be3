"""Removes layers that no output needs."""

from __future__ import annotations

from ..ir import Graph
from ..ops import Registry
from .base import GraphPass, PassResult

__all__ = ["DeadCode"]


class DeadCode(GraphPass):
    """Removes nodes and values that no graph output depends on; graph inputs stay."""

    def __init__(self, name: str = "dead_code") -> None:
        self.name = name  # type: ignore[misc]

    def run(self, graph: Graph, registry: Registry) -> PassResult:
        return PassResult(self.name, graph.prune())
