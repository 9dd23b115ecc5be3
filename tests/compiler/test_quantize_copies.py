"""Copies of tensors for what multiplies them: where they are made, and what they give."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from qbcompiler.config import CompileConfig
from qbcompiler.ops import default_registry
from qbcompiler.ops.activation import ClipAttrs
from qbcompiler.ops.normalization import NormAttrs
from qbcompiler.quantization import (
    equalize,
    find_copies,
    find_links,
    insert_copies,
    is_copy,
    is_linear,
    is_norm,
    plan_grids,
    quantize,
    wide_share,
)
from qbcompiler.runtime import IntegerEngine
from qbcompiler.runtime.float_engine import FloatEngine

from .quant_nets import Net, observe, samples
from .test_equalize import alone, dense, peaks_of


def never(name, maker):
    return False


def always(name, maker):
    return True


def stream():
    """Two residual blocks whose stream has one channel that is far wider than the others."""
    net = Net()
    x = net.layer("Tanh", "start", [net.input("x", 1, 6, 16)])
    wide = np.ones(16, np.float32)
    wide[3] = 60.0
    x = net.layer("MultiplyConstant", "wide", [x, net.const("w", wide)])
    for i in range(2):
        gamma = net.const(f"g{i}", net.rng.uniform(0.2, 5, 16).astype(np.float32))
        beta = net.const(f"b{i}", net.rng.normal(size=16).astype(np.float32))
        norm = net.layer("LayerNormalization", f"norm{i}", [x, gamma, beta], NormAttrs(-1))
        part = dense(
            net, f"down{i}", net.layer("Tanh", f"gelu{i}", [dense(net, f"up{i}", norm, 32)]), 16
        )
        x = net.layer("Adding", f"sum{i}", [x, part])
    return net.finish(dense(net, "head", x, 8))


def post_norm():
    """A normalization that a product and the next sum both read."""
    net = Net()
    x = net.layer("Tanh", "start", [net.input("x", 1, 6, 16)])
    gamma = net.const("g", np.exp2(np.linspace(-3, 3, 16)).astype(np.float32))
    beta = net.const("b", np.zeros(16, np.float32))
    norm = net.layer("LayerNormalization", "norm", [x, gamma, beta], NormAttrs(-1))
    views = net.layer("Tanh", "f", [dense(net, "a", norm, 16)])
    return net.finish(net.layer("Adding", "sum", [norm, views]))


def with_copies(graph, *, streams=True, balanced=never):
    copies = find_copies(graph, streams=streams, balanced=balanced)
    twin = graph.copy()
    insert_copies(twin, copies)
    return twin, copies


def built(graph, data, **bits):
    ranges = observe(graph, data).ranges
    statistics = SimpleNamespace(ranges=ranges, ranges_for=lambda b: ranges)
    settings = CompileConfig.from_data({"calibration": {"method": 2}, "bit": bits})
    return quantize(graph, statistics, settings)


def error(graph, body, data):
    engine, run = FloatEngine(graph), IntegerEngine(body)
    name = graph.outputs[0]
    return sum(float(((run.run(x)[name] - engine.run(x)[name]) ** 2).sum()) for x in data)


def test_a_stream_keeps_16_bits_and_products_read_8():
    graph = post_norm()
    twin, copies = with_copies(graph)
    assert [(c.value, c.readers, c.axis) for c in copies] == [("norm.out", ("a",), 2)]
    assert [n.name for n in twin.nodes] == ["start", "norm", "norm/copy", "a", "f", "sum"]
    assert graph.node("a").inputs[0] == "norm.out"  # the graph itself has not changed
    data = samples(graph, 4)
    body = built(twin, data, elementwiseActivations=16)
    widths = {n: v.quant.bits for n, v in body.values.items()}
    assert widths == {
        "x": 8,  # an input has the bits that a caller expects
        "start.out": 16,
        "norm.out": 16,
        "norm.out/copy": 8,
        "a.out": 16,
        "f.out": 16,
        "sum.out": 16,
    }
    macs = {n.name: default_registry()[n.op].macs(n, twin) for n in twin.nodes}
    assert macs["a"] and wide_share(body, macs) == 0.0


def test_the_float_function_stays():
    graph = post_norm()
    twin, copies = with_copies(graph)
    assert copies
    data = samples(graph, 3)
    for x in data:
        name = graph.outputs[0]
        before, after = (FloatEngine(g).run(x)[name] for g in (graph, twin))
        np.testing.assert_array_equal(before, after)


def test_a_stream_of_16_bits_leaves_far_less_error():
    """Normalizations and sums alone read it, so it needs no copy."""
    graph = stream()
    assert not find_copies(graph, streams=True, balanced=never)
    data = samples(graph, 6)
    plain = error(graph, built(graph, data), data)
    assert error(graph, built(graph, data, elementwiseActivations=16), data) < 0.3 * plain


def test_a_channel_of_a_copy_is_balanced_and_the_stream_stays():
    graph = post_norm()
    data = samples(graph, 6)
    twin, _ = with_copies(graph)
    links, _ = find_links(twin, alone, lambda n: is_copy(n) or is_linear(n) or is_norm(n))
    assert [(link.maker.name, link.axis) for link in links] == [("norm/copy", 2)]
    done = equalize(twin, links, peaks_of(twin, links, data))
    changed = twin.with_constants(done.constants)
    before, after = (FloatEngine(g, ["norm.out", "sum.out"]).run(data[0]) for g in (twin, changed))
    np.testing.assert_array_equal(before["norm.out"], after["norm.out"])
    np.testing.assert_allclose(before["sum.out"], after["sum.out"], atol=1e-4)
    assert error(changed, built(changed, data, elementwiseActivations=16), data) < 0.7 * error(
        twin, built(twin, data, elementwiseActivations=16), data
    )


def test_a_normalization_that_only_products_read_takes_the_factor_itself():
    net = Net()
    x = net.layer("Tanh", "start", [net.input("x", 1, 6, 16)])
    gamma = net.const("g", np.exp2(np.linspace(-3, 3, 16)).astype(np.float32))
    beta = net.const("b", net.rng.normal(size=16).astype(np.float32))
    norm = net.layer("LayerNormalization", "norm", [x, gamma, beta], NormAttrs(-1))
    graph = net.finish(dense(net, "a", norm, 8), dense(net, "c", norm, 8))
    assert not find_copies(graph, streams=True, balanced=always)
    links, _ = find_links(graph, alone, is_norm)
    data = samples(graph, 4)
    done = equalize(graph, links, peaks_of(graph, links, data))
    assert set(done.constants) == {"g", "b", "a.w", "c.w"}
    changed = graph.with_constants(done.constants)
    for name in graph.outputs:
        np.testing.assert_allclose(
            FloatEngine(changed).run(data[0])[name],
            FloatEngine(graph).run(data[0])[name],
            atol=1e-4,
        )


def clamped():
    net = Net()
    a = net.conv("a", net.input("x", 1, 3, 10, 10), 8)
    net.graph.values["a.w"].data[:] *= np.exp2(np.linspace(-4, 0, 8)).reshape(8, 1, 1, 1)
    y = net.layer("Clip", "c", [a], ClipAttrs(0.0, 6.0))
    return net.finish(net.conv("z", net.layer("Relu", "r", [net.conv("d", y, 8, groups=8)]), 4))


def test_output_1_balances_channels_behind_what_lets_no_factor_through():
    graph = clamped()
    data = samples(graph, 6)
    passed = {link.read for link in find_links(graph, alone)[0]}
    twin, copies = with_copies(
        graph, streams=False, balanced=lambda name, maker: name not in passed
    )
    assert [(c.value, c.readers, c.axis) for c in copies] == [("c.out", ("d",), 1)]
    links, _ = find_links(twin, alone, is_copy)
    peaks = peaks_of(twin, links, data)
    done = equalize(twin, links, peaks)
    changed = twin.with_constants(done.constants)
    body = built(changed, data)
    assert body.values["c.out"].quant.bits == 16 and body.values["c.out/copy"].quant.bits == 8
    # halfway, since other samples may need more of a channel than these
    before = peaks["c.out/copy"]
    after = peaks_of(changed, links, data)["c.out/copy"]
    np.testing.assert_allclose(
        after / after.max(), np.sqrt(before / before.max()), rtol=2 ** (1 / 8)
    )
    assert error(changed, body, data) < 0.95 * error(graph, built(graph, data), data)


def test_a_tensor_on_the_grid_of_one_that_is_multiplied_keeps_8_bits():
    """Method 3 lets what meets in a sum share a grid: the convolution's input is among it."""
    net = Net()
    a = net.layer("Relu", "r", [net.conv("a", net.input("x", 1, 3, 8, 8), 8)])
    graph = net.finish(net.layer("Adding", "s", [net.conv("b", a, 8), a]))
    data = samples(graph, 3)
    ranges = observe(graph, data).ranges
    classes = plan_grids(graph, ranges, method_of=lambda n: 3).classes
    assert classes["r.out"] == classes["b.out"]
    settings = CompileConfig.from_data(
        {"calibration": {"method": 3}, "bit": {"elementwiseActivations": 16}}
    )
    statistics = SimpleNamespace(ranges=ranges, ranges_for=lambda b: ranges)
    body = quantize(graph, statistics, settings)  # without the copy that a build would insert
    assert body.values["r.out"].quant.bits == 8 and body.values["b.out"].quant.bits == 8
    assert body.values["s.out"].quant.bits == 16
