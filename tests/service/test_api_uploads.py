from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import zstandard
from PIL import Image

from service.domain import CalibrationInput, FileRef, manifest_digest
from service.storage import fetch_calibration, fetch_model

from .live import Live, npy, problem, tar, tiny_onnx


@pytest.fixture(autouse=True)
def no_scratch_is_left(live: Live) -> Iterator[None]:
    yield
    scratch = live.context.settings.scratch_dir
    assert not scratch.exists() or list(scratch.iterdir()) == []


# models -------------------------------------------------------------------------------------


def test_a_model_says_what_it_is(live: Live) -> None:
    data = tiny_onnx()
    answer = live.http.post(
        "/v1/models",
        files={"file": ("dir/net.onnx", data)},
        data={"source_revision": "9fceb02", "labels": '{"team": "vision"}', "backend": "onnx"},
    )
    assert answer.status_code == 201, answer.text
    model = answer.json()
    assert answer.headers["location"] == f"/v1/models/{model['id']}"
    assert model["name"] == "net.onnx"
    assert model["format"] == "onnx"
    assert model["digest"] == hashlib.sha256(data).hexdigest()
    assert model["size"] == len(data)
    # the weight is an input in the file and none of the model
    assert model["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": [1, 3, "h", "w"], "layout": None}
    ]
    assert model["outputs"][0]["name"] == "y"
    assert model["facts"]["producer"] == "test 1.0"
    assert model["facts"]["opset"] == {"ai.onnx": 17}
    assert model["source_revision"] == "9fceb02"
    assert model["labels"] == {"team": "vision"}
    assert live.http.get(f"/v1/models/{model['id']}").json() == model
    listed = live.http.get("/v1/models", params={"digest": model["digest"]}).json()["items"]
    assert model in listed
    assert live.context.store.size(model["digest"]) == len(data)


def test_put_takes_the_bare_file(live: Live) -> None:
    data = tiny_onnx(9)
    answer = live.http.put(
        "/v1/models", params={"name": "a.onnx", "labels": '{"a": "b"}'}, content=data
    )
    assert answer.status_code == 201, answer.text
    assert answer.json()["digest"] == hashlib.sha256(data).hexdigest()
    assert answer.json()["inputs"][0]["shape"] == [1, 3, "h", 9]
    problem(live.http.put("/v1/models", content=data), 422, "ARGUMENT_ERROR")
    form = live.http.put("/v1/models?name=a", files={"file": data})
    problem(form, 415, "UNSUPPORTED_MEDIA_TYPE")


def test_fields_may_come_after_the_file_and_in_small_pieces(live: Live) -> None:
    data = tiny_onnx(10)
    body = (
        b'--B\r\ncontent-disposition: form-data; name="file"; filename="a.onnx"\r\n\r\n'
        + data
        + b'\r\n--B\r\nContent-Disposition: form-data; name="name"\r\n\r\nlater\r\n--B--\r\n'
    )

    def pieces() -> Iterator[bytes]:
        for i in range(0, len(body), 7):
            yield body[i : i + 7]

    answer = live.http.post(
        "/v1/models",
        content=pieces(),
        headers={"content-type": "multipart/form-data; boundary=B"},
    )
    assert answer.status_code == 201, answer.text
    assert answer.json()["name"] == "later"
    assert answer.json()["digest"] == hashlib.sha256(data).hexdigest()


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


MANY_LABELS = json.dumps({f"l{i}": "" for i in range(33)})


