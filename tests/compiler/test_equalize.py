"""Cross-layer equalization: the float function stays, all channels get their share of steps."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from qbcompiler import mxq_compile
from qbcompiler.config import CompileConfig
from qbcompiler.ops import default_registry
from qbcompiler.ops.activation import ClipAttrs
from qbcompiler.ops.conv_transpose import ConvTransposeAttrs
from qbcompiler.ops.pooling import PoolingAttrs
from qbcompiler.ops.unary import LeakyReluAttrs
from qbcompiler.package import read_mxq
from qbcompiler.quantization import equalize, find_links, quantize
from qbcompiler.runtime import IntegerEngine
from qbcompiler.runtime.float_engine import FloatEngine

from .quant_nets import Net, observe, samples

SPREAD = np.exp2(np.linspace(-4, 4, 8))
"""What the middle tensor's channels are made unequal by."""


def alone(name):
    return False


def uneven(net, name, spread, axis=0):
    """Scale the output channels of a layer's weights and bias."""
    for part in ("w", "b"):
        value = net.graph.values.get(f"{name}.{part}")
        if value is not None:
            shape = [1] * value.data.ndim
            shape[axis if part == "w" else 0] = -1
            value.data = (value.data * np.reshape(spread, shape)).astype(np.float32)


def transposed(net, name, x, outputs, groups=1):
    channels = net.graph.values[x].shape[1]
    w = net.rng.normal(size=(channels, outputs // groups, 2, 2)).astype(np.float32)
    b = net.rng.normal(size=outputs).astype(np.float32)
    attrs = ConvTransposeAttrs((2, 2), (0, 0, 0, 0), (1, 1), (0, 0), groups)
    inputs = [x, net.const(f"{name}.w", w), net.const(f"{name}.b", b)]
    return net.layer("TransposeConvolution", name, inputs, attrs)


def dense(net, name, x, outputs):
    width = net.graph.values[x].shape[-1]
    w = net.rng.normal(size=(width, outputs)).astype(np.float32)
    b = net.rng.normal(size=outputs).astype(np.float32)
    return net.layer("MatMul", name, [x, net.const(f"{name}.w", w), net.const(f"{name}.b", b)])


def conv_conv(net, x):
    a = net.conv("a", x, 8)
    uneven(net, "a", SPREAD)
    return net.conv("z", net.layer("Relu", "r", [a]), 5)


def conv_depthwise(net, x):
    a = net.conv("a", x, 8)
    uneven(net, "a", SPREAD)
    return net.conv("z", a, 8, groups=8)


def depthwise_multiplied(net, x):
    a = net.conv("a", x, 8, groups=4)
    uneven(net, "a", SPREAD)
    return net.conv("z", net.layer("LeakyRelu", "l", [a], LeakyReluAttrs(0.1)), 16, groups=8)


def grouped(net, x):
    a = net.conv("a", x, 8, groups=2)
    uneven(net, "a", SPREAD)
    slopes = net.const("slopes", np.linspace(0, 0.5, 8).astype(np.float32).reshape(8, 1, 1))
    return net.conv("z", net.layer("PRelu", "p", [a, slopes]), 6, groups=2)


def pooled(net, x):
    a = net.conv("a", x, 8)
    uneven(net, "a", SPREAD)
    for mode in ("max", "average"):
        window = PoolingAttrs(mode, (2, 2), (2, 2), (0, 0, 0, 0), (1, 1))
        a = net.layer("Pooling", f"{mode}", [a], window)
    return net.conv("z", a, 3, kernel=1)


def up_and_on(net, x):
    a = transposed(net, "a", x, 8, groups=2)
    wide = net.graph.values["a.w"].data
    wide *= SPREAD[:4].reshape(1, 4, 1, 1).astype(np.float32)
    net.graph.values["a.b"].data[:4] *= 10
    return net.conv("z", a, 3)


def on_and_up(net, x):
    a = net.conv("a", x, 8)
    uneven(net, "a", SPREAD)
    return transposed(net, "z", a, 6, groups=2)


def normalized(net, x):
    numbers = [
        net.const(f"n{i}", v.astype(np.float32))
        for i, v in enumerate((np.ones(4) * [1, 9, 1, 30], np.ones(4), np.zeros(4), np.ones(4)))
    ]
    y = net.layer("Sigmoid", "s", [x])
    attrs = default_registry()["Batchnorm"].attrs_type()
    return net.conv("z", net.layer("Batchnorm", "a", [y, *numbers], attrs), 4, groups=4)


def read_twice(net, x):
    a = net.layer("Relu", "r", [net.conv("a", x, 8)])
    uneven(net, "a", SPREAD)
    left, right = net.conv("z", a, 8, groups=8), net.conv("y", a, 8)
    return net.layer("Adding", "sum", [left, right])


def tokens(net, x):
    a = dense(net, "a", x, 8)
    uneven(net, "a", SPREAD, axis=1)
    return dense(net, "z", net.layer("Relu", "r", [a]), 5)


NETS = {
    f.__name__: f
    for f in (
        conv_conv,
        conv_depthwise,
        depthwise_multiplied,
        grouped,
        pooled,
        up_and_on,
        on_and_up,
        normalized,
        read_twice,
        tokens,
    )
}


def make(name):
    net = Net(name)
    shape = (1, 6, 4) if name == "tokens" else (1, 4, 12, 12)
    return net.finish(NETS[name](net, net.input("x", *shape)))


def peaks_of(graph, links, data):
    found = {}
    for link in links:
        engine = FloatEngine(graph, [link.read])
        whole = np.stack([engine.run(x)[link.read] for x in data])
        axis = link.axis + 1
        others = tuple(i for i in range(whole.ndim) if i != axis)
        found[link.read] = np.abs(whole).max(axis=others).astype(np.float64)
    return found


def balanced(graph, data):
    links, refused = find_links(graph, alone)
    done = equalize(graph, links, peaks_of(graph, links, data))
    return graph.with_constants(done.constants), done, refused


def outputs(graph, data):
    engine = FloatEngine(graph)
    return np.stack([engine.run(x)[graph.outputs[0]] for x in data])


def noise(graph, body, data, reference):
    name = graph.outputs[0]
    engine = IntegerEngine(body)
    got = np.stack([engine.run(x)[name] for x in data])
    return float(((got - reference) ** 2).sum())


@pytest.mark.parametrize("name", list(NETS))
def test_the_float_function_stays(name):
    graph = make(name)
    data = samples(graph, 4)
    changed, done, _ = balanced(graph, data)
    assert len(done.links) == 1
    before = outputs(graph, data)
    np.testing.assert_allclose(outputs(changed, data), before, atol=3e-6 * np.abs(before).max())
    link = done.links[0]
    factors = done.factors[link.made]
    assert factors.max() / factors.min() > 2
    # each channel of the tensor is divided by its factor, and nothing else is
    old, new = (peaks_of(g, [link], data)[link.read] for g in (graph, changed))
    np.testing.assert_allclose(new * factors, old, rtol=1e-5)
    np.testing.assert_allclose(8 * np.log2(factors), np.rint(8 * np.log2(factors)), atol=1e-9)


@pytest.mark.parametrize("name", ["conv_depthwise", "normalized", "depthwise_multiplied"])
def test_before_depthwise_layers_all_channels_get_one_range(name):
    graph = make(name)
    data = samples(graph, 4)
    changed, done, _ = balanced(graph, data)
    link = done.links[0]
    assert link.free
    peaks = peaks_of(changed, [link], data)[link.read]
    assert peaks.max() / peaks.min() < 2 ** (1 / 8) + 1e-3


def test_before_a_dense_layer_range_and_weights_meet_halfway():
    graph = make("conv_conv")
    data = samples(graph, 4)
    changed, done, _ = balanced(graph, data)
    link = done.links[0]
    assert not link.free

    def shares(g):
        peaks = peaks_of(g, [link], data)[link.read]
        w = np.abs(g.values["z.w"].data).max(axis=(2, 3))
        return peaks, (w / w.max(axis=1, keepdims=True)).max(axis=0)

    peaks, weights = shares(graph)
    want = np.sqrt(peaks / weights)
    factors = done.factors[link.made]
    ratio = factors / want
    assert ratio.max() / ratio.min() < 2 ** (1 / 8) + 1e-3
    after, _ = shares(changed)
    assert peaks.max() / peaks.min() > 3 * after.max() / after.min()


@pytest.mark.parametrize("name", ["conv_conv", "conv_depthwise", "read_twice", "tokens", "pooled"])
@pytest.mark.parametrize("method", [0, 2])
def test_uneven_channels_are_quantized_better(name, method):
    graph = make(name)
    data = samples(graph, 8)
    changed, _, _ = balanced(graph, data)
    settings = CompileConfig.from_data({"calibration": {"method": method}})
    plain = quantize(graph, observe(graph, data), settings)
    better = quantize(changed, observe(changed, data), settings)
    fresh = samples(graph, 4, seed=9)
    reference = outputs(graph, fresh)
    assert noise(graph, better, fresh, reference) < 0.95 * noise(graph, plain, fresh, reference)


def refusal(net, *outs, shared=alone):
    links, refused = find_links(net.finish(*outs), shared)
    assert not links
    return {r.layer: r.reason for r in refused}


def test_what_stands_between_is_named():
    net = Net()
    a = net.conv("a", net.input("x", 1, 3, 8, 8), 4)
    reasons = refusal(net, net.conv("z", net.layer("Sigmoid", "s", [a]), 4))
    assert reasons == {
        "a": "'s' (Sigmoid) does not let a factor pass",
        "z": "it makes an output of the model",
    }


def test_a_clamp_at_six_does_not_let_a_factor_pass():
    net = Net()
    a = net.conv("a", net.input("x", 1, 3, 8, 8), 4)
    reasons = refusal(net, net.conv("z", net.layer("Clip", "c", [a], ClipAttrs(0.0, 6.0)), 4))
    assert reasons["a"] == "'c' (Clip) does not let a factor pass"


def test_weights_of_two_layers_stay():
    net = Net()
    a = net.conv("a", net.input("x", 1, 4, 8, 8), 4)
    out = net.conv("z", a, 4)
    reasons = refusal(net, out, shared=lambda name: name == "z.w")
    assert reasons["a"] == "the weights of 'z' cannot be scaled: another layer has the same weights"


def test_a_tensor_that_something_else_reads_stays():
    net = Net()
    a = net.conv("a", net.input("x", 1, 4, 8, 8), 4)
    reasons = refusal(net, net.layer("Adding", "sum", [net.conv("z", a, 4), a]))
    assert reasons["a"] == "'sum' (Adding) does not let a factor pass"


def test_dead_channels_and_balanced_ones_stay():
    graph = make("conv_depthwise")
    graph.values["a.w"].data[2] = 0
    graph.values["a.b"].data[2] = 0
    data = samples(graph, 3)
    _, done, _ = balanced(graph, data)
    assert done.factors["a.out"][2] == 1.0
    again = graph.with_constants(done.constants)
    links, _ = find_links(again, alone)
    even = equalize(again, links, {"a.out": np.ones(8)})
    assert not even.constants
    assert even.refused[0].reason == "its channels are balanced already"


def test_other_constants_must_fit():
    graph = make("conv_conv")
    with pytest.raises(ValueError, match="is not a constant of this shape"):
        graph.with_constants({"a.w": np.zeros((1, 1), np.float32)})


def test_a_build_keeps_its_statistics_apart(ocr_cls, ocr_calibration, tmp_path):
    """One cache for builds with and without: nobody gets the other's ranges."""
    kept = str(tmp_path / "cache")
    on = {"equivalentTransformation": {"crossLayerEqualization": {"apply": True}}}
    digests, reports = {}, {}
    for name, more in (
        ("plain", {}),
        ("on", {"compile_config": on, "threads": 1}),
        ("on cached", {"compile_config": on, "cache_dir": kept}),
        ("plain cached", {"cache_dir": kept}),
        ("on again", {"compile_config": on, "cache_dir": kept, "threads": 2}),
    ):
        path = tmp_path / f"{name}.mxq"
        mxq_compile(
            model=str(ocr_cls),
            calib_data_path=str(ocr_calibration),
            input_shape_dict={"x": (1, 3, 48, 192)},
            save_path=str(path),
            report_path=str(path.with_suffix(".json")),
            target_device="aries-rb",
            **more,
        )
        digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        reports[name] = json.loads(path.with_suffix(".json").read_text())
    assert digests["plain"] == digests["plain cached"]
    assert digests["on"] == digests["on cached"] == digests["on again"] != digests["plain"]
    assert reports["on again"]["reuse"]["statistics"]["observed"] == 0
    assert reports["plain cached"]["reuse"]["statistics"]["reused"] == 0
    assert reports["plain"]["transforms"] == {}
    rows = reports["on"]["transforms"]["cross_layer_equalization"]
    assert len(rows["applied"]) > 5 and all(r["reason"] for r in rows["refused"])
    assert all(r["smallest_factor"] < r["largest_factor"] for r in rows["applied"])
    assert reports["on"]["accuracy"]["outputs"][0]["sqnr_db"] > 20
    with read_mxq(tmp_path / "on.mxq") as one, read_mxq(tmp_path / "plain.mxq") as other:
        assert one.manifest["sections"] != other.manifest["sections"]
