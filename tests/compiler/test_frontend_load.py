"""Reading a source model: what is accepted, and what each wrong file is told."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qbcompiler.errors import ModelLoadError
from qbcompiler.frontend import load_model, parse
from qbcompiler.frontend.wire import WireError, split_model

WEIGHT = np.arange(4096, dtype=np.float32).reshape(64, 64)


def linear_model(weight: np.ndarray[Any, Any] = WEIGHT, opset: int = 21) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset)],
        producer_name="tester",
        producer_version="1.2",
        ir_version=10,
    )


def test_path_bytes_and_model_are_the_same(tmp_path: Path) -> None:
    model = linear_model()
    data = model.SerializeToString(deterministic=True)
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    for source in (path, str(path), data, model):
        loaded = load_model(source)
        assert loaded.sha256 == hashlib.sha256(data).hexdigest()
        assert loaded.producer == "tester 1.2"
        assert dict(loaded.opsets) == {"": 21}
        assert loaded.name == "linear" and loaded.size == len(data)
        np.testing.assert_array_equal(loaded.tensors["w"], WEIGHT)
    assert load_model(loaded) is loaded


def test_weights_are_views_of_the_file_and_read_only() -> None:
    data = linear_model().SerializeToString()
    loaded = load_model(data)
    assert len(loaded.proto.SerializeToString()) < 300
    weight = loaded.tensors["w"]
    assert not weight.flags.owndata and not weight.flags.writeable


@pytest.mark.parametrize("field", ["float_data", "double_data"])
def test_packed_number_fields_are_views_too(field: str) -> None:
    model = linear_model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    getattr(tensor, field).extend(WEIGHT.ravel().tolist())
    if field == "double_data":
        tensor.data_type = TensorProto.DOUBLE
    loaded = load_model(model)
    np.testing.assert_array_equal(loaded.tensors["w"], WEIGHT)


def test_a_large_file_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qbcompiler.frontend.load.MAP_BYTES", 1)
    path = tmp_path / "m.onnx"
    path.write_bytes(linear_model().SerializeToString())
    np.testing.assert_array_equal(load_model(path).tensors["w"], WEIGHT)


# -- wrong files ---------------------------------------------------------------------------------


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return buffer.getvalue()


def tarred() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a"))
    return buffer.getvalue()


NOT_ONNX: dict[str, tuple[bytes, str]] = {
    "pytorch": (
        zipped("archive/data.pkl", "archive/version"),
        "a PyTorch checkpoint or TorchScript archive; export it with torch.onnx.export",
    ),
    "pickle": (
        pickle.dumps({"state": 1}),
        "a Python pickle (a PyTorch checkpoint?); export it with torch.onnx.export",
    ),
    "keras": (zipped("config.json", "model.weights.h5"), "a Keras model; convert it with tf2onnx"),
    "package": (zipped("manifest.json"), "an MBLT or MXQ package, not a source model"),
    "npz": (zipped("a.npy"), "an .npz archive of arrays"),
    "zipped": (zipped("m.onnx"), "a ZIP archive that holds 'm.onnx'; unpack it"),
    "zip": (zipped("other"), "a ZIP archive"),
    "broken_zip": (zipped("other")[:-10], "a damaged ZIP archive"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(40), "a TensorFlow Lite model; convert it with tf2onnx"),
    "ort": (
        b"\x1c\0\0\0ORTM" + bytes(40),
        "an ONNX Runtime .ort model; give the .onnx it was made from",
    ),
    "hdf5": (
        b"\x89HDF\r\n\x1a\n" + bytes(40),
        "an HDF5 file (Keras?); convert it with tf2onnx",
    ),
    "gguf": (b"GGUF\x03\0\0\0", "a GGUF model; export the original model to ONNX"),
    "safetensors": (
        (2).to_bytes(8, "little") + b'{"a": 1}',
        "a safetensors file, weights without a graph; export the model to ONNX",
    ),
    "html": (
        b"\n<!DOCTYPE html><html><body>404</body></html>",
        "an HTML page (a download that went wrong?)",
    ),
    "xml": (
        b"<?xml version='1.0'?><net/>",
        "an XML file (an OpenVINO model?); export the original model to ONNX",
    ),
    "json": (b'{"model": 1}', "a JSON file"),
    "text": (b"hello, this is not a model\n", "a text file"),
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
        "a Git LFS pointer; fetch the file itself (git lfs pull)",
    ),
    "npy": (b"\x93NUMPY\x01\0" + bytes(100), "a NumPy array"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(100), "a PNG image"),
    "jpeg": (b"\xff\xd8\xff\xe0" + bytes(100), "a JPEG image"),
    "gzip": (b"\x1f\x8b\x08" + bytes(100), "a gzip archive; unpack it"),
    "tar": (tarred(), "a tar archive; unpack it"),
}


@pytest.mark.parametrize("kind", NOT_ONNX)
def test_a_file_of_another_kind_is_named(kind: str, tmp_path: Path) -> None:
    data, likeness = NOT_ONNX[kind]
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelLoadError) as err:
        load_model(path)
    assert err.value.message == f"{path} is not an ONNX model: it looks like {likeness}"
    assert err.value.code == "MODEL_LOAD_ERROR" and err.value.exit_code == 3


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.touch()
    with pytest.raises(ModelLoadError, match=r"m\.onnx is empty$"):
        load_model(path)


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"m\.onnx does not exist$"):
        load_model(tmp_path / "m.onnx")
    with pytest.raises(ModelLoadError, match=r"is a folder, not a model file$"):
        load_model(tmp_path)


def test_every_truncation_is_told(tmp_path: Path) -> None:
    data = linear_model().SerializeToString()
    for size in [*range(1, 120), len(data) // 2, len(data) - 100, len(data) - 1]:
        with pytest.raises(ModelLoadError) as err:
            load_model(data[:size])
        if size > 200:
            assert "is truncated: its content needs at least" in err.value.message
            assert err.value.details["got"] == size


@pytest.mark.parametrize(
    "data",
    [
        bytes(range(256)) * 8,
        b"\x00" * 100,
        b"\x08" + b"\xff" * 11,
        b"\x0a\x03abc",
        TensorProto(dims=[1], data_type=1, raw_data=b"1234", name="t").SerializeToString(),
    ],
)
def test_other_bytes_are_not_onnx(data: bytes) -> None:
    with pytest.raises(ModelLoadError, match=r"the model is (not an ONNX model: |truncated)"):
        load_model(data)


def test_random_bytes_and_flipped_bits_never_crash() -> None:
    rng = np.random.default_rng(0)
    data = bytearray(linear_model(WEIGHT[:2, :2]).SerializeToString())
    for _ in range(500):
        broken = bytearray(data)
        for position in rng.integers(0, len(data), 3):
            broken[position] ^= int(rng.integers(1, 256))
        with contextlib.suppress(ModelLoadError):
            load_model(bytes(broken))
        with contextlib.suppress(ModelLoadError):
            load_model(rng.bytes(int(rng.integers(1, 300))))


def test_deep_nesting_is_refused() -> None:
    inner = b""
    for _ in range(400):
        # GraphProto.node.attribute.g, one inside the other
        attribute = b"\x32" + _varint(len(inner)) + inner
        node = b"\x2a" + _varint(len(attribute)) + attribute
        inner = b"\x0a" + _varint(len(node)) + node
    data = b"\x08\x0a\x3a" + _varint(len(inner)) + inner
    with pytest.raises(ModelLoadError, match="not an ONNX model"):
        load_model(data)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def test_weights_that_do_not_fit_their_shape() -> None:
    model = linear_model()
    model.graph.initializer[0].dims[0] = 65
    with pytest.raises(ModelLoadError) as err:
        load_model(model)
    assert err.value.message == (
        "weight 'w' of the model in memory has 16384 bytes, its shape [65, 64] needs 16640"
    )


@pytest.mark.parametrize(("opset", "word"), [(5, "oldest"), (999, "newest")])
def test_opsets_out_of_range(opset: int, word: str) -> None:
    with pytest.raises(ModelLoadError) as err:
        load_model(linear_model(opset=opset))
    assert f"uses opset {opset}, the {word} one" in err.value.message
    assert err.value.hint is not None and "export the model" in err.value.hint


# -- external data -------------------------------------------------------------------------------


def external(folder: Path, location: str = "w.bin", **entries: str) -> Path:
    model = linear_model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def test_external_data(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(b"\0" * 64 + WEIGHT.tobytes())
    path = external(tmp_path, "sub/w.bin", offset="64", length=str(WEIGHT.nbytes))
    loaded = load_model(path)
    np.testing.assert_array_equal(loaded.tensors["w"], WEIGHT)
    assert loaded.external_files == ("sub/w.bin",)
    first = loaded.sha256
    assert first == load_model(path.read_bytes(), external_data_dir=tmp_path).sha256
    (tmp_path / "sub" / "w.bin").write_bytes(b"\1" * 64 + WEIGHT.tobytes())
    assert load_model(path).sha256 != first


def test_external_data_that_a_small_tensor_uses(tmp_path: Path) -> None:
    path = external(tmp_path)
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].dims[:] = [64, 1]
    path.write_bytes(model.SerializeToString())
    (tmp_path / "w.bin").write_bytes(WEIGHT[:, :1].tobytes())
    np.testing.assert_array_equal(load_model(path).tensors["w"], WEIGHT[:, :1])


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "a/../../w.bin", "", "C:\\w.bin"])
def test_external_data_outside_the_folder(location: str, tmp_path: Path) -> None:
    inside = tmp_path / "model"
    inside.mkdir()
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    path = external(inside, location)
    with pytest.raises(ModelLoadError) as err:
        load_model(path)
    assert err.value.message == (
        f"{path}: external file {location!r} points outside the model's folder"
    )


def test_a_link_out_of_the_folder(tmp_path: Path) -> None:
    inside = tmp_path / "model"
    inside.mkdir()
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    (inside / "w.bin").symlink_to(tmp_path / "w.bin")
    path = external(inside)
    with pytest.raises(ModelLoadError) as err:
        load_model(path)
    assert err.value.message == (
        f"{path}: external file 'w.bin' is a link that leads outside the model's folder"
    )


def test_missing_external_data(tmp_path: Path) -> None:
    path = external(tmp_path)
    with pytest.raises(ModelLoadError) as err:
        load_model(path)
    assert err.value.message == f"{path}: external file 'w.bin' does not exist beside the model"
    with pytest.raises(ModelLoadError) as err:
        load_model(path.read_bytes())
    assert err.value.message == (
        "the model keeps weight 'w' in external file 'w.bin', but no folder was given to look in"
    )


def test_external_data_too_short(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes()[:-4])
    path = external(tmp_path, length=str(WEIGHT.nbytes))
    with pytest.raises(ModelLoadError) as err:
        load_model(path)
    assert err.value.message == (
        f"{path}: weight 'w' needs bytes 0 to 16384 of external file 'w.bin', which has 16380"
    )


def test_external_data_with_malformed_entries(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    with pytest.raises(ModelLoadError, match="has a malformed external data entry"):
        load_model(external(tmp_path, offset="ten"))
    with pytest.raises(ModelLoadError, match="needs bytes -4 to"):
        load_model(external(tmp_path, offset="-4"))


# -- the wire format -----------------------------------------------------------------------------


def test_splitting_keeps_every_other_field() -> None:
    model = linear_model()
    model.metadata_props.add(key="k", value="v")
    model.graph.doc_string = "d"
    split = split_model(memoryview(model.SerializeToString()))
    assert list(split.payloads) == [0]
    back = onnx.ModelProto.FromString(split.skeleton)
    back.graph.initializer[0].raw_data = bytes(split.payloads[0])
    assert back == model


def test_a_model_in_two_pieces_is_merged_as_protobuf_says() -> None:
    one, two = linear_model(), linear_model()
    two.graph.ClearField("node")
    del two.graph.output[:], two.graph.input[:]
    two.graph.initializer[0].name = "other"
    data = one.SerializeToString() + two.SerializeToString()
    loaded = load_model(data)
    assert [t.name for t in loaded.proto.graph.initializer] == ["w", "other"]


def constants_model(*names: str) -> onnx.ModelProto:
    """Return a model that keeps its weights in ``Constant`` nodes, one of each name."""
    nodes, last = [], "x"
    for index, name in enumerate(names):
        tensor = onnx.numpy_helper.from_array(np.full((1, 512), index + 1, np.float32), "inner")
        nodes.append(helper.make_node("Constant", [], [name], name=f"c{index}", value=tensor))
        nodes.append(helper.make_node("Add", [last, name], [f"y{index}"], name=f"add{index}"))
        last = f"y{index}"
    ports = [helper.make_tensor_value_info(n, 1, [1, 512]) for n in ("x", last)]
    graph = helper.make_graph(nodes, "constants", ports[:1], ports[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_large_constant_nodes_are_weights_that_stay_where_they_are() -> None:
    model = constants_model("a", "b")
    data = model.SerializeToString()
    split = split_model(memoryview(data))
    assert split.lifted == ["a", "b"] and len(split.skeleton) < 1024
    whole = split_model(memoryview(data), lift=False)
    assert whole.lifted == [] and onnx.ModelProto.FromString(whole.skeleton) == model
    loaded = load_model(data)
    assert [n.op_type for n in loaded.proto.graph.node] == ["Add", "Add"]
    assert [t.name for t in loaded.proto.graph.initializer] == ["a", "b"]
    assert loaded.tensors["b"].shape == (1, 512) and (loaded.tensors["b"] == 2).all()


def test_small_and_unusual_constant_nodes_stay() -> None:
    model = constants_model("a")
    for change in ("domain", "attribute", "output", "small"):
        other = onnx.ModelProto.FromString(model.SerializeToString())
        node = other.graph.node[0]
        if change == "domain":
            node.domain = "elsewhere"
        elif change == "attribute":
            node.attribute.append(helper.make_attribute("value_int", 1))
        elif change == "output":
            node.output.append("second")
        else:
            node.attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.ones(4, np.float32)))
        assert split_model(memoryview(other.SerializeToString())).lifted == [], change


@pytest.mark.parametrize("name", ["y0", "a"])
def test_a_constant_whose_name_is_taken_is_the_models_fault(name: str) -> None:
    loaded = load_model(constants_model("a", name).SerializeToString())
    assert "Constant" in {n.op_type for n in loaded.proto.graph.node}
    with pytest.raises(ModelLoadError, match=f"value '{name}' is made twice"):
        parse(loaded, input_shapes={}, image_channels=None)


@pytest.mark.parametrize("data", [b"\x07", b"\x03\x01", b"\x00\x01", b"\x08" + b"\x80" * 10])
def test_malformed_fields(data: bytes) -> None:
    with pytest.raises(WireError):
        split_model(memoryview(data))


def test_the_error_is_json() -> None:
    with pytest.raises(ModelLoadError) as err:
        load_model(b"junk that is text")
    assert json.loads(json.dumps(err.value.as_dict()))["code"] == "MODEL_LOAD_ERROR"
