"""Folds a scale into a linear layer that it is some moves away from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ir import Graph, Node
from .affine import Linear, linear_of
from .base import Editor, Rewrite, can_bypass
from .products import scale_of

__all__ = ["FoldScaleThroughMoves"]

_MOVES = ("Reshape", "Unsqueeze", "Transpose", "Expand")


@dataclass(frozen=True, slots=True)
class _Far:
    scale: Node
    factor: float
    linear: Linear
    between: tuple[Node, ...]


class FoldScaleThroughMoves(Rewrite[_Far]):
    """``move(linear(x)) * s`` to ``move(linear'(x))``, through a product of activations too.

    Attention is scaled behind the split of the heads or behind the product of queries and keys.
    In the weights of the queries' projection the scale is for nothing: no layer of its own is
    left to run and to round.
    """

    name = "fold_scale_through_moves"
    anchors = ("MultiplyConstant", "DivConstant")
    requires = ("fold_affine_after", "split_linear")

    def match(self, graph: Graph, node: Node) -> _Far | None:
        above = graph.producer(node.inputs[0])
        factor = scale_of(graph, node)
        if above is None or factor is None:
            return None
        if graph.values[node.inputs[0]].type != graph.values[node.outputs[0]].type:
            return None
        found = _far_linear(graph, above)
        return None if found is None else _Far(node, factor, *found)

    def check(self, graph: Graph, match: _Far) -> str | None:
        if any(graph.sole_consumer(n.outputs[0]) is None for n in match.between):
            return "something else reads what it scales"
        if graph.sole_consumer(match.linear.node.outputs[0]) is None:
            return "something else reads what the linear layer makes"
        if not can_bypass(graph, match.scale, match.scale.inputs[0]):
            return "it gives an output its name"
        k = np.full(match.linear.outputs, match.factor)
        if not np.isfinite(match.factor) or not match.linear.bounded(k):
            return "the folded weights would overflow"
        return None

    def rewrite(self, match: _Far, editor: Editor) -> None:
        linear, node = match.linear, match.linear.node
        k = np.full(linear.outputs, match.factor)
        inputs = [node.inputs[0], editor.const(linear.scaled_out(k), node.inputs[1]).name]
        if linear.bias is not None:
            bias = (linear.bias64() * match.factor).astype(linear.bias.dtype)
            inputs.append(editor.const(bias, node.inputs[2]).name)
        made = editor.replace([node], node.op, node.attrs, inputs)
        made.source = tuple(dict.fromkeys((*made.source, *match.scale.source)))
        editor.bypass(match.scale, match.scale.inputs[0])


def _far_linear(graph: Graph, node: Node) -> tuple[Linear, tuple[Node, ...]] | None:
    """Return a linear layer whose result ``node`` moves or multiplies, and what is between."""
    if node.op not in (*_MOVES, "MatMul") or linear_of(graph, node) is not None:
        return None  # a linear layer directly before a scale: fold_affine_after
    if node.op == "MatMul" and len(node.inputs) > 2:
        return None
    for name in node.inputs[: 2 if node.op == "MatMul" else 1]:
        above = graph.producer(name)
        if above is None:
            continue
        linear = linear_of(graph, above)
        if linear is not None:
            return linear, (node,)
        found = _far_linear(graph, above)
        if found is not None:
            return found[0], (*found[1], node)
    return None