def empty_graph() -> bytes:
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []))
    data: bytes = model.SerializeToString()
    return data


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"hello, this is not a model at all", "not an ONNX model"),
        (tiny_onnx()[:-20], "cut short"),
        (tiny_onnx()[:-20], "99 are left"),
        (b"\x80\x04\x95" + b"x" * 100, "pickle"),
        (b"<!doctype html><html>", "HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"\x1c\0\0\0TFL3" + b"\0" * 64, "TensorFlow Lite"),
        (npy(np.zeros(3, np.float32)), "NumPy"),
        (zipped({"x/data.pkl": b"", "x/version": b"3"}), "PyTorch"),
        (zipped({"m.onnx": b""}), "ZIP archive with an ONNX model"),
        (zipped({"manifest.json": b"{}"}), "another format"),
        (zipped({"manifest.json": b'{"format": {"name": "mxq"}}'}), "finished package"),
        (zipped({"manifest.json": b'{"format": {"name": "mblt"}}'}), "not complete"),
        (zipped({"manifest.json": b"[" * 100_000}), "damaged"),
        (zipped({"a": b"b"})[:-10], "damaged"),
        (empty_graph(), "no nodes"),
        (os.urandom(4096), "not an ONNX model"),
        (b"\x08\x08" * 1000, "no graph"),
        (b"\x3a\x00", "neither"),
        (b"\xff" * 100, "number"),
    ],
)
def test_what_is_no_model_is_refused_with_why(live: Live, data: bytes, says: str) -> None:
    answer = live.http.post("/v1/models", files={"file": ("m.onnx", data)})
    found = problem(answer, 422, "MODEL_LOAD_ERROR")
    assert says in found["detail"]


def test_an_mblt_says_what_it_was_parsed_for(live: Live) -> None:
    manifest = {
        "format": {"name": "mblt", "version": [1, 0]},
        "source": {"sha256": "a" * 64, "producer": "p", "opset": {"ai.onnx": 17}},
        "inputs": [{"name": "x", "shape": [1, 3, 8, 8], "dtype": "float32", "layout": "NCHW"}],
        "outputs": [{"name": "y", "shape": [1, 10], "dtype": "float32", "layout": None}],
        "target_device": "regulus-rb",
        "cpu_offload": True,
        "compiler": {"name": "qbcompiler", "version": "0.1.0"},
    }
    model = live.upload(zipped({"manifest.json": json.dumps(manifest).encode()}))
    assert model["format"] == "mblt"
    assert model["inputs"][0]["layout"] == "NCHW"
    assert model["facts"]["target_device"] == "regulus-rb"
    body = {"mblt_id": model["id"], "use_random_calib": True, "validate_only": True}
    found = live.submit(200, type="quantize", **body)
    assert found["target_device"] == "regulus-rb"
    wrong = live.http.post("/v1/jobs", json={"type": "parse", "model_id": model["id"]})
    assert "is an MBLT file" in problem(wrong, 422, "ARGUMENT_ERROR")["detail"]


def test_external_data_comes_with_the_model(live: Live, tmp_path: Path) -> None:
    data = tiny_onnx(external="weights/w.bin")
    missing = live.http.post("/v1/models", files={"file": ("m.onnx", data)})
    found = problem(missing, 422, "MODEL_LOAD_ERROR")
    assert "weights/w.bin" in found["detail"] and "external_data" in found["hint"]
    answer = live.http.post(
        "/v1/models",
        files=[("file", ("m.onnx", data)), ("external_data", ("weights/w.bin", b"1234"))],
    )
    assert answer.status_code == 201, answer.text
    model = answer.json()
    assert [f["path"] for f in model["files"]] == ["m.onnx", "weights/w.bin"]
    assert model["size"] == len(data) + 4
    other = live.http.post(
        "/v1/models",
        files=[("file", ("m.onnx", data)), ("external_data", ("weights/w.bin", b"4321"))],
    ).json()
    assert other["digest"] != model["digest"]
    job = live.submit(type="parse", model_id=model["id"])
    spec = live.claim(job).build.spec
    path = fetch_model(live.context.store, spec.model, tmp_path)
    assert path.read_bytes() == data
    assert (tmp_path / "weights" / "w.bin").read_bytes() == b"1234"


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "a/../../b"])
def test_external_data_outside_the_folder_is_refused(live: Live, location: str) -> None:
    answer = live.http.post("/v1/models", files={"file": tiny_onnx(external=location)})
    assert "outside its folder" in problem(answer, 422, "MODEL_LOAD_ERROR")["detail"]
    answer = live.http.post(
        "/v1/models",
        files=[("file", ("m.onnx", tiny_onnx())), ("external_data", (location, b"1"))],
    )
    problem(answer, 422, "ARGUMENT_ERROR")


