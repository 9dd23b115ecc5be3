"""``0.5 * x * (1 + erf(x / sqrt 2))`` and the tanh form to Gelu."""

from __future__ import annotations

import math

from ..ir import Graph, Node
from ..ops.unary import GeluAttrs
from .base import scalar_of
from .products import Gate, GatedActivation, close, line_of, polynomial_of

__all__ = ["FuseGelu"]

_CUBIC = 0.044715


class FuseGelu(GatedActivation):
    """Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), both forms."""

    name = "fuse_gelu"
    needs = ("Gelu", "Erf", "Tanh")

    def gate(self, graph: Graph, name: str, x: str) -> Gate | None:
        one = graph.producer(name)
        if one is None or one.op != "AddingConstant" or scalar_of(graph, one.inputs[1]) != 1.0:
            return None
        inner = graph.producer(one.inputs[0])
        if inner is None:
            return None
        if inner.op == "Erf":
            root, a, b, before = line_of(graph, inner.inputs[0], x)
            if b != 0.0 or not close(a, math.sqrt(0.5)):
                return None
            return Gate(root, 2.0, "Gelu", GeluAttrs("none"), (*before, inner, one))
        if inner.op != "Tanh":
            return None
        nodes: dict[str, Node] = {}
        coefficients = polynomial_of(graph, inner.inputs[0], x, nodes)
        if coefficients is None or len(coefficients) != 4:
            return None
        c0, c1, c2, c3 = coefficients
        slope = math.sqrt(2 / math.pi)
        if c0 or c2 or not close(c1, slope) or not close(c3, slope * _CUBIC):
            return None
        return Gate(x, 2.0, "Gelu", GeluAttrs("tanh"), (*nodes.values(), inner, one))
