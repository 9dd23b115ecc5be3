"""The float graph: values, nodes, and a graph that keeps its use index up to date.

Dimension semantics are ONNX's (channel-first for convolutions); the channel-last storage order
of the device is an annotation made later (``ir.layout``), so that every float value compares
directly with the source model's.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .attrs import Attrs
from .types import Array, TensorType

__all__ = ["Graph", "Node", "Value"]


@dataclass(slots=True, eq=False)
class Value:
    """A tensor by name. ``data`` is set for constants (weights included), else None."""

    name: str
    type: TensorType
    data: Array | None = None

    @property
    def is_const(self) -> bool:
        """Whether the tensor is known at compile time."""
        return self.data is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shorthand for ``type.shape``."""
        return self.type.shape


@dataclass(slots=True, eq=False)
class Node:
    """One layer.

    Attributes:
        name: unique in its graph.
        op: IR operator name; the key of the operator registry.
        inputs: value names; "" stands for an absent optional input.
        outputs: value names, each produced only here; "" for an unused optional output.
        attrs: the operator's attributes.
        source: names of the source model's nodes that this layer stands for, in order.
    """

    name: str
    op: str
    inputs: list[str]
    outputs: list[str]
    attrs: Attrs
    source: tuple[str, ...] = ()

    def copy(self) -> Node:
        """Return a node whose inputs and outputs can change by themselves."""
        return replace(self, inputs=list(self.inputs), outputs=list(self.outputs))


