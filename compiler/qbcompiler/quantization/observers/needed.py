"""Which activations have a say in a grid, and so need observing.

Observing costs a pass over the tensor and keeps ONNX Runtime from fusing the layers on both sides
of it, so a tensor whose own range decides nothing is left alone:

* an output that only moves its input's elements has the input's grid;
* an operator with a fixed output range needs none observed;
* a tensor that only a clamp reads, perhaps behind layers that move elements, takes the clamp's
  grid.
"""

from __future__ import annotations

from ...ir import Graph
from ...ops import QuantRule, Registry, default_registry

__all__ = ["needed_values"]


def needed_values(graph: Graph, registry: Registry | None = None) -> list[str]:
    """Return the float values to observe, in graph order.

    Args:
        graph: the graph to quantize.
        registry: operators; the built-in ones by default.
    """
    specs = registry or default_registry()
    floats = [
        n
        for n, v in graph.values.items()
        if not v.is_const and v.type.dtype.is_float and v.type.size
    ]
    known = set(floats)
    names = []
    for name in floats:
        maker = graph.producer(name)
        if maker is None:
            if name not in graph.inputs:
                continue
        else:
            spec = specs[maker.op]
            moved = bool(maker.inputs) and maker.inputs[0] in known
            if spec.rule_of(maker, graph) is QuantRule.MOVE and moved:
                continue
            if spec.grid(maker, graph) is not None:
                continue
        if not _yields_to_clamp(graph, name, specs):
            names.append(name)
    return names


def _yields_to_clamp(graph: Graph, name: str, specs: Registry) -> bool:
    """Whether the only reader is a clamp, perhaps behind layers that move elements."""
    while (node := graph.sole_consumer(name)) is not None:
        if node.inputs.count(name) != 1 or node.inputs[0] != name:
            return False
        rule = specs[node.op].rule_of(node, graph)
        if rule is QuantRule.CLAMP:
            return True
        outputs = [o for o in node.outputs if o]
        if rule is not QuantRule.MOVE or len(outputs) != 1:
            return False
        name = outputs[0]
    return False
