"""Where to cut a graph into CPU head, NPU body and CPU tail.

Each node gets a level - 0 head, 1 body, 2 tail - that never falls along an edge, so data flows
head to body to tail only and the body is convex. A node that the device does not support must
be at level 0 or 2. Wanted: the levels with the most weight at level 1. With the two binary
variables ``a = [level >= 1]`` and ``b = [level >= 2]`` of each node the weight at level 1 is the
linear function ``sum w * (a - b)`` under closure constraints, which is the project selection
problem: a minimum cut gives the exact optimum (Picard, "Maximal closure of a graph", 1976).

Nodes with the same unsupported ancestors and the same unsupported descendants are always best
at one level, so they are merged first; the flow network stays small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["levels"]

HEAD, BODY, TAIL = 0, 1, 2


def levels(
    order: Sequence[str],
    edges: Mapping[str, Sequence[str]],
    weight: Mapping[str, int],
    unsupported: frozenset[str],
) -> dict[str, int]:
    """Return the level of each node.

    Args:
        order: all nodes in topological order.
        edges: successors of each node.
        weight: what each supported node is worth in the body; positive integers.
        unsupported: nodes that must not be in the body.

    Returns:
        0, 1 or 2 by node. Among equal optima, the one with the fewest nodes in the head.
    """
    if not unsupported:
        return dict.fromkeys(order, BODY)
    # here and not above: it takes a tenth of a second to load, and most models never come here
    import networkx as nx

    groups, group_of = _merge(order, edges, unsupported)
    network: nx.DiGraph[Any] = nx.DiGraph()
    network.add_node("source")
    network.add_node("sink")
    # On the source side of the cut a variable is 1. An edge u -> v of infinite capacity says
    # "u = 1 implies v = 1".
    worth: dict[int, int] = dict.fromkeys(range(len(groups)), 0)
    for name in order:
        if name not in unsupported:
            worth[group_of[name]] += weight[name]
    for index, members in enumerate(groups):
        a, b = ("a", index), ("b", index)
        network.add_edge(b, a)
        if members[0] in unsupported:
            network.add_edge(a, b)
        elif worth[index] > 0:
            network.add_edge("source", a, capacity=worth[index])
            network.add_edge(b, "sink", capacity=worth[index])
    for name in order:
        for follower in edges.get(name, ()):
            u, v = group_of[name], group_of[follower]
            if u != v:
                network.add_edge(("a", u), ("a", v))
                network.add_edge(("b", u), ("b", v))
    _, (ones, _zeros) = nx.minimum_cut(network, "source", "sink")
    found = {
        index: int(("a", index) in ones) + int(("b", index) in ones) for index in range(len(groups))
    }
    return {name: found[group_of[name]] for name in order}


def _merge(
    order: Sequence[str], edges: Mapping[str, Sequence[str]], unsupported: frozenset[str]
) -> tuple[list[list[str]], dict[str, int]]:
    """Group nodes by their unsupported ancestors and descendants (bit sets)."""
    bit = {name: 1 << i for i, name in enumerate(n for n in order if n in unsupported)}
    above: dict[str, int] = dict.fromkeys(order, 0)
    for name in order:
        reach = above[name] | bit.get(name, 0)
        for follower in edges.get(name, ()):
            above[follower] |= reach
    below: dict[str, int] = dict.fromkeys(order, 0)
    for name in reversed(order):
        for follower in edges.get(name, ()):
            below[name] |= below[follower] | bit.get(follower, 0)
    groups: list[list[str]] = []
    index_of: dict[tuple[int, int, int], int] = {}
    group_of: dict[str, int] = {}
    for name in order:
        key = (above[name], below[name], bit.get(name, 0))
        if key not in index_of:
            index_of[key] = len(groups)
            groups.append([])
        group_of[name] = index_of[key]
        groups[index_of[key]].append(name)
    return groups, group_of
