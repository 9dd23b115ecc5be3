"""Merges a clamp into the clamp before it: Relu then Min(6) is Clip(0, 6)."""

from __future__ import annotations

import math

from ..ir import Graph, NoAttrs, Node
from ..ops.activation import ClipAttrs
from .base import Editor, Rewrite

__all__ = ["MergeClips"]

_CLAMPS = ("Relu", "Clip", "Hardtanh")
Bounds = tuple[float | None, float | None]


class MergeClips(Rewrite[tuple[Node, Node]]):
    """``Clip(Clip(x))`` to one ``Clip``; also with ``Relu`` and ``Hardtanh``."""

    name = "merge_clips"
    anchors = _CLAMPS
    needs = ("Clip",)

    def match(self, graph: Graph, node: Node) -> tuple[Node, Node] | None:
        first = graph.producer(node.inputs[0])
        return None if first is None or first.op not in _CLAMPS else (first, node)

    def check(self, graph: Graph, match: tuple[Node, Node]) -> str | None:
        if graph.sole_consumer(match[0].outputs[0]) is None:
            return "something else reads what the first clamp makes"
        return None

    def rewrite(self, match: tuple[Node, Node], editor: Editor) -> None:
        first, second = match
        bounds = _compose(bounds_of(first), bounds_of(second))
        old, x = [first, second], first.inputs[0]
        if bounds == (0.0, None) and "Relu" in editor.registry:
            editor.replace(old, "Relu", NoAttrs(), [x])
        else:
            editor.replace(old, "Clip", ClipAttrs(*bounds), [x])


def bounds_of(node: Node) -> Bounds:
    """Return the bounds of a clamp."""
    if node.op == "Relu":
        return 0.0, None
    if node.op == "Hardtanh":
        return -1.0, 1.0
    assert isinstance(node.attrs, ClipAttrs)
    return node.attrs.min, node.attrs.max


def _compose(first: Bounds, second: Bounds) -> Bounds:
    """Return the bounds of ``min(max(min(max(x, l1), h1), l2), h2)``."""

    low = _clamp(_clamp(-math.inf, first), second)
    high = _clamp(_clamp(math.inf, first), second)
    return (low if math.isfinite(low) else None), (high if math.isfinite(high) else None)


def _clamp(value: float, bounds: Bounds) -> float:
    low, high = bounds
    value = value if low is None else max(value, low)
    return value if high is None else min(value, high)