@pytest.mark.parametrize(
    ("files", "data", "parameter"),
    [
        ([("name", (None, "x"))], {}, "file"),
        ([("file", tiny_onnx()), ("file", tiny_onnx())], {}, "file"),
        ([("model", tiny_onnx())], {}, "model"),
        ([("file", tiny_onnx())], {"name": "a\x00b"}, "name"),
        ([("file", tiny_onnx())], {"name": "x" * 300}, "name"),
        ([("file", tiny_onnx())], {"backend": "torch"}, "backend"),
        ([("file", tiny_onnx())], {"labels": "{"}, "labels"),
        ([("file", tiny_onnx())], {"labels": '{"a": 1}'}, "labels"),
        (
            [("file", tiny_onnx())],
            {"labels": json.dumps({f"l{i}": "" for i in range(33)})},
            "labels",
        ),
        ([("file", tiny_onnx())], {"source_revision": "x" * 300}, "source_revision"),
        ([("file", tiny_onnx()), ("external_data", ("", b"1"))], {}, "external_data"),
    ],
)
def test_form_fields_that_are_wrong_are_named(
    live: Live, files: list[Any], data: dict[str, str], parameter: str
) -> None:
    answer = live.http.post("/v1/models", files=files, data=data)
    found = problem(answer, 422, "ARGUMENT_ERROR")
    assert found["errors"][0]["parameter"] == parameter


