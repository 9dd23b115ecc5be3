"""Tensors that one function alone reads: which they are, and what 16 bits there give."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from qbcompiler.config import CompileConfig
from qbcompiler.ops import default_registry
from qbcompiler.quantization import plan_grids, quantize
from qbcompiler.quantization.inner import inner_values
from qbcompiler.runtime import IntegerEngine
from qbcompiler.runtime.float_engine import FloatEngine

from .ops_harness import all_cases, integer_error
from .quant_nets import Net, observe, samples


def statistics(graph, data):
    ranges = observe(graph, data).ranges
    return SimpleNamespace(ranges=ranges, ranges_for=lambda bits: ranges)


def built(graph, data, bits, method=2):
    settings = {"calibration": {"method": method}, "bit": {"innerActivations": bits}}
    return quantize(graph, statistics(graph, data), CompileConfig.from_data(settings))


def classes(graph, data, method=0):
    return plan_grids(graph, observe(graph, data).ranges, method_of=lambda n: method).classes


def chain():
    """A convolution, two functions, a scale, a depthwise convolution."""
    net = Net()
    a = net.conv("a", net.input("x", 1, 3, 10, 10), 8)
    net.graph.values["a.w"].data[:] *= 6.0
    b = net.layer("HardSwish", "b", [a])
    c = net.layer("Tanh", "c", [b])
    k = net.const("k", np.linspace(0.5, 2, 8).astype(np.float32).reshape(8, 1, 1))
    d = net.layer("MultiplyConstant", "d", [c, k])
    return net.finish(net.conv("e", d, 8, groups=8))


def test_a_chain_is_rounded_to_8_bits_once():
    graph = chain()
    data = samples(graph, 4)
    assert inner_values(graph, classes(graph, data)) == ["a.out", "b.out", "c.out"]
    body = built(graph, data, 16)
    widths = {n: v.quant.bits for n, v in body.values.items()}
    assert widths == {
        "x": 8,
        "a.out": 16,
        "b.out": 16,
        "c.out": 16,
        "d.out": 8,
        "e.out": 8,
    }
    # what a layer with weights reads keeps its 8 bits
    for layer in body.layers:
        if "weight" in layer.tensors:
            assert body.values[layer.inputs[0]].quant.bits == 8
            assert layer.tensors["weight"].dtype == np.int8
    assert {v.quant.bits for v in built(graph, data, 8).values.values()} == {8}


@pytest.mark.parametrize("method", [0, 2])
def test_it_leaves_less_error(method):
    graph = chain()
    data = samples(graph, 6)
    engine = FloatEngine(graph)
    errors = []
    for bits in (8, 16):
        run = IntegerEngine(built(graph, data, bits, method))
        errors.append(
            sum(float(((run.run(x)["e.out"] - engine.run(x)["e.out"]) ** 2).sum()) for x in data)
        )
    assert errors[1] < 0.7 * errors[0]


def test_what_something_else_reads_or_shares_is_not_inner():
    net = Net()
    a = net.conv("a", net.input("x", 1, 3, 8, 8), 4)
    b = net.layer("Sigmoid", "b", [a])
    c = net.layer("Multiply", "c", [a, b])  # reads a too
    d = net.conv("d", c, 4)
    e = net.layer("Relu", "e", [d])  # d has the clamp's grid, which the next layer reads
    f = net.conv("f", e, 4)
    g = net.layer("Adding", "g", [f, e])  # not a function of one tensor
    h = net.conv("h", g, 4)
    i = net.layer("Sigmoid", "i", [h])  # an output of the graph reads h as well
    graph = net.finish(i, h)
    data = samples(graph, 2)
    for method in (0, 1):
        assert inner_values(graph, classes(graph, data, method)) == []


def test_a_tensor_that_takes_part_in_a_shared_grid_is_not_inner():
    """Under method 1 the two sums share a grid with each other, which a convolution reads."""
    net = Net()
    a, b = net.conv("a", net.input("x", 1, 3, 8, 8), 4), net.conv("b", "x", 4)
    s = net.layer("Adding", "s", [net.layer("Sigmoid", "t", [a]), b])
    graph = net.finish(net.conv("z", s, 4))
    data = samples(graph, 2)
    assert inner_values(graph, classes(graph, data, 1)) == ["a.out"]
    by_hand = {"x": "x", "a.out": "a.out", "b.out": "a.out"}
    assert inner_values(graph, by_hand) == []


def test_a_constant_that_grows_the_tensor_is_not_taken():
    net = Net()
    a = net.layer("Sigmoid", "a", [net.conv("c", net.input("x", 1, 3, 8, 8), 1)])
    k = net.const("k", np.ones((4, 1, 1), np.float32))
    graph = net.finish(net.layer("MultiplyConstant", "m", [a, k]))
    assert inner_values(graph, classes(graph, samples(graph, 2))) == ["c.out"]


@pytest.mark.parametrize("spec,case", [p for p in all_cases() if p.values[1].bound is not None])
def test_pointwise_operators_take_16_bits(spec, case):
    """The claim of ``is_pointwise``: 16 bits in, 8 out, and each element on its own."""
    if not spec.is_pointwise(case.attrs):
        return
    for bits in ((16, 8), (16, 16), (8, 16)):
        integer_error(spec, case, zero_point=True, bits=bits)
    assert sum(1 for x in case.inputs if hasattr(x, "rank")) == 1


def test_there_are_pointwise_operators():
    assert sum(s.is_pointwise(c.attrs) for s in default_registry().specs for c in s.cases()) > 30
