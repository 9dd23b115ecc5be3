"""Whole networks of every operator that convolutional models use: ONNX in, integers out."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qbcompiler.config import CompileConfig
from qbcompiler.devices import load_device
from qbcompiler.frontend import load_model, parse
from qbcompiler.package import read_mxq, write_mxq
from qbcompiler.package.int_graph_json import int_graph_tensors
from qbcompiler.partition import partition
from qbcompiler.quantization import layer_summaries, quantize, validate
from qbcompiler.quantization.observers import needed_values
from qbcompiler.runtime import IntegerEngine
from qbcompiler.runtime.float_engine import FloatEngine

from .test_package_files import RECORD, MbltMeta, MxqContents, mblt_manifest

RNG_SEED = 11


class Onnx:
    """Builds an ONNX model layer by layer."""

    def __init__(self, *shape, opset=13):
        self.rng = np.random.default_rng(RNG_SEED)
        self.shape, self.opset = shape, opset
        self.nodes, self.constants = [], []

    def const(self, array):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def floats(self, *shape, low=-1.0, high=1.0):
        return self.const(self.rng.uniform(low, high, shape).astype(np.float32))

    def add(self, op, *inputs, outputs=1, **attrs):
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attrs))
        return names[0] if outputs == 1 else names

    def conv(self, x, channels, outputs, kernel=3, group=1, **attrs):
        fan = channels // group * kernel * kernel
        w = self.rng.normal(size=(outputs, channels // group, kernel, kernel)) / np.sqrt(fan)
        b = self.floats(outputs, low=-0.2, high=0.2)
        return self.add("Conv", x, self.const(w.astype(np.float32)), b, group=group, **attrs)

    def clip(self, x, low, high):
        return self.add("Clip", x, self.const(np.float32(low)), self.const(np.float32(high)))

    def norm(self, x, channels):
        shapes = [self.floats(channels, low=lo, high=hi) for lo, hi in ((0.5, 1.5), (-0.3, 0.3))]
        mean, var = (
            self.floats(channels, low=-0.2, high=0.2),
            self.floats(channels, low=0.5, high=2),
        )
        return self.add("BatchNormalization", x, *shapes, mean, var)

    def model(self, *outputs):
        return helper.make_model(
            helper.make_graph(
                self.nodes,
                "net",
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
                [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
                self.constants,
            ),
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=8,
        )


def convolutions():
    n = Onnx(1, 6, 20, 22)
    a = n.add("Relu", n.norm(n.conv("x", 6, 12, strides=[2, 2], pads=[0, 1, 1, 0]), 12))
    b = n.add("Relu", n.conv(a, 12, 12, group=3, pads=[1] * 4))
    c = n.add("Relu", n.norm(n.conv(b, 12, 12, 5, group=12, pads=[2] * 4), 12))
    d = n.conv(n.add("Add", a, c), 12, 8, dilations=[2, 2], pads=[2] * 4)
    e = n.add("ConvTranspose", n.add("Relu", d), n.floats(8, 4, 2, 2), strides=[2, 2])
    f = n.add(
        "ConvTranspose",
        e,
        n.floats(4, 3, 3, 3),
        strides=[2, 2],
        pads=[1] * 4,
        output_padding=[1, 1],
    )
    return n.model(f)


def classifier():
    n = Onnx(1, 3, 24, 24)
    a = n.add(
        "Clip", n.conv("x", 3, 16, pads=[1] * 4), n.const(np.float32(0)), n.const(np.float32(6))
    )
    a = n.add("MaxPool", a, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    b = n.add("AveragePool", a, kernel_shape=[2, 2], strides=[2, 2])
    c = n.conv(b, 16, 24, pads=[1] * 4)
    squeeze = n.add("GlobalAveragePool", c)
    gate = n.add("HardSigmoid", n.conv(n.add("Relu", n.conv(squeeze, 24, 6, 1)), 6, 24, 1))
    d = n.add("Mul", c, gate)
    e = n.add("Flatten", n.add("GlobalAveragePool", d))
    f = n.add("Relu", n.add("Gemm", e, n.floats(20, 24), n.floats(20), transB=1))
    g = n.add("Add", n.add("MatMul", f, n.floats(20, 10)), n.floats(10))
    return n.model(n.add("Softmax", g))


def activations():
    n = Onnx(1, 4, 12, 12)
    half = n.const(np.float32(0.5))
    parts = []
    functions = "LeakyRelu Sigmoid Tanh HardSigmoid Elu PRelu swish hardswish relu6 gelu"
    for op in functions.split():
        x = n.conv("x", 4, 4, 1)
        if op == "PRelu":
            x = n.add("PRelu", x, n.floats(4, 1, 1, low=0.1, high=0.4))
        elif op == "swish":
            x = n.add("Mul", x, n.add("Sigmoid", x))
        elif op == "hardswish":
            three, six, zero = (n.const(np.float32(v)) for v in (3, 6, 0))
            x = n.add("Div", n.add("Mul", x, n.add("Clip", n.add("Add", x, three), zero, six)), six)
        elif op == "relu6":
            x = n.clip(x, 0, 6)
        elif op == "gelu":
            root = n.const(np.float32(2**0.5))
            one = n.const(np.float32(1))
            y = n.add("Add", n.add("Erf", n.add("Div", x, root)), one)
            x = n.add("Mul", n.add("Mul", x, y), half)
        else:
            x = n.add(op, x)
        parts.append(x)
    return n.model(n.conv(n.add("Concat", *parts, axis=1), 4 * len(parts), 6, 1))


def arithmetic():
    n = Onnx(1, 4, 10, 8)
    a, b = n.conv("x", 4, 4, 1), n.add("Sigmoid", n.conv("x", 4, 4, 1))
    c = n.add("Sub", a, b)
    d = n.add("Div", c, n.add("Add", b, n.const(np.float32(0.5))))
    e = n.add("Mul", d, n.floats(4, 1, 1, low=0.5, high=2.0))
    f = n.add("Add", n.add("Div", e, n.floats(1, low=0.5, high=2.0)), n.floats(1, 4, 1, 8))
    g = n.add("Sub", n.const(np.float32(1.0)), f)
    return n.model(n.add("Mul", g, n.add("ReduceMean", a, axes=[2, 3], keepdims=1)))


def pyramid():
    n = Onnx(1, 3, 16, 16)
    a = n.add("Relu", n.conv("x", 3, 8, pads=[1] * 4))
    b = n.add("Relu", n.conv(a, 8, 8, strides=[2, 2], pads=[1] * 4))
    c = n.add("Relu", n.conv(b, 8, 8, strides=[2, 2], pads=[1] * 4))
    scales = n.const(np.array([1, 1, 2, 2], np.float32))
    up = n.add(
        "Resize",
        c,
        "",
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    d = n.add("Add", up, b)
    up = n.add("Resize", d, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")
    left, right = n.add("Split", n.add("Concat", up, a, axis=1), outputs=2, axis=1)
    padded = n.add("Pad", n.add("Add", left, right), n.const(np.array([0, 0, 1, 0, 0, 0, 0, 1])))
    return n.model(n.conv(padded, 8, 5), n.conv(c, 8, 4, 1))


def shapes():
    n = Onnx(1, 12, 8, 8)
    a = n.add("Relu", n.conv("x", 12, 16, 1))
    b = n.add("Reshape", a, n.const(np.array([1, 2, 8, 8, 8])))
    c = n.add(
        "Reshape", n.add("Transpose", b, perm=[0, 2, 1, 3, 4]), n.const(np.array([1, 16, 8, 8]))
    )
    d = n.conv(c, 16, 16, 1, group=4)
    e = n.add("Slice", d, *(n.const(np.array(v)) for v in ([1, 2], [7, 14], [2, 1], [1, 2])))
    f = n.add("Squeeze", n.add("ReduceMean", e, axes=[3]), n.const(np.array([3])))
    f = n.add("Unsqueeze", f, n.const(np.array([3])))
    g = n.add("Transpose", f, perm=[0, 2, 3, 1])
    return n.model(n.add("Flatten", n.add("ReduceMax", g, axes=[1], keepdims=1)))


BUILDERS = (convolutions, classifier, activations, arithmetic, pyramid, shapes)
NETWORKS = {f.__name__: f for f in BUILDERS}


@pytest.fixture(scope="module", params=sorted(NETWORKS))
def network(request):
    model = NETWORKS[request.param]()
    graph = parse(load_model(model), input_shapes={}, image_channels=None)
    parts = partition(graph, load_device("regulus-rb"))
    rng = np.random.default_rng(5)
    shape = graph.values["x"].shape
    data = [{"x": rng.normal(size=shape).astype(np.float32)} for _ in range(6)]
    names = needed_values(parts.body)
    engine = FloatEngine(parts.body, names)
    ranges = {}
    for sample in data:
        for name, value in engine.run(sample).items():
            low, high = ranges.get(name, (np.inf, -np.inf))
            ranges[name] = (min(low, float(value.min())), max(high, float(value.max())))
    return SimpleNamespace(
        name=request.param,
        parts=parts,
        data=data,
        statistics=SimpleNamespace(ranges=ranges, ranges_for=lambda bits: ranges),
    )


def built(network, method=0, **bits):
    config = CompileConfig.from_data(
        {"calibration": {"method": method}, "bit": {"layerOverrides": bits}}
    )
    return quantize(network.parts.body, network.statistics, config)


@pytest.mark.parametrize("method", [0, 1, 2, 3])
def test_it_is_close_to_the_float_network(network, method):
    accuracy = validate(network.parts, built(network, method), network.data)
    for output in accuracy.outputs:
        assert output.difference.sqnr_db > 20, (output.name, accuracy.as_dict()["layers"])
    for layer in accuracy.layers:
        assert layer.own.sqnr_db > 18, layer.as_dict()


def contents_of(network, graph):
    return MxqContents(
        mblt=mblt_manifest(network.parts, MbltMeta("00" * 32)),
        device="regulus-rb",
        schemes=("single",),
        config={},
        preset=None,
        calibration=RECORD,
        layers=layer_summaries(graph),
        accuracy={},
        body=graph,
    )


EVERYWHERE = {"activation16Bits": ["*"], "weight16Bits": ["*"]}


@pytest.mark.parametrize("method", [0, 3])
def test_sixteen_bits_everywhere_are_all_but_float(network, method):
    graph = built(network, method, **EVERYWHERE)
    assert {v.type.dtype.value for v in graph.values.values() if v.quant} == {"int16"}
    accuracy = validate(network.parts, graph, network.data)
    for output in accuracy.outputs:
        assert output.difference.sqnr_db > 55, (output.name, accuracy.as_dict()["layers"])


def test_sixteen_bits_in_some_layers_mix_with_eight_in_others(network):
    names = [n.name for n in network.parts.body.nodes]
    chosen = names[::3]
    plain = built(network)
    graph = built(network, activation16Bits=chosen, weight16Bits=names[::2])
    for layer in graph.layers:
        if layer.name in chosen:
            assert all(graph.values[o].quant.bits == 16 for o in layer.outputs)
    assert {v.quant.bits for v in graph.values.values() if v.quant} == {8, 16}
    before, after = (
        validate(network.parts, g, network.data, layer_samples=0).outputs for g in (plain, graph)
    )
    for old, new in zip(before, after, strict=True):
        assert new.difference.sqnr_db > old.difference.sqnr_db - 1


def test_zero_points_do_not_make_it_worse(network):
    """Ranges that lie on one side of zero, as after Relu, have twice the resolution."""
    plain, shifted = (
        validate(network.parts, built(network, m), network.data, layer_samples=0) for m in (0, 2)
    )
    for before, after in zip(plain.outputs, shifted.outputs, strict=True):
        assert after.difference.sqnr_db > before.difference.sqnr_db - 0.5


@pytest.mark.parametrize("overrides", [{}, EVERYWHERE], ids=["8", "16"])
@pytest.mark.parametrize("method", [0, 2])
def test_bits_do_not_depend_on_threads(network, method, overrides):
    graph = built(network, method, **overrides)
    names = list(graph.values)
    one, two, four = (
        IntegerEngine(graph, n).run(network.data[0], outputs=names, integers=True)
        for n in (1, 2, 4)
    )
    for name in names:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
        np.testing.assert_array_equal(one[name], four[name], err_msg=name)


def test_four_bit_weights_are_packed_in_the_file_and_give_the_same_bits(network, tmp_path):
    graph = built(network, weight4Bits=["*"])
    layers = [layer for layer in graph.layers if "weight" in layer.tensors]
    for layer in layers:
        weight = layer.tensors["weight"]
        assert np.abs(weight.astype(int)).max() <= 7
        stored = int_graph_tensors(graph, "body")[f"body/{layer.name}:weight"]
        assert stored.dtype == np.uint8 and stored.size == (weight.size + 1) // 2
    write_mxq(tmp_path / "m", contents_of(network, graph))
    with read_mxq(tmp_path / "m") as file:
        again = file.body
    assert {s["weights"]["bits"] for s in layer_summaries(again) if s["weights"]} <= {4}
    want = IntegerEngine(graph).run(network.data[0], integers=True)
    got = IntegerEngine(again).run(network.data[0], integers=True)
    for output in graph.outputs:
        np.testing.assert_array_equal(got[output], want[output])


@pytest.mark.parametrize("overrides", [{}, EVERYWHERE], ids=["8", "16"])
@pytest.mark.parametrize("method", [0, 3])
def test_the_file_gives_the_same_bits(network, method, overrides, tmp_path):
    graph = built(network, method, **overrides)
    contents = contents_of(network, graph)
    first = write_mxq(tmp_path / "a", contents)
    with read_mxq(tmp_path / "a") as file:
        again = file.body
    contents = MxqContents(**{**vars(contents), "body": again, "layers": layer_summaries(again)})
    assert write_mxq(tmp_path / "b", contents).sha256 == first.sha256
    for sample in network.data[:2]:
        want = IntegerEngine(graph).run(sample, integers=True)
        got = IntegerEngine(again).run(sample, integers=True)
        for name in graph.outputs:
            np.testing.assert_array_equal(got[name], want[name])


def test_what_convolutions_touch_is_stored_channel_last(network):
    graph = built(network)
    for layer in graph.layers:
        if "Convolution" in layer.op:
            for name in (*layer.inputs, *layer.outputs):
                value = graph.values[name]
                shape = value.type.shape
                assert value.stored_shape == (shape[0], *shape[2:], shape[1])
