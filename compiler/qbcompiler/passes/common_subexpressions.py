"""Merges layers that compute the same thing of the same tensors."""

from __future__ import annotations

import hashlib
import json

from ..ir import Graph, Node, Value
from ..ops import Registry
from .base import Editor, GraphPass, PassResult

__all__ = ["RANDOM", "CommonSubexpressions"]

RANDOM = frozenset(
    {
        "Bernoulli",
        "Dropout",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Loop",
        "If",
        "Scan",
    }
)
"""ONNX operators that may differ between two runs, themselves or in a sub-graph."""

HASHED_BYTES = 1 << 16
"""Larger constants are one only where they share memory: comparing them costs too much."""


class CommonSubexpressions(GraphPass):
    """Keeps the first of several layers with equal operator, attributes and inputs.

    Constants count as equal when type and bytes are. Layers that draw random numbers, or may do
    so in a sub-graph, stay.
    """

    name = "common_subexpressions"

    def run(self, graph: Graph, registry: Registry) -> PassResult:
        result = PassResult(self.name)
        editor = Editor(graph, registry)
        constants = self._constants(graph)
        seen: dict[tuple[object, ...], Node] = {}
        for node in graph.nodes:
            if getattr(node.attrs, "op_type", "") in RANDOM:
                continue
            key = (
                node.op,
                json.dumps(node.attrs.to_dict(), sort_keys=True),
                tuple(constants.get(n, n) for n in node.inputs),
                tuple(bool(o) for o in node.outputs),
            )
            first = seen.setdefault(key, node)
            if first is not node and self._merge(node, first, editor):
                result.count += 1
        if result.count:
            graph.prune()
        return result

    def _merge(self, node: Node, first: Node, editor: Editor) -> bool:
        graph = editor.graph
        if any(o in graph.outputs for o in node.outputs):
            return False
        for old, new in zip(node.outputs, first.outputs, strict=True):
            if old:
                graph.replace_uses(old, new)
        editor.drop([node])
        return True

    def _constants(self, graph: Graph) -> dict[str, object]:
        """Return an identity for each constant: equal constants have equal ones."""
        keys: dict[str, object] = {}
        for value in graph.constants():
            keys[value.name] = (str(value.type), _fingerprint(value))
        return keys


def _fingerprint(value: Value) -> object:
    data = value.data
    assert data is not None
    if data.dtype == object:
        return tuple(str(v) for v in data.ravel())
    if data.nbytes > HASHED_BYTES:
        return data.__array_interface__["data"][0], data.strides
    return hashlib.sha256(data.tobytes()).hexdigest()
