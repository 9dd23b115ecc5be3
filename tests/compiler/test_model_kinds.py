"""Networks of every usual kind: parsed whole, equal to ONNX Runtime, and cut where they should be.

Trained ones come from ``tests/data``, the others are built by :mod:`tests.support.zoo`.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)

from qbcompiler import get_body_subgraph, mblt_compile
from qbcompiler.devices import load_device
from qbcompiler.errors import UnsupportedOperatorError
from qbcompiler.frontend import load_model, parse
from qbcompiler.ir import Graph, dump
from qbcompiler.ops.onnx_layer import OnnxAttrs
from qbcompiler.package import read_mblt
from qbcompiler.partition import PartitionedGraph, partition
from qbcompiler.runtime.float_engine import FloatEngine

from ..conftest import Digits
from ..support import zoo

Feed = dict[str, Any]
DEVICES = ["aries-rb", "regulus-rb"]


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def tokens() -> Feed:
    ids = np.random.default_rng(0).integers(0, 50, (1, 16))
    mask = (np.arange(16) < 12).astype(np.int64)[None]
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


BUILT: dict[str, tuple[Callable[[], onnx.ModelProto], Callable[[], Feed]]] = {
    "lstm": (zoo.lstm, lambda: {"x": numbers(1, 12, 8)}),
    "gru": (zoo.gru, lambda: {"x": numbers(10, 1, 8)}),
    "gru_before": (lambda: zoo.gru(0), lambda: {"x": numbers(10, 1, 8)}),
    "efficientnet": (zoo.efficientnet, lambda: {"image": numbers(1, 3, 32, 32)}),
    "convnext": (zoo.convnext, lambda: {"image": numbers(1, 3, 32, 32)}),
    "detector": (zoo.detector, lambda: {"images": numbers(1, 3, 64, 64)}),
    "bert": (zoo.bert, tokens),
}


def parsed(model: Any, feed: Feed, passes: bool = True) -> Graph:
    shapes = {n: v.shape for n, v in feed.items()}
    return parse(load_model(model), input_shapes=shapes, passes=passes)


def same(model: Any, graph: Graph, feed: Feed, rtol: float = 1e-4) -> None:
    """Every output is ONNX Runtime's: integers exactly, reals within ``rtol``."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    want = session.run(names, feed)
    got = FloatEngine(graph).run(feed)
    assert list(got) == names
    for name, expected in zip(names, want, strict=True):
        assert got[name].dtype == expected.dtype and got[name].shape == expected.shape
        if expected.dtype.kind != "f":
            np.testing.assert_array_equal(got[name], expected)
            continue
        scale = float(np.abs(expected).max())
        assert scale > 0.1  # zeros would say nothing
        np.testing.assert_allclose(got[name], expected, rtol=rtol, atol=rtol * scale)


def kinds(graph: Graph) -> Counter[str]:
    return Counter(n.attrs.op_type if isinstance(n.attrs, OnnxAttrs) else n.op for n in graph.nodes)


def cut(graph: Graph, device: str) -> PartitionedGraph:
    return partition(graph, load_device(device), cpu_offload=True)


@pytest.mark.parametrize("passes", [False, True], ids=["lowered", "fused"])
@pytest.mark.parametrize("name", BUILT)
def test_outputs_equal_onnx_runtimes(name: str, passes: bool) -> None:
    build, feed = BUILT[name]
    model = build()
    same(model, parsed(model, feed(), passes), feed())


# -- transformers --------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_every_encoder_block_of_bert_is_in_one_body(device: str) -> None:
    graph = parsed(zoo.bert(), tokens())
    parts = cut(graph, device)
    assert parts.tail is None
    encoder = [r for r in parts.support if any(s.startswith("encoder/") for s in r.source)]
    assert encoder and {(r.place, r.reason) for r in encoder} == {("body", None)}
    # integers come in, so looking up words and reading the mask is the CPU's
    head = {r.op for r in parts.support if r.place == "head"}
    assert head == {"Gather", "Reshape", "Cast"}
    assert all("embeddings/" in s for r in parts.support if r.place == "head" for s in r.source)
    found = kinds(graph)
    assert found["Softmax"] == 2 and found["Gelu"] == 2 and found["LayerNormalization"] == 5
    # one product each for query, key, value, output and two of the network; two of attention
    assert found["MatMul"] == 2 * 8
    assert not found.keys() & {"Shape", "Erf", "Sqrt", "Pow", "ReduceMean", "Unsqueeze"}


@pytest.mark.parametrize("device", DEVICES)
def test_the_vision_transformer_is_one_body(device: str, digits_vit: Path, digits: Digits) -> None:
    feed = {"image": digits.test_images[:1]}
    graph = parsed(digits_vit, feed)
    same(digits_vit, graph, feed)
    parts = partition(graph, load_device(device), cpu_offload=False)
    assert parts.head is None and parts.tail is None and parts.body is not None
    assert len(parts.body) == len(graph)
    found = kinds(graph)
    assert found["Softmax"] and found["LayerNormalization"] and found["Gelu"]
    assert not found.keys() & {"Erf", "Sqrt", "Pow", "Exp"}
    assert found["ReduceMean"] == 1  # over the tokens, before the last layer


