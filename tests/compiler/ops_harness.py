"""What the operator tests share: graphs of one node, float and integer execution of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbcompiler.ir import DType, Graph, IntLayer, Node, QuantParams, TensorType, verify
from qbcompiler.ops import Case, OpSpec, QuantRule, default_registry
from qbcompiler.ops.fixedpoint import dequantize, quantize, round_scale
from qbcompiler.runtime.float_engine import FloatEngine

from .reference_kernels import ReferenceKernels

Array = NDArray[Any]


def case_graph(spec: OpSpec[Any], case: Case) -> Graph:
    """Return the graph of one node that a case describes."""
    graph = Graph("case")
    names: list[str] = []
    for i, item in enumerate(case.inputs):
        if item is None:
            names.append("")
            continue
        name = f"x{i}"
        if isinstance(item, TensorType):
            graph.add_input(name, item)
        else:
            graph.add_value(name, TensorType(DType.of(item.dtype), item.shape), item)
        names.append(name)
    values = [graph.values[n] if n else None for n in names]
    outputs = []
    for i, type_ in enumerate(spec.infer(case.attrs, values)):
        graph.add_value(f"y{i}", type_)
        outputs.append(f"y{i}")
    assert len(outputs) == case.outputs
    graph.add_node(Node("node", spec.name, names, outputs, case.attrs))
    graph.outputs = outputs
    verify(graph, "final", default_registry().infer)
    return graph


def draw(graph: Graph, case: Case, seed: int = 0) -> dict[str, Array]:
    """Draw the inputs of a case."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for name in graph.inputs:
        type_ = graph.values[name].type
        if type_.dtype is DType.BOOL:
            found[name] = rng.random(type_.shape) < 0.5
        elif type_.dtype.is_float:
            x = rng.uniform(case.low, case.high, size=type_.shape)
            found[name] = np.asarray(x, dtype=type_.dtype.numpy)
        else:
            found[name] = rng.integers(0, 2, size=type_.shape).astype(type_.dtype.numpy)
    return found


def run_float(graph: Graph, inputs: Mapping[str, Array]) -> list[Array]:
    """Run a graph in ONNX Runtime through its own export; the types must be the declared ones."""
    found = FloatEngine(graph, optimization="none").run(inputs)
    for name, y in found.items():
        declared = graph.values[name].type
        assert tuple(y.shape) == declared.shape and DType.of(y.dtype) is declared.dtype
    return list(found.values())