@pytest.mark.parametrize(
    ("kind", "body", "status", "code"),
    [
        ("", b"x", 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("multipart/form-data", b"x", 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("multipart/form-data; boundary=B", b"garbage", 400, "BAD_REQUEST"),
        ("multipart/form-data; boundary=B",
         b'--B\r\nContent-Disposition: form-data; name="file"\r\n\r\nabc', 400, "BAD_REQUEST"),
        ("multipart/form-data; boundary=B",
         b"--B\r\nContent-Type: text/plain\r\n\r\nabc\r\n--B--\r\n", 400, "BAD_REQUEST"),
        ("multipart/form-data; boundary=B",
         b"--B\r\nX: " + b"y" * 20_000 + b"\r\n\r\nabc\r\n--B--\r\n", 400, "BAD_REQUEST"),
        ("multipart/form-data; boundary=B", b"", 400, "BAD_REQUEST"),
    ],
)  # fmt: skip
def test_bodies_that_are_no_form(
    live: Live, kind: str, body: bytes, status: int, code: str
) -> None:
    for path in ("/v1/models", "/v1/calibrations"):
        problem(live.http.post(path, content=body, headers={"content-type": kind}), status, code)


def test_uploads_have_a_bound(live: Live) -> None:
    big = tiny_onnx() + b"\0" * 300_000
    found = problem(live.http.post("/v1/models", files={"file": big}), 413, "PAYLOAD_TOO_LARGE")
    assert found["details"]["limit"] == 200_000
    problem(live.http.put("/v1/models?name=a", content=big), 413, "PAYLOAD_TOO_LARGE")

    def chunks() -> Iterator[bytes]:
        yield from (big[i : i + 1000] for i in range(0, len(big), 1000))

    problem(live.http.put("/v1/models?name=a", content=chunks()), 413, "PAYLOAD_TOO_LARGE")
    both = [("file", tiny_onnx()), ("external_data", ("w", b"0" * 250_000))]
    problem(live.http.post("/v1/models", files=both), 413, "PAYLOAD_TOO_LARGE")


def test_deleting(live: Live) -> None:
    model = live.upload()["id"]
    job = live.parse_job(300, model_id=model)
    found = problem(live.http.delete(f"/v1/models/{model}"), 409, "CONFLICT")
    assert found["details"]["jobs"] == [job["id"]]
    live.http.post(f"/v1/jobs/{job['id']}/cancel")
    assert live.http.delete(f"/v1/models/{model}").status_code == 204
    problem(live.http.delete(f"/v1/models/{model}"), 404, "NOT_FOUND")
    problem(live.http.get(f"/v1/models/{model}"), 404, "NOT_FOUND")
    problem(live.http.get("/v1/models/mdl_x"), 422, "ARGUMENT_ERROR")
    assert live.job(job["id"])["model_id"] == model
    calibration = live.calibrate()["id"]
    body = {"model_id": live.upload()["id"], "calibration_id": calibration}
    job = live.submit(type="compile", target_device="regulus-rb", **body)
    problem(live.http.delete(f"/v1/calibrations/{calibration}"), 409, "CONFLICT")
    live.http.post(f"/v1/jobs/{job['id']}/cancel")
    assert live.http.delete(f"/v1/calibrations/{calibration}").status_code == 204
    problem(live.http.get(f"/v1/calibrations/{calibration}"), 404, "NOT_FOUND")


# calibration --------------------------------------------------------------------------------

SAMPLES = {f"s/{i}.npy": npy(np.full((8, 8, 3), i, np.float32)) for i in range(3)}


def zip_of(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        # not in order
        for name in reversed(list(files)):
            archive.writestr(name, files[name])
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("c.zip", zip_of(SAMPLES)),
        ("c.tar", tar(SAMPLES)),
        ("c.tar.gz", tar(SAMPLES, "w:gz")),
        ("c.tgz", gzip.compress(tar({f"./{k}": v for k, v in SAMPLES.items()}))),
        ("c.tar.zst", zstandard.compress(tar(dict(reversed(SAMPLES.items()))))),
        ("c", tar({**SAMPLES, "s/.DS_Store": b"x", "__MACOSX/s/0.npy": b"x", "Thumbs.db": b"x"})),
    ],
)
def test_every_archive_of_the_same_samples_is_the_same_set(
    live: Live, tmp_path: Path, name: str, data: bytes
) -> None:
    answer = live.http.post("/v1/calibrations", files={"file": (name, data)})
    assert answer.status_code == 201, answer.text
    found = answer.json()
    assert found["name"] == name
    assert found["sample_count"] == 3
    assert found["shapes"] == [
        {"name": None, "format": "npy", "dtype": "float32", "shape": [8, 8, 3], "count": 3}
    ]
    assert found["digest"] == DIGEST
    kept = live.context.calibrations.get("default", found["id"])
    assert kept is not None
    into = tmp_path / "out"
    path = fetch_calibration(
        live.context.store,
        CalibrationInput(kept.digest, kept.archive, kept.entry, kept.sample_count),
        into,
    )
    assert path == into
    assert {p.relative_to(into).as_posix(): p.read_bytes() for p in into.rglob("*.npy")} == SAMPLES


# over paths, sizes and bytes in order: nothing of the archive that they came in
DIGEST = manifest_digest(
    [FileRef(n, hashlib.sha256(d).hexdigest(), len(d)) for n, d in sorted(SAMPLES.items())]
)


def test_single_samples_of_every_kind(live: Live) -> None:
    image = io.BytesIO()
    Image.new("RGB", (20, 10)).save(image, "PNG")
    arrays = io.BytesIO()
    np.savez(arrays, a=np.zeros((1, 2), np.int64), b=np.zeros(3, np.float16))
    answer = live.http.post(
        "/v1/calibrations",
        files=[
            ("file", ("b.png", image.getvalue())),
            ("file", ("a.npz", arrays.getvalue())),
            ("file", ("dir/c.npy", npy(np.zeros((2, 3), np.uint8)))),
        ],
        data={"name": "mixed", "labels": '{"a": "b"}'},
    )
    assert answer.status_code == 201, answer.text
    found = answer.json()
    assert (found["name"], found["labels"], found["sample_count"]) == ("mixed", {"a": "b"}, 3)
    shapes = {(s["format"], s["name"]): (s["dtype"], s["shape"]) for s in found["shapes"]}
    assert shapes == {
        ("png", None): ("uint8", [10, 20, 3]),
        ("npz", "a"): ("int64", [1, 2]),
        ("npz", "b"): ("float16", [3]),
        ("npy", None): ("uint8", [2, 3]),
    }


def test_one_npz_is_a_sample_and_not_an_archive(live: Live) -> None:
    arrays = io.BytesIO()
    np.savez(arrays, x=np.zeros((1, 2), np.float32))
    answer = live.http.post("/v1/calibrations", files={"file": ("a.npz", arrays.getvalue())})
    assert answer.status_code == 201, answer.text
    assert answer.json()["shapes"][0]["format"] == "npz"


def test_a_list_names_the_samples(live: Live) -> None:
    files = {**SAMPLES, "list.txt": b"s/0.npy\ns/2.npy\n", "l.json": b'[{"x": "s/1.npy"}]'}
    data = tar(files)
    post = lambda name: live.http.post(  # noqa: E731
        "/v1/calibrations", files={"file": ("c.tar", data)}, data={"list": name}
    )
    found = post("list.txt").json()
    assert (found["sample_count"], found["list_file"]) == (2, "list.txt")
    assert post("l.json").json()["sample_count"] == 1
    problem(post("nothing.txt"), 422, "CALIBRATION_DATA_ERROR")
    files["list.txt"] = b"/abs/0.npy\n"
    answer = live.http.post(
        "/v1/calibrations", files={"file": ("c.tar", tar(files))}, data={"list": "list.txt"}
    )
    assert "/abs/0.npy" in problem(answer, 422, "CALIBRATION_DATA_ERROR")["detail"]


def special(kind: bytes, name: str = "a.npy", link: str = "/etc/passwd") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.type = kind
        info.linkname = link
        archive.addfile(info)
    return buffer.getvalue()


def zip_link() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo("a.npy")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    return buffer.getvalue()


def pax_bomb() -> bytes:
    info = tarfile.TarInfo("x")
    info.type = tarfile.XHDTYPE
    info.size = 1 << 40
    return info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024


def pax_chain() -> bytes:
    record = b"14 comment=abc\n"[:14]
    data = b""
    for _ in range(5000):
        info = tarfile.TarInfo("x")
        info.type = tarfile.XHDTYPE
        info.size = len(record)
        data += info.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0")
    return gzip.compress(data)


BAD = npy(np.zeros((8, 8, 3), np.float32))


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("c.tar", tar({"../a.npy": BAD}), "outside"),
        ("c.tar", tar({"/a.npy": BAD}), "outside"),
        ("c.tar", tar({"a/../../b.npy": BAD}), "outside"),
        ("c.zip", zip_of({"../a.npy": BAD}), "outside"),
        ("c.zip", zip_of({"a\\..\\b.npy": BAD}), "outside"),
        ("c.zip", zip_of({"C:/a.npy": BAD}), "outside"),
        ("c.tar", special(tarfile.SYMTYPE), "link"),
        ("c.tar", special(tarfile.LNKTYPE), "link"),
        ("c.tar", special(tarfile.CHRTYPE), "device"),
        ("c.tar", special(tarfile.FIFOTYPE), "device"),
        ("c.zip", zip_link(), "link"),
        ("c.zip", zip_of(SAMPLES, zipfile.ZIP_LZMA), "compressed in a way"),
        ("c.tar", tar({"a.npy": BAD, "A.npy": BAD}), "twice"),
        ("c.tar", pax_bomb(), "header that is too large"),
        ("c.tar.gz", pax_chain(), "damaged"),
        ("c.tar.gz", tar(SAMPLES, "w:gz")[:-40], "damaged"),
        ("c.tar", tar(SAMPLES)[:1500], "damaged"),
        ("c.zip", zip_of(SAMPLES)[:-30], "damaged"),
        ("c.tar.zst", zstandard.compress(tar(SAMPLES))[:-20], "damaged"),
        ("c.tar", tar({}), "no file in it"),
        ("c.zip", zip_of({}), "no file in it"),
        ("c.tar", tar({"readme.md": b"x"}), "no sample among the 1"),
        ("c.rar", b"Rar!\x1a\x07" + b"\0" * 100, "no sample"),
        ("a.npy", b"", "'a.npy': it is empty"),
        ("a.npy", b"hello world", "'a.npy': it is not a .npy"),
        ("a.npy", BAD[:-5], "cut short"),
        ("a.npy", BAD[:20], "cut short"),
        ("a.npy", npy(np.array([{"a": 1}], object), allow_pickle=True), "Python objects"),
        ("a.npy", npy(np.array(["text"])), "not numeric"),
        ("a.npy", npy(np.zeros(2, np.dtype([("a", "f4")]))), "records"),
        ("a.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': [[[[[[", "damaged"),
        ("a.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "too large"),
        ("a.npz", b"PK\x03\x04 nothing", "damaged .npz"),
        ("a.pt", b"\x80\x02}q\x00.", "safely"),
        ("a.png", b"\x89PNG\r\n\x1a\nxxxx", "image"),
        ("a.jpg", b"hello", "not an image"),
    ],
)  # fmt: skip
def test_hostile_and_broken_data_is_refused_by_name(
    live: Live, name: str, data: bytes, says: str
) -> None:
    answer = live.http.post("/v1/calibrations", files={"file": (name, data)})
    assert says in problem(answer, 422, "CALIBRATION_DATA_ERROR")["detail"]


