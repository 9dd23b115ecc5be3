"""``Softmax`` and ``LogSoftmax`` in integers.

With ``d = q - max(q)`` (0 to -255) a table in the file holds ``E[d] = round(2^24 exp(s d))``. For
16 bits ``d`` is split into bytes, ``d = -(256 h + l)``, and ``E = (H[h] E[l] + 2^23) >> 24`` with
a second table ``H[h] = round(2^24 exp(-256 s h))``. The sum ``S`` of ``E`` over the axis is exact.

Softmax: ``y = floor((2 E M + S 2^r) / (2 S 2^r))`` with ``M / 2^r = 1 / s_out``: one exact
division, rounded half up. The table's entries are off by at most ``2^-25`` (``2^-23.4`` for 16
bits), so a result is within ``0.5 + 2^-24 / s_out`` steps of the real one (``2^-22`` for 16 bits).

LogSoftmax: ``y = (d M_in + L M_log + C) >> r`` with ``L = round(2^20 log(S / 2^24))``. ``S`` is
split into ``2^e (1 + f)``; ``log(1 + f)`` is interpolated in a table of 513 entries over [1, 2],
which is within ``5e-7``; so a result is within ``0.5 + 4e-6 / s_out`` steps of the real one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..ir import (
    Array,
    Box,
    DType,
    Graph,
    IntLayer,
    Node,
    QuantParams,
    TensorType,
    Value,
)
from .common import grid_of, integer_reason, normalize_axis, require, require_float
from .regions import every_axis
from .slicing import AxisAttrs
from .spec import (
    Case,
    Kernels,
    Lowering,
    OnnxEmitter,
    OpSpec,
    QuantContext,
    Refusal,
    SourceNode,
)

__all__ = ["LogSoftmax", "Softmax", "exp_table"]

EXP_BITS = 24
LOG_BITS = 20
_LOG_STEPS = 9
_LN2 = round(math.log(2.0) * (1 << 40))

Int64 = NDArray[np.int64]


def exp_table(scale: float) -> NDArray[np.int32]:
    """Return ``round(2^24 exp(-scale k))`` for ``k = 0 … 255``."""
    x = -scale * np.arange(256, dtype=np.float64)
    return np.rint(np.exp(x) * float(1 << EXP_BITS)).astype(np.int32)


def _exp_tables(source: QuantParams) -> dict[str, Array]:
    tables: dict[str, Array] = {"table": exp_table(source.scale)}
    if source.bits > 8:
        tables["table_high"] = exp_table(256.0 * source.scale)
    return tables


def _exponentials(layer: IntLayer, x: Array) -> tuple[Int64, Int64, Int64]:
    """Return ``d``, ``E[d]`` and the sum of ``E`` along the axis."""
    axis = int(layer.attrs["axis"])
    wide: Int64 = x.astype(np.int64)
    d = wide - wide.max(axis=axis, keepdims=True)
    low = layer.tensors["table"].astype(np.int64)
    e: Int64
    if "table_high" in layer.tensors:
        high = layer.tensors["table_high"].astype(np.int64)
        e = (high[-d >> 8] * low[-d & 255] + (1 << (EXP_BITS - 1))) >> EXP_BITS
    else:
        e = low[-d]
    return d, e, e.sum(axis=axis, keepdims=True, dtype=np.int64)


class _Softmax(OpSpec[AxisAttrs]):
    """What both share."""

    attrs_type = AxisAttrs

    def infer(self, attrs: AxisAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        require_float(x)
        if not 0 <= attrs.axis < x.type.rank:
            raise ValueError(f"axis {attrs.axis} is out of range for {x.type}")
        return [x.type]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x = node.input(0)
        if x is None or not x.type.dtype.is_float or x.type.rank == 0:
            return Refusal("its input is not a floating-point tensor")
        axis = normalize_axis(int(node.attrs.get("axis", -1)), x.type.rank)
        return to.emit(self.name, AxisAttrs(axis), [x])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        to.emit(self.name, node.inputs, node.outputs, axis=self.attrs_of(node).axis)

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        size = graph.values[node.inputs[0]].shape[self.attrs_of(node).axis]
        if size > 1 << 20:
            return f"an axis of {size} elements is too long"
        return integer_reason(node, graph)

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        return every_axis(graph.values[node.outputs[0]].shape, self.attrs_of(node).axis)

    def reads(self, node: Node, graph: Graph, box: Box) -> list[Box]:
        return [box]

    def grids(self, node: Node, q: QuantContext) -> tuple[QuantParams, QuantParams]:
        """Return input and output grid."""
        return grid_of(q, node.inputs[0]), grid_of(q, node.outputs[0])

    def cases(self) -> Sequence[Case]:
        def act(*shape: int) -> TensorType:
            return TensorType(DType.FLOAT32, shape)

        return [
            Case("last", AxisAttrs(2), [act(1, 3, 10)], bound=0.51),
            Case("channel", AxisAttrs(1), [act(1, 5, 3, 4)], low=-8.0, high=8.0, bound=0.51),
            Case("long", AxisAttrs(1), [act(2, 1000)], bound=0.51),
            Case("steep", AxisAttrs(1), [act(3, 7)], low=-60.0, high=60.0, bound=0.51),
        ]


class Softmax(_Softmax):
    """``exp(x) / sum(exp(x))`` along an axis."""

    name = "Softmax"
    onnx = ("Softmax",)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        source, out = self.grids(node, q)
        # so many steps for a probability of 1 saturate any grid, and E M stays below 2^62
        most, shift = (2.0**22, 16) if out.bits <= 8 else (2.0**30, 8)
        steps = min(1.0 / out.scale, most)
        tensors: dict[str, Array] = {
            **_exp_tables(source),
            "multiplier": np.asarray(round(steps * (1 << shift)), dtype=np.int64),
        }
        attrs = {"axis": self.attrs_of(node).axis, "shift": shift}
        inputs, outputs = [node.inputs[0]], list(node.outputs)
        return IntLayer(node.name, node.op, inputs, outputs, attrs, tensors, node.source)

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        x, out = inputs[0], params[layer.outputs[0]]
        assert x is not None and out is not None
        _, e, total = _exponentials(layer, x)
        m = layer.tensors["multiplier"].astype(np.int64)
        half = total << (layer.attrs["shift"] - 1)
        y = (e * m + half) // (half << 1) + out.zero_point
        result: Array = np.clip(y, out.qmin, out.qmax).astype(out.dtype.numpy)
        return [result]


class LogSoftmax(_Softmax):
    """``x - log(sum(exp(x)))`` along an axis."""

    name = "LogSoftmax"
    onnx = ("LogSoftmax",)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        source, out = self.grids(node, q)
        ratios = (source.scale / out.scale, 2.0**-LOG_BITS / out.scale)
        largest = max(ratios[0] * (1 << source.bits), ratios[1] * (16 << LOG_BITS))
        shift = max(1, min(40, 60 - math.frexp(largest)[1]))
        steps = 1 << _LOG_STEPS
        log = np.log1p(np.arange(steps + 1, dtype=np.float64) / steps)
        m_in, m_log = (round(min(k, 2.0**20) * 2.0**shift) for k in ratios)
        tensors: dict[str, Array] = {
            **_exp_tables(source),
            "log": np.rint(log * (1 << 30)).astype(np.int32),
            "multiplier": np.asarray([m_in, m_log], dtype=np.int64),
        }
        attrs = {"axis": self.attrs_of(node).axis, "shift": shift}
        inputs, outputs = [node.inputs[0]], list(node.outputs)
        return IntLayer(node.name, node.op, inputs, outputs, attrs, tensors, node.source)

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        x, out = inputs[0], params[layer.outputs[0]]
        assert x is not None and out is not None
        d, _, total = _exponentials(layer, x)
        m_in, m_log = (int(v) for v in layer.tensors["multiplier"].tolist())
        shift = int(layer.attrs["shift"])
        log = _log2_24(total, layer.tensors["log"].astype(np.int64))
        y = ((d * m_in - log * m_log + (1 << (shift - 1))) >> shift) + out.zero_point
        result: Array = np.clip(y, out.qmin, out.qmax).astype(out.dtype.numpy)
        return [result]


def _log2_24(total: Int64, table: Int64) -> Int64:
    """Return ``round(2^20 log(total / 2^24))``; ``total`` is at least 2^24, below 2^45."""
    # frexp of an integer below 2^53 is exact, so the exponent is the bit length everywhere
    e: Int64 = np.frexp(total.astype(np.float64))[1].astype(np.int64) - 1
    mantissa = (total << (46 - e)) - (1 << 46)  # f in 46 bits
    index = mantissa >> (46 - _LOG_STEPS)
    part = (mantissa >> (46 - _LOG_STEPS - 14)) & ((1 << 14) - 1)
    low, high = table[index], table[index + 1]
    fine = (low << 14) + (high - low) * part  # log(1 + f) in 44 bits
    whole = (e - EXP_BITS) * (_LN2 << 4) + fine
    log: Int64 = (whole + (1 << 23)) >> 24
    return log
