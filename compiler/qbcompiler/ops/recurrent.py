"""``LSTM``, ``GRU`` and ``RNN``: recurrent layers over [time, batch, inputs].

The layer makes the states of all steps, [time, directions, batch, units]; ONNX's last state is cut
out of them. Its form is the one that exporters write: the usual activations, every sequence as long
as the tensor, a state that starts at zero. ``recurrent_integer`` has the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..ir import Array, Attrs, DType, Graph, IntLayer, Node, QuantParams, TensorType, Value
from .common import (
    centre,
    float64,
    grid_of,
    integer_reason,
    is_wide,
    require,
    require_same_dtype,
)
from .recurrent_integer import (
    MAX_STATE,
    STATE_BITS,
    Steps,
    clamp_cell,
    clamp_state,
    finish,
    fixed,
    product,
    quantize_recurrent,
    real_bias,
    real_weights,
)
from .shapes import ReshapeAttrs
from .slicing import AxisAttrs, slice_attrs
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
)

__all__ = ["GRU", "LSTM", "RNN", "GruAttrs", "RecurrentAttrs"]

A = TypeVar("A", bound="RecurrentAttrs")

_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecurrentAttrs(Attrs):
    """Attributes of a recurrent layer.

    Attributes:
        hidden: units of the state.
        direction: ``forward``, ``reverse`` or ``bidirectional``.
    """

    hidden: int
    direction: str = "forward"


@dataclass(frozen=True, slots=True)
class GruAttrs(RecurrentAttrs):
    """Attributes of a GRU.

    Attributes:
        linear_before_reset: whether the reset gate scales ``R h + b`` (1, as torch and Keras do)
            or ``h``.
    """

    linear_before_reset: bool = False


class _Recurrent(OpSpec[A]):
    """What the three share. Inputs: x, W, R and the bias of both, ONNX's own shapes.

    Class variables:
        gates: rows of the weights for each unit.
        activations: ONNX's defaults for one direction.
    """

    weights = (1, 2)
    gates: ClassVar[int]
    activations: ClassVar[tuple[str, ...]]

    def infer(self, attrs: A, inputs: Sequence[Value | None]) -> list[TensorType]:
        x, w, r, b = (require(inputs, i) for i in range(4))
        dtype = require_same_dtype([x, w, r, b])
        if attrs.direction not in _DIRECTIONS:
            raise ValueError(f"there is no direction {attrs.direction!r}")
        if dtype is not DType.FLOAT32 or x.type.rank != 3:
            raise ValueError(f"expected float32[time, batch, inputs], got {x.type}")
        ways, rows = _DIRECTIONS[attrs.direction], self.gates * attrs.hidden
        for value, shape in (
            (w, (ways, rows, x.shape[2])),
            (r, (ways, rows, attrs.hidden)),
            (b, (ways, 2 * rows)),
        ):
            if value.shape != shape or attrs.hidden < 1:
                raise ValueError(f"{value.type} does not fit, expected {list(shape)}")
        return [TensorType(dtype, (x.shape[0], ways, x.shape[1], attrs.hidden))]

    def attributes(self, node: SourceNode, hidden: int, direction: str) -> A:
        """Return the attributes of a source node."""
        raise TypeError(f"{self.name} does not say what its attributes are")

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x, w, r = (node.input(i) for i in range(3))
        if x is None or w is None or r is None:
            return Refusal("it lacks an input")
        if x.type.dtype is not DType.FLOAT32:
            return Refusal(f"it works on {x.type.dtype.value} values")
        direction = str(node.attrs.get("direction", "forward"))
        reason = self._odd(node, direction, x)
        if reason:
            return Refusal(reason)
        hidden = r.shape[2]
        b = node.input(3)
        if b is None:
            b = to.const(np.zeros((w.shape[0], 2 * w.shape[1]), np.float32), "bias")
        states = to.emit(self.name, self.attributes(node, hidden, direction), [x, w, r, b])[0]
        if len(node.outputs) < 2 or not node.outputs[1]:
            return [states]
        return [states, _last(states, direction, to)]

    def _odd(self, node: SourceNode, direction: str, x: Value) -> str | None:
        """Return what the layer does not have."""
        if node.attrs.get("layout", 0):
            return "its batch comes before its time"
        if "clip" in node.attrs:
            return "it clips its gates"
        names = [str(a).lower() for a in node.attrs.get("activations", ())]
        usual = [a.lower() for a in self.activations] * _DIRECTIONS.get(direction, 1)
        if (names and names != usual) or node.attrs.get("activation_alpha"):
            return "it has other activations than the usual ones"
        if node.attrs.get("input_forget", 0) or node.input(7) is not None:
            return "its gates are coupled or look at the cell"
        lengths = node.input(4)
        if lengths is not None and (
            lengths.data is None or bool((np.asarray(lengths.data) != x.shape[0]).any())
        ):
            return "its sequences differ in length"
        for start in (node.input(5), node.input(6)):
            if start is not None and (start.data is None or bool(np.any(start.data))):
                return "its state does not start at zero"
        if len(node.outputs) > 2 and node.outputs[2]:
            return "its last cell is used"
        return None

    def onnx_attributes(self, attrs: A) -> dict[str, Any]:
        """Return further ONNX attributes."""
        return {}

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        a = self.attrs_of(node)
        to.emit(
            self.name,
            node.inputs,
            node.outputs,
            hidden_size=a.hidden,
            direction=a.direction,
            **self.onnx_attributes(a),
        )

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        for name in node.inputs[1:]:
            data = graph.values[name].data
            if data is None:
                return f"{name!r} is not constant"
            if not np.isfinite(float64(data)).all():
                return f"its constant {name!r} holds a value that is not finite"
        hidden = self.attrs_of(node).hidden
        if hidden > MAX_STATE:
            return f"its state has {hidden} units, more than {MAX_STATE}"
        return integer_reason(node, graph)

    def shared_bias(self, attrs: A) -> bool:
        """Whether the biases of input and state add up in every gate."""
        return True

    def quantize(self, node: Node, q: QuantContext) -> IntLayer:
        a = self.attrs_of(node)
        w, r, b = (float64(q.const(n)) for n in node.inputs[1:])
        rows = w.shape[1]
        both, own = b[:, :rows].copy(), b[:, rows:]
        if self.shared_bias(a):
            both += own
        else:
            both[:, : 2 * a.hidden] += own[:, : 2 * a.hidden]
        source, out = grid_of(q, node.inputs[0]), grid_of(q, node.outputs[0])
        tensors = quantize_recurrent(w, r, both, source, out, q.weight_bits(node))
        if not self.shared_bias(a):
            tensors["recurrent_bias"] = fixed(own[:, 2 * a.hidden :])
        inputs, outputs = [node.inputs[0]], list(node.outputs)
        return IntLayer(node.name, node.op, inputs, outputs, a.to_dict(), tensors, node.source)

    def run(
        self,
        layer: IntLayer,
        inputs: Sequence[Array | None],
        params: Mapping[str, QuantParams | None],
        kernels: Kernels,
    ) -> list[Array]:
        x, out = inputs[0], params[layer.outputs[0]]
        assert x is not None and out is not None
        hidden, direction = int(layer.attrs["hidden"]), str(layer.attrs["direction"])
        centred = centre(x, params[layer.inputs[0]])
        time, batch = x.shape[:2]
        ways = _DIRECTIONS[direction]
        states = np.zeros((time, ways, batch, hidden), np.int64)
        for way in range(ways):
            steps = Steps(layer.tensors, way, kernels, is_wide(params[layer.inputs[0]]))
            sums = steps.inputs(centred)
            backwards = direction == "reverse" or way == 1
            h = np.zeros((batch, hidden), np.int64)
            c = np.zeros((batch, hidden), np.int64)
            for t in reversed(range(time)) if backwards else range(time):
                h, c = self.step(steps, sums[t], h, c, hidden)
                states[t, way] = h
        return [finish(states, layer.tensors, out)]

    def step(
        self, steps: Steps, sums: Int64, h: Int64, c: Int64, hidden: int
    ) -> tuple[Int64, Int64]:
        """Return the next state and cell.

        Args:
            steps: the arithmetic.
            sums: ``W x + b`` of this step, [batch, rows].
            h, c: state and cell, [batch, units].
            hidden: units.
        """
        raise TypeError(f"{self.name} does not say how it steps")

    def real_form(self, layer: IntLayer, params: Mapping[str, QuantParams | None]) -> RealForm:
        t = layer.tensors
        bias = real_bias(t["bias"])
        own = np.zeros_like(bias)
        if "recurrent_bias" in t:
            own[:, -t["recurrent_bias"].shape[1] :] = real_bias(t["recurrent_bias"])
        constants = [
            real_weights(t),
            real_weights(t, "recurrent_"),
            np.concatenate([bias, own], axis=1),
        ]
        attrs = self.attrs_type.from_dict(layer.attrs)
        return RealForm(self.name, attrs, [layer.inputs[0], *constants])

    def macs(self, node: Node, graph: Graph) -> int:
        time, batch, _ = graph.values[node.inputs[0]].shape
        weights = sum(graph.values[n].type.size for n in node.inputs[1:3])
        return time * batch * weights

    def cases(self) -> Sequence[Case]:
        return [
            self._case("forward", "forward", (6, 2, 8), 5),
            self._case("reverse", "reverse", (5, 1, 4), 7),
            self._case("both", "bidirectional", (7, 2, 6), 4),
        ]

    def _case(
        self, id: str, direction: str, shape: tuple[int, int, int], hidden: int, **options: Any
    ) -> Case:
        rng = np.random.default_rng(13)
        ways, rows = _DIRECTIONS[direction], self.gates * hidden

        def draw(*size: int) -> Array:
            drawn: Array = (rng.normal(size=size) * size[-1] ** -0.5).astype(np.float32)
            return drawn

        bias = rng.normal(0, 0.3, (ways, 2 * rows)).astype(np.float32)
        weights = [draw(ways, rows, shape[2]), draw(ways, rows, hidden), bias]
        attrs = self.attrs_type(hidden=hidden, direction=direction, **options)  # type: ignore[call-arg]
        return Case(
            id, attrs, [TensorType(DType.FLOAT32, shape), *weights], bound=6.0
        )  # weights rounded to 8 bits, with inputs up to 4


class LSTM(_Recurrent[RecurrentAttrs]):
    """Long short-term memory; Hochreiter and Schmidhuber (1997). Gates: i, o, f, c."""

    name = "LSTM"
    attrs_type = RecurrentAttrs
    onnx = ("LSTM",)
    gates = 4
    activations = ("Sigmoid", "Tanh", "Tanh")

    def attributes(self, node: SourceNode, hidden: int, direction: str) -> RecurrentAttrs:
        return RecurrentAttrs(hidden, direction)

    def step(
        self, steps: Steps, sums: Int64, h: Int64, c: Int64, hidden: int
    ) -> tuple[Int64, Int64]:
        total = sums + steps.state(h, slice(None))
        i, o, f = (
            steps.curve("sigmoid", total[:, k * hidden : (k + 1) * hidden]) for k in range(3)
        )
        g = steps.curve("tanh", total[:, 3 * hidden :])
        c = clamp_cell(product((f, c), (i, g)))
        return clamp_state(product((o, steps.tanh_of_cell(c)))), c


class GRU(_Recurrent[GruAttrs]):
    """Gated recurrent unit; Cho et al. (2014). Gates: z, r, h."""

    name = "GRU"
    attrs_type = GruAttrs
    onnx = ("GRU",)
    gates = 3
    activations = ("Sigmoid", "Tanh")

    def attributes(self, node: SourceNode, hidden: int, direction: str) -> GruAttrs:
        return GruAttrs(hidden, direction, bool(node.attrs.get("linear_before_reset", 0)))

    def onnx_attributes(self, attrs: GruAttrs) -> dict[str, Any]:
        return {"linear_before_reset": int(attrs.linear_before_reset)}

    def shared_bias(self, attrs: GruAttrs) -> bool:
        return not attrs.linear_before_reset

    def step(
        self, steps: Steps, sums: Int64, h: Int64, c: Int64, hidden: int
    ) -> tuple[Int64, Int64]:
        gates, new = slice(0, 2 * hidden), slice(2 * hidden, None)
        opened = steps.curve("sigmoid", sums[:, gates] + steps.state(h, gates))
        z, r = opened[:, :hidden], opened[:, hidden:]
        if "recurrent_bias" in steps.tensors:
            # the largest sum is 2^31 in steps of 2^-16: its product with a gate fits 64 bits
            inner = steps.state(h, new) + steps["recurrent_bias"].astype(np.int64)
            total = sums[:, new] + product((r, inner))
        else:
            total = sums[:, new] + steps.state(clamp_state(product((r, h))), new)
        n = steps.curve("tanh", total)
        return clamp_state(product(((1 << STATE_BITS) - z, n), (z, h))), c

    def cases(self) -> Sequence[Case]:
        after = self._case("after", "forward", (6, 2, 8), 5, linear_before_reset=True)
        return [*super().cases(), after]


class RNN(_Recurrent[RecurrentAttrs]):
    """``h = tanh(W x + R h + b)``; Elman (1990)."""

    name = "RNN"
    attrs_type = RecurrentAttrs
    onnx = ("RNN",)
    gates = 1
    activations = ("Tanh",)

    def attributes(self, node: SourceNode, hidden: int, direction: str) -> RecurrentAttrs:
        return RecurrentAttrs(hidden, direction)

    def step(
        self, steps: Steps, sums: Int64, h: Int64, c: Int64, hidden: int
    ) -> tuple[Int64, Int64]:
        return clamp_state(steps.curve("tanh", sums + steps.state(h, slice(None)))), c


def _last(states: Value, direction: str, to: Lowering) -> Value:
    """Cut the last state of each direction out of all states, [directions, batch, units]."""
    time, ways, batch, hidden = states.shape
    parts = []
    for way in range(ways):
        first = 0 if direction == "reverse" or way == 1 else time - 1
        attrs = slice_attrs(states.shape, [first, way], [first + 1, way + 1], [0, 1])
        parts.append(to.emit("Slice", attrs, [states])[0])
    joined = parts[0] if ways == 1 else to.emit("Concatenate", AxisAttrs(1), parts)[0]
    return to.emit("Reshape", ReshapeAttrs((ways, batch, hidden)), [joined])[0]
