"""Models of known shape and random weights, made on the fly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["chain", "encoder", "large", "one_node", "resnet50"]

_OPSET = 17


class _Builder:
    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(seed)
        self._count = 0

    def weight(self, *shape: int, scale: float = 0.05) -> str:
        name = f"w{len(self.weights)}"
        data = self._rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        self.weights.append(numpy_helper.from_array(data, name))
        return name

    def constant(self, data: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(data), name))
        return name

    def node(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        self._count += 1
        out = f"{op_type.lower()}_{self._count}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [out], name=out, **attrs))
        return out

    def save(
        self,
        path: Path,
        inputs: dict[str, tuple[int, list[int]]],
        output: str,
        shape: list[int],
    ) -> None:
        graph = helper.make_graph(
            self.nodes,
            path.stem,
            [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
        model.ir_version = 8
        onnx.save(model, path)


def one_node(path: Path) -> None:
    """Write a model of one node: what any model costs."""
    b = _Builder()
    b.save(path, {"x": (TensorProto.FLOAT, [1, 4])}, b.node("Relu", "x"), [1, 4])


def resnet50(path: Path) -> None:
    """Write a network of ResNet-50's layers, batch normalization apart as in training: 98 MB."""
    b = _Builder()

    def conv(x: str, cin: int, cout: int, k: int, stride: int = 1) -> str:
        y = b.node(
            "Conv",
            x,
            b.weight(cout, cin, k, k),
            kernel_shape=[k, k],
            strides=[stride] * 2,
            pads=[k // 2] * 4,
        )
        numbers = [b.constant(np.full(cout, v, np.float32)) for v in (1.0, 0.1, 0.0, 1.0)]
        return b.node("BatchNormalization", y, *numbers)

    x = b.node("Relu", conv("image", 3, 64, 7, 2))
    x = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = b.node("Relu", conv(x, channels, width, 1))
            y = b.node("Relu", conv(y, width, width, 3, stride))
            y = conv(y, width, 4 * width, 1)
            if not block:
                x = conv(x, channels, 4 * width, 1, stride)
            x = b.node("Relu", b.node("Add", y, x))
            channels = 4 * width
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    x = b.node("Gemm", x, b.weight(1000, channels), b.weight(1000), transB=1)
    b.save(path, {"image": (TensorProto.FLOAT, [1, 3, 224, 224])}, x, [1, 1000])


def encoder(path: Path, *, layers: int = 6, width: int = 384, tokens: int = 128) -> None:
    """Write a text encoder of MiniLM's size in the primitive operators of an export: 87 MB."""
    b = _Builder()
    heads = 12

    def dense(x: str, cin: int, cout: int) -> str:
        return b.node("Add", b.node("MatMul", x, b.weight(cin, cout)), b.weight(cout))

    def norm(x: str) -> str:
        centred = b.node("Sub", x, b.node("ReduceMean", x, axes=[-1]))
        square = b.node("Pow", centred, b.constant(np.float32(2)))
        moved = b.node(
            "Add", b.node("ReduceMean", square, axes=[-1]), b.constant(np.float32(1e-12))
        )
        y = b.node("Div", centred, b.node("Sqrt", moved))
        return b.node("Add", b.node("Mul", y, b.weight(width)), b.weight(width))

    def split(x: str, perm: list[int]) -> str:
        shape = b.constant(np.array([1, tokens, heads, width // heads]))
        return b.node("Transpose", b.node("Reshape", x, shape), perm=perm)

    x = norm(
        b.node("Add", b.node("Gather", b.weight(30522, width), "ids"), b.weight(tokens, width))
    )
    for _ in range(layers):
        q, k, v = (dense(x, width, width) for _ in range(3))
        scores = b.node("MatMul", split(q, [0, 2, 1, 3]), split(k, [0, 2, 3, 1]))
        scores = b.node("Div", scores, b.constant(np.float32((width // heads) ** 0.5)))
        mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), split(v, [0, 2, 1, 3]))
        mixed = b.node("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = b.node("Reshape", mixed, b.constant(np.array([1, tokens, width])))
        x = norm(b.node("Add", dense(mixed, width, width), x))
        h = dense(x, width, 4 * width)
        erf = b.node("Erf", b.node("Div", h, b.constant(np.float32(2**0.5))))
        h = b.node(
            "Mul",
            b.node("Mul", h, b.node("Add", erf, b.constant(np.float32(1)))),
            b.constant(np.float32(0.5)),
        )
        x = norm(b.node("Add", dense(h, 4 * width, width), x))
    b.save(path, {"ids": (TensorProto.INT64, [1, tokens])}, x, [1, tokens, width])


def chain(path: Path, length: int) -> None:
    """Write a chain of ``length`` nodes that no simplification shortens."""
    b = _Builder()
    x = "x"
    for i in range(length):
        x = b.node(("Sin", "Sigmoid", "Tanh", "Cos")[i % 4], x)
    b.save(path, {"x": (TensorProto.FLOAT, [1, 16])}, x, [1, 16])


def large(path: Path, *, gigabytes: float = 2.2) -> None:
    """Write a model over protobuf's 2 GB: matrices of 64 MB in a file of their own.

    The data is written part by part, so that this process stays small.
    """
    side = 4096
    count = int(gigabytes * 1e9 / (side * side * 4))
    data = path.with_name(path.name + ".data")
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    with data.open("wb") as file:
        for i in range(count):
            tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[side, side])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (
                ("location", data.name),
                ("offset", str(file.tell())),
                ("length", str(side * side * 4)),
            ):
                tensor.external_data.add(key=key, value=value)
            file.write(rng.standard_normal((side, side), dtype=np.float32).data)
            weights.append(tensor)
            nodes += [
                helper.make_node("MatMul", [x, f"w{i}"], [f"m{i}"], name=f"m{i}"),
                helper.make_node("Relu", [f"m{i}"], [f"r{i}"], name=f"r{i}"),
            ]
            x = f"r{i}"
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, side])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, side])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
    model.ir_version = 8
    path.write_bytes(model.SerializeToString())