def grid(x: Array, *, zero_point: bool = False, bits: int = 8) -> QuantParams:
    """Return the grid of some values, symmetric or with a zero point that is not 0."""
    half = 1 << (bits - 1)
    finite = np.asarray(x, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    low, high = min(float(finite.min(initial=0.0)), 0.0), max(float(finite.max(initial=0.0)), 0.0)
    if not zero_point:
        return QuantParams((round_scale(max(-low, high) / (half - 1)),), bits=bits)
    high += 0.4 * (high - low)  # so that a range around 0 is not symmetric either
    scale = round_scale((high - low) / (2 * half - 2))
    return QuantParams((scale,), round(1 - half - low / scale), bits)


@dataclass
class Context:
    """A ``QuantContext`` over fixed grids."""

    graph: Graph
    grids: dict[str, QuantParams]
    bits: int = 8
    asked: list[str] = field(default_factory=list)

    def params(self, value: str) -> QuantParams:
        return self.grids[value]

    def is_const(self, value: str) -> bool:
        return self.graph.values[value].is_const

    def const(self, value: str) -> Array:
        data = self.graph.values[value].data
        assert data is not None
        return data

    def weight_bits(self, node: Node) -> int:
        return self.bits


def build_layer(
    spec: OpSpec[Any], graph: Graph, grids: dict[str, QuantParams], bits: int = 8
) -> IntLayer:
    """Quantize the only node of a graph and check what every integer layer must keep."""
    node = graph.nodes[0]
    layer = spec.quantize(node, Context(graph, grids, bits))
    assert layer.name == node.name and layer.op == node.op
    assert layer.outputs == node.outputs
    assert all(n and not graph.values[n].is_const for n in layer.inputs)
    check_plain(layer.attrs)
    for role, tensor in layer.tensors.items():
        assert tensor.dtype.kind in "iu" or role.endswith("scale"), (role, tensor.dtype)
    return layer


def check_plain(value: Any) -> None:
    """Check that attributes are plain JSON without floats."""
    if isinstance(value, dict):
        for key, item in value.items():
            assert isinstance(key, str)
            check_plain(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            check_plain(item)
    else:
        assert value is None or type(value) in (int, bool, str), repr(value)


def run_layer(
    spec: OpSpec[Any],
    layer: IntLayer,
    graph: Graph,
    grids: Mapping[str, QuantParams],
    inputs: Mapping[str, Array],
    kernels: Any = None,
) -> list[Array]:
    """Execute an integer layer on integer inputs; check types and that inputs stay as they are."""
    before = {n: inputs[n].copy() for n in layer.inputs}
    params = {n: grids.get(n) for n in (*layer.inputs, *layer.outputs)}
    kernels = kernels or ReferenceKernels()
    found = spec.run(layer, [inputs[n] for n in layer.inputs], params, kernels)
    assert len(found) == len(layer.outputs)
    for name, y in zip(layer.outputs, found, strict=True):
        out = grids[name]
        assert tuple(y.shape) == graph.values[name].shape
        assert y.dtype == out.dtype.numpy, (y.dtype, out.dtype)
    for name, x in before.items():
        assert np.array_equal(x, inputs[name]), "an operator changed its input"
    return found


def integer_error(
    spec: OpSpec[Any],
    case: Case,
    *,
    zero_point: bool,
    seed: int = 0,
    same_grid: bool = False,
    bits: tuple[int, int] = (8, 8),
    weight_bits: int = 8,
) -> float:
    """Return the largest |integer - float| of a case in output steps.

    Float runs on the values that the integers stand for, so only the operator's own error counts.

    Args:
        spec, case, seed: what is run on which numbers.
        zero_point: whether grids have one.
        same_grid: whether the output has its input's grid.
        bits: of inputs and outputs.
        weight_bits: of constant weights.
    """
    graph = case_graph(spec, case)
    node = graph.nodes[0]
    assert spec.unsupported(node, graph) is None
    drawn = draw(graph, case, seed)
    grids = {n: grid(x, zero_point=zero_point, bits=bits[0]) for n, x in drawn.items()}
    integers = {n: quantize(x, grids[n]) for n, x in drawn.items()}
    real = {
        n: dequantize(q, grids[n]).astype(graph.values[n].type.dtype.numpy)
        for n, q in integers.items()
    }
    expected = run_float(graph, real)
    for name, y in zip(node.outputs, expected, strict=True):
        if spec.rule_of(node, graph) is QuantRule.MOVE or same_grid:
            grids[name] = grids[node.inputs[0]]
        else:
            grids[name] = grid(y, zero_point=zero_point, bits=bits[1])
    layer = build_layer(spec, graph, grids, weight_bits)
    found = run_layer(spec, layer, graph, grids, integers)
    worst = 0.0
    for name, y, q in zip(node.outputs, expected, found, strict=True):
        out = grids[name]
        steps = np.asarray(y, dtype=np.float64) / out.scale + out.zero_point
        steps = np.clip(steps, out.qmin, out.qmax)
        worst = max(worst, float(np.abs(q - steps).max(initial=0.0)))
    return worst


def all_cases() -> Sequence[Any]:
    """Return pytest parameters for every case of every operator."""
    import pytest

    return [
        pytest.param(spec, case, id=f"{spec.name}-{case.id}")
        for spec in default_registry().specs
        for case in spec.cases()
    ]
