"""Real trained models: parsed whole, fused as expected, and equal to ONNX Runtime's outputs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from qbcompiler.devices import load_device
from qbcompiler.frontend import load_model, parse
from qbcompiler.ir import Graph, dump
from qbcompiler.ops.onnx_layer import OnnxAttrs
from qbcompiler.partition import partition
from qbcompiler.runtime.float_engine import FloatEngine

SHAPES = {
    "ppocrv4_cls": (1, 3, 48, 192),
    "ppocrv4_det": (1, 3, 320, 320),
    "ppocrv4_rec": (1, 3, 48, 320),
    "ppocrv5_cls": (1, 3, 80, 160),
}

LAYERS = {
    "ppocrv4_cls": {
        "Adding": 7,
        "Convolution": 42,
        "DepthwiseConvolution": 11,
        "GlobalAveragePooling": 10,
        "HardSigmoid": 9,
        "HardSwish": 18,
        "MatMul": 1,
        "Multiply": 9,
        "Pooling": 1,
        "Relu": 15,
        "Reshape": 1,
        "Softmax": 1,
    },
    "ppocrv4_det": {
        "Adding": 11,
        "Batchnorm": 14,
        "Concatenate": 1,
        "Convolution": 48,
        "DepthwiseConvolution": 14,
        "GlobalAveragePooling": 10,
        "HardSigmoid": 10,
        "HardSwish": 24,
        "Multiply": 10,
        "Relu": 12,
        "Resize": 6,
        "Sigmoid": 1,
        "TransposeConvolution": 2,
    },
    "ppocrv4_rec": {
        "Adding": 4,
        "Batchnorm": 16,
        "Concatenate": 1,
        "Convolution": 24,
        "DepthwiseConvolution": 14,
        "GlobalAveragePooling": 2,
        "HardSigmoid": 2,
        "HardSwish": 28,
        "HeaderView": 6,
        "HeaderViewRevert": 2,
        "LayerNormalization": 5,
        "MatMul": 17,
        "Multiply": 2,
        "Pooling": 1,
        "Relu": 2,
        "Reshape": 3,
        "Softmax": 3,
        "Swish": 7,
        "Transpose": 3,
    },
}


def parsed(model: Path, passes: bool = True) -> Graph:
    source = load_model(model)
    return parse(source, input_shapes={"x": SHAPES[model.stem]}, passes=passes)


def picture(shape: tuple[int, ...], crops: Any) -> Any:
    """Fill an input with real text crops, next to and below each other."""
    _, channels, height, width = shape
    sheet = np.concatenate([np.concatenate(list(crops[i : i + 8]), axis=2) for i in (0, 8)], axis=1)
    rows = -(-height // sheet.shape[1])
    return np.tile(sheet, (1, rows, 1))[None, :channels, :height, :width].astype(np.float32)


@pytest.mark.parametrize("passes", [False, True])
def test_outputs_equal_onnx_runtimes(
    real_model: Path, passes: bool, ocr_held_out: tuple[Any, Any]
) -> None:
    shape = SHAPES[real_model.stem]
    x = picture(shape, ocr_held_out[0])
    graph = parsed(real_model, passes)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(str(real_model), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    want = session.run(names, {"x": x})
    got = FloatEngine(graph).run({"x": x})
    assert list(got) == names and graph.inputs == ["x"]
    for name, expected in zip(names, want, strict=True):
        scale = float(np.abs(expected).max())
        # a map of near-zeros says nothing; the detector must see the text
        assert scale > 0.1
        np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.parametrize("name", LAYERS)
def test_blocks_are_fused_and_nothing_odd_is_left(name: str, models_dir: Path) -> None:
    graph = parsed(models_dir / f"{name}.onnx")
    assert dict(sorted(Counter(n.op for n in graph.nodes).items())) == LAYERS[name]


def test_no_layer_is_left_to_the_cpu(real_model: Path) -> None:
    graph = parsed(real_model)
    assert not [n.name for n in graph.nodes if isinstance(n.attrs, OnnxAttrs)]
    parts = partition(graph, load_device("regulus-rb"), cpu_offload=False)
    assert parts.head is None and parts.tail is None and parts.body is not None
    assert len(parts.body) == len(graph) and not parts.unsupported


def test_every_source_node_is_accounted_for(real_model: Path) -> None:
    """What a layer stands for is known, so that a user finds a source node's layer."""
    graph = parsed(real_model)
    named = {s for n in graph.nodes for s in n.source}
    known = {
        node.name or f"{node.op_type}_{i}"
        for i, node in enumerate(load_model(real_model).proto.graph.node)
    }
    assert named <= known
    assert all(n.source for n in graph.nodes)


def test_parsing_twice_gives_the_same_graph(ocr_cls: Path) -> None:
    assert dump(parsed(ocr_cls)) == dump(parsed(ocr_cls))
