"""Activations of the form ``x * gate(x)``, found in whatever order their factors are written.

``x * clip(x + 3, 0, 6) / 6``, ``(x / 6) * clip(x + 3, 0, 6)`` and ``x * (clip(x + 3, 0, 6) *
0.1666667)`` are one product of factors and a number. A pass states only what its gate is.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

from ..ir import Attrs, Graph, Node
from .base import Editor, Rewrite, scalar_of

__all__ = [
    "Gate",
    "GatedActivation",
    "close",
    "line_of",
    "only_inside",
    "polynomial_of",
    "scale_of",
]

_SCALES = ("MultiplyConstant", "DivConstant")
_PRODUCTS = ("Multiply", *_SCALES)


@dataclass(frozen=True, slots=True)
class Gate:
    """``factor * gate(x)`` and the layers that compute it, in execution order."""

    x: str
    factor: float
    op: str
    attrs: Attrs
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class GatedMatch:
    """A product that is an activation."""

    gate: Gate
    nodes: list[Node]


@dataclass(slots=True)
class _Product:
    coefficient: float = 1.0
    factors: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)


class GatedActivation(Rewrite[GatedMatch]):
    """Base of the passes that fuse ``x * gate(x)``."""

    anchors = _PRODUCTS

    @abstractmethod
    def gate(self, graph: Graph, name: str, x: str) -> Gate | None:
        """Return the gate of ``x`` whose result is ``name``, None where it is none."""

    def match(self, graph: Graph, node: Node) -> GatedMatch | None:
        product = _Product()
        if not _collect(graph, node, product) or len(product.factors) != 2:
            return None
        for x, other in (product.factors, product.factors[::-1]):
            found = self.gate(graph, other, x)
            if (
                found is not None
                and found.x == x
                and close(product.coefficient * found.factor, 1.0)
            ):
                return GatedMatch(found, [*found.nodes, *product.nodes])
        return None

    def check(self, graph: Graph, match: GatedMatch) -> str | None:
        if not only_inside(graph, match.nodes):
            return "something else reads an intermediate result"
        x, y = match.gate.x, match.nodes[-1].outputs[0]
        if graph.values[x].type != graph.values[y].type:
            return "a constant changes the shape"
        return None

    def rewrite(self, match: GatedMatch, editor: Editor) -> None:
        editor.replace(match.nodes, match.gate.op, match.gate.attrs, [match.gate.x])


def _collect(graph: Graph, node: Node, product: _Product) -> bool:
    """Enter the factors of a product; inner products only where nothing else reads them."""
    for name in node.inputs if node.op == "Multiply" else node.inputs[:1]:
        maker = graph.producer(name)
        inner = maker is not None and maker.op in _PRODUCTS and _scalar_product(graph, maker)
        if inner and maker is not None and graph.sole_consumer(name) is node:
            if not _collect(graph, maker, product):
                return False
        else:
            product.factors.append(name)
    if len(product.factors) > 4:
        return False
    if node.op != "Multiply":
        factor = scale_of(graph, node)
        if factor is None:
            return False
        product.coefficient *= factor
    product.nodes.append(node)
    return True


def _scalar_product(graph: Graph, node: Node) -> bool:
    return node.op == "Multiply" or scale_of(graph, node) is not None


def scale_of(graph: Graph, node: Node) -> float | None:
    """Return the number that a layer multiplies by, None when it is not one number."""
    number = scalar_of(graph, node.inputs[1])
    if number is None or getattr(node.attrs, "reverse", False):
        return None
    if node.op == "DivConstant":
        return 1.0 / number if number else None
    return number


def close(value: float, wanted: float, tolerance: float = 1e-4) -> bool:
    """Whether a number written in a model stands for ``wanted``."""
    return abs(value - wanted) <= tolerance * abs(wanted)


def only_inside(graph: Graph, nodes: list[Node]) -> bool:
    """Whether only ``nodes`` read what ``nodes`` make, but for the last one's output."""
    chosen = {n.name for n in nodes}
    for node in nodes[:-1]:
        for out in filter(None, node.outputs):
            if out in graph.outputs or any(u.name not in chosen for u in graph.consumers(out)):
                return False
    return True


def line_of(
    graph: Graph, name: str, until: str | None = None
) -> tuple[str, float, float, list[Node]]:
    """Return ``x, a, b, nodes`` with ``name = a * x + b``.

    Goes back to ``until``; without it, through every layer that nothing else reads.
    """
    a, b = 1.0, 0.0
    nodes: list[Node] = []
    while name != until and (node := graph.producer(name)) is not None:
        if until is None and graph.sole_consumer(name) is None:
            break
        if node.op in ("AddingConstant", "SubConstant"):
            number = scalar_of(graph, node.inputs[1])
            if number is None:
                break
            if node.op == "AddingConstant":
                b += a * number
            elif getattr(node.attrs, "reverse", False):
                a, b = -a, b + a * number
            else:
                b -= a * number
        elif node.op in _SCALES:
            factor = scale_of(graph, node)
            if factor is None:
                break
            a *= factor
        else:
            break
        if graph.values[node.inputs[0]].type != graph.values[node.outputs[0]].type:
            break
        nodes.insert(0, node)
        name = node.inputs[0]
    return name, a, b, nodes


def polynomial_of(
    graph: Graph, name: str, x: str, nodes: dict[str, Node], depth: int = 8
) -> list[float] | None:
    """Return the coefficients, constant first, of ``name`` as a polynomial of ``x``.

    Args:
        graph, name, x: where; None is returned when ``name`` is something else.
        nodes: filled with the layers that compute it.
        depth: how far to look.
    """
    if name == x:
        return [0.0, 1.0]
    node = graph.producer(name)
    if node is None or depth == 0:
        return None
    parts = []
    inputs = node.inputs if node.op in ("Multiply", "Adding", "Sub") else node.inputs[:1]
    for part in inputs:
        found = polynomial_of(graph, part, x, nodes, depth - 1)
        if found is None:
            return None
        parts.append(found)
    result = _combine(graph, node, parts)
    if result is None or len(result) > 8:
        return None
    nodes[node.name] = node
    return result


def _combine(graph: Graph, node: Node, parts: list[list[float]]) -> list[float] | None:
    if node.op == "Multiply":
        return _times(parts[0], parts[1])
    if node.op in ("Adding", "Sub"):
        sign = 1.0 if node.op == "Adding" else -1.0
        return _plus(parts[0], [sign * c for c in parts[1]])
    if node.op == "Pow":
        exponent = float(getattr(node.attrs, "exponent", 0.0))
        if exponent not in (1.0, 2.0, 3.0):
            return None
        result = parts[0]
        for _ in range(int(exponent) - 1):
            result = _times(result, parts[0])
        return result
    if node.op in _SCALES:
        factor = scale_of(graph, node)
        return None if factor is None else [factor * c for c in parts[0]]
    if node.op == "AddingConstant":
        number = scalar_of(graph, node.inputs[1])
        return None if number is None else _plus(parts[0], [number])
    return None


def _times(a: list[float], b: list[float]) -> list[float]:
    result = [0.0] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            result[i + j] += x * y
    return result


def _plus(a: list[float], b: list[float]) -> list[float]:
    size = max(len(a), len(b))
    return [(a[i] if i < len(a) else 0.0) + (b[i] if i < len(b) else 0.0) for i in range(size)]
