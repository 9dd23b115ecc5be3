"""``LayerNormalization`` and ``RmsNormalization`` in integers.

Over the ``n`` elements of a group, with ``q`` the centred input integers:

* layer: ``d = n q - sum(q)``, ``V = n sum(q^2) - sum(q)^2``; rms: ``d = n q``, ``V = n sum(q^2)``.
  All exact. ``d / sqrt(V + n^2 eps / s^2)`` is the normalized value.
* ``R = isqrt(4^k V + E)``, ``E = 4^k n^2 eps / s^2``, with ``k`` fixed at compile time so that the
  radicand stays below 2^60 for any input.
* ``t = round(2^(k + 16) d / R)`` by one integer division, then ``y = (t M + C) >> r`` with ``M``
  and ``C`` from the layer's scale and bias: constants are not rounded to a grid.

``V`` is at least ``n - 1`` for a group that is not constant, so the radicand has 26 bits or more
and ``R`` is within a part of 2^-13 of the root; ``t`` adds ``2^-17``. A result is thus within
``0.5 + (2^-13 |y'| + 2^-16 |gamma|) / s_out`` steps, ``y'`` the real result before the bias.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir import (
    Array,
    Attrs,
    DType,
    Graph,
    IntLayer,
    Node,
    QuantParams,
    TensorType,
    Value,
)
from .affine import affine_tensors, run_affine
from .common import (
    broadcast,
    centre,
    float64,
    grid_of,
    integer_reason,
    normalize_axis,
    require,
    require_float,
)
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

__all__ = ["LayerNormalization", "NormAttrs", "RmsNormalization", "isqrt"]

_FRACTION = 16  # fraction bits of the normalized value
_RADICAND = 60  # bits of the radicand

Int64 = NDArray[np.int64]


def isqrt(x: Int64) -> Int64:
    """Return ``floor(sqrt(x))`` of int64 numbers in [0, 2^62), exactly.

    The float64 root, which IEEE 754 rounds correctly everywhere, is at most one off.
    """
    root: Int64 = np.sqrt(x.astype(np.float64)).astype(np.int64)
    root -= root * root > x
    root += (root + 1) * (root + 1) <= x
    return root


@dataclass(frozen=True, slots=True)
class NormAttrs(Attrs):
    """What is normalized.

    Attributes:
        axis: first of the dimensions that are normalized together, to the last.
        epsilon: added to the variance or mean square.
    """

    axis: int
    epsilon: float = 1e-5


class _Norm(OpSpec[NormAttrs]):
    """What both share. Inputs: activation, scale, optional bias (constants)."""

    attrs_type = NormAttrs
    centred: bool

    def infer(self, attrs: NormAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x, scale = require(inputs, 0), require(inputs, 1)
        require_float(x)
        axis = normalize_axis(attrs.axis, x.type.rank)
        bias = inputs[2] if len(inputs) > 2 else None
        for value in (scale, bias):
            if value is not None and (
                value.type.rank > x.type.rank - axis
                or broadcast(value.shape, x.shape[axis:]) != x.shape[axis:]
            ):
                raise ValueError(f"{value.type} does not broadcast to {list(x.shape[axis:])}")
        return [x.type]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x = node.input(0)
        if x is None or node.input(1) is None:
            return Refusal("it lacks an input")
        if any(node.outputs[1:]):
            return Refusal("its statistics are used")
        axis = normalize_axis(int(node.attrs.get("axis", -1)), x.type.rank)
        attrs = NormAttrs(axis, float(node.attrs.get("epsilon", 1e-5)))
        return to.emit(self.name, attrs, node.inputs)

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        for name in filter(None, node.inputs[1:]):
            data = graph.values[name].data
            if data is None:
                return f"{name!r} is not constant"
            if not np.isfinite(float64(data)).all():
                return f"its constant {name!r} holds a value that is not finite"
        size = _group_size(node, graph)
        if size > 1 << 16:
            return f"a group of {size} elements is too large"
        return integer_reason(node, graph)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        a = self.attrs_of(node)
        source, out = grid_of(q, node.inputs[0]), grid_of(q, node.outputs[0])
        if source.bits > 8 or out.bits > 8:
            raise ValueError("16-bit activations are not supported by this operator")
        n = _group_size(node, q.graph)
        epsilon = a.epsilon * n * n / (source.scale * source.scale)
        room = _RADICAND - math.frexp(n * n * 255.0 * 255.0 + epsilon)[1]
        half = min(room // 2, 20)
        if half < -_FRACTION:
            raise ValueError(f"its epsilon {a.epsilon} dwarfs an input step of {source.scale}")
        gamma = float64(q.const(node.inputs[1]))
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        beta = float64(q.const(bias)) if bias else np.zeros(())
        # The normalized value is an integer of scale 2^-16 and magnitude up to sqrt(n) * 2^16;
        # the affine stage sees it as an input grid of that many bits.
        normal = QuantParams((2.0**-_FRACTION,), 0, bits=_normal_bits(n))
        tensors, shift = affine_tensors(
            [gamma * (2.0**-_FRACTION / out.scale)], beta / out.scale, [normal], out
        )
        tensors["epsilon"] = np.asarray(round(epsilon * 4.0**half), dtype=np.int64)
        attrs: dict[str, Any] = {"axis": a.axis, "shift": shift, "half": half}
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
        axes = tuple(range(int(layer.attrs["axis"]), x.ndim))
        n = math.prod(x.shape[i] for i in axes)
        q: Int64 = centre(x, params[layer.inputs[0]]).astype(np.int64)
        d = q * n
        power = n * (q * q).sum(axis=axes, keepdims=True)
        if self.centred:
            total = q.sum(axis=axes, keepdims=True)
            d -= total
            power -= total * total
        half = int(layer.attrs["half"])
        power = power << (2 * half) if half >= 0 else power >> (-2 * half)
        root = isqrt(power + layer.tensors["epsilon"].astype(np.int64))
        root = np.maximum(root, 1)
        t = ((d << (half + _FRACTION + 1)) + root) // (root << 1)
        return [run_affine(layer, [t], out)]

    def _cases(self, bias: bool) -> list[Case]:
        rng = np.random.default_rng(11)

        def numbers(*shape: int) -> Array:
            return rng.normal(size=shape).astype(np.float32)

        def case(id: str, shape: tuple[int, ...], axis: int, **kw: Any) -> Case:
            inputs: list[TensorType | Array | None] = [TensorType(DType.FLOAT32, shape)]
            inputs += [numbers(*shape[axis:]) for _ in range(2 if bias else 1)]
            return Case(id, NormAttrs(axis, kw.pop("epsilon", 1e-5)), inputs, bound=0.52, **kw)

        return [
            case("last", (1, 5, 32), 2),
            case("two", (2, 3, 4, 5), 2),
            case("wide", (1, 2, 768), 2, low=-9.0, high=7.0),
            case("epsilon", (3, 16), 1, low=-0.1, high=0.1, epsilon=0.1),
        ]


def _normal_bits(n: int) -> int:
    """Return the signed bits of a normalized value: its square is at most ``n``."""
    return _FRACTION + 2 + (n.bit_length() + 1) // 2


def _group_size(node: Node, graph: Graph) -> int:
    axis = getattr(node.attrs, "axis", 0)
    return math.prod(graph.values[node.inputs[0]].shape[axis:])


class LayerNormalization(_Norm):
    """``(x - mean) / sqrt(var + eps) * scale + bias`` over the dimensions from an axis on."""

    name = "LayerNormalization"
    onnx = ("LayerNormalization",)
    centred = True

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        a = self.attrs_of(node)
        to.emit("LayerNormalization", node.inputs, node.outputs, axis=a.axis, epsilon=a.epsilon)

    def cases(self) -> Sequence[Case]:
        x = TensorType(DType.FLOAT32, (2, 8))
        scale = np.linspace(0.5, 1.5, 8, dtype=np.float32)
        return [*self._cases(bias=True), Case("no_bias", NormAttrs(1), [x, scale], bound=0.52)]


class RmsNormalization(_Norm):
    """``x / sqrt(mean(x^2) + eps) * scale`` over the dimensions from an axis on.

    ONNX has ``RMSNormalization`` from opset 23 only, so it is written as its parts.
    """

    name = "RmsNormalization"
    onnx = ("RMSNormalization", "com.microsoft::SimplifiedLayerNormalization")
    centred = False

    def infer(self, attrs: NormAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        if len(inputs) > 2 and inputs[2] is not None:
            raise ValueError("it takes no bias")
        return super().infer(attrs, inputs)

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        a = self.attrs_of(node)
        value = graph.values[node.inputs[0]]
        dtype = value.type.dtype.numpy
        axes = to.const(np.arange(a.axis, value.type.rank, dtype=np.int64), "axes")
        epsilon = to.const(np.asarray(a.epsilon, dtype=dtype), "epsilon")
        square, mean, moved, root, normal = (
            to.temp(n) for n in ("square", "mean", "moved", "root", "normal")
        )
        to.emit("Mul", [node.inputs[0], node.inputs[0]], [square])
        to.emit("ReduceMean", [square, axes], [mean], keepdims=1)
        to.emit("Add", [mean, epsilon], [moved])
        to.emit("Sqrt", [moved], [root])
        to.emit("Div", [node.inputs[0], root], [normal])
        to.emit("Mul", [normal, node.inputs[1]], node.outputs)

    def cases(self) -> Sequence[Case]:
        return self._cases(bias=False)