def test_the_sample_that_is_wrong_is_named(live: Live) -> None:
    files = {**SAMPLES, "s/9.npy": BAD[:-1]}
    answer = live.http.post("/v1/calibrations", files={"file": ("c.tar", tar(files))})
    found = problem(answer, 422, "CALIBRATION_DATA_ERROR")
    assert found["details"] == {"sample": "s/9.npy"}


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("c.tar", tar({f"{i}.npy": BAD for i in range(60)}), "more than 50 entries"),
        ("c.zip", zip_of({"a.npy": b"\0" * 4_000_000}), "3000000 bytes"),
        ("c.tar.gz", tar({"a.npy": b"\0" * 5_000_000}, "w:gz"), "3000000 bytes"),
        ("c.tar.zst", zstandard.compress(tar({"a.npy": b"\0" * 5_000_000})), "3000000 bytes"),
        ("c.npy", b"\0" * 500_000, "400000"),
    ],
)
def test_calibration_data_has_bounds(live: Live, name: str, data: bytes, says: str) -> None:
    answer = live.http.post("/v1/calibrations", files={"file": (name, data)})
    assert says in problem(answer, 413, "PAYLOAD_TOO_LARGE")["detail"]


def test_an_image_of_too_many_pixels_is_refused(live: Live) -> None:
    image = io.BytesIO()
    Image.new("L", (1000, 1000)).save(image, "PNG")
    answer = live.http.post("/v1/calibrations", files={"file": ("a.png", image.getvalue())})
    assert "pixels" in problem(answer, 422, "CALIBRATION_DATA_ERROR")["detail"]


