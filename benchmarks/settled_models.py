"""ResNet-50 and MobileNetV2 with random weights that behave like trained ones.

What makes trained networks hard to quantize is how unlike their channels are. So the weights of
each output channel have a size of their own (log-normal; widest in depthwise layers), batch
normalization has the statistics of real pictures, taken in training mode from a first run, and its
scales and shifts vary as trained ones do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

__all__ = ["mobilenet_v2", "resnet50"]

Floats = NDArray[np.float32]
_OPSET = 17


class _Network:
    """A graph under construction; convolutions are followed by batch normalization."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, Floats] = {}
        self._norms: list[tuple[str, str]] = []

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        name = f"{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attrs))
        return name

    def const(self, data: Any) -> str:
        name = f"w{len(self._weights)}"
        self._weights[name] = np.asarray(data, np.float32)
        return name

    def conv(self, x: str, cin: int, cout: int, k: int, stride: int = 1, groups: int = 1) -> str:
        fan = cin // groups * k * k
        spread = 0.8 if groups > 1 else 0.4
        size = self._rng.lognormal(0, spread, (cout, 1, 1, 1))
        weight = self._rng.standard_normal((cout, cin // groups, k, k)) * (2 / fan) ** 0.5 * size
        y = self.op(
            "Conv", x, self.const(weight), strides=[stride] * 2, pads=[k // 2] * 4, group=groups
        )
        numbers = [
            self.const(self._rng.lognormal(-0.2, 0.35, cout)),
            self.const(self._rng.normal(0, 0.3, cout)),
            self.const(np.zeros(cout)),
            self.const(np.ones(cout)),
        ]
        self._norms.append((numbers[2], numbers[3]))
        return self.op("BatchNormalization", y, *numbers)

    def relu6(self, x: str) -> str:
        return self.op("Clip", x, self.const(0.0), self.const(6.0))

    def classify(self, x: str, channels: int, classes: int = 1000) -> str:
        x = self.op("Flatten", self.op("GlobalAveragePool", x))
        weight = self._rng.standard_normal((classes, channels)) * channels**-0.5
        bias = self._rng.normal(0, 0.1, classes)
        return self.op("Gemm", x, self.const(weight), self.const(bias), transB=1)

    def save(self, path: Path, output: str, pictures: Floats) -> None:
        """Take the statistics of ``pictures`` and write the model for one picture at a time."""
        self._settle(pictures)
        onnx.save(self._model(self._nodes, [output], [1, *pictures.shape[1:]]), path)

    def _settle(self, pictures: Floats) -> None:
        nodes, outputs = [], []
        for node in self._nodes:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            if node.op_type == "BatchNormalization":
                mean, variance = node.input[3:5]
                copy.output.extend([f"{mean}_seen", f"{variance}_seen"])
                copy.attribute.extend(
                    [
                        helper.make_attribute("training_mode", 1),
                        helper.make_attribute("momentum", 0.0),
                    ]
                )
                outputs += copy.output[1:]
            nodes.append(copy)
        model = self._model(nodes, outputs, list(pictures.shape))
        options = ort.SessionOptions()
        options.log_severity_level = 3
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        for name, value in zip(outputs, session.run(None, {"image": pictures}), strict=True):
            self._weights[name.removesuffix("_seen")] = np.asarray(value, np.float32)

    def _model(self, nodes: Any, outputs: list[str], shape: list[int]) -> onnx.ModelProto:
        graph = helper.make_graph(
            nodes,
            "settled",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
            [numpy_helper.from_array(v, n) for n, v in self._weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
        model.ir_version = 8
        return model


def resnet50(path: Path, pictures: Floats) -> None:
    """Write ResNet-50.

    Args:
        path: the file.
        pictures: [N, 3, 224, 224], as the network will see them.
    """
    net = _Network(50)
    x = net.op("Relu", net.conv("image", 3, 64, 7, 2))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = net.op("Relu", net.conv(x, channels, width, 1))
            y = net.op("Relu", net.conv(y, width, width, 3, stride))
            y = net.conv(y, width, 4 * width, 1)
            if not block:
                x = net.conv(x, channels, 4 * width, 1, stride)
            x = net.op("Relu", net.op("Add", y, x))
            channels = 4 * width
    net.save(path, net.classify(x, channels), pictures)


def mobilenet_v2(path: Path, pictures: Floats) -> None:
    """Write MobileNetV2; arguments as for :func:`resnet50`."""
    net = _Network(2)
    x = net.relu6(net.conv("image", 3, 32, 3, 2))
    channels = 32
    plan = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1))
    for grow, width, blocks, first in (*plan, (6, 160, 3, 2), (6, 320, 1, 1)):
        for block in range(blocks):
            stride = first if not block else 1
            wide = grow * channels
            y = net.relu6(net.conv(x, channels, wide, 1)) if grow > 1 else x
            y = net.relu6(net.conv(y, wide, wide, 3, stride, groups=wide))
            y = net.conv(y, wide, width, 1)
            x = net.op("Add", x, y) if stride == 1 and channels == width else y
            channels = width
    x = net.relu6(net.conv(x, channels, 1280, 1))
    net.save(path, net.classify(x, 1280), pictures)
