"""What an operator is: one ``OpSpec`` states everything about it, in one place.

Attributes, shape rule, ONNX lowering and export (the float reference runs through the export
in ONNX Runtime), quantization rule, integer kernel and sample cases. The protocols here are
what the spec is given by the front end (``SourceNode``, ``Lowering``), by the exporter
(``OnnxEmitter``), by the quantizer (``QuantContext``) and by the runtime (``Kernels``), so that
``ops`` depends on ``ir`` alone.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ..ir import Array, Attrs, Box, Graph, IntLayer, Node, QuantParams, TensorType, Value
from ..ir.boxes import whole
from .regions import along, broadcast_box, every_axis, replaced

__all__ = [
    "EXPORT_OPSET",
    "Affine",
    "Case",
    "Kernels",
    "Lowering",
    "NormalForm",
    "OnnxEmitter",
    "OpSpec",
    "QuantContext",
    "QuantRule",
    "Quantized",
    "RealForm",
    "Refusal",
    "Rounding",
    "SourceNode",
    "TableForm",
]

EXPORT_OPSET = 21
"""The ONNX opset that ``OpSpec.export`` writes."""

A = TypeVar("A", bound=Attrs)


# -- front end ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceNode:
    """An ONNX node as the front end hands it to a lowering.

    Attributes:
        name: the node's name (made up and unique where the model has none).
        op_type, domain, version: operator and opset of its domain. The front end rewrites
            older forms of standard operators, so a lowering sees them as opset
            :data:`EXPORT_OPSET` or later has them.
        attrs: attribute values: int, float, str, lists of these, or arrays for tensors.
        inputs: IR values; None for absent optional inputs. Constants carry ``data``.
        outputs: names of the ONNX outputs ("" = unused).
        output_types: what ONNX shape inference knows of each output, None where nothing.
    """

    name: str
    op_type: str
    domain: str
    version: int
    attrs: Mapping[str, Any]
    inputs: Sequence[Value | None]
    outputs: Sequence[str]
    output_types: Sequence[TensorType | None]

    def input(self, index: int) -> Value | None:
        """Return the input at ``index``, None where absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def const(self, index: int) -> Array | None:
        """Return the constant at ``index``, None where absent or not constant."""
        value = self.input(index)
        return None if value is None else value.data


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a spec does not take a source node; shown to the user when no spec takes it."""

    reason: str


class Lowering(Protocol):
    """What a lowering may do to the IR graph under construction."""

    def emit(
        self,
        op: str,
        attrs: Attrs,
        inputs: Sequence[Value | None],
        *,
        outputs: int = 1,
        hint: str = "",
    ) -> list[Value]:
        """Add a node; output types come from the spec's shape rule."""
        ...

    def const(self, data: Array, hint: str = "const") -> Value:
        """Add a constant."""
        ...


# -- export -------------------------------------------------------------------------------


class OnnxEmitter(Protocol):
    """Writes ONNX nodes of opset :data:`EXPORT_OPSET`."""

    def emit(
        self,
        op_type: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        domain: str = "",
        **attrs: Any,
    ) -> None:
        """Add an ONNX node. Names are IR value names, :meth:`temp` or :meth:`const` names."""
        ...

    def temp(self, hint: str = "t") -> str:
        """Return a fresh tensor name."""
        ...

    def const(self, data: Array, hint: str = "c") -> str:
        """Add an initializer; return its name."""
        ...


# -- quantization -------------------------------------------------------------------------


class QuantRule(enum.Enum):
    """How the integer grid of an operator's outputs is chosen."""

    RANGE = "range"
    """The output has its own observed range."""
    MOVE = "move"
    """Elements only move: the output has the grid of input 0."""
    CLAMP = "clamp"
    """A clamp: the output has its own range, and an input that only this layer reads takes
    the output's grid, for what it cuts off does not matter."""
    MEET = "meet"
    """Tensors meet (add, concat): own range, and one shared scale under calibration method 1."""
    FLOAT = "float"
    """No integer form; the layer runs on the CPU or not at all."""
    EXACT = "exact"
    """Works on tensors that are integers themselves (indices, shapes)."""


