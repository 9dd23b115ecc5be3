"""``x * sigmoid(x)`` to Swish, ``x * sigmoid(a * x)`` to QuickGelu."""

from __future__ import annotations

from ..ir import Attrs, Graph, NoAttrs
from ..ops.unary import QuickGeluAttrs
from .products import Gate, GatedActivation, line_of

__all__ = ["FuseSwish"]


class FuseSwish(GatedActivation):
    """Ramachandran et al., "Searching for Activation Functions" (2017)."""

    name = "fuse_swish"
    needs = ("Swish", "QuickGelu", "Sigmoid")

    def gate(self, graph: Graph, name: str, x: str) -> Gate | None:
        node = graph.producer(name)
        if node is None or node.op != "Sigmoid":
            return None
        root, a, b, before = line_of(graph, node.inputs[0], x)
        if b != 0.0:
            return None
        attrs: Attrs = NoAttrs() if a == 1.0 else QuickGeluAttrs(a)
        op = "Swish" if a == 1.0 else "QuickGelu"
        return Gate(root, 1.0, op, attrs, (*before, node))
