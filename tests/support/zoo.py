"""Networks of known kinds, built node by node as the usual exporters write them.

Small, untrained, the same on every machine: what matters is their structure. ``Net`` is the pen;
each function returns a model whose weights come from a fixed seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

__all__ = ["Net", "bert", "convnext", "detector", "efficientnet", "gru", "lstm", "plain_cnn"]

Array = NDArray[Any]


class Net:
    """An ONNX graph under construction; methods return value names."""

    def __init__(self, opset: int = 17, dtype: Any = np.float32) -> None:
        self.opset, self.dtype = opset, np.dtype(dtype)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.rng = np.random.default_rng(5)
        self.scope = ""

    @property
    def kind(self) -> int:
        """The element type of activations."""
        return helper.np_dtype_to_tensor_dtype(self.dtype)

    def x(self, name: str, shape: Sequence[Any], kind: int | None = None) -> str:
        """Add an input."""
        kind = self.kind if kind is None else kind
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def const(self, data: Any) -> str:
        """Add an initializer; floats take the activations' type."""
        array = np.asarray(data)
        array = array.astype(self.dtype) if array.dtype.kind == "f" else array
        name = f"{self.scope}w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def normal(self, *shape: int, scale: float = 0.0) -> str:
        """Add random weights, by default scaled to keep the variance."""
        fan = int(np.prod(shape[1:] if len(shape) > 2 else shape[:1]))
        return self.const(self.rng.normal(0, scale or fan**-0.5, shape))

    def positive(self, *shape: int) -> str:
        """Add random numbers around 1."""
        return self.const(self.rng.uniform(0.5, 1.5, shape))

    def op(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> Any:
        """Add a node; return its output, or the list of them."""
        name = f"{self.scope}{op}_{len(self.nodes)}"
        outs = [f"{name}_out{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), outs, name=name, **attrs))
        return outs[0] if outputs == 1 else outs

    def conv(self, x: str, cin: int, cout: int, k: int, stride: int = 1, groups: int = 1) -> str:
        """Add a convolution with a bias, padded to keep the size."""
        w = self.normal(cout, cin // groups, k, k)
        attrs = {"strides": [stride] * 2, "pads": [k // 2] * 4, "group": groups}
        b = self.normal(cout, scale=0.1)
        return str(self.op("Conv", x, w, b, kernel_shape=[k, k], **attrs))

    def linear(self, x: str, fan_in: int, fan_out: int) -> str:
        """Add a product with a weight and a bias, as a linear layer on tokens is exported."""
        product = self.op("MatMul", x, self.normal(fan_in, fan_out))
        return str(self.op("Add", self.normal(fan_out, scale=0.1), product))

    def layer_norm(self, x: str, size: int, axis: int = -1, spatial: int = 0) -> str:
        """Add layer normalization in its parts."""
        mean = self.op("ReduceMean", x, axes=[axis], keepdims=1)
        centred = self.op("Sub", x, mean)
        square = self.op("Pow", centred, self.const(2.0))
        var = self.op("ReduceMean", square, axes=[axis], keepdims=1)
        root = self.op("Sqrt", self.op("Add", var, self.const(1e-5)))
        shape = (size, *(1,) * spatial)
        scaled = self.op("Mul", self.op("Div", centred, root), self.positive(*shape))
        return str(self.op("Add", scaled, self.normal(*shape, scale=0.1)))

    def gelu(self, x: str) -> str:
        """Add Gelu by the error function."""
        erf = self.op("Erf", self.op("Div", x, self.const(2**0.5)))
        product = self.op("Mul", x, self.op("Add", erf, self.const(1.0)))
        return str(self.op("Mul", product, self.const(0.5)))

    def silu(self, x: str) -> str:
        """Add ``x * sigmoid(x)``."""
        return str(self.op("Mul", x, self.op("Sigmoid", x)))

    def done(self, **outputs: str) -> onnx.ModelProto:
        """Return the model; outputs by name."""
        graph = helper.make_graph(
            [*self.nodes, *(helper.make_node("Identity", [v], [n]) for n, v in outputs.items())],
            "net",
            self.inputs,
            [onnx.ValueInfoProto(name=n) for n in outputs],
            self.weights,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8
        )
        model = onnx.shape_inference.infer_shapes(model)
        del model.graph.value_info[:]
        return model


def plain_cnn(opset: int) -> onnx.ModelProto:
    """Return a classifier of operators whose form opsets 7 to the newest share."""
    net = Net(opset)
    x = net.x("x", ["N", 3, 16, 16])
    x = net.conv(x, 3, 8, 3)
    scale, bias, mean, var = net.positive(8), net.normal(8), net.normal(8), net.positive(8)
    x = net.op("Relu", net.op("BatchNormalization", x, scale, bias, mean, var))
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Add", net.conv(x, 8, 8, 3), x)
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    x = net.op("Gemm", x, net.normal(10, 8), net.normal(10), transB=1)
    return net.done(y=net.op("Softmax", x, axis=1))


def lstm() -> onnx.ModelProto:
    """Return two bidirectional LSTM layers over [N, 12, 8], batch first, as torch exports them."""
    net = Net()
    x = net.x("x", ["N", 12, 8])
    batch = net.op("Gather", net.op("Shape", x), net.const(np.int64(0)))
    state = net.op(
        "Concat",
        net.const(np.int64([4])),
        net.op("Unsqueeze", batch, net.const(np.int64([0]))),
        net.const(np.int64([6])),
        axis=0,
    )
    zeros = net.op("Expand", net.const(np.float32(0)), state)
    y, size = net.op("Transpose", x, perm=[1, 0, 2]), 8
    for layer in range(2):
        first = net.op(
            "Slice",
            zeros,
            net.const(np.int64([2 * layer])),
            net.const(np.int64([2 * layer + 2])),
            net.const(np.int64([0])),
        )
        weights = net.normal(2, 24, size), net.normal(2, 24, 6), net.normal(2, 48, scale=0.2)
        y, last, _ = net.op(
            "LSTM",
            y,
            *weights,
            "",
            first,
            first,
            outputs=3,
            hidden_size=6,
            direction="bidirectional",
        )
        y = net.op("Transpose", y, perm=[0, 2, 1, 3])
        y, size = net.op("Reshape", y, net.const(np.int64([0, 0, -1]))), 12
    y = net.op("Transpose", y, perm=[1, 0, 2])
    y = net.op("Gather", y, net.const(np.int64(-1)), axis=1)
    logits = net.op("Gemm", y, net.normal(5, 12), net.normal(5), transB=1)
    return net.done(logits=logits, state=last)


def gru(linear_before_reset: int = 1) -> onnx.ModelProto:
    """Return a GRU layer over [10, N, 8] and a linear layer on each step."""
    net = Net()
    x = net.x("x", [10, "N", 8])
    weights = net.normal(1, 24, 8), net.normal(1, 24, 8), net.normal(1, 48, scale=0.2)
    y, last = net.op(
        "GRU", x, *weights, outputs=2, hidden_size=8, linear_before_reset=linear_before_reset
    )
    y = net.linear(net.op("Squeeze", y, net.const(np.int64([1]))), 8, 5)
    return net.done(y=net.op("LogSoftmax", y, axis=-1), state=last)


def efficientnet(dtype: Any = np.float32) -> onnx.ModelProto:
    """Return inverted bottlenecks with squeeze and excitation, batch norms apart."""
    net = Net(dtype=dtype)

    def norm(x: str, size: int) -> str:
        stats = net.positive(size), net.normal(size), net.normal(size), net.positive(size)
        return str(net.op("BatchNormalization", x, *stats, epsilon=1e-3))

    x = net.x("image", ["N", 3, 32, 32])
    x = net.silu(norm(net.conv(x, 3, 16, 3, 2), 16))
    for stride, kernel in ((1, 3), (2, 5), (1, 5)):
        wide = net.silu(norm(net.conv(x, 16, 64, 1), 64))
        wide = net.silu(norm(net.conv(wide, 64, 64, kernel, stride, 64), 64))
        gate = net.op("ReduceMean", wide, axes=[2, 3], keepdims=1)
        gate = net.silu(net.conv(gate, 64, 8, 1))
        wide = net.op("Mul", net.op("Sigmoid", net.conv(gate, 8, 64, 1)), wide)
        y = norm(net.conv(wide, 64, 16, 1), 16)
        x = net.op("Add", y, x) if stride == 1 else y
    x = net.op("Flatten", net.op("GlobalAveragePool", net.silu(net.conv(x, 16, 48, 1))))
    return net.done(logits=net.op("Gemm", x, net.normal(10, 48), net.normal(10), transB=1))


def convnext() -> onnx.ModelProto:
    """Return a patchify stem, blocks in channel-last order, and a downsampling between."""
    net = Net()
    x = net.x("image", ["N", 3, 32, 32])
    x = net.op("Conv", x, net.normal(16, 3, 4, 4), net.normal(16), strides=[4, 4])
    x = net.layer_norm(x, 16, axis=1, spatial=2)
    size = 16
    for block in range(3):
        if block == 2:
            x = net.layer_norm(x, 16, axis=1, spatial=2)
            x = net.op("Conv", x, net.normal(24, 16, 2, 2), net.normal(24), strides=[2, 2])
            size = 24
        y = net.conv(x, size, size, 7, 1, size)
        y = net.layer_norm(net.op("Transpose", y, perm=[0, 2, 3, 1]), size)
        y = net.linear(net.gelu(net.linear(y, size, 4 * size)), 4 * size, size)
        y = net.op("Mul", net.normal(size, scale=0.5), y)
        x = net.op("Add", x, net.op("Transpose", y, perm=[0, 3, 1, 2]))
    x = net.layer_norm(net.op("ReduceMean", x, axes=[-2, -1], keepdims=0), 24)
    return net.done(logits=net.op("Gemm", x, net.normal(10, 24), net.normal(10), transB=1))


def detector(classes: int = 4) -> onnx.ModelProto:
    """Return a YOLO-type detector: two scales, and decode and suppression in the graph.

    Boxes are decoded as in YOLOv5: ``(2 s - 0.5 + grid) stride`` and ``(2 s)^2 anchor``.
    """
    net = Net()
    x = net.x("images", [1, 3, 64, 64])
    net.scope = "body/"
    x = net.silu(net.conv(x, 3, 16, 3, 2))
    x = net.silu(net.conv(x, 16, 32, 3, 2))
    fine = net.silu(net.conv(x, 32, 32, 3, 2))
    coarse = net.silu(net.conv(fine, 32, 32, 3, 2))
    scales = net.const(np.float32([1, 1, 2, 2]))
    up = net.op("Resize", coarse, "", scales, mode="nearest")
    fine = net.silu(net.conv(net.op("Concat", fine, up, axis=1), 64, 32, 3))
    found, wide = [], 5 + classes
    for size, stride, value in ((8, 8, fine), (4, 16, coarse)):
        net.scope = "body/"
        head = net.conv(value, 32, 3 * wide, 1)
        net.scope = "decode/"
        y = net.op("Reshape", head, net.const(np.int64([1, 3, wide, size, size])))
        y = net.op("Sigmoid", net.op("Transpose", y, perm=[0, 1, 3, 4, 2]))
        parts = net.const(np.int64([2, 2, wide - 4]))
        xy, wh, rest = net.op("Split", y, parts, outputs=3, axis=4)
        rows, cols = np.mgrid[:size, :size].astype(np.float32)
        grid = np.stack([cols, rows], -1)[None, None] - 0.5
        xy = net.op("Add", net.op("Mul", xy, net.const(2.0)), net.const(grid))
        xy = net.op("Mul", xy, net.const(float(stride)))
        wh = net.op("Pow", net.op("Mul", wh, net.const(2.0)), net.const(2.0))
        anchors = np.float32([[1, 2], [2, 1], [2, 2]]) * stride
        wh = net.op("Mul", wh, net.const(anchors.reshape(1, 3, 1, 1, 2)))
        y = net.op("Concat", xy, wh, rest, axis=4)
        found.append(net.op("Reshape", y, net.const(np.int64([1, -1, wide]))))
    y = net.op("Concat", *found, axis=1)
    parts = net.const(np.int64([4, 1, classes]))
    boxes, sure, scores = net.op("Split", y, parts, outputs=3, axis=2)
    scores = net.op("Mul", scores, sure)
    net.scope = "nms/"
    scores = net.op("Transpose", scores, perm=[0, 2, 1])
    limits = net.const(np.int64([20])), net.const(0.5), net.const(0.3)
    chosen = net.op("NonMaxSuppression", boxes, scores, *limits, center_point_box=1)
    index = net.op("Gather", chosen, net.const(np.int64([2])), axis=1)
    index = net.op("Squeeze", index, net.const(np.int64([1])))
    return net.done(kept=net.op("Gather", boxes, index, axis=1), chosen=chosen)


def bert(blocks: int = 2, width: int = 32, heads: int = 4) -> onnx.ModelProto:
    """Return a sentence encoder as torch exports one: shapes computed, attention in its parts."""
    net = Net(14)
    ids, mask, kinds = (
        net.x(n, ["batch", "sequence"], TensorProto.INT64)
        for n in ("input_ids", "attention_mask", "token_type_ids")
    )
    zero = np.int64([0])

    def unsqueezed(value: str, axis: int) -> str:
        return str(net.op("Unsqueeze", value, net.const(np.int64([axis]))))

    def dim(value: str, axis: int) -> str:
        size = net.op("Gather", net.op("Shape", value), net.const(np.int64(axis)), axis=0)
        return unsqueezed(size, 0)

    net.scope = "embeddings/"
    places = net.op(
        "Slice",
        net.const(np.arange(64)[None]),
        net.const(zero),
        dim(ids, 1),
        net.const(np.int64([1])),
    )
    x = net.op("Gather", net.normal(50, width, scale=1.0), ids)
    x = net.op("Add", x, net.op("Gather", net.normal(2, width, scale=1.0), kinds))
    x = net.op("Add", x, net.op("Gather", net.normal(64, width, scale=1.0), places))
    x = net.layer_norm(x, width)
    bias = net.op("Cast", unsqueezed(unsqueezed(mask, 1), 2), to=TensorProto.FLOAT)
    bias = net.op("Sub", net.const(1.0), bias)
    bias = net.op("Mul", bias, net.const(float(np.finfo(np.float32).min)))
    for block in range(blocks):
        net.scope = f"encoder/{block}/"

        def split(value: str, perm: Sequence[int]) -> str:
            shape = net.op(
                "Concat",
                dim(value, 0),
                dim(value, 1),
                net.const(np.int64([heads])),
                net.const(np.int64([width // heads])),
                axis=0,
            )
            return str(net.op("Transpose", net.op("Reshape", value, shape), perm=perm))

        query = net.linear(x, width, width)
        key = split(net.linear(x, width, width), [0, 2, 3, 1])
        value = split(net.linear(x, width, width), [0, 2, 1, 3])
        product = net.op("MatMul", split(query, [0, 2, 1, 3]), key)
        product = net.op("Div", product, net.const(float(width // heads) ** 0.5))
        scores = net.op("Softmax", net.op("Add", product, bias), axis=-1)
        y = net.op("Transpose", net.op("MatMul", scores, value), perm=[0, 2, 1, 3])
        shape = net.op("Concat", dim(y, 0), dim(y, 1), net.const(np.int64([width])), axis=0)
        y = net.linear(net.op("Reshape", y, shape), width, width)
        x = net.layer_norm(net.op("Add", y, x), width)
        y = net.linear(net.gelu(net.linear(x, width, 4 * width)), 4 * width, width)
        x = net.layer_norm(net.op("Add", y, x), width)
    return net.done(last_hidden_state=x)
