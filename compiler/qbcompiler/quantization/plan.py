"""Choose the integer grid of every tensor from its range.

Tensors that must or should share a grid are joined into classes (union-find); each class takes
its range from those members whose values matter:

* ``MOVE``: the output only rearranges its input, so both are one class, ranged by the input.
* ``CLAMP``: what the clamp cuts off does not matter, so an input that only the clamp reads
  joins the output's class and has no say in its range. The tie reaches back through operators
  that only move elements (convolution, transpose, relu).
* ``MEET`` under calibration methods 1 and 3: tensors that an add or a concat brings together
  share one grid, wide enough for all. A concat then moves integers, and so its output joins too.

Masks that an attention adds before its softmax reach only as far as they have to
(:mod:`~qbcompiler.quantization.masks`), and do not share the scores' grid. Everything else has its
own range. A class has a zero point where the layers that make all its members that count ask for
one (methods 2 and 3). Iteration follows the graph's order, so that equal inputs give equal grids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ..errors import InternalError, QuantizationError
from ..ir import Graph, Node, QuantParams
from ..ops import QuantRule, Registry, default_registry
from ..ops.fixedpoint import round_scale
from .masks import mask_ranges, masked_sums

__all__ = ["GridPlan", "Range", "gives_way", "plan_grids", "symmetric_grid", "zero_point_grid"]

Range = tuple[float, float]
_METHODS = (0, 1, 2, 3)
_SHARED_METHODS = (1, 3)
_ZERO_POINT_METHODS = (2, 3)
_CONCAT = "Concatenate"


@dataclass(frozen=True)
class GridPlan:
    """The outcome of planning.

    Attributes:
        grids: the grid of each float value that is not a constant.
        ranges: the range that each grid was made from.
        classes: the name of each value's class (its first member).
    """

    grids: Mapping[str, QuantParams]
    ranges: Mapping[str, Range]
    classes: Mapping[str, str]


def plan_grids(
    graph: Graph,
    ranges: Mapping[str, Range],
    *,
    method_of: Callable[[Node], int] = lambda node: 0,
    input_method: int = 0,
    bits: Mapping[str, int] | None = None,
    wide_ranges: Mapping[str, Range] | None = None,
    registry: Registry | None = None,
) -> GridPlan:
    """Return the grid of every float value of ``graph``.

    Args:
        graph: the NPU body, in topological order.
        ranges: observed ``(low, high)`` of every float value that is not a constant; values
            whose operator fixes their range, or that only move, need none.
        method_of: calibration method of a layer: 0 each tensor its own scale, 1 one scale for
            tensors that meet in the layer, if it is an add or a concat; 2 and 3 the same with
            a zero point for what the layer makes.
        input_method: the method of the graph's inputs.
        bits: 8 or 16 for values whose grid does not have 8 bits; of a class the most count.
        wide_ranges: the ranges for grids of 16 bits; the same by default.
        registry: operators; the built-in ones by default.

    Raises:
        QuantizationError: the method is not one of these, or a range is missing or not finite.
    """
    planner = _Planner(graph, registry or default_registry())
    methods = {n.name: _known_method(n, method_of(n)) for n in graph.nodes}
    planner.join_moves()
    masked = masked_sums(graph, planner.root_of, planner.class_ranges(ranges), planner.registry)
    planner.join_meets(methods, masked)
    members = planner.members()
    grids: dict[str, QuantParams] = {}
    chosen: dict[str, Range] = {}
    classes: dict[str, str] = {}
    widths = {root: max((bits or {}).get(n, 8) for n in g) for root, g in members.items()}
    wanted = planner.class_ranges(ranges, wide_ranges, widths)
    wanted |= mask_ranges(graph, planner.root_of, wanted, masked, planner.registry)
    for root, group in members.items():
        (low, high), width, heard = wanted[root], widths[root], planner.heard(group)
        shifted = all(_wants_zero_point(graph, n, methods, input_method) for n in heard)
        grid = (zero_point_grid if shifted else symmetric_grid)(low, high, width)
        for name in group:
            grids[name], chosen[name], classes[name] = grid, (low, high), group[0]
    order = planner.names
    return GridPlan(
        {n: grids[n] for n in order}, {n: chosen[n] for n in order}, {n: classes[n] for n in order}
    )


def _known_method(node: Node, method: int) -> int:
    if method in _METHODS:
        return method
    raise QuantizationError(
        f"calibration method {method} is unknown (layer {node.name!r}, {node.op})",
        details={"layer": node.name, "expected": list(_METHODS), "got": method},
        hint="set calibration.method, and its layerOverrides, to 0, 1, 2 or 3",
    )


def _wants_zero_point(graph: Graph, name: str, methods: Mapping[str, int], general: int) -> bool:
    """Whether the layer that makes the value asks for a zero point."""
    maker = graph.producer(name)
    return (general if maker is None else methods[maker.name]) in _ZERO_POINT_METHODS


def gives_way(graph: Graph, name: str, registry: Registry | None = None) -> bool:
    """Whether only a clamp reads the value, perhaps behind operators that move elements.

    Such a value takes the clamp's grid: what the grid cuts off, the clamp would cut off anyway.
    """
    specs = registry or default_registry()
    while (node := graph.sole_consumer(name)) is not None:
        if node.inputs.count(name) != 1 or node.inputs[0] != name:
            return False
        rule = specs[node.op].rule_of(node, graph)
        if rule is QuantRule.CLAMP:
            return True
        outputs = [o for o in node.outputs if o]
        if rule is not QuantRule.MOVE or len(outputs) != 1:
            return False
        name = outputs[0]
    return False


def symmetric_grid(low: float, high: float, bits: int = 8) -> QuantParams:
    """Return the grid without zero point that reaches the larger of ``|low|`` and ``|high|``."""
    peak = max(abs(low), abs(high))
    return QuantParams((round_scale(peak / ((1 << (bits - 1)) - 1)),), bits=bits)


def zero_point_grid(low: float, high: float, bits: int = 8) -> QuantParams:
    """Return the grid with a zero point that reaches from ``low`` to ``high``, zero included.

    The zero point is the integer nearest to ``qmin - low / s``, so that a real 0 is exact; an end
    may lie half a step outside.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    qmin, steps = -(1 << (bits - 1)), (1 << bits) - 1
    scale = round_scale((high - low) / steps)
    zero = round(min(max(qmin - low / scale, qmin), qmin + steps))
    return QuantParams((scale,), zero, bits)


