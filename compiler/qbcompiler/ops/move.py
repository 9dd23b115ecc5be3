"""The base of operators that only move elements: their integers are copied, never changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from ..ir import Array, Attrs, Graph, IntLayer, Node, QuantParams
from .common import integer_reason
from .spec import Kernels, OpSpec, QuantContext, QuantRule

__all__ = ["Move"]

A = TypeVar("A", bound=Attrs)


class Move(OpSpec[A]):
    """An operator whose output elements are elements of input 0.

    Subclasses give :meth:`move`; the integer layer carries ``attrs.to_dict()`` unless
    :meth:`layer_attrs` says otherwise.
    """

    rule = QuantRule.MOVE

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        return integer_reason(node, graph)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        if q.params(node.inputs[0]) != q.params(node.outputs[0]):
            raise ValueError("it moves elements, so its output must have its input's grid")
        return IntLayer(
            node.name,
            node.op,
            [node.inputs[0]],
            list(node.outputs),
            node.attrs.to_dict(),
            self.tensors(node, q),
            node.source,
        )

    def tensors(self, node: Node, q: QuantContext) -> dict[str, Array]:
        """Return the integer layer's tensors."""
        return {}

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        x = inputs[0]
        assert x is not None
        return [self.move(layer, x)]

    def move(self, layer: IntLayer, x: Array) -> Array:
        """Return the moved elements."""
        raise TypeError(f"{self.name} does not say how it moves elements")
