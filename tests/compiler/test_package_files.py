"""MBLT and MXQ: round trips, manifests, determinism, hostile contents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qbcompiler.errors import FormatError, QbCompilerError
from qbcompiler.ir import DType, TensorType, dump
from qbcompiler.package import (
    CalibrationRecord,
    MbltMeta,
    MxqContents,
    compiler_identity,
    mblt_manifest,
    read_mblt,
    read_mxq,
    retarget_manifest,
    write_mblt,
    write_mxq,
)
from qbcompiler.package.reader import Container
from qbcompiler.package.writer import Section, write_container
from qbcompiler.quantization import layer_summaries, quantize, validate
from qbcompiler.report import info, info_text
from qbcompiler.runtime import Accelerator, IntegerEngine, Model
from qbcompiler.runtime.float_engine import FloatEngine

from .quant_nets import Net, Rules, config, cut, observe, residual_net, samples

META = MbltMeta("ab" * 32, "exporter 1.0", {"": 17, "ai.onnx.ml": 3}, {"image_channels": 3})
RECORD = CalibrationRecord("cd" * 32, 4, {"image": [1, 3, 16, 16]})


def contents(partitioned, *, count=4):
    data = samples(partitioned.graph, count)
    body_data = data
    if partitioned.head is not None:
        engine = FloatEngine(partitioned.head)
        body_data = [{**s, **engine.run({n: s[n] for n in partitioned.head.inputs})} for s in data]
        body_data = [{n: s[n] for n in partitioned.body.inputs} for s in body_data]
    int_graph = quantize(partitioned.body, observe(partitioned.body, body_data), config())
    return MxqContents(
        mblt=mblt_manifest(partitioned, META),
        device="toy-device",
        schemes=("single",),
        config=config().resolved(portable=True),
        preset=None,
        calibration=RECORD,
        layers=layer_summaries(int_graph),
        accuracy=validate(partitioned, int_graph, data).summary(),
        body=int_graph,
        head=partitioned.head,
        tail=partitioned.tail,
    )


@pytest.fixture(scope="module")
def partitioned():
    return cut(residual_net(), Rules())


@pytest.fixture
def mblt(tmp_path, partitioned):
    write_mblt(tmp_path / "m.mblt", partitioned, META)
    return tmp_path / "m.mblt"


@pytest.fixture(scope="module")
def made(partitioned):
    return contents(partitioned)


@pytest.fixture
def mxq(tmp_path, made):
    write_mxq(tmp_path / "m.mxq", made)
    return tmp_path / "m.mxq"


def offloaded_net():
    """Sigmoid, convolution, sigmoid: with Sigmoid refused, head and tail are one layer each."""
    net = Net("around")
    head = net.layer("Sigmoid", "first", [net.input("image", 1, 3, 8, 8)])
    return net.finish(net.layer("Sigmoid", "last", [net.conv("c", head, 4)]))


def test_mblt_round_trip(mblt, partitioned):
    with read_mblt(mblt) as file:
        again = file.partitioned
        assert file.meta == META
    assert dump(again.graph) == dump(partitioned.graph)
    assert dump(again.body) == dump(partitioned.body)
    assert again.support == partitioned.support
    assert again.device == "toy-device" and again.head is None and again.tail is None
    (sample,) = samples(partitioned.graph, 1)
    want = FloatEngine(partitioned.graph).run(sample)
    got = FloatEngine(again.graph).run(sample)
    np.testing.assert_array_equal(got["scores.out"], want["scores.out"])


def test_mblt_manifest_says_what_it_must(mblt, partitioned):
    with zipfile.ZipFile(mblt) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    assert manifest["format"] == {"name": "mblt", "major": 1, "minor": 0}
    assert manifest["compiler"] == compiler_identity()
    assert manifest["source"] == {
        "sha256": "ab" * 32,
        "producer": "exporter 1.0",
        "opset": {"": 17, "ai.onnx.ml": 3},
    }
    assert manifest["parse_options"] == {"image_channels": 3}
    assert manifest["inputs"] == [
        {"name": "image", "shape": [1, 3, 16, 16], "dtype": "float32", "layout": "NCHW"}
    ]
    assert manifest["outputs"][0]["layout"] == "NCHW"
    assert manifest["target_device"] == "toy-device"
    assert [s["place"] for s in manifest["subgraphs"]] == ["body"]
    assert [x["name"] for x in manifest["layers"]] == [n.name for n in partitioned.graph.nodes]
    assert all(x["device"] == "npu" and x["reason"] is None for x in manifest["layers"])
    assert manifest == mblt_manifest(partitioned, META)


def test_head_and_tail_keep_their_reasons_and_run(tmp_path):
    parts = cut(offloaded_net(), Rules(Sigmoid="it has no look-up unit"), cpu_offload=True)
    write_mblt(tmp_path / "m.mblt", parts, META)
    with read_mblt(tmp_path / "m.mblt") as file:
        again = file.partitioned
        assert file.cpu_offload
        reasons = {x["name"]: x["reason"] for x in file.manifest["layers"]}
    assert reasons == {
        "first": "it has no look-up unit",
        "c": None,
        "last": "it has no look-up unit",
    }
    for place in ("head", "body", "tail"):
        assert dump(getattr(again, place)) == dump(getattr(parts, place))
    write_mxq(tmp_path / "m.mxq", contents(parts))
    with read_mxq(tmp_path / "m.mxq") as file:
        assert list(file.container.sections) == [
            "graph.json",
            "weights.safetensors",
            "head.json",
            "tail.json",
            "offload.safetensors",
        ]
        assert dump(file.head) == dump(parts.head)
        assert dump(file.tail) == dump(parts.tail)


def test_mxq_round_trip(mxq, made):
    with read_mxq(mxq) as file:
        again = file.body
        assert file.head is None and file.tail is None
        assert file.mblt_manifest == made.mblt
    assert again.values == made.body.values
    for got, want in zip(again.layers, made.body.layers, strict=True):
        assert (got.name, got.op, got.inputs, got.outputs, got.source) == (
            want.name,
            want.op,
            want.inputs,
            want.outputs,
            want.source,
        )
        assert got.tensors.keys() == want.tensors.keys()
        for role, array in want.tensors.items():
            np.testing.assert_array_equal(got.tensors[role], array)
            assert got.tensors[role].dtype == array.dtype
    (sample,) = samples(residual_net(), 1, seed=9)
    first = IntegerEngine(made.body).run(sample, integers=True)
    second = IntegerEngine(again).run(sample, integers=True)
    np.testing.assert_array_equal(first["scores.out"], second["scores.out"])


def test_mxq_manifest_says_what_it_must(mxq, made):
    with zipfile.ZipFile(mxq) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        graph = json.loads(archive.read("graph.json"))
    assert manifest["device"] == "toy-device" and manifest["schemes"] == ["single"]
    assert manifest["calibration"] == {
        "digest": "cd" * 32,
        "samples": 4,
        "shapes": {"image": [1, 3, 16, 16]},
        "random": False,
    }
    assert manifest["engine"]["name"] == "qbcompiler"
    assert manifest["preset"] is None and "modelPaths" not in manifest["config"]
    assert manifest["accuracy"]["outputs"][0]["sqnr_db"] > 20
    conv = manifest["layers"][0]
    assert conv["weights"] == {"bits": 8, "count": 8 * 3 * 9}
    assert conv["inputs"][0]["stored_shape"] == [1, 16, 16, 3]
    value = next(v for v in graph["values"] if v["name"] == "c1.out")
    assert value["storage"] == [0, 2, 3, 1] and value["stored_shape"] == [1, 16, 16, 8]
    assert value["quant"]["zero_point"] == 0
    assert float(np.float32(value["quant"]["scales"][0])) == value["quant"]["scales"][0]


def test_only_a_manifest_is_read_to_open(mxq, monkeypatch):
    monkeypatch.setattr(Container, "read", lambda *a: pytest.fail("a section was read"))
    monkeypatch.setattr(Container, "map", lambda *a: pytest.fail("a section was mapped"))
    with read_mxq(mxq) as file:
        assert file.device == "toy-device"


def test_weights_are_mapped_not_copied(mblt):
    with read_mblt(mblt) as file:
        weight = file.graph.values["c1.w"].data
    base = weight
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    assert isinstance(base, memoryview)
    assert not weight.flags.writeable
    assert float(np.abs(weight).sum()) > 0, "still readable after the file was closed"


def test_equal_inputs_give_equal_bytes(tmp_path, partitioned, made):
    a = write_mblt(tmp_path / "a.mblt", partitioned, META)
    b = write_mblt(tmp_path / "other name", cut(residual_net(), Rules()), META)
    assert a.sha256 == b.sha256
    c = write_mxq(tmp_path / "a.mxq", made)
    d = write_mxq(tmp_path / "b.mxq", contents(cut(residual_net(), Rules())))
    assert c.sha256 == d.sha256


def test_another_process_gives_equal_bytes(tmp_path):
    """Hash seeds and folders differ between processes; the bytes do not."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.compiler.test_package_files import *\n"
        "parts = cut(residual_net(), Rules())\n"
        "print(write_mblt('m.mblt', parts, META).sha256,"
        " write_mxq('m.mxq', contents(parts)).sha256)\n"
    )
    seen = set()
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", script, str(Path(__file__).parents[2])],
            cwd=folder,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        seen.add(done.stdout)
    assert len(seen) == 1


