"""Which layers are the parts of a transformer block: found by how they are connected.

Attention is a softmax of a product of two activations that another product of two activations reads
(Vaswani et al., "Attention Is All You Need", 2017). Names play no part, so any exporter's graph
will do. One projection may make query, key and value together; it then has all three roles.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from ..ir import Graph, Node
from ..ops import QuantRule, Registry, default_registry
from .copies import is_copy

__all__ = ["ROLES", "find_roles"]

ROLES = ("query", "key", "value", "output", "ffn/up", "ffn/gate", "ffn/down", "head")
"""Roles that a layer can be found to have."""

_SCORES = frozenset(
    {"Adding", "AddingConstant", "MultiplyConstant", "DivConstant", "SubConstant", "Where"}
)
"""What stands between the scores and the softmax: scaling and masks."""

_PROJECTED = frozenset({"MultiplyConstant", "DivConstant", "RotaryEmbedding", "AddingConstant"})
"""What stands between a projection and the product that reads it, moves apart."""

_MAX_ENDS = 8
"""Ways back that are followed from one value."""

_NORMS = frozenset({"LayerNormalization", "RmsNormalization"})
_GATES = frozenset(
    {
        "Gelu", "QuickGelu", "Swish", "Relu", "Mish", "HardSwish", "Sigmoid", "Tanh", "Elu",
        "LeakyRelu", "Clip",
    }
)  # fmt: skip


def find_roles(graph: Graph, registry: Registry | None = None) -> dict[str, tuple[str, ...]]:
    """Return the roles of those layers that have one, by layer name.

    Args:
        graph: a float graph; one without attention has no roles at all.
        registry: operators; the built-in ones by default.
    """
    finder = _Finder(graph, registry or default_registry())
    found: dict[str, list[str]] = {}
    for role, node in finder.roles():
        roles = found.setdefault(node.name, [])
        if role not in roles:
            roles.append(role)
    return {name: tuple(roles) for name, roles in found.items()}


class _Finder:
    def __init__(self, graph: Graph, registry: Registry) -> None:
        self._graph = graph
        self._registry = registry

    def roles(self) -> Iterator[tuple[str, Node]]:
        """Yield each role with the layer that has it."""
        graph = self._graph
        attention = False
        for node in graph.nodes:
            if node.op != "MatMul" or self._weighted(node):
                continue
            scores = self._scores(node)
            if scores is None:
                continue
            attention = True
            sides = (("query", scores.inputs[0]), ("key", scores.inputs[1]))
            for role, name in (*sides, ("value", node.inputs[1])):
                yield from self._named(role, self._back(name, _PROJECTED))
            yield from self._named("output", self._forward(node.outputs[0]))
        if not attention:
            return
        for node in graph.nodes:
            yield from self._ffn(node)
        for name in graph.outputs:
            yield from self._named("head", self._head(name))

    def _named(self, role: str, node: Node | None) -> Iterator[tuple[str, Node]]:
        if node is not None and node.op == "MatMul" and self._weighted(node):
            yield role, node

    def _scores(self, reads: Node) -> Node | None:
        """Return the product under the softmax that a product of two activations reads."""
        softmax = self._back(reads.inputs[0], frozenset())
        if softmax is None or softmax.op not in ("Softmax", "MaskSoftmax"):
            return None
        scores = self._back(softmax.inputs[0], _SCORES)
        if scores is None or scores.op != "MatMul" or self._weighted(scores):
            return None
        return scores

    def _ffn(self, down: Node) -> Iterator[tuple[str, Node]]:
        """Yield the parts of a feed-forward block, known by its second product."""
        if down.op != "MatMul" or not self._weighted(down):
            return
        inner = self._back(down.inputs[0], frozenset())
        if inner is None:
            return
        if inner.op in _GATES:
            up = self._back(inner.inputs[0], frozenset())
            if up is not None and self._after_norm(up):
                yield from self._named("ffn/up", up)
                yield "ffn/down", down
        elif inner.op == "Multiply":
            sides = [self._back(n, frozenset()) for n in inner.inputs[:2]]
            for gated, plain in (sides, sides[::-1]):
                if gated is None or plain is None or gated.op not in _GATES:
                    continue
                gate = self._back(gated.inputs[0], frozenset())
                if gate is not None and self._after_norm(gate) and self._after_norm(plain):
                    yield from self._named("ffn/gate", gate)
                    yield from self._named("ffn/up", plain)
                    yield "ffn/down", down
                    return

    def _after_norm(self, node: Node) -> bool:
        if node.op != "MatMul" or not self._weighted(node):
            return False
        before = self._back(node.inputs[0], frozenset())
        return before is not None and before.op in _NORMS

    def _head(self, name: str) -> Node | None:
        """Return the product whose result, but for moves and functions, is a model output."""
        node = self._back(name, _GATES | _SCORES | {"Softmax", "LogSoftmax"})
        return node if node is not None and node.op == "MatMul" else None

    def _back(self, name: str, through: frozenset[str]) -> Node | None:
        """Return what makes a value, moves and some operators left out.

        Of a sum it is the side that leads to a matrix product: the other is a mask.
        """
        ends = list(islice(self._ends(name, through), _MAX_ENDS))
        products = (node for node in ends if node.op == "MatMul")
        return next(products, ends[0] if ends else None)

    def _ends(self, name: str, through: frozenset[str]) -> Iterator[Node]:
        node = self._graph.producer(name)
        if node is None:
            return
        if node.op not in through and not self._moves(node):
            yield node
            return
        for source in node.inputs:
            if source and not self._graph.values[source].is_const:
                yield from self._ends(source, through)

    def _forward(self, name: str) -> Node | None:
        """Return the one layer that reads a value, moves left out."""
        reader = self._graph.sole_consumer(name)
        while reader is not None and self._moves(reader):
            reader = self._graph.sole_consumer(reader.outputs[0])
        return reader

    def _moves(self, node: Node) -> bool:
        if node.op not in self._registry:
            return False
        if is_copy(node):
            return True
        return self._registry[node.op].rule_of(node, self._graph) is QuantRule.MOVE

    def _weighted(self, node: Node) -> bool:
        return self._graph.values[node.inputs[1]].is_const