class QuantContext(Protocol):
    """What the quantizer offers a spec that builds its integer layer."""

    @property
    def graph(self) -> Graph:
        """The float graph."""
        ...

    def params(self, value: str) -> QuantParams:
        """Return the activation grid of a value that is not constant."""
        ...

    def is_const(self, value: str) -> bool:
        """Whether the value is a constant."""
        ...

    def const(self, value: str) -> Array:
        """Return a constant's float data."""
        ...

    def weight_bits(self, node: Node) -> int:
        """Return the bits of the node's weights: 4, 8 or 16."""
        ...


class Kernels(Protocol):
    """Exact integer primitives of the runtime; accumulators come back as int64.

    Operands are integer arrays with the zero point already removed. "Exact" means the
    mathematical result: implementations prove that no intermediate rounds or overflows.
    """

    def conv(
        self,
        x: Array,
        w: Array,
        *,
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        groups: int,
    ) -> NDArray[np.int64]:
        """N-d convolution, ONNX ``Conv`` semantics (NCHW, OIHW, pads begin.. end..), no bias."""
        ...

    def conv_transpose(
        self,
        x: Array,
        w: Array,
        *,
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        output_padding: Sequence[int],
        groups: int,
    ) -> NDArray[np.int64]:
        """N-d transposed convolution, ONNX ``ConvTranspose`` semantics, no bias."""
        ...

    def matmul(self, a: Array, b: Array) -> NDArray[np.int64]:
        """Batched matrix product, NumPy ``matmul`` semantics."""
        ...


# -- the way back -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Quantized:
    """An integer constant and its scales: ``data * scales``.

    Attributes:
        data: int8 or int32.
        scales: positive float32 numbers, one for each index along ``axis``.
        axis: the axis of the scales.
    """

    data: Array
    scales: NDArray[np.float32]
    axis: int


@dataclass(frozen=True, slots=True)
class Affine:
    """Activations brought onto the output's grid as an affine layer does it.

    ``q = z + floor((sum(multipliers[i] * (q_i - z_i)) + constant) / 2^shift)``

    Attributes:
        inputs: value names.
        multipliers: for each its integers, which broadcast over it.
        constant: integers, the rounding half in them.
        shift: as in the layer.
    """

    inputs: Sequence[str]
    multipliers: Sequence[NDArray[np.int64]]
    constant: NDArray[np.int64]
    shift: int


@dataclass(frozen=True, slots=True)
class Rounding:
    """How a layer's accumulator becomes the output's integer.

    ``q = z + floor(acc * ratio + 1/2)``; one step of ``acc`` is worth ``ratio`` output steps.

    Attributes:
        ratio: exactly what multiplier and shift say; broadcasts over the output.
    """

    ratio: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RealForm:
    """The float layer that an integer layer stands for, with the constants as it has them.

    Attributes:
        op: IR operator.
        attrs: its attributes.
        inputs: value names ("" for absent ones), values brought onto the output's grid, and
            constants: floats, indices, or integers with scales.
        rounding: how the integer layer rounds, where it does so otherwise than to the nearest
            step of the output's grid.
    """

    op: str
    attrs: Attrs
    inputs: Sequence[str | Affine | Array | Quantized]
    rounding: Rounding | None = None


@dataclass(frozen=True, slots=True)
class TableForm:
    """An integer layer that is best told as what it is: a table over the input's integers.

    Attributes:
        table: int8 [rows, 256], the output's integer for each of the input's -128 … 127.
        row: which row serves which element; broadcasts with the input.
    """

    table: Array
    row: Array


@dataclass(frozen=True, slots=True)
class NormalForm:
    """A normalization over runs of the flat tensor, with the integers that the layer has.

    With ``q`` the input's integers above its zero point, ``d = n q - sum(q)`` and
    ``V = n sum(q^2) - sum(q)^2`` (no sums taken off where it is not centred):
    ``R = isqrt(4^half V + epsilon)``, ``t = round(2^(half + fraction) d / R)``, and
    ``z + floor((multiplier * t + constant) / 2^shift)`` is the output's integer.

    Attributes:
        input: the value that is normalized.
        size: elements of a group.
        centred: whether the mean is taken off.
        half, epsilon, fraction, shift: as above.
        multiplier, constant: integers, which broadcast over the output.
    """

    input: str
    size: int
    centred: bool
    half: int
    epsilon: int
    fraction: int
    multiplier: NDArray[np.int64]
    constant: NDArray[np.int64]
    shift: int