def test_retargeting_gives_the_manifest_of_a_parse_for_that_device(partitioned):
    without = cut(residual_net())
    manifest = mblt_manifest(without, META)
    assert manifest["target_device"] is None
    assert retarget_manifest(manifest, partitioned) == mblt_manifest(partitioned, META)


def test_strings_scalars_and_empty_tensors_survive(tmp_path):
    net = Net()
    x = net.layer("Relu", "r", [net.input("x", 1, 2)])
    net.const("empty", np.zeros((0, 3), np.float32))
    net.const("half", np.array([1.5], np.float16))
    net.const("flag", np.array(True))
    text = np.empty(2, dtype=object)
    text[:] = ["ü", "b"]
    net.graph.add_value("text", TensorType(DType.STRING, (2,)), text)
    small = {t: np.arange(-2, 2).astype(t.numpy) for t in (DType.BFLOAT16, DType.INT4)}
    for dtype, array in small.items():
        net.graph.add_value(dtype.value, TensorType(dtype, (4,)), array)
    graph = net.finish(x)
    write_mblt(tmp_path / "m", cut(graph), META)
    with read_mblt(tmp_path / "m") as file:
        values = file.graph.values
    for dtype, array in small.items():
        assert values[dtype.value].data.dtype == array.dtype
        np.testing.assert_array_equal(values[dtype.value].data, array)
    assert values["text"].data.tolist() == ["ü", "b"]
    assert values["empty"].data.shape == (0, 3)
    assert values["flag"].data.item() is True
    assert values["half"].data.dtype == np.float16