# -- convolutional networks ----------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["efficientnet", "convnext"])
def test_convolutional_networks_need_no_cpu(name: str, device: str) -> None:
    build, feed = BUILT[name]
    graph = parsed(build(), feed())
    parts = partition(graph, load_device(device), cpu_offload=False)
    assert parts.head is None and parts.tail is None and not parts.unsupported


def test_batch_norm_and_swish_fuse_in_efficientnet() -> None:
    build, feed = BUILT["efficientnet"]
    assert kinds(parsed(build(), feed())) == {
        "Convolution": 14,
        "DepthwiseConvolution": 3,
        "Swish": 11,
        "GlobalAveragePooling": 4,
        "Sigmoid": 3,
        "Multiply": 3,
        "Adding": 2,
        "Reshape": 1,
        "MatMul": 1,
    }


def test_every_norm_of_convnext_is_one_layer() -> None:
    build, feed = BUILT["convnext"]
    found = kinds(parsed(build(), feed()))
    # two of them over the channels of an image, one before and one between the blocks
    assert found["LayerNormalization"] == 6 and found["Gelu"] == 3
    assert not found.keys() & {"Sqrt", "Pow", "Sub", "Div", "Erf", "Batchnorm"}


# -- detector ------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_decode_and_suppression_are_the_tail_and_convolutions_the_body(device: str) -> None:
    graph = parsed(zoo.detector(), BUILT["detector"][1]())
    parts = cut(graph, device)
    assert parts.head is None
    place = {"body/": "body", "decode/": "tail", "nms/": "tail"}
    for row in parts.support:
        scopes = {s.partition("/")[0] + "/" for s in row.source}
        assert {place[s] for s in scopes} == {row.place}, row
    assert parts.body is not None and kinds(parts.body)["Convolution"] == 7
    assert parts.tail is not None and kinds(parts.tail)["NonMaxSuppression"] == 1
    lacking = {r.source[0].rpartition("_")[0]: r.reason for r in parts.unsupported}
    assert lacking["nms/NonMaxSuppression"] == "an output's shape depends on the data"


def test_a_detector_without_offloading_is_told_what_and_where() -> None:
    graph = parsed(zoo.detector(), BUILT["detector"][1]())
    with pytest.raises(UnsupportedOperatorError) as err:
        partition(graph, load_device("regulus-rb"), cpu_offload=False)
    assert err.value.message.startswith(
        "regulus-rb does not support 4 layers: nms/NonMaxSuppression_47 (Onnx, tail): "
        "an output's shape depends on the data; "
    )
    assert err.value.hint == (
        "--cpu-offload (cpuOffload: true) runs the tail on the CPU and 14 of 52 layers on the "
        "NPU; or cut the model before the first of these layers and run the rest yourself."
    )


def test_the_body_of_a_detector_stands_alone(tmp_path: Path) -> None:
    model, feed = zoo.detector(), BUILT["detector"][1]()
    whole, body = tmp_path / "whole.mblt", tmp_path / "body.mblt"
    mblt_compile(model, whole, "regulus-rb", cpu_offload=True)
    get_body_subgraph(whole, body)
    with read_mblt(whole) as first, read_mblt(body) as second:
        parts, alone = first.partitioned, second.partitioned
        assert parts.tail is not None and alone.tail is None and alone.head is None
        between = FloatEngine(alone.graph).run(feed)
        assert set(between) == set(parts.tail.inputs)
        found = FloatEngine(parts.tail).run(between)
        want = FloatEngine(first.graph).run(feed)
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5)


# -- stored in other ways ------------------------------------------------------------------------


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, images: Any) -> None:
        self.left: Iterator[Any] = iter(images)

    def get_next(self) -> Feed | None:
        image = next(self.left, None)
        return None if image is None else {"image": image[None]}


@pytest.fixture(scope="session")
def qdq_model(digits_cnn: Path, digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits network as ONNX Runtime's own quantizer writes it."""
    path = tmp_path_factory.mktemp("qdq") / "qdq.onnx"
    quantize_static(
        str(digits_cnn),
        str(path),
        _Samples(digits.train_images[:32]),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
    )
    return path


def test_a_quantized_network_means_what_onnx_runtime_says(qdq_model: Path, digits: Digits) -> None:
    images = digits.test_images[:32]
    graph = parsed(qdq_model, {"image": images[:1]})
    options = ort.SessionOptions()
    # what the file says, without fusing layers into integer kernels that round otherwise
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(qdq_model), options, providers=["CPUExecutionProvider"])
    engine = FloatEngine(graph, optimization="none")
    for image in images:
        want = session.run(None, {"image": image[None]})[0]
        got = engine.run({"image": image[None]})["logits"]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_half_precision() -> None:
    model = zoo.efficientnet(np.float16)
    feed = {"image": numbers(1, 3, 32, 32).astype(np.float16)}
    graph = parsed(model, feed)
    assert kinds(graph) == kinds(parsed(zoo.efficientnet(), {"image": numbers(1, 3, 32, 32)}))
    same(model, graph, feed, rtol=2e-2)
    assert partition(graph, load_device("regulus-rb"), cpu_offload=False).head is None


