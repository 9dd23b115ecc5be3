"""Merges scales and shifts that no convolution could take into one affine layer."""

from __future__ import annotations

import numpy as np

from ..ir import Graph, Node
from ..ops.arithmetic_const import BatchnormAttrs
from .affine import AFFINE_OPS, affine_of
from .base import Editor, Rewrite, scalar_of

__all__ = ["MergeAffine"]


class MergeAffine(Rewrite[tuple[Node, Node]]):
    """Two affine layers in a row to one ``Batchnorm``, which runs as ``k * x + b``.

    Mean 0, variance 1 and epsilon 0 make scale and bias the map's own numbers.
    """

    name = "merge_affine"
    anchors = AFFINE_OPS
    needs = ("Batchnorm",)
    requires = ("fold_affine_before",)

    def match(self, graph: Graph, node: Node) -> tuple[Node, Node] | None:
        first = graph.producer(node.inputs[0])
        if first is None or first.op not in AFFINE_OPS:
            return None
        return first, node

    def check(self, graph: Graph, match: tuple[Node, Node]) -> str | None:
        first, second = match
        if graph.sole_consumer(first.outputs[0]) is None:
            return "something else reads what the first layer makes"
        x = graph.values[first.inputs[0]]
        if x.type.rank < 2:
            return "its input has no channels"
        if x.type.rank == 3 and all(_is_scalar(graph, n) for n in match):
            # tokens rather than an image: the second dimension is no channel
            return "its numbers are not for each channel"
        maps = [affine_of(graph, n, 1) for n in match]
        if maps[0] is None or maps[1] is None:
            return "a constant does not have one number for each channel"
        merged = maps[0].then(maps[1])
        dtype = graph.values[second.outputs[0]].type.dtype.numpy
        with np.errstate(over="ignore"):
            numbers = np.concatenate([merged.k, merged.b]).astype(dtype)
        return None if np.isfinite(numbers).all() else "a constant is not finite"

    def rewrite(self, match: tuple[Node, Node], editor: Editor) -> None:
        first, second = match
        graph = editor.graph
        one, two = affine_of(graph, first, 1), affine_of(graph, second, 1)
        assert one is not None and two is not None
        merged = one.then(two)
        dtype = graph.values[second.outputs[0]].type.dtype.numpy
        numbers = [
            editor.const(np.asarray(v).astype(dtype), f"{second.name}/{hint}")
            for hint, v in (
                ("scale", merged.k),
                ("bias", merged.b),
                ("mean", np.zeros_like(merged.k)),
                ("variance", np.ones_like(merged.k)),
            )
        ]
        editor.replace(
            [first, second], "Batchnorm", BatchnormAttrs(0.0), [first.inputs[0], *numbers]
        )


def _is_scalar(graph: Graph, node: Node) -> bool:
    return node.op != "Batchnorm" and scalar_of(graph, node.inputs[1]) is not None