def test_one_kind_is_not_taken_for_the_other(mblt, mxq):
    with pytest.raises(FormatError, match="'mxq' file, not mblt"):
        read_mblt(mxq)
    with pytest.raises(FormatError, match="'mblt' file, not mxq"):
        read_mxq(mblt)


# -- hostile contents: valid containers whose JSON lies -------------------------------------


def rewrite(path, target, name, change):
    """Write the file anew with one JSON section changed and all hashes right."""
    with zipfile.ZipFile(path) as archive:
        data = {i.filename: archive.read(i) for i in archive.infolist()}
    manifest = json.loads(data.pop("manifest.json"))
    kinds = {s["name"]: s["kind"] for s in manifest.pop("sections")}
    if name == "manifest.json":
        change(manifest)
    else:
        content = json.loads(data[name])
        change(content)
        data[name] = json.dumps(content).encode()
    sections = [Section.of_bytes(n, kinds[n], d) for n, d in data.items()]
    write_container(target, manifest, sections)


def edit(*path, value):
    def change(data):
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return change


GRAPH_LIES = [
    edit("layers", 0, "op", value="Launch"),
    edit("layers", 0, "attrs", value={"strides": "ab"}),
    edit("layers", 0, "attrs", value={"unheard": 1}),
    edit("layers", 0, "inputs", value=["nowhere"]),
    edit("layers", 0, "inputs", value=["scores.out", "c1.w"]),
    edit("layers", 1, "name", value="c1"),
    edit("layers", 1, "outputs", value=["c1.out"]),
    edit("values", 0, "shape", value=[1, 3, 2**31, 2**31]),
    edit("values", 0, "shape", value=[1, 3, 7, 16]),
    edit("values", 0, "dtype", value="float31"),
    edit("values", 1, "tensor", value="model/none"),
    edit("values", 1, "tensor", value="model/c3.w"),
    edit("outputs", value=["c1.w", "zzz"]),
    edit("inputs", value=["c1.out"]),
    edit("values", value={}),
    edit("layers", value=[[]]),
    edit("values", 1, "shape", value=[8, 3, -1, 3]),
    edit("values", 1, "dtype", value="bfloat16"),
]


