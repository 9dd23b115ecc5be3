"""ONNX's Attention operator becomes the layers of an attention block, which the NPU runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from qbcompiler.devices import load_device
from qbcompiler.errors import ModelLoadError
from qbcompiler.frontend import load_model, parse
from qbcompiler.ir import Graph
from qbcompiler.partition import partition
from qbcompiler.runtime.float_engine import FloatEngine

TOKENS, WIDTH, HEADS = 12, 64, 4


def encoder(
    mask: int | None = None, key_heads: int = HEADS, opset: int = 23, **attrs: Any
) -> onnx.ModelProto:
    """Build projections, attention, output projection, residual and normalization."""
    rng = np.random.default_rng(5)
    weights, nodes = [], []

    def weight(name: str, *shape: int) -> str:
        data = (rng.normal(size=shape) * 0.2).astype(np.float32)
        weights.append(numpy_helper.from_array(data, name))
        return name

    def linear(name: str, x: str, inputs: int, outputs: int) -> None:
        product = helper.make_node(
            "MatMul", [x, weight(f"w_{name}", inputs, outputs)], [f"{name}0"]
        )
        bias = helper.make_node("Add", [f"{name}0", weight(f"b_{name}", outputs)], [name])
        nodes.extend([product, bias])

    size = WIDTH // HEADS
    for name, heads in (("q", HEADS), ("k", key_heads), ("v", key_heads)):
        linear(name, "x", WIDTH, heads * size)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, TOKENS, WIDTH])]
    if mask is not None:
        inputs.append(helper.make_tensor_value_info("mask", mask, [1, 1, TOKENS, TOKENS]))
    nodes.append(
        helper.make_node(
            "Attention", ["q", "k", "v", *(["mask"] if mask is not None else [])], ["a"],
            name="attention", q_num_heads=HEADS, kv_num_heads=key_heads, **attrs,
        )
    )  # fmt: skip
    linear("o", "a", WIDTH, WIDTH)
    nodes.append(helper.make_node("Add", ["o", "x"], ["r"]))
    weight("gamma", WIDTH)
    nodes.append(helper.make_node("LayerNormalization", ["r", "gamma"], ["y"]))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, TOKENS, WIDTH])]
    graph = helper.make_graph(nodes, "encoder", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def parsed(model: onnx.ModelProto) -> Graph:
    return parse(load_model(model), input_shapes={})


def kinds(graph: Graph | None) -> Counter[str]:
    assert graph is not None
    return Counter(n.op for n in graph.nodes)


BLOCK = {
    "MatMul": 6,
    "HeaderView": 3,
    "Softmax": 1,
    "HeaderViewRevert": 1,
    "Adding": 1,
    "LayerNormalization": 1,
}


@pytest.mark.parametrize("device", ["aries-rb", "regulus-rb"])
@pytest.mark.parametrize(
    ("model", "more"),
    [
        ({}, {}),
        ({"is_causal": 1}, {"AddingConstant": 1}),
        ({"softcap": 5.0}, {"Tanh": 1, "MultiplyConstant": 1}),
        ({"key_heads": 2}, {"Unsqueeze": 2, "Expand": 2, "Reshape": 2, "Transpose": 1}),
        ({"opset": 25, "left_window_size": 3}, {"AddingConstant": 1}),
    ],
    ids=["plain", "causal", "capped", "shared-keys", "window"],
)
def test_an_attention_block_is_one_body(
    device: str, model: dict[str, Any], more: dict[str, int]
) -> None:
    parts = partition(parsed(encoder(**model)), load_device(device), cpu_offload=False)
    assert parts.head is None and parts.tail is None
    assert kinds(parts.body) == Counter(BLOCK) + Counter(more)


@pytest.mark.parametrize("mask", [TensorProto.BOOL, TensorProto.FLOAT])
def test_what_a_mask_decides_is_the_head(mask: int) -> None:
    parts = partition(parsed(encoder(mask)), load_device("regulus-rb"), cpu_offload=True)
    assert parts.head is not None and parts.tail is None
    assert {n.op for n in parts.head.nodes} == {"Where", "ReduceMax", "TensorCmp", "Cast"}
    assert kinds(parts.body) == Counter(BLOCK) + Counter({"Adding": 1, "Multiply": 1})


@pytest.mark.parametrize("mask", [None, TensorProto.BOOL, TensorProto.FLOAT])
@pytest.mark.parametrize("key_heads", [HEADS, 2])
def test_attention_gives_onnx_runtimes_outputs(mask: int | None, key_heads: int) -> None:
    model = encoder(mask, key_heads, is_causal=int(mask is None))
    rng = np.random.default_rng(2)
    feed: dict[str, Any] = {"x": rng.normal(size=(1, TOKENS, WIDTH)).astype(np.float32)}
    if mask is not None:
        allowed = rng.random((1, 1, TOKENS, TOKENS)) < 0.6
        allowed[0, 0, :, 0] = True  # a row without any key is ONNX Runtime's and ONNX's to settle
        minus = np.where(allowed, 0.0, -np.inf).astype(np.float32)
        feed["mask"] = allowed if mask == TensorProto.BOOL else minus
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, feed)
    got = FloatEngine(parsed(model)).run(feed)["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_row_without_a_key_attends_to_nothing() -> None:
    model = encoder(TensorProto.BOOL)
    feed: dict[str, Any] = {"x": np.ones((1, TOKENS, WIDTH), np.float32)}
    feed["mask"] = np.ones((1, 1, TOKENS, TOKENS), bool)
    feed["mask"][0, 0, 3] = False
    graph = parsed(model)
    got = FloatEngine(graph).run(feed)["y"][0]
    assert np.isfinite(got).all()
    # all other rows see the same tokens; this one is what it is without attention
    np.testing.assert_allclose(got[2], got[4], rtol=1e-6)
    assert np.abs(got[3] - got[2]).max() > 0.1


def test_heads_that_cannot_be_shared_are_an_error() -> None:
    with pytest.raises(ModelLoadError) as caught:
        parsed(encoder(key_heads=3))
    assert str(caught.value) == (
        "node 'attention' (Attention) shares 3 heads of keys among 4 heads of queries"
    )
    assert "q_num_heads" in (caught.value.hint or "")
