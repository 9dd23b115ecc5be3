"""The base of functions of one number: a table in the integer form.

For 8-bit inputs a table entry is the nearest output step, so the error is at most half a step; for
16-bit ones a table of 513 entries is interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..ir import (
    Array,
    Attrs,
    DType,
    Graph,
    IntLayer,
    NoAttrs,
    Node,
    QuantParams,
    TensorType,
    Value,
)
from .common import grid_of, integer_reason, is_wide, require, require_float
from .spec import (
    Case,
    Kernels,
    Lowering,
    OnnxEmitter,
    OpSpec,
    QuantContext,
    RealForm,
    Refusal,
    SourceNode,
    TableForm,
)
from .tables import build_table, lookup, near_tie

__all__ = ["Unary", "erf", "sigmoid", "softplus"]

A = TypeVar("A", bound=Attrs)
Float64 = NDArray[np.float64]


def _act(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


class Unary(OpSpec[A]):
    """An elementwise function of one activation.

    Subclasses give :meth:`function` and, where the ONNX form is not one node of the same
    attributes, :meth:`lower` or :meth:`export`.

    Class variables:
        exported: the ONNX operator that it is written as.
        partial: whether the float form is undefined on some numbers, for which the table has an
            entry of its own.
        range: inputs of the sample cases.
        sample: attributes of the sample cases.
    """

    elementwise = True
    exported: ClassVar[str] = ""
    partial: ClassVar[bool] = False
    range: ClassVar[tuple[float, float]] = (-4.0, 4.0)
    sample: ClassVar[tuple[Attrs, ...]] = (NoAttrs(),)

    def function(self, attrs: A, x: Float64) -> Float64:
        """Return the function in float64, defined for every finite input."""
        raise TypeError(f"{self.name} has no function")

    def is_smooth(self, attrs: A) -> bool:
        """Whether chords over 1/512 of a grid come close to the function everywhere.

        Elsewhere a 16-bit input has a table of all its integers.
        """
        return True

    def infer(self, attrs: A, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        require_float(x)
        return [x.type]

    def from_onnx(self, attrs: Mapping[str, Any]) -> A:
        """Return the attributes of an ONNX node; by default those of the same names."""
        fields = {k: v for k, v in attrs.items() if k in self.attrs_type.__dataclass_fields__}
        found: A = self.attrs_type.from_dict(fields)  # type: ignore[assignment]
        return found

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x = node.input(0)
        if x is None or not x.type.dtype.is_float:
            return Refusal("its input is not floating point")
        return to.emit(self.name, self.from_onnx(node.attrs), [x])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        to.emit(
            self.exported or self.onnx[0], node.inputs[:1], node.outputs, **node.attrs.to_dict()
        )

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        return integer_reason(node, graph)

    def is_pointwise(self, attrs: A) -> bool:
        return True

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        attrs = self.attrs_of(node)
        source, out = grid_of(q, node.inputs[0]), grid_of(q, node.outputs[0])
        smooth = self.is_smooth(attrs)
        table = build_table(lambda x: self.function(attrs, x), source, out, smooth=smooth)
        return IntLayer(
            node.name,
            node.op,
            [node.inputs[0]],
            list(node.outputs),
            {},
            {"table": table},
            node.source,
        )

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        x, out = inputs[0], params[layer.outputs[0]]
        assert x is not None and out is not None
        return [lookup(layer.tensors["table"], x, out)]

    def real_form(
        self, layer: IntLayer, params: Mapping[str, QuantParams | None]
    ) -> RealForm | TableForm:
        table = layer.tensors["table"]
        attrs: A = self.attrs_type.from_dict(layer.real)  # type: ignore[assignment]
        source, out = params[layer.inputs[0]], params[layer.outputs[0]]
        assert source is not None and out is not None
        if is_wide(source, out):
            # QDQ has no form for an interpolated table: the function itself comes closest
            return RealForm(self.name, attrs, layer.inputs)
        if self.partial or near_tie(lambda x: self.function(attrs, x), source, out):
            return TableForm(table.reshape(1, -1), np.zeros((), np.int32))
        return RealForm(self.name, attrs, layer.inputs)

    def cases(self) -> Sequence[Case]:
        low, high = self.range

        def reference(attrs: Attrs) -> Any:
            return lambda x: self.function(attrs, np.asarray(x, dtype=np.float64))  # type: ignore[arg-type]

        return [
            Case(
                f"sample{i}",
                attrs,
                [_act(2, 3, 40)],
                low=low,
                high=high,
                bound=0.51,
                reference=reference(attrs),
            )
            for i, attrs in enumerate(self.sample)
        ]


def sigmoid(x: Float64) -> Float64:
    """Return ``1 / (1 + exp(-x))`` without overflow."""
    positive = 1.0 / (1.0 + np.exp(-np.abs(x)))
    return np.where(x >= 0, positive, 1.0 - positive)


def softplus(x: Float64) -> Float64:
    """Return ``log(1 + exp(x))`` without overflow."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def erf(x: Float64) -> Float64:
    """Return the Gaussian error function."""
    return np.array([math.erf(v) for v in x.ravel()], dtype=np.float64).reshape(x.shape)
