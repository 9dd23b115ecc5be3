"""The IR graph under construction: what an operator's lowering writes to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import ResourceLimitError
from ..ir import Array, Attrs, DType, Graph, Node, TensorType, Value
from ..ops import Registry

__all__ = ["GraphBuilder", "Names"]

# what the package formats can hold
_MAX_RANK, _MAX_DIMENSION, _MAX_ELEMENTS = 32, (1 << 31) - 1, 1 << 38


class Names:
    """Hands out names; those of the source model's own values are kept free for them."""

    def __init__(self, reserved: Iterable[str]) -> None:
        # dicts: a quarter of a set's size, and they give back the one string of a name
        self._reserved = {name: name for name in reserved}
        self._used: dict[str, None] = {}
        self._counts: dict[str, int] = {}

    def same(self, name: str) -> str:
        """Return the one string that stands for a reserved name; any other as it is."""
        return self._reserved.get(name, name)

    def own(self, name: str) -> str:
        """Return the source model's name for its one value of that name."""
        name = self.same(name)
        self._used[name] = None
        return name

    def take(self, name: str) -> str:
        """Return ``name`` itself unless it is used already, reserved or not."""
        return self.fresh(name) if name in self._used else self.own(name)

    def release(self, name: str) -> None:
        """Give back a name that came to nothing."""
        self._used.pop(name, None)

    def fresh(self, base: str) -> str:
        """Return ``base`` or ``base_N``, neither used nor reserved."""
        name = base
        number = self._counts.get(base, 0)
        while name in self._used or name in self._reserved:
            number += 1
            name = f"{base}_{number}"
        if number:
            self._counts[base] = number
        self._used[name] = None
        return name


class GraphBuilder:
    """Implements :class:`qbcompiler.ops.Lowering` for one graph.

    Args:
        name: the graph's name.
        registry: operators, for their shape rules.
        values, layers: where names come from; shared with the graphs of sub-graphs.
    """

    def __init__(self, name: str, registry: Registry, values: Names, layers: Names) -> None:
        self.graph = Graph(name=name)
        self.registry = registry
        self.values = values
        self.layers = layers
        self.captured: dict[str, Value] = {}
        self._inner: dict[int, Value] = {}
        self._outer: list[Value] = []
        self._base = ""
        self._source: tuple[str, ...] = ()
        self._first: str | None = None
        self._pending: list[Node] = []

    # -- the Lowering protocol ---------------------------------------------------------

    def emit(
        self,
        op: str,
        attrs: Attrs,
        inputs: Sequence[Value | None],
        *,
        outputs: int = 1,
        hint: str = "",
    ) -> list[Value]:
        """Add a node; its output types come from the operator's shape rule.

        Raises:
            ValueError: the inputs do not fit the operator.
        """
        local = [None if v is None else self.local(v) for v in inputs]
        probe = Node("", op, [], [], attrs)
        types = self.registry.infer(probe, local)
        return self._add(op, attrs, local, types[:outputs], hint)

    def const(self, data: Array, hint: str = "const") -> Value:
        """Return a constant; it joins the graph when a node reads it."""
        array = np.asarray(data)
        type_ = TensorType(DType.of(array.dtype), tuple(array.shape))
        return Value(self.values.fresh(f"{self._base}/{hint}"), type_, array)

    # -- for the interpreter -----------------------------------------------------------

    def begin(self, name: str, source: tuple[str, ...]) -> None:
        """Start a layer: nodes emitted from now on are named after it."""
        self._base = name
        self._source = source
        self._first = None
        self._pending = []

    def roll_back(self) -> None:
        """Take back the nodes of a layer whose lowering refused half-way."""
        for node in reversed(self._pending):
            self.forget(node)
        self._pending = []
        self._first = None

    def forget(self, node: Node) -> None:
        """Remove a node whose results nothing reads, and give its names back."""
        self.graph.remove_node(node)
        self.layers.release(node.name)
        for out in filter(None, node.outputs):
            self.graph.remove_value(out)
            self.values.release(out)

    def made(self, value: Value) -> bool:
        """Whether the value came from the layer begun last."""
        maker = self.graph.producer(value.name)
        return maker is not None and any(maker is n for n in self._pending)

    def add_input(self, name: str, type_: TensorType) -> Value:
        """Add a graph input."""
        return self.graph.add_input(name, type_)

    def rename(self, value: Value, name: str) -> None:
        """Rename a value that a node of this graph makes."""
        if value.name != name:
            self.values.release(value.name)
            self.graph.take_output_name(name, value.name)

    def local(self, value: Value) -> Value:
        """Return what stands for ``value`` in this graph, adding constants and captures."""
        if self.graph.values.get(value.name) is value:
            return value
        if id(value) in self._inner:
            return self._inner[id(value)]
        if value.data is not None:
            name = value.name or f"{self._base}/const"
            if name in self.graph.values or not value.name:
                name = self.values.fresh(name)
            own = self.graph.add_value(name, value.type, value.data)
        else:
            # a value of an enclosing graph
            name = self.values.fresh("capture")
            own = self.graph.add_value(name, value.type)
            self.captured[name] = value
        self._inner[id(value)] = own
        self._outer.append(value)  # keeps the id from being used again
        return own

    def add_raw(
        self, op: str, attrs: Attrs, inputs: Sequence[Value | None], types: Sequence[TensorType]
    ) -> list[Value]:
        """Add a node whose output types are given."""
        local = [None if v is None else self.local(v) for v in inputs]
        return self._add(op, attrs, local, types, "")

    def _add(
        self,
        op: str,
        attrs: Attrs,
        inputs: Sequence[Value | None],
        types: Sequence[TensorType],
        hint: str,
    ) -> list[Value]:
        name = self._layer_name(op, hint)
        made: list[Value] = []
        for type_ in types:
            _check_size(name, type_)
            made.append(self.graph.add_value(self.values.fresh(f"{name}/out"), type_))
        node = Node(
            name,
            op,
            ["" if v is None else v.name for v in inputs],
            [v.name for v in made],
            attrs,
            self._source,
        )
        self.graph.add_node(node)
        self._pending.append(node)
        return made

    def _layer_name(self, op: str, hint: str) -> str:
        if self._first is None and not hint:
            self._first = self.layers.take(self._base)
            return self._first
        return self.layers.fresh(f"{self._base}/{hint or op}")


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the shape when all of it is known, else None."""
    shape: tuple[int, ...] = value.type.shape
    return shape if all(d >= 0 for d in shape) else None


def _check_size(layer: str, type_: TensorType) -> None:
    rank, largest = type_.rank, max(type_.shape, default=0)
    if rank > _MAX_RANK or largest > _MAX_DIMENSION or type_.size > _MAX_ELEMENTS:
        raise ResourceLimitError(
            f"layer {layer!r} makes a tensor of {rank} dimensions and {type_.size} elements;"
            f" the bounds are {_MAX_RANK} and {_MAX_ELEMENTS}",
            details={"layer": layer, "shape": [str(d) for d in type_.shape[:_MAX_RANK]]},
            hint="the numbers that set this shape are wrong, or the model is not meant for this",
        )
