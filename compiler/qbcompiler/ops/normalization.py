"""``LayerNormalization``, ``RmsNormalization``, ``InstanceNormalization``, ``GroupNormalization``.

Each normalizes groups of ``n`` neighbouring elements. In the integer form, with ``q`` the centred
input integers of a group:

* ``d = n q - sum(q)``, ``V = n sum(q^2) - sum(q)^2``; for rms ``d = n q``, ``V = n sum(q^2)``.
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
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..ir import (
    Array,
    Attrs,
    Box,
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
    ax,
    broadcast,
    centre,
    float64,
    grid_of,
    integer_reason,
    normalize_axis,
    require,
    require_float,
)
from .regions import along, replaced
from .spec import (
    Case,
    Kernels,
    Lowering,
    NormalForm,
    OnnxEmitter,
    OpSpec,
    QuantContext,
    Refusal,
    SourceNode,
)

__all__ = [
    "GroupNormAttrs",
    "GroupNormalization",
    "InstanceNormAttrs",
    "InstanceNormalization",
    "LayerNormalization",
    "NormAttrs",
    "RmsNormalization",
    "isqrt",
]

A = TypeVar("A", bound=Attrs)

_FRACTION = 16  # fraction bits of the normalized value
_RADICAND = 60  # bits of the radicand
_LARGEST = 1 << 18  # elements of a group, for which the bound still holds

Int64 = NDArray[np.int64]


def isqrt(x: Int64) -> Int64:
    """Return ``floor(sqrt(x))`` of int64 numbers in [0, 2^62), exactly.

    The float64 root, which IEEE 754 rounds correctly everywhere, is at most one off.
    """
    root: Int64 = np.sqrt(x.astype(np.float64)).astype(np.int64)
    root -= root * root > x
    root += (root + 1) * (root + 1) <= x
    return root


class _Norm(OpSpec[A]):
    """What all share. Inputs: activation, then scale and (optional) bias, constants.

    Class variables:
        centred: whether the mean is taken off.
    """

    centred: ClassVar[bool] = True

    def size(self, attrs: A, shape: tuple[int, ...]) -> int:
        """Return the number of elements of a group; groups are runs of the flat tensor."""
        raise TypeError(f"{self.name} does not say what it normalizes")

    def spread(self, constant: NDArray[np.float64], rank: int) -> NDArray[np.float64]:
        """Return scale or bias in a shape that broadcasts over the activation."""
        return constant

    def reads(self, node: Node, graph: Graph, box: Box) -> list[Box]:
        return [box]

    def part(
        self,
        layer: IntLayer,
        box: Box,
        reads: Sequence[Box],
        shapes: Mapping[str, Sequence[int]],
    ) -> IntLayer:
        return replaced(layer, tensors={r: along(t, box) for r, t in layer.tensors.items()})

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        for name in filter(None, node.inputs[1:]):
            data = graph.values[name].data
            if data is None:
                return f"{name!r} is not constant"
            if not np.isfinite(float64(data)).all():
                return f"its constant {name!r} holds a value that is not finite"
        size = self.size(self.attrs_of(node), graph.values[node.inputs[0]].shape)
        if size > _LARGEST:
            return f"a group of {size} elements is too large"
        return integer_reason(node, graph)

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        a = self.attrs_of(node)
        source, out = grid_of(q, node.inputs[0]), grid_of(q, node.outputs[0])
        shape = q.graph.values[node.inputs[0]].shape
        n = self.size(a, shape)
        added = float(getattr(a, "epsilon", 0.0))
        epsilon = added * n * n / (source.scale * source.scale)
        reach = 255.0 if source.bits <= 8 else 65535.0
        if n * n * reach * reach >= 2.0**62:
            raise ValueError(f"a group of {n} elements is too large for 16-bit activations")
        room = _RADICAND - math.frexp(n * n * reach * reach + epsilon)[1]
        half = min(room // 2, 20)
        if half < -_FRACTION:
            raise ValueError(f"its epsilon {added} dwarfs an input step of {source.scale}")
        gamma = self.spread(float64(q.const(node.inputs[1])), len(shape))
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        beta = self.spread(float64(q.const(bias)), len(shape)) if bias else np.zeros(())
        # The normalized value is an integer of scale 2^-16 and magnitude up to sqrt(n) * 2^16;
        # the affine stage sees it as an input grid of that many bits.
        normal = QuantParams((2.0**-_FRACTION,), 0, bits=_normal_bits(n))
        tensors, shift = affine_tensors(
            [gamma * (2.0**-_FRACTION / out.scale)], beta / out.scale, [normal], out
        )
        tensors["epsilon"] = np.asarray(round(epsilon * 4.0**half), dtype=np.int64)
        attrs: dict[str, Any] = {"size": n, "shift": shift, "half": half}
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
        n, half = int(layer.attrs["size"]), int(layer.attrs["half"])
        q: Int64 = centre(x, params[layer.inputs[0]]).reshape(-1, n).astype(np.int64)
        d = q * n
        power = n * (q * q).sum(axis=1, keepdims=True)
        if self.centred:
            total = q.sum(axis=1, keepdims=True)
            d -= total
            power -= total * total
        power = power << (2 * half) if half >= 0 else power >> (-2 * half)
        root = np.maximum(isqrt(power + layer.tensors["epsilon"].astype(np.int64)), 1)
        t = ((d << (half + _FRACTION + 1)) + root) // (root << 1)
        return [run_affine(layer, [t.reshape(x.shape)], out)]

    def real_form(self, layer: IntLayer, params: Mapping[str, QuantParams | None]) -> NormalForm:
        attrs, tensors, out = layer.attrs, layer.tensors, params[layer.outputs[0]]
        assert out is not None
        shift = int(attrs["shift"])
        return NormalForm(
            input=layer.inputs[0],
            size=int(attrs["size"]),
            centred=self.centred,
            half=int(attrs["half"]),
            epsilon=int(tensors["epsilon"]),
            fraction=_FRACTION,
            multiplier=tensors["multiplier_0"].astype(np.int64),
            constant=tensors["constant"].astype(np.int64) - (out.zero_point << shift),
            shift=shift,
        )


def _normal_bits(n: int) -> int:
    """Return the signed bits of a normalized value: its square is at most ``n``."""
    return _FRACTION + 2 + (n.bit_length() + 1) // 2


def _case(
    id: str,
    attrs: Attrs,
    shape: tuple[int, ...],
    constants: tuple[int, ...],
    count: int = 2,
    **options: Any,
) -> Case:
    """Return a case with ``count`` constants (scale, bias) of a shape."""
    rng = np.random.default_rng(11)
    inputs: list[TensorType | Array | None] = [TensorType(DType.FLOAT32, shape)]
    inputs += [rng.normal(size=constants).astype(np.float32) for _ in range(count)]
    return Case(id, attrs, inputs, bound=0.52, **options)


@dataclass(frozen=True, slots=True)
class NormAttrs(Attrs):
    """What is normalized.

    Attributes:
        axis: first of the dimensions that are normalized together, to the last.
        epsilon: added to the variance or mean square.
    """

    axis: int
    epsilon: float = 1e-5


class _Trailing(_Norm[NormAttrs]):
    """Normalizes the dimensions from an axis on; scale and bias broadcast over these."""

    attrs_type = NormAttrs

    def size(self, attrs: NormAttrs, shape: tuple[int, ...]) -> int:
        return math.prod(shape[attrs.axis :])

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        return dict.fromkeys(range(self.attrs_of(node).axis), 1)

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

    def trailing_cases(self, count: int) -> list[Case]:
        """Return cases with ``count`` constants."""
        return [
            _case("last", NormAttrs(2), (1, 5, 32), (32,), count),
            _case("two", NormAttrs(2), (2, 3, 4, 5), (4, 5), count),
            _case("wide", NormAttrs(2), (1, 2, 768), (768,), count, low=-9.0, high=7.0),
            _case("epsilon", NormAttrs(1, 0.1), (3, 16), (16,), count, low=-0.1, high=0.1),
        ]


class LayerNormalization(_Trailing):
    """``(x - mean) / sqrt(var + eps) * scale + bias`` over the dimensions from an axis on."""

    name = "LayerNormalization"
    onnx = ("LayerNormalization",)

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        a = self.attrs_of(node)
        to.emit("LayerNormalization", node.inputs, node.outputs, axis=a.axis, epsilon=a.epsilon)

    def cases(self) -> Sequence[Case]:
        return [*self.trailing_cases(2), _case("no_bias", NormAttrs(1), (2, 8), (8,), 1)]


class RmsNormalization(_Trailing):
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
        return self.trailing_cases(1)


def _check_channels(inputs: Sequence[Value | None]) -> Value:
    """Return the activation; ValueError where scale or bias is not one number a channel."""
    x = require(inputs, 0)
    require_float(x)
    if x.type.rank < 3:
        raise ValueError(f"{x.type} has no spatial dimensions")
    for index in (1, 2):
        value = require(inputs, index)
        if value.shape != (x.shape[1],):
            raise ValueError(f"input {index} is {value.type}, expected {x.shape[1]} numbers")
    return x


@dataclass(frozen=True, slots=True)
class InstanceNormAttrs(Attrs):
    """Attributes of instance normalization.

    Attributes:
        epsilon: added to the variance.
    """

    epsilon: float = 1e-5


class InstanceNormalization(_Norm[InstanceNormAttrs]):
    """``(x - mean) / sqrt(var + eps) * scale + bias`` over the spatial dimensions."""

    name = "InstanceNormalization"
    attrs_type = InstanceNormAttrs
    onnx = ("InstanceNormalization",)
    channel_first = True

    def size(self, attrs: InstanceNormAttrs, shape: tuple[int, ...]) -> int:
        return math.prod(shape[2:])

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        return {0: 1, 1: 1}

    def spread(self, constant: NDArray[np.float64], rank: int) -> NDArray[np.float64]:
        return constant.reshape(ax(rank, 1))

    def infer(self, attrs: InstanceNormAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        return [_check_channels(inputs).type]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        attrs = InstanceNormAttrs(float(node.attrs.get("epsilon", 1e-5)))
        return to.emit(self.name, attrs, node.inputs)

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        epsilon = self.attrs_of(node).epsilon
        to.emit("InstanceNormalization", node.inputs, node.outputs, epsilon=epsilon)

    def cases(self) -> Sequence[Case]:
        return [
            _case("2d", InstanceNormAttrs(), (2, 3, 7, 5), (3,)),
            _case("1d", InstanceNormAttrs(0.1), (1, 4, 30), (4,), low=-0.5, high=0.5),
        ]


@dataclass(frozen=True, slots=True)
class GroupNormAttrs(Attrs):
    """Attributes of group normalization.

    Attributes:
        groups: number of groups of neighbouring channels.
        epsilon: added to the variance.
    """

    groups: int
    epsilon: float = 1e-5


class GroupNormalization(_Norm[GroupNormAttrs]):
    """Normalizes groups of channels with all spatial dimensions; scale and bias by channel."""

    name = "GroupNormalization"
    attrs_type = GroupNormAttrs
    onnx = ("GroupNormalization",)
    channel_first = True

    def size(self, attrs: GroupNormAttrs, shape: tuple[int, ...]) -> int:
        return math.prod(shape[1:]) // attrs.groups

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        channels = graph.values[node.outputs[0]].shape[1]
        return {0: 1, 1: channels // self.attrs_of(node).groups}

    def spread(self, constant: NDArray[np.float64], rank: int) -> NDArray[np.float64]:
        return constant.reshape(ax(rank, 1))

    def infer(self, attrs: GroupNormAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = _check_channels(inputs)
        if attrs.groups < 1 or x.shape[1] % attrs.groups:
            raise ValueError(f"{attrs.groups} groups do not fit {x.type}")
        return [x.type]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        groups = int(node.attrs.get("num_groups", 0))
        attrs = GroupNormAttrs(groups, float(node.attrs.get("epsilon", 1e-5)))
        return to.emit(self.name, attrs, node.inputs)

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        a = self.attrs_of(node)
        to.emit(
            "GroupNormalization",
            node.inputs,
            node.outputs,
            num_groups=a.groups,
            epsilon=a.epsilon,
        )

    def cases(self) -> Sequence[Case]:
        return [
            _case("two", GroupNormAttrs(2), (2, 6, 4, 5), (6,)),
            _case("one", GroupNormAttrs(1, 0.01), (1, 4, 9), (4,)),
        ]
