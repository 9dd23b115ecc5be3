"""The rewrites of the float graph, in order."""

from __future__ import annotations

from ..ir import Graph
from ..ops import Registry

__all__ = ["run_pipeline"]


def run_pipeline(graph: Graph, registry: Registry) -> None:
    """Run every pass on ``graph`` in place."""