@dataclass(eq=False)
class Graph:
    """A directed acyclic graph of nodes over named values.

    Change it only through its methods, which keep the producer and consumer index.
    ``nodes`` iterates in insertion order; call :meth:`sort` after rewriting to make that a
    topological order again.
    """

    name: str = "graph"
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    _nodes: dict[str, Node] = field(default_factory=dict)
    _producer: dict[str, Node] = field(default_factory=dict)
    # consumer node name -> number of uses; dicts keep insertion order, sets would not
    _consumers: dict[str, dict[str, int]] = field(default_factory=dict)
    _fresh: dict[str, int] = field(default_factory=dict)

    # -- reading -----------------------------------------------------------------------

    @property
    def nodes(self) -> list[Node]:
        """The nodes in order (a copy, safe to rewrite the graph while iterating)."""
        return list(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def node(self, name: str) -> Node:
        """Return the node of that name; KeyError where there is none."""
        return self._nodes[name]

    def has_node(self, name: str) -> bool:
        """Whether a node of that name is (still) in the graph."""
        return name in self._nodes

    def value(self, name: str) -> Value:
        """Return the value of that name; KeyError where there is none."""
        return self.values[name]

    def producer(self, value: str) -> Node | None:
        """Return the node that makes the value; None for inputs and constants."""
        return self._producer.get(value)

    def consumers(self, value: str) -> list[Node]:
        """Return the nodes that read the value, each once, in order of first use."""
        return [self._nodes[n] for n in self._consumers.get(value, {})]

    def sole_consumer(self, value: str) -> Node | None:
        """Return the only reader of a value that is not a graph output, else None."""
        if value in self.outputs:
            return None
        users = self._consumers.get(value, {})
        return self._nodes[next(iter(users))] if len(users) == 1 else None

    def input_values(self, node: Node) -> list[Value | None]:
        """Return the node's input values, None for absent optional ones."""
        return [self.values[n] if n else None for n in node.inputs]

    def constants(self) -> list[Value]:
        """Return the constants in order of definition."""
        return [v for v in self.values.values() if v.is_const]

    # -- writing -----------------------------------------------------------------------

    def fresh(self, base: str) -> str:
        """Return a name, ``base`` or ``base_N``, used by no value and no node yet."""
        base = base or "v"
        if base not in self.values and base not in self._nodes and base not in self._fresh:
            self._fresh[base] = 1
            return base
        n = self._fresh.get(base, 1)
        while (name := f"{base}_{n}") in self.values or name in self._nodes:
            n += 1
        self._fresh[base] = n + 1
        return name

    def add_value(self, name: str, type: TensorType, data: Array | None = None) -> Value:
        """Add a value; ValueError when the name is taken or the data does not fit the type."""
        if name in self.values:
            raise ValueError(f"value {name!r} exists already")
        if data is not None and tuple(data.shape) != type.shape:
            raise ValueError(f"constant {name!r}: data {data.shape} but type {type}")
        value = Value(name, type, data)
        self.values[name] = value
        return value

    def add_input(self, name: str, type: TensorType) -> Value:
        """Add a graph input."""
        value = self.add_value(name, type)
        self.inputs.append(name)
        return value

    def add_node(self, node: Node) -> Node:
        """Append a node whose input and output values are in the graph already."""
        if node.name in self._nodes:
            raise ValueError(f"node {node.name!r} exists already")
        for out in filter(None, node.outputs):
            if out in self._producer:
                raise ValueError(f"value {out!r} has a producer already")
            if out not in self.values:
                raise ValueError(f"node {node.name!r} makes {out!r}, which is not a value")
        for name in filter(None, node.inputs):
            if name not in self.values:
                raise ValueError(f"node {node.name!r} reads {name!r}, which is not a value")
        self._nodes[node.name] = node
        for out in filter(None, node.outputs):
            self._producer[out] = node
        for name in filter(None, node.inputs):
            self._use(name, node)
        return node

    def remove_node(self, node: Node) -> None:
        """Remove a node; its output values stay (remove or re-produce them)."""
        del self._nodes[node.name]
        for out in filter(None, node.outputs):
            del self._producer[out]
        for name in filter(None, node.inputs):
            self._unuse(name, node)

    def remove_value(self, name: str) -> None:
        """Remove a value that nothing makes or reads any more."""
        if name in self._producer or self._consumers.get(name) or name in self.outputs:
            raise ValueError(f"value {name!r} is in use")
        self._consumers.pop(name, None)
        del self.values[name]

    def set_input(self, node: Node, index: int, value: str) -> None:
        """Make ``node`` read ``value`` at ``index``."""
        old = node.inputs[index]
        if old:
            self._unuse(old, node)
        node.inputs[index] = value
        if value:
            self._use(value, node)

    def set_inputs(self, node: Node, values: Sequence[str]) -> None:
        """Replace all inputs of ``node``."""
        for name in filter(None, node.inputs):
            self._unuse(name, node)
        node.inputs = list(values)
        for name in filter(None, node.inputs):
            self._use(name, node)

    def replace_uses(self, old: str, new: str, *, outputs: bool = True) -> None:
        """Make all readers of ``old`` read ``new``; also the graph outputs, unless told not."""
        for node in self.consumers(old):
            for i, name in enumerate(node.inputs):
                if name == old:
                    self.set_input(node, i, new)
        if outputs:
            self.outputs = [new if n == old else n for n in self.outputs]

    def take_output_name(self, keep: str, drop: str) -> None:
        """Give the name ``keep`` (no longer produced) to the value now called ``drop``.

        Used to keep a graph output's name when another node comes to produce it.
        """
        if keep in self._producer:
            raise ValueError(f"{keep!r} is still produced")
        value = self.values.pop(drop)
        old = self.values.get(keep)
        if old is not None and old.type != value.type:
            raise ValueError(f"{keep!r} is {old.type}, {drop!r} is {value.type}")
        value.name = keep
        self.values[keep] = value
        maker = self._producer.pop(drop, None)
        if maker is not None:
            maker.outputs = [keep if n == drop else n for n in maker.outputs]
            self._producer[keep] = maker
        for node in self.consumers(drop):
            for i, name in enumerate(node.inputs):
                if name == drop:
                    self.set_input(node, i, keep)
        self._consumers.pop(drop, None)
        self.outputs = [keep if n == drop else n for n in self.outputs]

    def prune(self) -> int:
        """Remove what no output needs (graph inputs stay); return the number of nodes gone."""
        live: set[str] = set()
        work = list(self.outputs)
        while work:
            name = work.pop()
            node = self._producer.get(name)
            if node is not None and node.name not in live:
                live.add(node.name)
                work.extend(filter(None, node.inputs))
        dead = [n for n in self._nodes.values() if n.name not in live]
        for node in dead:
            self.remove_node(node)
        kept = {*self.inputs, *self.outputs}
        for name in list(self.values):
            if name not in kept and name not in self._producer and not self._consumers.get(name):
                self._consumers.pop(name, None)
                del self.values[name]
        for node in self._nodes.values():
            node.outputs = [o if o in self.values else "" for o in node.outputs]
            while len(node.outputs) > 1 and not node.outputs[-1]:
                node.outputs.pop()
        return len(dead)

    def with_constants(self, data: Mapping[str, Array]) -> Graph:
        """Return this graph with other data for some of its constants; all else is shared.

        Neither of the two graphs is to be changed afterwards.
        """
        values = dict(self.values)
        for name, array in data.items():
            old = values[name]
            if old.data is None or old.data.shape != array.shape or old.data.dtype != array.dtype:
                raise ValueError(f"{name!r} is not a constant of this shape and type")
            values[name] = Value(name, old.type, array)
        return replace(self, values=values)

    def copy(self) -> Graph:
        """Return a graph that can be changed without changing this one; constants are shared."""
        twin = Graph(self.name, list(self.inputs), list(self.outputs))
        twin.values = {n: Value(n, v.type, v.data) for n, v in self.values.items()}
        for node in self._nodes.values():
            twin.add_node(node.copy())
        return twin

    def sort(self, wanted: Mapping[str, int] | None = None) -> None:
        """Put the nodes into topological order, stable with respect to the present order.

        Linear in nodes and edges up to the heap's log factor (Kahn's algorithm).

        Args:
            wanted: for each node, by name, the place that it should have; the present order
                by default.

        Raises:
            ValueError: the graph has a cycle.
        """
        position = wanted or {name: i for i, name in enumerate(self._nodes)}
        waiting: dict[str, int] = {}
        ready: list[tuple[int, str]] = []
        for node in self._nodes.values():
            needs = {self._producer[n].name for n in node.inputs if n and n in self._producer}
            waiting[node.name] = len(needs)
            if not needs:
                heapq.heappush(ready, (position[node.name], node.name))
        order: dict[str, Node] = {}
        while ready:
            _, name = heapq.heappop(ready)
            node = self._nodes[name]
            order[name] = node
            followers: dict[str, None] = {}
            for out in filter(None, node.outputs):
                followers.update(dict.fromkeys(self._consumers.get(out, {})))
            for user in followers:
                waiting[user] -= 1
                if waiting[user] == 0:
                    heapq.heappush(ready, (position[user], user))
        if len(order) != len(self._nodes):
            stuck = next(n for n in self._nodes if n not in order)
            raise ValueError(f"the graph has a cycle through {stuck!r}")
        self._nodes = order

    def _use(self, value: str, node: Node) -> None:
        users = self._consumers.setdefault(value, {})
        users[node.name] = users.get(node.name, 0) + 1

    def _unuse(self, value: str, node: Node) -> None:
        users = self._consumers[value]
        users[node.name] -= 1
        if users[node.name] == 0:
            del users[node.name]

    def subgraph(self, name: str, nodes: Iterable[Node], outputs: Sequence[str]) -> Graph:
        """Return a copy of some nodes as a graph of its own.

        Values that the nodes read and do not make become inputs (in order of first use);
        constants are shared, not copied.
        """
        sub = Graph(name=name)
        chosen = list(nodes)
        made = {o for n in chosen for o in n.outputs if o}
        for node in chosen:
            for ref in filter(None, node.inputs):
                if ref in sub.values or ref in made:
                    continue
                value = self.values[ref]
                if value.is_const:
                    sub.add_value(ref, value.type, value.data)
                else:
                    sub.add_input(ref, value.type)
            for out in filter(None, node.outputs):
                sub.add_value(out, self.values[out].type)
        for ref in outputs:
            if ref not in sub.values:
                value = self.values[ref]
                if value.is_const:
                    sub.add_value(ref, value.type, value.data)
                else:
                    sub.add_input(ref, value.type)
        for node in chosen:
            sub.add_node(node.copy())
        sub.outputs = list(outputs)
        return sub
