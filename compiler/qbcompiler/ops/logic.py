"""Comparison, logic and selection: ``TensorCmp``, ``Logical``, ``Where``. Float only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..ir import Attrs, DType, Graph, NoAttrs, Node, TensorType, Value
from .common import broadcast, require, require_same_dtype
from .spec import (
    Case,
    Lowering,
    OnnxEmitter,
    OpSpec,
    QuantRule,
    Refusal,
    SourceNode,
)

__all__ = ["KindAttrs", "Logical", "TensorCmp", "Where"]


@dataclass(frozen=True, slots=True)
class KindAttrs(Attrs):
    """Which operation of a family.

    Attributes:
        kind: the ONNX operator's name.
    """

    kind: str


class _Family(OpSpec[KindAttrs]):
    """ONNX operators of one signature under one IR name."""

    attrs_type = KindAttrs
    rule = QuantRule.FLOAT

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        return to.emit(self.name, KindAttrs(node.op_type), node.inputs)

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        to.emit(self.attrs_of(node).kind, node.inputs, node.outputs)

    def check(self, attrs: KindAttrs) -> None:
        """ValueError where the kind is not of this family."""
        if attrs.kind not in self.onnx:
            raise ValueError(f"unknown kind {attrs.kind!r}")


def _act(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


class TensorCmp(_Family):
    """Elementwise comparison of two tensors."""

    name = "TensorCmp"
    onnx = ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")

    def infer(self, attrs: KindAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        self.check(attrs)
        a, b = require(inputs, 0), require(inputs, 1)
        require_same_dtype([a, b])
        return [TensorType(DType.BOOL, broadcast(a.shape, b.shape))]

    def cases(self) -> Sequence[Case]:
        return [
            Case(kind, KindAttrs(kind), [_act(2, 3), _act(3)], bound=None) for kind in self.onnx
        ]


class Logical(_Family):
    """Elementwise logic of bool tensors."""

    name = "Logical"
    onnx = ("And", "Or", "Xor", "Not")

    def infer(self, attrs: KindAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        self.check(attrs)
        values = [require(inputs, i) for i in range(1 if attrs.kind == "Not" else 2)]
        if require_same_dtype(values) is not DType.BOOL:
            raise ValueError(f"expected bool elements, got {values[0].type}")
        return [TensorType(DType.BOOL, broadcast(*(v.shape for v in values)))]

    def cases(self) -> Sequence[Case]:
        flags = TensorType(DType.BOOL, (2, 3))
        row = np.array([True, False, True])
        return [
            *(Case(k, KindAttrs(k), [flags, row], bound=None) for k in ("And", "Or", "Xor")),
            Case("Not", KindAttrs("Not"), [flags], bound=None),
        ]


class Where(OpSpec[NoAttrs]):
    """Elements of input 1 where input 0 is true, of input 2 elsewhere."""

    name = "Where"
    attrs_type = NoAttrs
    rule = QuantRule.FLOAT
    onnx = ("Where",)

    def infer(self, attrs: NoAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        condition, a, b = (require(inputs, i) for i in range(3))
        if condition.type.dtype is not DType.BOOL:
            raise ValueError(f"the condition is {condition.type}, expected bool elements")
        dtype = require_same_dtype([a, b])
        return [TensorType(dtype, broadcast(condition.shape, a.shape, b.shape))]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        return to.emit(self.name, NoAttrs(), node.inputs)

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        to.emit("Where", node.inputs, node.outputs)

    def cases(self) -> Sequence[Case]:
        flags = TensorType(DType.BOOL, (2, 3))
        return [Case("plain", NoAttrs(), [flags, _act(2, 3), _act(1)], bound=None)]
