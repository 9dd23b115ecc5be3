"""An MXQ as ONNX: what ONNX Runtime makes of it, against the integer runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from qbcompiler import api
from qbcompiler.cli import main
from qbcompiler.errors import InternalError
from qbcompiler.frontend.export import save_model
from qbcompiler.frontend.export_qdq import export_qdq
from qbcompiler.ir import DType, IntGraph, IntLayer, IntValue, TensorType
from qbcompiler.ops import Case, OpSpec, QuantRule
from qbcompiler.ops.fixedpoint import quantize
from qbcompiler.package import Mxq, read_mxq
from qbcompiler.runtime import IntegerEngine
from qbcompiler.runtime.pipeline import Pipeline

from .ops_harness import all_cases, build_layer, case_graph, draw, grid, run_float

Array = NDArray[Any]

# Their integer form is an algorithm of its own, within a bound of the real result.
APPROXIMATE = {
    "Div",
    "GRU",
    "LSTM",
    "LogSoftmax",
    "RNN",
    "Resize",
    "Softmax",
}


def session(model: onnx.ModelProto | Path, *, optimize: bool = True) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = str(model) if isinstance(model, Path) else model.SerializeToString()
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def export(mxq: Mxq) -> onnx.ModelProto:
    model = export_qdq(mxq.body, mxq.inputs, mxq.outputs, head=mxq.head, tail=mxq.tail).proto
    onnx.checker.check_model(model, full_check=True)
    return model


def one_layer(
    spec: OpSpec[Any], case: Case, *, zero_point: bool, bits: int = 8
) -> tuple[IntGraph, Any]:
    """Return the integer graph of a case and its float inputs."""
    graph = case_graph(spec, case)
    node = graph.nodes[0]
    drawn = draw(graph, case)
    grids = {n: grid(x, zero_point=zero_point, bits=bits) for n, x in drawn.items()}
    for name, y in zip(node.outputs, run_float(graph, drawn), strict=True):
        same = spec.rule_of(node, graph) is QuantRule.MOVE
        grids[name] = grids[node.inputs[0]] if same else grid(y, zero_point=zero_point, bits=bits)
    layer = build_layer(spec, graph, grids, bits)
    layer.real = node.attrs.to_dict()
    values = {
        n: IntValue(n, TensorType(grids[n].dtype, graph.values[n].shape), grids[n])
        for n in (*graph.inputs, *graph.outputs)
    }
    return IntGraph("case", list(graph.inputs), list(graph.outputs), values, [layer]), drawn


@pytest.mark.parametrize("zero_point", [False, True], ids=["symmetric", "zero_point"])
@pytest.mark.parametrize(
    ("spec", "case"), [p for p in all_cases() if p.values[1].bound is not None]
)
def test_every_integer_layer_has_an_onnx_form(
    spec: OpSpec[Any], case: Case, zero_point: bool
) -> None:
    body, drawn = one_layer(spec, case, zero_point=zero_point)
    types = {n: v.type for n, v in body.values.items()}
    model = export_qdq(
        body, {n: types[n] for n in body.inputs}, {n: types[n] for n in body.outputs}
    ).proto
    onnx.checker.check_model(model, full_check=True)
    integers = {n: quantize(x, body.values[n].quant) for n, x in drawn.items()}
    expected = IntegerEngine(body).run(integers, integers=True)
    for optimize in (False, True):
        made = session(model, optimize=optimize).run(list(body.outputs), integers)
        for name, y in zip(body.outputs, made, strict=True):
            assert y.dtype == np.int8
            off = np.abs(y.astype(int) - expected[name].astype(int))
            assert off.max(initial=0) <= (1 if spec.name in APPROXIMATE else 0)


def agreement(mxq: Mxq, feeds: list[dict[str, Array]], **options: Any) -> float:
    """Return the part of the output values that are within one step of the integer runtime's."""
    runner = session(export(mxq), **options)
    outputs = list(mxq.outputs)
    pipeline = Pipeline(mxq.body, head=mxq.head, tail=mxq.tail, outputs=outputs)
    close = total = 0
    for feed in feeds:
        expected = pipeline.run(feed)
        for name, y in zip(outputs, runner.run(outputs, feed), strict=True):
            quant = mxq.body.values[name].quant
            assert quant is not None
            step = 1.001 * quant.scale
            close += int((np.abs(y - expected[name]) <= step).sum())
            total += y.size
    return close / total


