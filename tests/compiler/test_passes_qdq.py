"""Models that were quantized elsewhere keep their scales, and run on the NPU with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from qbcompiler import mxq_compile
from qbcompiler.devices import load_device
from qbcompiler.frontend import load_model, parse
from qbcompiler.ir import DType, Graph, QuantParams, TensorType
from qbcompiler.ops import Case, default_registry
from qbcompiler.ops.fixedpoint import dequantize, quantize
from qbcompiler.ops.shapes import CastAttrs
from qbcompiler.package import read_mxq
from qbcompiler.partition import partition
from qbcompiler.passes.fuse_qdq import FuseQdq
from qbcompiler.runtime.float_engine import FloatEngine

from ..conftest import Digits
from .ops_harness import build_layer, case_graph, run_float, run_layer
from .test_model_kinds import qdq_model  # noqa: F401

node = helper.make_node
CONSTANTS: dict[str, Any] = {
    "s": np.float32(0.05),
    "z": np.uint8(120),
    "s2": np.float32(0.06),
    "z2": np.uint8(121),
    "rows": np.float32([0.1, 0.2, 0.3]),
    "zrows": np.zeros(3, np.int8),
    "wide": np.uint16(1000),
    "none": np.float32(0.0),
}


def model_of(*nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4])],
        [onnx.ValueInfoProto(name=o) for o in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in CONSTANTS.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def parsed(model: onnx.ModelProto) -> tuple[Graph, list[str]]:
    reasons: list[str] = []
    graph = parse(
        load_model(model),
        explain=lambda step, _, why: reasons.append(why) if step == FuseQdq.name else None,
    )
    x = np.random.default_rng(2).normal(0, 4, (1, 3, 4)).astype(np.float32)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    want = session.run(None, {"x": x})
    got = FloatEngine(graph).run({"x": x})
    for name, expected in zip(graph.outputs, want, strict=True):
        np.testing.assert_allclose(got[name], expected, rtol=1e-6)
    return graph, reasons


def q(x: str, y: str, s: str = "s", z: str = "z", **attrs: Any) -> onnx.NodeProto:
    return node("QuantizeLinear", [x, s, z], [y], **attrs)


def dq(x: str, y: str, s: str = "s", z: str = "z", **attrs: Any) -> onnx.NodeProto:
    return node("DequantizeLinear", [x, s, z], [y], **attrs)


def test_a_pair_becomes_a_cast_through_its_grid() -> None:
    graph, _ = parsed(model_of(q("x", "a"), dq("a", "b"), node("Relu", ["b"], ["y"])))
    first, second = graph.nodes
    assert (first.op, second.op) == ("Cast", "Relu")
    assert first.attrs == CastAttrs("float32", float(np.float32(0.05)), 120, "uint8")
    assert first.source == ("QuantizeLinear_0", "DequantizeLinear_1")


def test_integers_that_others_read_stay() -> None:
    graph, _ = parsed(model_of(q("x", "a"), dq("a", "y"), outputs=("a", "y")))
    assert sorted(n.op for n in graph.nodes) == ["Cast", "Onnx"]


def test_two_that_come_back_from_the_same_integers_are_one() -> None:
    nodes = [q("x", "a"), dq("a", "b"), dq("a", "c"), node("MatMul", ["b", "t"], ["y"])]
    nodes.insert(3, node("Transpose", ["c"], ["t"], perm=[0, 2, 1]))
    graph, _ = parsed(model_of(*nodes))
    assert [n.op for n in graph.nodes] == ["Cast", "Transpose", "MatMul"]


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([q("x", "a"), dq("a", "y", s="s2")], "it comes back on another scale"),
        ([q("x", "a"), dq("a", "y", z="z2")], "it comes back on another zero point"),
        (
            [q("x", "a", "rows", "zrows", axis=1), dq("a", "y", "rows", "zrows", axis=1)],
            "it has a scale for each channel",
        ),
        ([q("x", "a", z="wide"), dq("a", "y", z="wide")], "its integers are uint16, not of 8 bits"),
    ],
)
def test_other_pairs_stay_with_the_reason(nodes: list[onnx.NodeProto], reason: str) -> None:
    graph, reasons = parsed(model_of(*nodes))
    assert [n.op for n in graph.nodes] == ["Onnx", "Onnx"]
    assert reasons == [reason]


@pytest.mark.parametrize("same", [True, False], ids=["same_grid", "other_grid"])
@pytest.mark.parametrize("stored,zero", [("int8", 0), ("int8", -128), ("uint8", 40)])
def test_integers_are_cut_off_where_the_grid_ends(stored: str, zero: int, same: bool) -> None:
    spec = default_registry()["Cast"]
    attrs = CastAttrs("float32", 1 / 32, zero, stored)
    graph = case_graph(spec, Case("grid", attrs, [TensorType(DType.FLOAT32, (256,))]))
    low, high = spec.grid(graph.nodes[0], graph) or (0.0, 0.0)
    assert (high - low) * 32 == (254 if zero == 0 else 255)
    out = QuantParams((max(-low, high) / 127,))  # as a method without zero points chooses it
    grids = {"x0": out if same else QuantParams((0.11,)), "y0": out}
    x = np.arange(-128, 128).astype(np.int8)
    layer = build_layer(spec, graph, grids)
    found = run_layer(spec, layer, graph, grids, {"x0": x})[0]
    real = np.clip(dequantize(x, grids["x0"]), low, high)
    assert np.abs(dequantize(found, out) - real).max() <= out.scale / 2 * 1.001
    # and the float layer rounds to its own, finer grid
    fine = run_float(graph, {"x0": dequantize(x, grids["x0"])})[0]
    assert np.abs(fine - real).max() <= 1 / 64 + 1 / 32 * (zero == 0)
    np.testing.assert_array_equal(quantize(real, out), np.clip(found, -127, 127))


@pytest.mark.parametrize("method", [0, 2])
def test_a_quantized_network_runs_on_the_npu_alone(
    method: int,
    qdq_model: Path,  # noqa: F811
    digits: Digits,
    tmp_path: Path,
) -> None:
    graph = parse(load_model(qdq_model))
    parts = partition(graph, load_device("regulus-rb"), cpu_offload=False)
    assert parts.head is None and parts.tail is None
    data = tmp_path / "data"
    data.mkdir()
    for i, image in enumerate(digits.train_images[:16]):
        np.save(data / f"{i:02}.npy", image)
    built = mxq_compile(
        qdq_model,
        calib_data_path=str(data),
        target_device="regulus-rb",
        save_path=tmp_path / "q.mxq",
        calibration_config={"method": method},
    )
    (accuracy,) = built.summary["accuracy"]["outputs"]
    assert accuracy["sqnr_db"] > 20 and accuracy["top1_agreement"] == 1.0
    with read_mxq(tmp_path / "q.mxq") as opened:
        layers = [x for x in opened.body.layers if x.op == "Cast"]
        assert len(layers) == 14
        if method == 2:
            # every grid is the model's own: nothing is requantized but by the layers themselves
            scales = {
                float(n.attrs.scale)
                for n in graph.nodes
                if isinstance(n.attrs, CastAttrs) and n.attrs.scale is not None
            }
            made = [opened.body.values[x.outputs[0]].quant for x in layers]
            for grid in made:
                assert grid is not None
                assert min(abs(grid.scale / s - 1) for s in scales) < 2.0**-11
