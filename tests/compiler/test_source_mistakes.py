"""What a user is told about a source model that is wrong: each mistake's whole message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qbcompiler.cli import main

WEIGHT = np.arange(6, dtype=np.float32).reshape(3, 2)
node = helper.make_node


def save(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    weights: dict[str, Any] | None = None,
    shape: Sequence[int] = (2, 3),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 1) for d in domains)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return model


def product(folder: Path, **changes: Any) -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["y"], name="product")]
    return save(folder, nodes, {"w": changes.get("weight", WEIGHT)})


def external(folder: Path, location: str) -> None:
    model = product(folder)
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    (folder / "m.onnx").write_bytes(model.SerializeToString())


def with_nan() -> Any:
    weight = WEIGHT.copy()
    weight[1, 1] = np.nan
    return weight


def relu(name: str, x: str, y: str) -> onnx.NodeProto:
    return node("Relu", [x], [y], name=name)


MISTAKES: dict[str, Callable[[Path], Any]] = {
    "wrong_file": (lambda f: (f / "m.onnx").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))),
    "missing_external_data": (lambda f: external(f, "w.bin")),
    "external_data_outside": (lambda f: external(f, "../w.bin")),
    "unknown_domain": (
        lambda f: save(
            f, [node("Magic", ["x"], ["y"], name="odd", domain="acme.ai")], domains=["acme.ai"]
        )
    ),
    "unknown_operator": (lambda f: save(f, [node("Magic", ["x"], ["y"], name="odd")])),
    "cycle": (
        lambda f: save(f, [node("Add", ["x", "y"], ["a"], name="one"), relu("two", "a", "y")])
    ),
    "duplicate_name": (lambda f: save(f, [relu("one", "x", "y"), relu("two", "x", "y")])),
    "type_mismatch": (
        lambda f: save(f, [node("Add", ["x", "w"], ["y"], name="sum")], {"w": np.int64([1, 2, 3])})
    ),
    "shape_mismatch": (lambda f: product(f, weight=np.zeros((4, 2), np.float32))),
    "zero_sized_tensor": (lambda f: product(f, weight=np.zeros((3, 0), np.float32))),
}


MESSAGES = {
    "wrong_file": "ERROR [MODEL_LOAD_ERROR]: FILE is not an ONNX model: it looks like a PNG image",
    "missing_external_data": (
        "ERROR [MODEL_LOAD_ERROR]: FILE: external file 'w.bin' does not exist beside the model"
    ),
    "external_data_outside": (
        "ERROR [MODEL_LOAD_ERROR]: FILE: external file '../w.bin' points outside the model's folder"
    ),
    "unknown_domain": (
        "ERROR [UNSUPPORTED_OPERATOR]: node 'odd' (acme.ai::Magic): the type of its output "
        "'y' cannot be determined; operator domain 'acme.ai' is unknown"
    ),
    "unknown_operator": (
        "ERROR [UNSUPPORTED_OPERATOR]: node 'odd' (Magic): the type of its output 'y' cannot "
        "be determined; the operator is unknown"
    ),
    "cycle": "ERROR [MODEL_LOAD_ERROR]: the graph has a cycle through node 'one'",
    "duplicate_name": (
        "ERROR [MODEL_LOAD_ERROR]: value 'y' is made twice, by node 'one' and node 'two'"
    ),
    "type_mismatch": (
        "ERROR [MODEL_LOAD_ERROR]: node 'sum' (Add) is not valid: B has inconsistent type "
        "tensor(int64)"
    ),
    "shape_mismatch": (
        "ERROR [MODEL_LOAD_ERROR]: node 'product' (MatMul) is not valid: Incompatible "
        "dimensions for matrix multiplication"
    ),
    "zero_sized_tensor": (
        "ERROR [UNSUPPORTED_OPERATOR]: regulus-rb does not support 1 layer: product (MatMul, "
        "tail): one of its tensors has no elements"
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_has_its_message(
    mistake: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    MISTAKES[mistake](folder)
    path = str(folder / "m.onnx")
    assert main(["validate", "--model", path, "--target-device", "regulus-rb"]) == 3
    found = capfd.readouterr().err.splitlines()
    errors = [line.replace(path, "FILE") for line in found if line.startswith("ERROR")]
    assert errors == [MESSAGES[mistake]]


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (
            "tflite",
            "ERROR [ARGUMENT_ERROR]: backend 'tflite' is not available: this compiler reads onnx",
        ),
        ("onyx", "ERROR [ARGUMENT_ERROR]: unknown backend 'onyx'"),
    ],
)
def test_a_bad_backend(
    backend: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    product(tmp_path)
    args = ["--model", str(tmp_path / "m.onnx"), "--backend", backend]
    assert main(["validate", *args]) == 2
    assert capfd.readouterr().err.splitlines()[0] == message


def test_weights_with_nan(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    product(tmp_path, weight=with_nan())
    args = ["--model", str(tmp_path / "m.onnx"), "--target-device", "regulus-rb"]
    output = tmp_path / "m.mxq"
    assert main(["compile", *args, "--use-random-calib", "--output", str(output)]) == 3
    errors = [x for x in capfd.readouterr().err.splitlines() if x.startswith("ERROR")]
    assert errors == [
        "ERROR [QUANTIZATION_ERROR]: weight 'w' of layer 'product' (MatMul) holds NaN"
    ]
    assert not output.exists()
