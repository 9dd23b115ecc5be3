"""Attention masks: ranges for numbers that only stand for minus infinity.

Exported attention adds a mask of 0 and some number from -1e4 to -3.4e38 to the scores before the
softmax. A grid that reached that far would leave the scores one step. What matters of the mask is
that it wins: with ``m = -(range of the scores) - R`` a masked score is at least ``R`` below every
other one, and its share of the softmax at most ``exp(-R)``. So the mask's grid ends there, and that
of the sum ``R`` below the least score; both saturate at what they cannot hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..ir import Graph, Node
from ..ops import QuantRule, Registry

__all__ = ["mask_ranges", "masked_sums"]

Range = tuple[float, float]

_REACH = 10.0
"""Half a step of a softmax output in 8 bits is 2e-3; exp(-10) is 5e-5."""

_LEAST = 1e3
_TIMES = 16.0
"""A mask is at least so large, and so many times larger than the scores that it is added to."""


def masked_sums(
    graph: Graph, class_of: Callable[[str], str], ranges: Mapping[str, Range], registry: Registry
) -> dict[str, tuple[str, str]]:
    """Return the layers that add a mask to scores, each with the names of scores and mask.

    Args:
        graph: the NPU body.
        class_of: the grid class of a value.
        ranges: the range of each class.
        registry: operators.
    """
    found = {}
    for node in graph.nodes:
        pair = _masked(node, graph, class_of, ranges, registry)
        if pair is not None:
            found[node.name] = pair
    return found


def mask_ranges(
    graph: Graph,
    class_of: Callable[[str], str],
    ranges: Mapping[str, Range],
    masked: Mapping[str, tuple[str, str]],
    registry: Registry,
) -> dict[str, Range]:
    """Return the ranges of the grid classes that hold masks and masked scores.

    Args:
        graph: the NPU body.
        class_of: the grid class of a value.
        ranges: the range of each class.
        masked: what :func:`masked_sums` found.
        registry: operators.
    """
    sums: dict[str, list[Range]] = {}
    masks: dict[str, list[Range]] = {}
    for name, (scores, mask) in masked.items():
        low, high = ranges[class_of(scores)]
        sums.setdefault(class_of(graph.node(name).outputs[0]), []).append((low - _REACH, high))
        masks.setdefault(class_of(mask), []).append((low - high - _REACH, 0.0))
    readers = _readers(graph, class_of, registry) if masks else {}
    result = {}
    for mask, wanted in masks.items():
        if readers.get(mask, set()) <= set(masked):  # else something reads the numbers themselves
            result[mask] = (max(ranges[mask][0], min(r[0] for r in wanted)), 0.0)
    for name, wanted in sums.items():
        low, high = ranges[name]
        result[name] = (
            max(low, min(r[0] for r in wanted)),
            min(high, max(r[1] for r in wanted)),
        )
    return result


def _masked(
    node: Node,
    graph: Graph,
    class_of: Callable[[str], str],
    ranges: Mapping[str, Range],
    registry: Registry,
) -> tuple[str, str] | None:
    """Return the names of scores and mask where the layer adds one to the other."""
    if node.op != "Adding" or not _for_softmax(graph, node.outputs[0], registry):
        return None
    first, second = node.inputs[:2]
    for scores, mask in ((first, second), (second, first)):
        known = class_of(scores) in ranges and class_of(mask) in ranges
        if not known or class_of(scores) == class_of(mask):
            continue
        low, high = ranges[class_of(scores)]
        deep, top = ranges[class_of(mask)]
        far = deep <= -max(_LEAST, _TIMES * (high - low + _REACH))
        if far and (top <= 0.0 or top == -deep):  # the latter is a grid without zero point
            return scores, mask
    return None


def _for_softmax(graph: Graph, name: str, registry: Registry) -> bool:
    """Whether only a softmax reads the value, perhaps behind layers that move elements."""
    while (node := graph.sole_consumer(name)) is not None:
        if node.op == "Softmax":
            return True
        outputs = [o for o in node.outputs if o]
        if registry[node.op].rule_of(node, graph) is not QuantRule.MOVE or len(outputs) != 1:
            return False
        name = outputs[0]
    return False


def _readers(
    graph: Graph, class_of: Callable[[str], str], registry: Registry
) -> dict[str, set[str]]:
    """Return the layers that compute with the values of each class."""
    found: dict[str, set[str]] = {}
    for node in graph.nodes:
        if registry[node.op].rule_of(node, graph) is QuantRule.MOVE:
            continue
        for name in node.inputs:
            if name and not graph.values[name].is_const:
                found.setdefault(class_of(name), set()).add(node.name)
    for name in graph.outputs:
        found.setdefault(class_of(name), set()).add("")
    return found
