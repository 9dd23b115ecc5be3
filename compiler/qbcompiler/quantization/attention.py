"""Equivalent transforms inside attention and gated feed-forward blocks.

Constants there can change and the float function stays the same, since what is in between lets it
pass:

* ``vo``: a channel of the value projection passes the weighted sum of its head and meets one row of
  the output projection;
* ``ud``: a channel of the up projection passes the product with the gate and meets one row of the
  down projection;
* ``qk``: scores are sums over channels of query times key, so what divides one multiplies the
  other;
* rotations: an orthonormal matrix for each head between value and output projection (``spinR2``),
  or on both sides of the scores (``qkRotation``), spreads a wide channel over the head. It is a
  Hadamard matrix, as in S. Ashkboos et al., "QuaRot" (NeurIPS 2024), and not learned.

The first two are links of :mod:`~qbcompiler.quantization.equalize`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir import Graph, Node
from ..ops.views import HeaderViewAttrs
from .equalize import Equalization, Link, Refused, round_factors, unscalable

__all__ = [
    "Attention",
    "balance_scores",
    "find_attention",
    "find_up_links",
    "find_value_links",
    "rotate_scores",
    "rotate_values",
]

Float64 = NDArray[np.float64]

_SCORES = ("MultiplyConstant", "DivConstant", "Adding", "AddingConstant", "SubConstant", "Where")
_GATES = ("Gelu", "QuickGelu", "Swish", "Relu", "Mish", "HardSwish", "Sigmoid", "Tanh")


@dataclass(frozen=True)
class Attention:
    """The projections of one attention; None where constants cannot change.

    Attributes:
        name: the layer that makes the scores.
        query, key: projections whose heads the scores multiply and nothing else reads.
        value, output: projections before and behind the weighted sum.
        merged: the tensor that the output projection reads.
        heads: how many, each with the same number of channels.
    """

    name: str
    query: Node | None
    key: Node | None
    value: Node | None
    output: Node | None
    merged: str
    heads: int


def find_attention(graph: Graph, shared: Callable[[str], bool]) -> list[Attention]:
    """Return the attentions of a graph, in its order.

    Args:
        graph: the NPU body.
        shared: whether a constant has more than one use in the whole model.
    """
    finder = _Finder(graph, shared)
    found = (finder.attention(node) for node in graph.nodes if node.op == "HeaderViewRevert")
    return [a for a in found if a is not None]


def find_value_links(attentions: Sequence[Attention]) -> list[Link]:
    """Return the links from value to output projections."""
    return [
        Link(a.value.outputs[0], a.merged, a.value, (a.output,), 2)
        for a in attentions
        if a.value is not None and a.output is not None
    ]


def find_up_links(graph: Graph, shared: Callable[[str], bool], smoothing: float) -> list[Link]:
    """Return the links from up to down projections.

    Args:
        graph: the NPU body.
        shared: whether a constant has more than one use in the whole model.
        smoothing: which part of a channel's range moves into the weights, 0 to 1.
    """
    finder = _Finder(graph, shared)
    links = []
    for node in graph.nodes:
        if node.op != "Multiply" or graph.values[node.inputs[0]].is_const:
            continue
        down = finder.reader(node.outputs[0])
        up = finder.up(node)
        if up is None or down is None or not finder.scalable(down, (1,)):
            continue
        axis = graph.values[node.outputs[0]].type.rank - 1
        links.append(Link(up.outputs[0], node.outputs[0], up, (down,), axis, smoothing))
    return links


def balance_scores(
    graph: Graph, attentions: Sequence[Attention], peaks: Mapping[str, Float64], done: Equalization
) -> list[dict[str, Any]]:
    """Give each query channel and its key channel the same range; return a row for each attention.

    Args:
        graph: the NPU body.
        attentions: of :func:`find_attention`.
        peaks: of each projection's output the largest magnitude of each channel, over samples.
        done: takes up the changed constants.
    """
    rows: list[dict[str, Any]] = []
    for a in attentions:
        if a.query is None or a.key is None:
            done.refused.append(Refused(a.name, "its query or key is no plain projection"))
            continue
        query, key = peaks[a.query.outputs[0]], peaks[a.key.outputs[0]]
        live = (query > 1e-6 * query.max(initial=0.0)) & (key > 1e-6 * key.max(initial=0.0))
        exponent = np.zeros(len(query))
        exponent[live] = (np.log2(query[live]) - np.log2(key[live])) / 2
        factors = round_factors(exponent, live)
        for node, by in ((a.query, 1.0 / factors), (a.key, factors)):
            done.scale(graph, node.inputs[1], by.reshape(1, -1))
            if len(node.inputs) > 2 and node.inputs[2]:
                done.scale(graph, node.inputs[2], by)
        rows.append(
            {
                "layer": a.name,
                "smallest_factor": round(float(factors.min()), 6),
                "largest_factor": round(float(factors.max()), 6),
            }
        )
    return rows


def rotate_scores(graph: Graph, attentions: Sequence[Attention], done: Equalization) -> list[str]:
    """Rotate the channels of each query head and its key head; return the layers of the scores."""
    names = []
    for a in attentions:
        if a.query is None or a.key is None:
            done.refused.append(Refused(a.name, "its query or key is no plain projection"))
            continue
        for node in (a.query, a.key):
            _rotate_outputs(graph, node, a.heads, done)
        names.append(a.name)
    return names


def rotate_values(graph: Graph, attentions: Sequence[Attention], done: Equalization) -> list[str]:
    """Rotate the channels of each value head, and back in the output projection."""
    names = []
    for a in attentions:
        if a.value is None or a.output is None:
            done.refused.append(Refused(a.name, "its value or output is no plain projection"))
            continue
        _rotate_outputs(graph, a.value, a.heads, done)
        name = a.output.inputs[1]
        weight = done.data(graph, name)
        rows = weight.astype(np.float64).reshape(a.heads, -1, weight.shape[1])
        turned = np.matmul(hadamard(rows.shape[1]).T, rows)
        done.constants[name] = turned.reshape(weight.shape).astype(weight.dtype)
        names.append(a.name)
    return names


def hadamard(size: int) -> Float64:
    """Return an orthonormal matrix [size, size] of blocks of Sylvester's Hadamard matrix.

    The blocks have the largest power of two that divides ``size``.
    """
    block = size & -size
    matrix = np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    found: Float64 = np.kron(np.eye(size // block), matrix / np.sqrt(block))
    return found


def _rotate_outputs(graph: Graph, node: Node, heads: int, done: Equalization) -> None:
    for name in node.inputs[1:3]:
        if not name:
            continue
        old = done.data(graph, name)
        apart = old.astype(np.float64).reshape(-1, heads, old.shape[-1] // heads)
        turned = np.matmul(apart, hadamard(apart.shape[2]))
        done.constants[name] = turned.reshape(old.shape).astype(old.dtype)


class _Finder:
    def __init__(self, graph: Graph, shared: Callable[[str], bool]) -> None:
        self._graph = graph
        self._shared = shared

    def attention(self, revert: Node) -> Attention | None:
        graph = self._graph
        mixed = graph.producer(revert.inputs[0])
        if mixed is None or not self._of_activations(mixed):
            return None
        softmax = graph.producer(mixed.inputs[0])
        if softmax is None or softmax.op not in ("Softmax", "MaskSoftmax"):
            return None
        scores = self._scores(softmax.inputs[0])
        if scores is None:
            return None
        heads = graph.values[revert.inputs[0]].shape[1]
        output = self.reader(revert.outputs[0])
        if output is not None and not self.scalable(output, (1,)):
            output = None
        return Attention(
            scores.name,
            self._projection(scores.inputs[0], scores, heads, transposed=False),
            self._projection(scores.inputs[1], scores, heads, transposed=True),
            self._projection(mixed.inputs[1], mixed, heads, transposed=False)
            if self._alone(mixed.outputs[0])
            else None,
            output,
            revert.outputs[0],
            heads,
        )

    def up(self, product: Node) -> Node | None:
        """Return the projection beside the gate of a product."""
        makers = [self._graph.producer(n) for n in product.inputs[:2]]
        for plain, gate in (makers, makers[::-1]):
            if plain is None or gate is None or gate.op not in _GATES or plain.op != "MatMul":
                continue
            if self._alone(plain.outputs[0]) and self.scalable(plain, (1, 2)):
                return plain
        return None

    def reader(self, name: str) -> Node | None:
        """Return the matrix product with constant weights that alone reads a value."""
        node = self._graph.sole_consumer(name) if self._alone(name) else None
        if node is None or node.op != "MatMul" or node.inputs[0] != name:
            return None
        return node

    def scalable(self, node: Node, places: Sequence[int]) -> bool:
        """Whether the constants at these inputs of a matrix product may change."""
        names = [node.inputs[i] for i in places if i < len(node.inputs)]
        return node.op == "MatMul" and not unscalable(self._graph, node, names, self._shared)

    def _projection(self, name: str, reader: Node, heads: int, *, transposed: bool) -> Node | None:
        view = self._graph.producer(name)
        if view is None or view.op != "HeaderView" or reader.inputs.count(name) > 1:
            return None
        attrs = view.attrs
        if not isinstance(attrs, HeaderViewAttrs):
            return None
        if (attrs.heads, attrs.transposed) != (heads, transposed):
            return None
        node = self._graph.producer(view.inputs[0])
        if node is None or not self._alone(name) or not self._alone(view.inputs[0]):
            return None
        return node if self.scalable(node, (1, 2)) else None

    def _scores(self, name: str) -> Node | None:
        """Return the product of two activations behind the scaling and the mask."""
        node = self._graph.producer(name)
        if node is None or self._of_activations(node):
            return node
        if node.op not in _SCORES:
            return None
        sides = (self._scores(n) for n in node.inputs if n and not self._constant(n))
        return next((s for s in sides if s is not None), None)

    def _of_activations(self, node: Node) -> bool:
        return node.op == "MatMul" and not any(self._constant(n) for n in node.inputs[:2])

    def _constant(self, name: str) -> bool:
        return self._graph.values[name].is_const

    def _alone(self, name: str) -> bool:
        """Whether one layer reads a value and nothing else does."""
        return name not in self._graph.outputs and len(self._graph.consumers(name)) == 1
