"""Copies of tensors for what multiplies them.

A tensor has one grid. Where a sum, a normalization or an output reads it as well as a convolution
or a matrix product, that grid has to serve both: 16 bits would make multiply-adds wide, 8 bits
spoil the sum. So what multiplies gets a copy of its own, rounded from the 16-bit tensor: a layer
that multiplies each channel by a constant, 1 to begin with. The float function is the same.

The constant also is where the channels of a tensor can be balanced whose maker lets no factor
through (a function, a pooling): see :mod:`~qbcompiler.quantization.equalize`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..ir import Graph, NoAttrs, Node
from ..ops import QuantRule, Registry, default_registry

__all__ = ["Copy", "elementwise_values", "find_copies", "insert_copies", "is_copy"]

_OP = "MultiplyConstant"
_CONVOLUTIONS = (
    "Convolution",
    "DepthwiseConvolution",
    "GroupConvolution",
    "Convolution3d",
    "TransposeConvolution",
)
_LINEAR = (*_CONVOLUTIONS, "MatMul", "Batchnorm", "LayerNormalization", "RmsNormalization")
"""Makers whose own constants take a channel's factor."""


@dataclass(frozen=True)
class Copy:
    """A copy to be made.

    Attributes:
        value: the tensor.
        readers: layers that read the copy in its place.
        axis: the axis along which its constant has a number for each index; None for one number.
    """

    value: str
    readers: tuple[str, ...]
    axis: int | None


def is_copy(node: Node) -> bool:
    """Whether the layer is one that :func:`insert_copies` has made."""
    return node.op == _OP and not node.source and node.name.endswith("/copy")


def find_copies(
    graph: Graph,
    *,
    streams: bool,
    balanced: Callable[[str, Node], bool],
    registry: Registry | None = None,
) -> list[Copy]:
    """Return the copies that a graph needs, in its order.

    Args:
        graph: the NPU body, in topological order.
        streams: whether tensors get a copy that are multiplied and read otherwise too.
        balanced: whether the channels of a value that a layer makes are to be balanced, although
            nothing but multiply-adds reads it.
        registry: operators; the built-in ones by default.
    """
    finder = _Finder(graph, registry or default_registry())
    found: list[Copy] = []
    for name, value in graph.values.items():
        if value.is_const or not value.type.dtype.is_float or not value.type.size:
            continue
        maker = graph.producer(name)
        if maker is None and name not in graph.inputs:
            continue
        multiplied, other = finder.ends(name)
        if not multiplied:
            continue
        if other:
            if streams:
                found += finder.apart(name)
        elif maker is not None and maker.op not in _LINEAR and balanced(name, maker):
            found += finder.balanced(name, maker)
    return found


def insert_copies(graph: Graph, copies: list[Copy]) -> None:
    """Put the copies into a graph; it is sorted again."""
    places = {n.name: float(i) for i, n in enumerate(graph.nodes)}
    for copy in copies:
        value = graph.values[copy.value]
        maker = graph.producer(copy.value)
        name = f"{copy.value if maker is None else maker.name}/copy"
        node_name, made, constant = graph.fresh(name), graph.fresh(f"{copy.value}/copy"), ""
        shape = [1] * value.type.rank
        if copy.axis is not None:
            shape[copy.axis] = value.shape[copy.axis]
        ones = np.ones(shape, value.type.dtype.numpy)
        constant = graph.fresh(f"{made}.factors")
        graph.add_value(constant, value.type.with_shape(tuple(shape)), ones)
        graph.add_value(made, value.type)
        graph.add_node(Node(node_name, _OP, [copy.value, constant], [made], NoAttrs()))
        places[node_name] = (-1.0 if maker is None else places[maker.name]) + 0.5
        for reader in map(graph.node, copy.readers):
            for index, read in enumerate(reader.inputs):
                if read == copy.value:
                    graph.set_input(reader, index, made)
    order = sorted(places, key=lambda n: places[n])
    graph.sort({name: i for i, name in enumerate(order)})


def elementwise_values(
    graph: Graph, classes: Mapping[str, str], registry: Registry | None = None
) -> list[str]:
    """Return the tensors that no multiply-add reads, nor any tensor on the same grid.

    Inputs of the model keep the bits that a caller expects, and so does what only moves them.

    Args:
        graph: the NPU body.
        classes: the class of each float value, whose members share a grid.
        registry: operators; the built-in ones by default.
    """
    specs = registry or default_registry()
    busy = {
        classes[name]
        for node in graph.nodes
        if _multiplies(node, graph, specs)
        for name in node.inputs
        if name in classes
    }
    busy |= {classes[n] for n in graph.inputs if n in classes}
    return [n for n, root in classes.items() if root not in busy]


def _multiplies(node: Node, graph: Graph, registry: Registry) -> bool:
    """Whether the layer has multiply-adds, other than one for each element."""
    spec = registry[node.op]
    return spec.macs(node, graph) > 0 and not spec.is_pointwise(node.attrs)


class _Finder:
    def __init__(self, graph: Graph, registry: Registry) -> None:
        self._graph = graph
        self._registry = registry
        self._known: dict[str, tuple[bool, bool]] = {}

    def ends(self, name: str) -> tuple[bool, bool]:
        """Return whether a multiply-add reads the value, behind moves, and whether others do."""
        if name not in self._known:
            multiplied, other = False, name in self._graph.outputs
            for node in self._graph.consumers(name):
                if self._multiplies(node):
                    multiplied = True
                elif self._moves(node, name):
                    below = self.ends(node.outputs[0])
                    multiplied, other = multiplied or below[0], other or below[1]
                else:
                    other = True
            self._known[name] = multiplied, other
        return self._known[name]

    def apart(self, name: str) -> Iterator[Copy]:
        """Yield the copy for those readers of a value that only multiply."""
        maker = self._graph.producer(name)
        chosen = []
        for node in self._graph.consumers(name):
            if self._multiplies(node) or (
                self._moves(node, name) and self.ends(node.outputs[0]) == (True, False)
            ):
                chosen.append(node)
        if not chosen or (maker is not None and is_copy(maker)):
            return
        axes = {self._axis(n, name) for n in chosen}
        yield Copy(name, tuple(n.name for n in chosen), axes.pop() if len(axes) == 1 else None)

    def balanced(self, name: str, maker: Node) -> Iterator[Copy]:
        """Yield the copy of a value that only convolutions and products read, all one way."""
        readers = self._graph.consumers(name)
        axes = {self._axis(n, name) for n in readers}
        # what a concatenation joins may be read elsewhere, on the same grid
        if is_copy(maker) or maker.op == "Concatenate" or self._moves(maker, maker.inputs[0]):
            return
        if len(axes) == 1 and None not in axes:
            yield Copy(name, tuple(n.name for n in readers), axes.pop())

    def _axis(self, node: Node, name: str) -> int | None:
        """Return the axis along which a layer with constant weights tells channels apart."""
        graph = self._graph
        rank = graph.values[name].type.rank
        if len(node.inputs) < 2 or node.inputs[0] != name or node.inputs.count(name) > 1:
            return None
        if not graph.values[node.inputs[1]].is_const:
            return None
        if node.op in _CONVOLUTIONS:
            return 1
        return rank - 1 if node.op == "MatMul" else None

    def _multiplies(self, node: Node) -> bool:
        return _multiplies(node, self._graph, self._registry)

    def _moves(self, node: Node, name: str) -> bool:
        if node.inputs[:1] != [name] or len([o for o in node.outputs if o]) != 1:
            return False
        return self._registry[node.op].rule_of(node, self._graph) is QuantRule.MOVE