class _Planner:
    """The classes of one graph."""

    def __init__(self, graph: Graph, registry: Registry) -> None:
        self._graph = graph
        self.registry = self._registry = registry
        self.names = [
            n for n, v in graph.values.items() if not v.is_const and v.type.dtype.is_float
        ]
        self._parent = {n: n for n in self.names}
        self._silent: set[str] = set()

    def root_of(self, name: str) -> str:
        """Return the class of any value; integers and constants are their own."""
        return self.root(name) if name in self._parent else name

    def root(self, name: str) -> str:
        parent = self._parent
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    def members(self) -> dict[str, list[str]]:
        """Return the values of each class, in the order of the graph."""
        found: dict[str, list[str]] = {}
        for name in self.names:
            found.setdefault(self.root(name), []).append(name)
        return found

    def heard(self, group: list[str]) -> list[str]:
        """Return those values of a class that have a say in its range."""
        return [n for n in group if n not in self._silent] or group

    def class_ranges(
        self,
        ranges: Mapping[str, Range],
        wide: Mapping[str, Range] | None = None,
        widths: Mapping[str, int] | None = None,
    ) -> dict[str, Range]:
        """Return the range of each class: ``wide`` ones where its width is not 8."""
        result = {}
        for root, group in self.members().items():
            narrow = wide is None or (widths or {}).get(root, 8) == 8
            found = [
                self.own_range(n, ranges if narrow or wide is None else wide)
                for n in self.heard(group)
            ]
            result[root] = min(r[0] for r in found), max(r[1] for r in found)
        return result

    def own_range(self, name: str, ranges: Mapping[str, Range]) -> Range:
        """Return the fixed range of the value's operator, else the observed one."""
        maker = self._graph.producer(name)
        if maker is not None:
            fixed = self._registry[maker.op].grid(maker, self._graph)
            if fixed is not None:
                return fixed
        if name not in ranges:
            raise InternalError(f"calibration observed no range of {name!r}")
        low, high = (float(v) for v in ranges[name])
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            where = f" (made by {maker.name!r}, {maker.op})" if maker is not None else ""
            raise QuantizationError(
                f"the range of {name!r}{where} is {low}..{high}: the model overflows on the"
                " calibration data",
                details={"value": name, "layer": maker.name if maker is not None else None},
                hint="check that the samples are preprocessed as the model expects",
            )
        return low, high

    def join_moves(self) -> None:
        """Join what layers only move or clamp with what they read."""
        for node in self._graph.nodes:
            rule = self._rule(node)
            source = self._first_input(node)
            if rule is QuantRule.MOVE and source is not None:
                for out in self._outputs(node):
                    self._tie(source, out)
                    self._silent.add(out)
            elif rule is QuantRule.CLAMP and source is not None and self._gives_way(source):
                self._tie(source, node.outputs[0])
        for name in self.names:
            if self._gives_way(name):
                self._silent.add(name)

    def join_meets(self, methods: Mapping[str, int], apart: Collection[str]) -> None:
        """Join tensors that meet, where the layer's method says so and it is not in ``apart``."""
        for node in self._graph.nodes:
            shared = methods[node.name] in _SHARED_METHODS and node.name not in apart
            if shared and self._rule(node) is QuantRule.MEET:
                self._meet(node)

    def _meet(self, node: Node) -> None:
        together = [n for n in node.inputs if n in self._parent]
        if node.op == _CONCAT:
            together += self._outputs(node)
            if all(n in self._parent for n in node.inputs):  # else a constant widens the output
                self._silent.update(self._outputs(node))
        for other in together[1:]:
            self._tie(together[0], other)

    def _gives_way(self, name: str) -> bool:
        return gives_way(self._graph, name, self._registry)

    def _rule(self, node: Node) -> QuantRule:
        return self._registry[node.op].rule_of(node, self._graph)

    def _tie(self, first: str, second: str) -> None:
        self._parent[self.root(second)] = self.root(first)

    def _first_input(self, node: Node) -> str | None:
        name = node.inputs[0] if node.inputs else ""
        return name if name in self._parent else None

    def _outputs(self, node: Node) -> list[str]:
        return [o for o in node.outputs if o in self._parent]
