"""Small float graphs for the tests of packages, quantization and the runtime."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from qbcompiler.config import CompileConfig
from qbcompiler.ir import DType, Graph, NoAttrs, Node, TensorType
from qbcompiler.ops import default_registry
from qbcompiler.ops.conv import ConvAttrs
from qbcompiler.partition import partition
from qbcompiler.runtime.float_engine import FloatEngine


class Net:
    """Builds a graph; layer outputs are called ``LAYER.out``."""

    def __init__(self, name="net"):
        self.graph = Graph(name)
        self.rng = np.random.default_rng(7)

    def input(self, name, *shape, dtype=DType.FLOAT32):
        self.graph.add_input(name, TensorType(dtype, shape))
        return name

    def const(self, name, array):
        array = np.asarray(array)
        self.graph.add_value(name, TensorType(DType.of(array.dtype), array.shape), array)
        return name

    def layer(self, op, name, inputs, attrs=None):
        attrs = attrs or NoAttrs()
        values = [self.graph.values[i] for i in inputs]
        types = default_registry()[op].infer(attrs, values)
        outputs = [f"{name}.out" if i == 0 else f"{name}.out{i}" for i in range(len(types))]
        for out, type_ in zip(outputs, types, strict=True):
            self.graph.add_value(out, type_)
        self.graph.add_node(Node(name, op, list(inputs), outputs, attrs, (f"src/{name}",)))
        return outputs[0]

    def conv(self, name, x, outputs, kernel=3, *, groups=1, stride=1, pad=None, bias=True):
        channels = self.graph.values[x].shape[1]
        fan = channels // groups * kernel * kernel
        w = self.rng.normal(size=(outputs, channels // groups, kernel, kernel)) / np.sqrt(fan)
        inputs = [x, self.const(f"{name}.w", w.astype(np.float32))]
        if bias:
            b = self.rng.normal(size=outputs) * 0.1
            inputs.append(self.const(f"{name}.b", b.astype(np.float32)))
        pad = kernel // 2 if pad is None else pad
        op = "Convolution"
        if groups > 1:
            op = "DepthwiseConvolution" if groups == channels else "GroupConvolution"
        attrs = ConvAttrs((stride, stride), (pad,) * 4, (1, 1), groups)
        return self.layer(op, name, inputs, attrs)

    def finish(self, *outputs):
        self.graph.outputs = list(outputs)
        return self.graph


def residual_net(size=16):
    """Convolutions, a depthwise one, a residual add, clamps, a classifier over the whole plane."""
    net = Net()
    x = net.input("image", 1, 3, size, size)
    a = net.layer("Relu", "r1", [net.conv("c1", x, 8)])
    b = net.conv("c2", a, 8, groups=8)
    c = net.layer("Relu", "r2", [net.layer("Adding", "add", [b, a])])
    d = net.conv("c3", c, 12, stride=2)
    e = net.layer("Relu", "r3", [d])
    return net.finish(net.conv("scores", e, 10, size // 2, pad=0))


def samples(graph, count=4, seed=3):
    rng = np.random.default_rng(seed)
    return [
        {
            n: rng.normal(size=graph.values[n].shape).astype(graph.values[n].type.dtype.numpy)
            for n in graph.inputs
        }
        for _ in range(count)
    ]


def observe(graph, inputs):
    """The plain minimum and maximum of every float value."""
    names = [n for n, v in graph.values.items() if not v.is_const and v.type.dtype.is_float]
    engine = FloatEngine(graph, names)
    ranges = {}
    for sample in inputs:
        for name, value in engine.run(sample).items():
            low, high = ranges.get(name, (np.inf, -np.inf))
            ranges[name] = (min(low, float(value.min())), max(high, float(value.max())))
    return SimpleNamespace(ranges=ranges)


def config(**calibration):
    return CompileConfig.from_data({"calibration": calibration}) if calibration else CompileConfig()


class Rules:
    """A device that lacks some operators."""

    name = "toy-device"
    max_rank = 8

    def __init__(self, **unsupported):
        self.unsupported_operators = unsupported


def cut(graph, device=None, *, cpu_offload=False):
    return partition(graph, device, cpu_offload=cpu_offload)
