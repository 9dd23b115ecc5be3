"""What a pass is: find a pattern, say why it does not apply or rewrite it, prove the result.

A pass is written against :class:`Rewrite`: ``match`` looks at one node and returns the pattern
around it or None, ``check`` returns why the pattern must stay or None, ``rewrite`` changes the
graph through an :class:`Editor`, ``ensures`` states what holds afterwards. The driver keeps the
reasons, so that a user can be told why two layers were not fused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from ..ir import Array, Attrs, DType, Graph, Node, TensorType, Value, VerifyError
from ..ops import Registry

__all__ = ["Editor", "GraphPass", "PassResult", "Rewrite", "can_bypass", "scalar_of"]

M = TypeVar("M")


@dataclass(slots=True)
class PassResult:
    """What a pass did.

    Attributes:
        name: the pass.
        count: how many patterns it rewrote.
        refusals: layers whose pattern it left alone, each with the reason.
    """

    name: str
    count: int = 0
    refusals: list[tuple[str, str]] = field(default_factory=list)


class Editor:
    """Changes a graph for a rewrite: types come from the registry, names stay unique."""

    def __init__(self, graph: Graph, registry: Registry) -> None:
        self.graph = graph
        self.registry = registry
        self.made: list[Node] = []
        # where each node belongs: a new one where the one was that it replaces
        self.place = {n.name: i for i, n in enumerate(graph.nodes)}

    def const(self, data: Array, hint: str) -> Value:
        """Add a constant."""
        array = np.asarray(data)
        type_ = TensorType(DType.of(array.dtype), tuple(array.shape))
        return self.graph.add_value(self.graph.fresh(hint), type_, array)

    def emit(
        self,
        op: str,
        attrs: Attrs,
        inputs: Sequence[Value | str],
        *,
        name: str,
        at: Node,
        source: tuple[str, ...] = (),
    ) -> Value:
        """Add a node of one output, to run where ``at`` does; return the output."""
        names = [v if isinstance(v, str) else v.name for v in inputs]
        layer = self._layer_name(name)
        type_ = self._infer(op, attrs, names)
        out = self.graph.add_value(self.graph.fresh(f"{layer}/out"), type_)
        self.place[layer] = self.place[at.name]
        self.made.append(self.graph.add_node(Node(layer, op, names, [out.name], attrs, source)))
        return out

    def replace(
        self,
        old: Sequence[Node],
        op: str,
        attrs: Attrs,
        inputs: Sequence[Value | str],
        *,
        name: str = "",
    ) -> Node:
        """Put one node in the place of ``old``, whose last node makes the output.

        The new node makes the same value under the same name. ``old`` nodes that something else
        still reads must not be listed; the others' outputs go.

        Args:
            old: nodes in execution order.
            op, attrs, inputs: the new node.
            name: its name; that of the last old node by default.
        """
        graph = self.graph
        output = old[-1].outputs[0]
        names = [v if isinstance(v, str) else v.name for v in inputs]
        source = tuple(dict.fromkeys(s for n in old for s in (n.source or (n.name,))))
        type_ = self._infer(op, attrs, names)
        if type_ != graph.values[output].type:
            raise VerifyError(
                f"{op} would make {output!r} {type_}, it is {graph.values[output].type}"
            )
        place = self.place[old[-1].name]
        self.drop(old, keep=output)
        layer = self._layer_name(name or old[-1].name)
        self.place[layer] = place
        node = graph.add_node(Node(layer, op, names, [output], attrs, source))
        self.made.append(node)
        return node

    def drop(self, nodes: Sequence[Node], keep: str = "") -> None:
        """Remove nodes, last first, and their outputs but ``keep``."""
        graph = self.graph
        for node in reversed(nodes):
            graph.remove_node(node)
            for out in filter(None, node.outputs):
                if out != keep:
                    graph.remove_value(out)

    def bypass(self, node: Node, value: str) -> None:
        """Remove a node of one output, whose readers read ``value`` from now on.

        The name of a graph output stays: where ``value`` cannot take it over, the node must stay
        (see :func:`can_bypass`).
        """
        graph = self.graph
        out = node.outputs[0]
        is_output = out in graph.outputs
        graph.replace_uses(out, value, outputs=False)
        graph.remove_node(node)
        if is_output:
            graph.take_output_name(out, value)
        else:
            graph.remove_value(out)

    def _infer(self, op: str, attrs: Attrs, names: Sequence[str]) -> TensorType:
        values = [self.graph.values[n] if n else None for n in names]
        return self.registry.infer(Node("", op, [], [], attrs), values)[0]

    def _layer_name(self, name: str) -> str:
        if not self.graph.has_node(name):
            return name
        number = 1
        while self.graph.has_node(f"{name}_{number}"):
            number += 1
        return f"{name}_{number}"


def can_bypass(graph: Graph, node: Node, value: str) -> bool:
    """Whether :meth:`Editor.bypass` keeps the names of the graph's outputs."""
    if node.outputs[0] not in graph.outputs:
        return True
    return graph.producer(value) is not None and value not in graph.outputs


class GraphPass(ABC):
    """A pass over a whole graph.

    Class variables:
        name: unique in the pipeline.
        requires: passes that must have run before.
        needs: IR operators without which the pass has nothing to write.
    """

    name: ClassVar[str]
    requires: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def run(self, graph: Graph, registry: Registry) -> PassResult:
        """Rewrite ``graph`` in place."""

    def ensures(self, graph: Graph) -> None:
        """Raise ``VerifyError`` where the pass left what it promises to remove."""
        return


class Rewrite(GraphPass, Generic[M]):
    """A pass that rewrites a local pattern wherever it is found.

    Class variables:
        anchors: IR operators that :meth:`match` is asked about.
    """

    anchors: ClassVar[tuple[str, ...]]

    @abstractmethod
    def match(self, graph: Graph, node: Node) -> M | None:
        """Return the pattern whose anchor is ``node``, None where there is none."""

    def check(self, graph: Graph, match: M) -> str | None:
        """Return why the pattern must stay, in one clause, or None."""
        return None

    @abstractmethod
    def rewrite(self, match: M, editor: Editor) -> None:
        """Rewrite the pattern."""

    def run(self, graph: Graph, registry: Registry) -> PassResult:
        """Rewrite until nothing matches; each node is asked again only when it is new."""
        result = PassResult(self.name)
        editor = Editor(graph, registry)
        work = deque(n for n in graph.nodes if n.op in self.anchors)
        refused: dict[str, str] = {}
        while work:
            node = work.popleft()
            if not graph.has_node(node.name) or graph.node(node.name) is not node:
                continue
            match = self.match(graph, node)
            if match is None:
                continue
            reason = self.check(graph, match)
            if reason is not None:
                refused[node.name] = reason
                continue
            editor.made = []
            self.rewrite(match, editor)
            result.count += 1
            for made in editor.made:
                refused.pop(made.name, None)
            work.extend(n for n in editor.made if n.op in self.anchors)
        result.refusals = [(n, r) for n, r in refused.items() if graph.has_node(n)]
        if result.count:
            graph.prune()
            graph.sort(editor.place)
        return result


def scalar_of(graph: Graph, name: str) -> float | None:
    """Return a constant of one element as a number, None for anything else."""
    data: Any = graph.values[name].data if name else None
    if data is None or data.size != 1 or data.dtype == object:
        return None
    return float(data.reshape(-1)[0])