@pytest.fixture(scope="module")
def cnn(digits_cnn: Path, digits: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cnn")
    for i, image in enumerate(digits.train_images[:16]):
        np.save(folder / f"{i:02}.npy", image)
    path = folder / "cnn.mxq"
    api.mxq_compile(
        model=digits_cnn, calib_data_path=str(folder), target_device="regulus-rb", save_path=path
    )
    return path


@pytest.mark.parametrize("optimize", [False, True])
def test_a_trained_network_gives_the_integer_runtimes_outputs(
    cnn: Path, digits: Any, optimize: bool
) -> None:
    feeds = [{"image": x[None]} for x in digits.test_images[:100]]
    with read_mxq(cnn) as mxq:
        assert agreement(mxq, feeds, optimize=optimize) == 1.0


@pytest.mark.parametrize("optimize", [False, True])
def test_a_transformer_gives_the_integer_runtimes_outputs(
    digits_vit: Path, digits: Any, tmp_path: Path, optimize: bool
) -> None:
    for i, image in enumerate(digits.train_images[:16]):
        np.save(tmp_path / f"{i:02}.npy", image)
    path = tmp_path / "vit.mxq"
    api.mxq_compile(
        model=digits_vit,
        calib_data_path=str(tmp_path),
        target_device="regulus-rb",
        save_path=path,
    )
    with read_mxq(path) as mxq:
        feeds = [{"image": x[None]} for x in digits.test_images[:100]]
        assert agreement(mxq, feeds, optimize=optimize) >= 0.999


def test_the_text_classifier_gives_the_integer_runtimes_outputs(
    ocr_cls: Path, ocr_calibration: Path, ocr_held_out: Any, tmp_path: Path
) -> None:
    path = tmp_path / "cls.mxq"
    api.mxq_compile(
        model=ocr_cls,
        calib_data_path=str(ocr_calibration),
        target_device="regulus-rb",
        input_shape_dict={"x": [1, 3, 48, 192]},
        save_path=path,
    )
    with read_mxq(path) as mxq:
        assert agreement(mxq, [{"x": x[None]} for x in ocr_held_out[0][:16]]) >= 0.999


def test_the_text_detector_gives_the_integer_runtimes_outputs(
    models_dir: Path, ocr_held_out: Any, tmp_path: Path
) -> None:
    images = [np.concatenate([*rows], axis=1) for rows in np.split(ocr_held_out[0][:16], 4)]
    for i, image in enumerate(images):
        np.save(tmp_path / f"{i}.npy", image)
    path = tmp_path / "det.mxq"
    api.mxq_compile(
        model=models_dir / "ppocrv4_det.onnx",
        calib_data_path=str(tmp_path),
        target_device="regulus-rb",
        input_shape_dict={"x": [1, 3, 192, 192]},
        save_path=path,
    )
    with read_mxq(path) as mxq:
        assert agreement(mxq, [{"x": x[None]} for x in images]) >= 0.999


def test_integers_stay_integers_where_the_device_wants_them(
    digits_cnn: Path, digits: Any, tmp_path: Path
) -> None:
    path = tmp_path / "usb.mxq"
    api.mxq_compile(
        model=digits_cnn, use_random_calib=True, target_device="regulus-rb-usb", save_path=path
    )
    with read_mxq(path) as mxq:
        model = export(mxq)
        kinds = [p.type.tensor_type.elem_type for p in (*model.graph.input, *model.graph.output)]
        assert kinds == [onnx.TensorProto.INT8] * 2
        x = quantize(digits.test_images[0][None], mxq.body.values["image"].quant)
        (made,) = session(model).run(None, {"image": x})
        expected = IntegerEngine(mxq.body).run({"image": x}, integers=True)["logits"]
    assert np.array_equal(made, expected)


def test_head_and_tail_are_in_the_model(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array(rng.normal(size=(4, 3, 3, 3)).astype(np.float32), "w")
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Atan", ["x"], ["a"]),
            onnx.helper.make_node("Conv", ["a", "w"], ["c"], pads=[1, 1, 1, 1]),
            onnx.helper.make_node("Relu", ["c"], ["r"]),
            onnx.helper.make_node("Atan", ["r"], ["y"]),
        ],
        "between",
        [onnx.helper.make_tensor_value_info("x", 1, [1, 3, 8, 8])],
        [
            onnx.helper.make_tensor_value_info("y", 1, None),
            onnx.helper.make_tensor_value_info("r", 1, None),
        ],
        [weight],
    )
    source = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    path = tmp_path / "m.mxq"
    api.mxq_compile(
        model=source,
        use_random_calib=True,
        cpu_offload=True,
        target_device="regulus-rb",
        save_path=path,
    )
    feed = {"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)}
    with read_mxq(path) as mxq:
        assert mxq.head is not None and mxq.tail is not None
        model = export(mxq)
        assert {"Atan", "Conv", "QuantizeLinear"} <= {n.op_type for n in model.graph.node}
        outputs = list(mxq.outputs)
        expected = Pipeline(mxq.body, head=mxq.head, tail=mxq.tail, outputs=outputs).run(feed)
        for name, y in zip(outputs, session(model).run(outputs, feed), strict=True):
            assert np.allclose(y, expected[name], atol=1e-6)


def test_the_same_package_gives_the_same_bytes(cnn: Path, tmp_path: Path) -> None:
    made = []
    for name in ("a.onnx", "b.onnx"):
        with read_mxq(cnn) as mxq:
            model = export_qdq(mxq.body, mxq.inputs, mxq.outputs)
            save_model(model, tmp_path / name)
        made.append((tmp_path / name).read_bytes())
    assert made[0] == made[1]


def test_a_layer_that_does_not_tell_its_attributes_is_named() -> None:
    type_ = TensorType(DType.INT8, (1, 4))
    quant = grid(np.ones(1, np.float32))
    values = {n: IntValue(n, type_, quant) for n in ("x", "y")}
    layer = IntLayer("cut", "Slice", ["x"], ["y"], {"starts": [0, 0]})
    body = IntGraph("g", ["x"], ["y"], values, [layer])
    with pytest.raises(InternalError, match="layer 'cut' \\(Slice\\) has no float form"):
        export_qdq(body, {"x": type_}, {"y": type_})


@pytest.mark.parametrize("name", ["digits_cnn", "digits_vit"])
def test_an_mblt_gives_the_source_models_outputs(
    name: str, request: pytest.FixtureRequest, digits: Any, tmp_path: Path
) -> None:
    source, mblt = request.getfixturevalue(name), tmp_path / "m.mblt"
    api.mblt_compile(model=source, save_path=mblt)
    out = tmp_path / "m.onnx"
    assert main(["export", "--mblt", str(mblt), "--output", str(out), "-q"]) == 0
    onnx.checker.check_model(str(out), full_check=True)
    feed = {"image": digits.test_images[0][None]}
    (expected,), (made,) = (session(p).run(None, feed) for p in (source, out))
    assert np.abs(made - expected).max() <= 1e-4 * np.abs(expected).max()


COARSE = ("Cast-half", "Cast-grid", "Cast-unsigned")
NO_WIDE_FORM = ("16-bit", "not supported")


@pytest.mark.parametrize(
    ("spec", "case"),
    [p for p in all_cases() if p.values[1].bound is not None and p.id not in COARSE],
)
def test_layers_of_16_bits_have_an_onnx_form(spec: OpSpec[Any], case: Case) -> None:
    """Close, no more: ONNX Runtime sums products in float32 and evaluates functions itself."""
    try:
        body, drawn = one_layer(spec, case, zero_point=True, bits=16)
    except ValueError as exc:
        assert any(words in str(exc) for words in NO_WIDE_FORM)
        return
    types = {n: TensorType(DType.FLOAT32, v.type.shape) for n, v in body.values.items()}
    model = export_qdq(
        body, {n: types[n] for n in body.inputs}, {n: types[n] for n in body.outputs}
    ).proto
    onnx.checker.check_model(model, full_check=True)
    want = IntegerEngine(body).run(drawn)
    for name, y in zip(body.outputs, session(model).run(body.outputs, drawn), strict=True):
        reach = float(np.abs(want[name]).max(initial=0.0))
        assert np.abs(y - want[name]).max(initial=0.0) <= reach * 2.0**-9
