"""Which layers between the last arithmetic and the CPU tail belong to the tail.

Where a detector's decode ends in layers that the NPU does not have, the decode itself - its
tensors cut apart, coordinates scaled, everything joined again - could run on either side. It has
no multiply-adds, so the NPU gains nothing, and its joined tensors hold pixels beside probabilities,
which one 8-bit grid serves badly. It thus goes with what follows it. Activations and resizing
directly behind a convolution stay: the NPU does them in passing.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir import Graph, Node
from ..ops import QuantRule, Registry

__all__ = ["postprocessing"]


def postprocessing(
    graph: Graph, registry: Registry, body: frozenset[str], tail: frozenset[str]
) -> frozenset[str]:
    """Return the layers of ``body`` to move to ``tail``.

    Post-processing starts at a layer behind the arithmetic that lays tensors out anew or joins
    them, where a layer of the tail follows and no arithmetic does; everything behind it goes too.

    Args:
        graph: in topological order.
        registry: the operators.
        body, tail: names of the layers at each place; none of the tail comes before the body.

    Returns:
        Names of layers; what follows one of them in the body is among them. Never all of the
        body's arithmetic, nor any of it.
    """
    if not tail or not body:
        return frozenset()
    nodes = [n for n in graph.nodes if n.name in body]
    arithmetic = {n.name for n in nodes if _computes(n, graph, registry)}
    users = {n.name: _users(graph, n) for n in nodes}
    works: dict[str, bool] = {}  # whether arithmetic of the body follows
    leaves: dict[str, bool] = {}  # whether a layer of the tail follows
    for node in reversed(nodes):
        inside = [u for u in users[node.name] if u in body]
        works[node.name] = any(u in arithmetic or works[u] for u in inside)
        leaves[node.name] = any(u in tail or leaves.get(u, False) for u in users[node.name])
    behind = _behind(nodes, users, arithmetic)
    moved: set[str] = set()
    for node in nodes:
        name = node.name
        starts = name in behind and leaves[name] and _lays_out(node, graph, registry)
        if not works[name] and name not in arithmetic and (name in moved or starts):
            moved.add(name)
            moved.update(u for u in users[name] if u in body)
    return frozenset(moved)


def _computes(node: Node, graph: Graph, registry: Registry) -> bool:
    # more than one multiply-add an element: a scale and a shift are part of any decode
    elements = sum(graph.values[o].type.size for o in node.outputs if o)
    return registry[node.op].macs(node, graph) > elements


def _users(graph: Graph, node: Node) -> list[str]:
    return [u.name for out in filter(None, node.outputs) for u in graph.consumers(out)]


def _behind(
    nodes: list[Node], users: Mapping[str, list[str]], arithmetic: set[str]
) -> frozenset[str]:
    """Return what follows arithmetic."""
    found: set[str] = set()
    for node in nodes:
        if node.name in arithmetic or node.name in found:
            found.update(users[node.name])
    return frozenset(found)


def _lays_out(node: Node, graph: Graph, registry: Registry) -> bool:
    spec = registry[node.op]
    if node.op == "Concatenate":
        return True
    return spec.rule_of(node, graph) is QuantRule.MOVE and not spec.channel_first
