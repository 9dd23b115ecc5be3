"""``x * tanh(softplus(x))`` to Mish, ``log(1 + exp(x))`` to Softplus."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import Graph, NoAttrs, Node
from .base import Editor, Rewrite, scalar_of
from .products import Gate, GatedActivation, only_inside

__all__ = ["FuseMish", "FuseSoftplus"]


class FuseMish(GatedActivation):
    """Misra, "Mish: A Self Regularized Non-Monotonic Activation Function" (2019)."""

    name = "fuse_mish"
    needs = ("Mish", "Tanh", "Softplus")
    requires = ("fuse_softplus",)

    def gate(self, graph: Graph, name: str, x: str) -> Gate | None:
        tanh = graph.producer(name)
        inner = None if tanh is None or tanh.op != "Tanh" else graph.producer(tanh.inputs[0])
        if tanh is None or inner is None or inner.op != "Softplus":
            return None
        return Gate(inner.inputs[0], 1.0, "Mish", NoAttrs(), (inner, tanh))


@dataclass(frozen=True, slots=True)
class _Softplus:
    x: str
    nodes: list[Node]


class FuseSoftplus(Rewrite[_Softplus]):
    """``log(exp(x) + 1)``, which overflows where Softplus does not."""

    name = "fuse_softplus"
    anchors = ("Log",)
    needs = ("Softplus", "Log", "Exp")

    def match(self, graph: Graph, node: Node) -> _Softplus | None:
        one = graph.producer(node.inputs[0])
        if one is None or one.op != "AddingConstant" or scalar_of(graph, one.inputs[1]) != 1.0:
            return None
        exp = graph.producer(one.inputs[0])
        if exp is None or exp.op != "Exp":
            return None
        return _Softplus(exp.inputs[0], [exp, one, node])

    def check(self, graph: Graph, match: _Softplus) -> str | None:
        if not only_inside(graph, match.nodes):
            return "something else reads an intermediate result"
        return None

    def rewrite(self, match: _Softplus, editor: Editor) -> None:
        editor.replace(match.nodes, "Softplus", NoAttrs(), [match.x])