@pytest.mark.parametrize("change", GRAPH_LIES)
def test_lies_in_an_mblt_graph(tmp_path, mblt, change):
    rewrite(mblt, tmp_path / "lie", "graph.json", change)
    with read_mblt(tmp_path / "lie") as file, pytest.raises(FormatError) as caught:
        _ = file.partitioned
    assert caught.value.details["section"] in ("graph.json", "weights.safetensors", "manifest.json")


MANIFEST_LIES = [
    edit("layers", 0, "name", value="other"),
    edit("layers", 0, "place", value="nowhere"),
    edit("layers", 0, "place", value="tail"),
    edit("layers", value=[]),
    edit("subgraphs", 0, "outputs", value=["image"]),
    edit("subgraphs", 0, "inputs", value=[]),
    edit("subgraphs", value=[]),
    edit("source", "sha256", value="zz"),
    edit("cpu_offload", value="yes"),
]


@pytest.mark.parametrize("change", MANIFEST_LIES)
def test_lies_in_an_mblt_manifest(tmp_path, mblt, change):
    rewrite(mblt, tmp_path / "lie", "manifest.json", change)
    with pytest.raises(FormatError, match=r"manifest\.json"), read_mblt(tmp_path / "lie") as file:
        _ = file.partitioned


INT_LIES = [
    edit("values", 0, "quant", "scales", value=[0.1]),
    edit("values", 0, "quant", "scales", value=[-1.0]),
    edit("values", 0, "quant", "scales", value=[1e300]),
    edit("values", 0, "quant", "scales", value=[0.5, 0.5]),
    edit("values", 0, "quant", "bits", value=12),
    edit("values", 0, "quant", "bits", value=16),
    edit("values", 0, "quant", "zero_point", value=1000),
    edit("values", 0, "quant", "axis", value=9),
    edit("values", 0, "storage", value=[0, 0, 1, 2]),
    edit("values", 0, "shape", value=[1, 3, -1, 16]),
    edit("values", 0, "dtype", value="int4"),
    edit("values", 0, "stored_shape", value=[1, 1, 1, 1]),
    edit("layers", 0, "tensors", "weight", value="body/none:weight"),
    edit("layers", 0, "tensors", "weight", value=7),
    edit("layers", 0, "attrs", "strides", value=[1.5]),
    edit("layers", 0, "attrs", "strides", value=[2**70]),
    edit("layers", 0, "op", value="Launch"),
    edit("layers", 0, "op", value="Onnx"),
    edit("layers", 1, "inputs", value=["scores.out"]),
    edit("layers", 1, "outputs", value=["image"]),
    edit("outputs", value=["nothing"]),
]


@pytest.mark.parametrize("change", INT_LIES)
def test_lies_in_an_integer_graph(tmp_path, mxq, change):
    rewrite(mxq, tmp_path / "lie", "graph.json", change)
    with read_mxq(tmp_path / "lie") as file, pytest.raises(FormatError):
        _ = file.body


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_json_edits_never_crash_the_reader(tmp_path_factory, made, data):
    """Whatever stands in place of whatever: the file opens, or it is refused in words."""
    folder = tmp_path_factory.mktemp("edit")
    write_mxq(folder / "m", made)
    name = data.draw(st.sampled_from(["manifest.json", "graph.json"]))

    def change(content):
        for _ in range(data.draw(st.integers(1, 3))):
            at = content
            while True:
                keys = list(at) if isinstance(at, dict) else list(range(len(at)))
                if not keys:
                    break
                key = data.draw(st.sampled_from(keys))
                if isinstance(at[key], (dict, list)) and at[key] and data.draw(st.booleans()):
                    at = at[key]
                    continue
                at[key] = data.draw(JSON)
                break

    try:
        rewrite(folder / "m", folder / "lie", name, change)
    except (KeyError, TypeError, ValueError):
        return  # the edit broke what the test itself needs to write the file
    (sample,) = samples(residual_net(), 1)

    def describe():
        info_text(info(folder / "lie"))

    def run():
        with read_mxq(folder / "lie") as file:
            IntegerEngine(file.body).run(sample)

    def infer():
        with Model(folder / "lie") as model:
            model.launch(Accelerator("toy-device"))
            model.infer_chw(sample["image"])

    for use in (describe, run, infer):
        with suppress(QbCompilerError):
            use()