def as_constants(model: onnx.ModelProto) -> None:
    nodes = [
        helper.make_node("Constant", [], [w.name], name=f"const_{w.name}", value=w)
        for w in model.graph.initializer
    ]
    _prepend(model, nodes)


def through_identities(model: onnx.ModelProto) -> None:
    nodes = []
    for w in model.graph.initializer:
        nodes.append(helper.make_node("Identity", [f"{w.name}_a"], [f"{w.name}_b"]))
        nodes.append(helper.make_node("Identity", [f"{w.name}_b"], [w.name]))
    weights = list(model.graph.initializer)
    _prepend(model, nodes)
    for w in weights:
        copy = model.graph.initializer.add()
        copy.CopyFrom(w)
        copy.name = f"{w.name}_a"


def as_inputs(model: onnx.ModelProto) -> None:
    for w in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(w.name, w.data_type, w.dims))


def _prepend(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> None:
    every = [*nodes, *model.graph.node]
    weights = list(model.graph.initializer)
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(every)
    assert weights


@pytest.mark.parametrize("change", [as_constants, through_identities, as_inputs])
def test_weights_however_they_are_given(change: Callable[[onnx.ModelProto], None]) -> None:
    build, feed = BUILT["efficientnet"]
    model = build()
    plain = parsed(model, feed())
    change(model)
    onnx.checker.check_model(model)
    graph = parse(load_model(model), input_shapes={"image": (1, 3, 32, 32)})
    assert graph.inputs == ["image"]
    assert [n.op for n in graph.nodes] == [n.op for n in plain.nodes]
    same(model, graph, feed())


@pytest.mark.parametrize("opset", range(7, onnx.defs.onnx_opset_version() + 1))
def test_every_opset(opset: int) -> None:
    model, feed = zoo.plain_cnn(opset), {"x": numbers(1, 3, 16, 16)}
    graph = parsed(model, feed)
    assert dump(graph) == dump(parsed(zoo.plain_cnn(13), feed))
    try:
        same(model, graph, feed)
    except ort.capi.onnxruntime_pybind11_state.Fail as exc:  # newer than the runtime
        assert "opset" in str(exc) and opset > 26


# -- external data -------------------------------------------------------------------------------


def test_external_data_gives_the_same_graph(digits_vit: Path, tmp_path: Path) -> None:
    model = onnx.load(digits_vit)
    path = tmp_path / "vit.onnx"
    onnx.save(model, path, save_as_external_data=True, location="vit.bin", size_threshold=0)
    assert path.stat().st_size < digits_vit.stat().st_size
    graph = parsed(path, {"image": numbers(1, 1, 8, 8)})
    assert dump(graph) == dump(parsed(digits_vit, {"image": numbers(1, 1, 8, 8)}))
    same(digits_vit, graph, {"image": numbers(1, 1, 8, 8)})


GIB = 1 << 30


@pytest.fixture
def large_model(tmp_path: Path) -> Iterator[tuple[Path, Any]]:
    """A look-up table of 2.2 GB beside a model, with the rows that the test reads."""
    free = shutil.disk_usage(tmp_path).free
    if free < 6 * GIB:
        pytest.skip(f"needs 6 GiB of disk, {free / GIB:.1f} are free")
    rows, width = 2_100_000, 256
    folder = tmp_path / "large"
    folder.mkdir()
    row = numbers(3, width)
    with (folder / "table.bin").open("wb") as out:
        # zeros are holes in the file; the rows at both ends and beyond 2 GiB are not
        for i, index in enumerate((0, rows - 50_000, rows - 1)):
            out.seek(index * width * 4)
            out.write(row[i].tobytes())
    table = TensorProto(name="table", data_type=TensorProto.FLOAT, dims=[rows, width])
    table.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "table.bin"), ("offset", "0")):
        table.external_data.add(key=key, value=value)
    weight = numpy_helper.from_array(numbers(width, 8, seed=1), "weight")
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["found"], name="look_up"),
            helper.make_node("MatMul", ["found", "weight"], ["y"], name="product"),
        ],
        "large",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [table, weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "large.onnx").write_bytes(model.SerializeToString())
    yield folder / "large.onnx", row @ numpy_helper.to_array(weight)
    shutil.rmtree(folder)


def test_a_model_over_two_gigabytes(large_model: tuple[Path, Any], tmp_path: Path) -> None:
    path, want = large_model
    output = tmp_path / "large.mblt"
    mblt_compile(path, output, "regulus-rb", cpu_offload=True, input_shape_dict={"ids": [3]})
    assert output.stat().st_size > 2 * GIB
    with read_mblt(output) as opened:
        assert [r.place for r in opened.partitioned.support] == ["head", "body"]
        ids = np.int64([0, 2_050_000, 2_099_999])
        table = opened.graph.values["table"].data
        assert table is not None and table.nbytes > 2 * GIB
        weight = opened.graph.values["weight"].data
        np.testing.assert_allclose(table[ids] @ weight, want, rtol=1e-5)
    output.unlink()
