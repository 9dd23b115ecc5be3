"""Storage order: which tensors the device keeps channel-last.

Dimensions keep ONNX's order in the IR; the stored order is an annotation. A tensor that a
channel-first operator (convolution, pooling …) reads or makes is stored channel-last, and so is
every tensor that meets it element by element; all others are stored as they are. Transposes and
reshapes between the two are where the device moves data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from .graph import Graph, Node

__all__ = ["channel_last", "layout_name", "storage_orders"]

_BREAKS = frozenset(
    {
        "Einsum",
        "Expand",
        "Gather",
        "HeaderView",
        "HeaderViewRevert",
        "MatMul",
        "Reshape",
        "ReshapeV2",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators that give dimensions another meaning even where the shape stays the same."""

_LAYOUTS = {3: "NCW", 4: "NCHW", 5: "NCDHW"}


def channel_last(rank: int) -> tuple[int, ...]:
    """Return the stored order of [N, C, spatial…]: N, spatial…, C."""
    return (0, *range(2, rank), 1)


def storage_orders(
    graph: Graph, channel_first: Callable[[Node], bool], breaks: Collection[str] = _BREAKS
) -> dict[str, tuple[int, ...]]:
    """Return the stored order of every value that is not a constant.

    Args:
        graph: a float graph.
        channel_first: whether a layer's data tensors of rank 3 and more are [N, C, spatial…].
        breaks: operators that an order does not pass through.
    """
    parent: dict[str, str] = {n: n for n, v in graph.values.items() if not v.is_const}
    seeds: list[str] = []

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for node in graph.nodes:
        outputs = [o for o in node.outputs if o]
        if channel_first(node):
            data = [n for n in node.inputs[:1] if n in parent] + outputs
            seeds += [n for n in data if len(graph.values[n].shape) >= 3]
            continue
        if node.op in breaks:
            continue
        rank = max((len(graph.values[o].shape) for o in outputs), default=0)
        together = [
            n
            for n in (*node.inputs, *outputs)
            if n in parent and len(graph.values[n].shape) == rank
        ]
        for other in together[1:]:
            parent[root(other)] = root(together[0])
    spatial = {root(n) for n in seeds}
    orders: dict[str, tuple[int, ...]] = {}
    for name in parent:
        rank = len(graph.values[name].shape)
        last = rank >= 3 and root(name) in spatial
        orders[name] = channel_last(rank) if last else tuple(range(rank))
    return orders


def layout_name(order: tuple[int, ...]) -> str | None:
    """Return ``NCHW`` and so on for a tensor stored channel-last, None for any other."""
    rank = len(order)
    return _LAYOUTS.get(rank) if rank >= 3 and order == channel_last(rank) else None