# -- sample cases -------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A sample of an operator, run by the registry test.

    The test draws inputs, compares the float export in ONNX Runtime with ``reference`` (when
    given), the integer kernel with float within ``bound`` output steps, and the file round trip.

    Attributes:
        id: unique for the operator.
        attrs: the operator's attributes.
        inputs: for each input a type (drawn uniformly from ``low..high``), an array (a
            constant), or None (absent).
        low, high: range of the drawn float inputs.
        bound: largest |integer - float| allowed, in output steps (after saturation);
            None when the operator has no integer form.
        reference: NumPy implementation in float64, or None.
        outputs: how many outputs.
    """

    id: str
    attrs: Attrs
    inputs: Sequence[TensorType | Array | None]
    low: float = -4.0
    high: float = 4.0
    bound: float | None = 1.0
    reference: Callable[..., Any] | None = field(default=None, compare=False)
    outputs: int = 1


# -- the spec -----------------------------------------------------------------------------


class OpSpec(Generic[A]):
    """Everything about one IR operator. Subclass, set the class variables, override methods.

    Class variables:
        name: IR operator name (Mobilint's public operator list).
        attrs_type: the attributes' dataclass.
        rule: how the output grid is chosen; :meth:`rule_of` says it for one node.
        onnx: ONNX operators (default domain, or ``domain::Type``) that ``lower`` may take; the
            registry asks the specs that claim one, in registry order, until one does not refuse.
        weights: indices of inputs that hold constant weights (quantized per output channel).
        channel_first: the operator's data inputs and outputs of rank 3 and more are
            [N, C, spatial…], which the device stores channel-last. Operators that work on any
            layout (elementwise, MatMul, Reshape …) leave it False.
        elementwise: each output element depends only on the elements of the activations that
            broadcast to it, and the layer's tensors, tables apart, broadcast to the output.
    """

    name: ClassVar[str]
    attrs_type: ClassVar[type[Attrs]]
    rule: ClassVar[QuantRule] = QuantRule.RANGE
    onnx: ClassVar[tuple[str, ...]] = ()
    weights: ClassVar[tuple[int, ...]] = ()
    channel_first: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False

    def attrs_of(self, node: Node) -> A:
        """Return the node's attributes in this operator's own type."""
        return cast(A, node.attrs)

    def rule_of(self, node: Node, graph: Graph) -> QuantRule:
        """Return how the output grid of this node is chosen.

        Ask this, not :attr:`rule`: an operator may move elements in one mode and compute in
        another (maximum and average pooling, nearest and linear resizing).
        """
        return self.rule

    def is_pointwise(self, attrs: A) -> bool:
        """Whether each element of the output depends on that element of input 0 alone.

        The integer form then takes 16 bits in and gives 8, and every other pair.
        """
        return False

    def infer(self, attrs: A, inputs: Sequence[Value | None]) -> list[TensorType]:
        """Return the output types. ValueError (one line, no layer name) when inputs do not fit."""
        raise TypeError(f"{self.name} lacks a shape rule")

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        """Lower a source node; return one value for each ONNX output, or why not."""
        return Refusal(f"{self.name} has no ONNX form of its own")

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        """Write the node as ONNX; the last nodes write ``node.outputs``."""
        raise TypeError(f"{self.name} lacks an ONNX export")

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        """Return why the integer form cannot be built (operator limits, not the device's)."""
        return (
            None if self.rule_of(node, graph) is not QuantRule.FLOAT else "it has no integer form"
        )

    def grid(self, node: Node, graph: Graph) -> tuple[float, float] | None:
        """Return a fixed real range of the output that overrides the observed one, or None."""
        return None

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        """Build the integer layer: weights, biases, multipliers, tables.

        Raises:
            ValueError: the numbers do not allow it (non-finite weights, a grid of a kind that
                the operator does not take); one line, no layer name.
        """
        raise TypeError(f"{self.name} has no integer form")

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        """Execute the integer layer.

        Args:
            layer: as built by :meth:`quantize`.
            inputs: integer tensors in logical shape, in ``layer.inputs`` order.
            params: the grid of each input and output by value name; None for tensors that are
                integers (or bools) themselves.
            kernels: exact primitives.
        """
        raise TypeError(f"{self.name} has no integer form")

    def real_form(
        self, layer: IntLayer, params: Mapping[str, QuantParams | None]
    ) -> RealForm | TableForm | NormalForm | Affine:
        """Return the float layer that an integer layer stands for: :meth:`quantize` undone.

        Between a ``DequantizeLinear`` of each input and a ``QuantizeLinear`` of the output it
        gives the integer layer's result; normalizations, ``Softmax``, ``Div`` and smooth resizing
        do so within their bound.

        Args:
            layer: as built by :meth:`quantize`, with ``real``.
            params: as for :meth:`run`.

        Raises:
            ValueError: the layer does not tell its float attributes.
        """
        return RealForm(self.name, self.attrs_type.from_dict(layer.real), layer.inputs)

    def macs(self, node: Node, graph: Graph) -> int:
        """Return the multiply-adds of the layer; 0 for layers that have none."""
        return 0

    # -- parts of a layer (a device computes tiles) -----------------------------------------

    def cuts(self, node: Node, graph: Graph) -> Mapping[int, int]:
        """Return the axes along which a part of output 0 can be computed alone.

        Each axis with the number that cuts must be multiples of. Nothing by default: such a
        layer is computed whole.
        """
        if self.elementwise and len(node.outputs) == 1:
            return every_axis(graph.values[node.outputs[0]].shape)
        return {}

    def reads(self, node: Node, graph: Graph, box: Box) -> list[Box]:
        """Return what a part of the output reads: a box of each input of the integer layer.

        An empty box is an input that the part does not read.

        Args:
            node: a float layer.
            graph: its graph.
            box: of output 0, cut where :meth:`cuts` allows it.
        """
        names = [n for n in node.inputs if n and not graph.values[n].is_const]
        if self.elementwise:
            return [broadcast_box(box, graph.values[n].shape) for n in names]
        return [whole(graph.values[n].shape) for n in names]

    def part(
        self,
        layer: IntLayer,
        box: Box,
        reads: Sequence[Box],
        shapes: Mapping[str, Sequence[int]],
    ) -> IntLayer:
        """Return the integer layer that computes ``box`` of the output from ``reads`` alone.

        Its inputs are those that it reads something of.

        Args:
            layer: the whole layer.
            box: of output 0.
            reads: as :meth:`reads` gives them; the sum's axis may be cut too (:meth:`sum_axis`).
            shapes: of the layer's inputs and outputs, by name.
        """
        if not self.elementwise:
            return layer
        tensors = {
            role: t if role.startswith("table") else along(t, box)
            for role, t in layer.tensors.items()
        }
        return replaced(layer, tensors=tensors)

    def sum_axis(self, node: Node, graph: Graph) -> int | None:
        """Return the axis of input 0 along which one output's sum of products can be split.

        None by default: the sum is taken at once. Otherwise :meth:`accumulate` of parts that
        read different ranges of that axis add up, and :meth:`finish` makes the output of them.
        """
        return None

    def accumulate(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> NDArray[np.int64]:
        """Return the exact sums of products of a layer, or of a part of one."""
        raise TypeError(f"{self.name} has no sum to split")

    def finish(
        self, layer: IntLayer, acc: NDArray[np.int64], params: Mapping[str, QuantParams | None]
    ) -> list[Array]:
        """Return the outputs that sums of :meth:`accumulate` give; they are overwritten."""
        raise TypeError(f"{self.name} has no sum to split")

    def cases(self) -> Sequence[Case]:
        """Return sample cases; at least one for each ONNX form and each attribute's effect."""
        return ()
