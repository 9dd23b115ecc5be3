"""Names in scope while a source graph is interpreted, and the order to interpret it in."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import AttributeProto

from ..errors import ModelLoadError
from .op import Entity

__all__ = ["Scope", "captures", "live_order", "reads"]


@dataclass(eq=False)
class Scope:
    """What the names of a graph, a sub-graph or a function body stand for.

    Attributes:
        opsets: opset by domain.
        parent: the enclosing scope of a sub-graph; None for the model and for functions.
        prefix: put before names of values and layers made in an inner scope.
        attrs: attributes of the function call, for references to them.
        resolve: makes the entity of an initializer on first use.
    """

    opsets: Mapping[str, int]
    parent: Scope | None = None
    prefix: str = ""
    attrs: Mapping[str, Any] | None = None
    names: dict[str, Entity | None] = field(default_factory=dict)
    lazy: dict[str, Callable[[], Entity]] = field(default_factory=dict)

    def find(self, name: str) -> Entity | None:
        """Return what a name stands for; KeyError where it is unknown."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            if name in scope.lazy:
                entity = scope.lazy.pop(name)()
                scope.names[name] = entity
                return entity
            scope = scope.parent
        raise KeyError(name)

    def knows(self, name: str) -> bool:
        """Whether the name is defined here or in an enclosing scope."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names or name in scope.lazy:
                return True
            scope = scope.parent
        return False


def captures(graph: onnx.GraphProto) -> list[str]:
    """Return the names that a sub-graph reads from the scopes around it, each once."""
    found: dict[str, None] = {}
    own = {t.name for t in graph.initializer} | {i.name for i in graph.input}
    own.update(t.values.name for t in graph.sparse_initializer)
    for node in graph.node:
        for name in reads(node):
            if name not in own:
                found[name] = None
        own.update(node.output)
    for output in graph.output:
        if output.name not in own:
            found[output.name] = None
    return list(found)


def reads(node: onnx.NodeProto) -> list[str]:
    """Return the names that a node reads, those of its sub-graphs included."""
    names = [n for n in node.input if n]
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            names += captures(attribute.g)
        elif attribute.type == AttributeProto.GRAPHS:
            for graph in attribute.graphs:
                names += captures(graph)
    return names


def live_order(
    nodes: Sequence[onnx.NodeProto],
    outputs: Iterable[str],
    known: Callable[[str], bool],
    label: Callable[[int], str],
) -> list[int]:
    """Return the indices of the nodes that ``outputs`` need, in a topological order.

    The order is the given one wherever that is possible.

    Args:
        nodes: of one graph.
        outputs: names to be made.
        known: whether a name is defined outside of ``nodes``.
        label: how messages name the node of an index.

    Raises:
        ModelLoadError: a value is made twice, is made nowhere, or the graph has a cycle.
    """
    maker: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if not name:
                continue
            if name in maker:
                raise ModelLoadError(
                    f"value {name!r} is made twice, by {label(maker[name])} and {label(index)}",
                    details={"value": name},
                    hint="the model is invalid; export it again",
                )
            maker[name] = index
    needs: dict[int, list[int]] = {}
    work: list[int] = []

    def visit(name: str, reader: str) -> int | None:
        index = maker.get(name)
        if index is None:
            if not known(name):
                raise ModelLoadError(
                    f"{reader} reads {name!r}, which nothing makes",
                    details={"value": name},
                    hint="the model is invalid or cut at the wrong place; export it again",
                )
            return None
        if index not in needs:
            needs[index] = []
            work.append(index)
        return index

    for name in outputs:
        visit(name, "the graph's output list")
    while work:
        index = work.pop()
        before = {visit(n, label(index)) for n in reads(nodes[index])}
        needs[index] = sorted(i for i in before if i is not None)
    order = sorted(needs)
    if all(b < i for i in order for b in needs[i]):
        return order
    return _sort(needs, label)


def _sort(needs: Mapping[int, list[int]], label: Callable[[int], str]) -> list[int]:
    users: dict[int, list[int]] = {i: [] for i in needs}
    for index, before in needs.items():
        for other in before:
            users[other].append(index)
    waiting = {i: len(b) for i, b in needs.items()}
    ready = [i for i, n in waiting.items() if n == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for user in users[index]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, user)
    if len(order) != len(needs):
        stuck = min(i for i in needs if waiting[i] > 0 and i not in set(order))
        raise ModelLoadError(
            f"the graph has a cycle through {label(stuck)}",
            hint="the model is invalid; export it again",
        )
    return order