def test_the_ratio_of_a_bomb_is_bounded(tmp_path: Path) -> None:
    from service.intake import ArchiveError, ArchiveLimits, unpack

    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"\0" * (64 << 20))
    with pytest.raises(ArchiveError, match="100 times its size") as caught:
        (tmp_path / "out").mkdir()
        unpack(path, tmp_path / "out", ArchiveLimits(10, 1 << 40, 100))
    assert caught.value.too_large
    written = sum(p.stat().st_size for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert written <= 18 << 20


def test_a_full_disk_is_said(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    from service.storage import spool

    def full(self: spool.Spool, data: bytes) -> None:
        raise spool.write_error(OSError(errno.ENOSPC, "No space left on device"), "the model")

    monkeypatch.setattr(spool.Spool, "write", full)
    answer = live.http.post("/v1/models", files={"file": tiny_onnx()})
    found = problem(answer, 507, "OUTPUT_WRITE_ERROR")
    assert found["retryable"] and "no space" in found["detail"]
    assert answer.headers["retry-after"] == "60"


def test_a_client_that_goes_away_leaves_nothing(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    import socket
    import time

    host, port = live.url.removeprefix("http://").split(":")
    scratch = live.context.settings.scratch_dir
    for path in ("/v1/models", "/v1/calibrations"):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(
                f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100000\r\n"
                "Content-Type: multipart/form-data; boundary=B\r\n\r\n"
                '--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'.encode()
                + b"x" * 5000
            )
            deadline = time.monotonic() + 10
            while not list(scratch.glob("request-*/**/spool-*")):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        deadline = time.monotonic() + 10
        while list(scratch.iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert not [r for r in caplog.records if r.levelname == "ERROR"]
