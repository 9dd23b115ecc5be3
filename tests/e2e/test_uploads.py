"""Large files to a real server, while the client or the server is killed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qbcompiler.client import Server as Client
from qbcompiler.client.parts import LARGE, TarSource
from qbcompiler.client.samples import SampleFile, gather, manifest_digest
from qbcompiler.client.uploads import send_calibration
from qbcompiler.progress import Reporter

from .server import Server

PART = 512 << 10

_SEND = """
import json, sys
from qbcompiler.client import Server
from qbcompiler.client.uploads import ModelFile, send_model
from qbcompiler.progress import Reporter

sent = []
class Counting(Server):
    def request(self, method, path, **options):
        if method == "PUT":
            sent.append(path)
        return super().request(method, path, **options)

with Counting(sys.argv[1]) as server:
    model = send_model(server, ModelFile(sys.argv[2]), Reporter())
print(json.dumps({"model": model, "sent": sent}))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "server").mkdir()
    server = Server(tmp_path / "server" / "data", {"QB_UPLOAD_PART_BYTES": str(PART)})
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An ONNX model whose weights, in a file of their own, are large."""
    count = (LARGE + 1_000_000) // 4
    weights = np.random.default_rng(0).standard_normal(count, np.float32).tobytes()
    (tmp_path / "weights.bin").write_bytes(weights)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[count])
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "weights.bin"
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, count]) for n in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g", value[:1], value[1:], [tensor]
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    )
    onnx.load(str(path))
    return path


def sending(server: Server, model: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _SEND, server.url, str(model)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def outcome(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return dict(json.loads(out))


def parts_held(server: Server, least: int) -> set[int]:
    """Wait until an open upload has so many parts; return them."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for item in server.http.get("/v1/uploads").json()["items"]:
            if item["state"] == "open" and item["part_count"] > 1:
                shown = server.http.get(f"/v1/uploads/{item['id']}").json()
                if len(shown["parts"]) >= least:
                    return {p["number"] for p in shown["parts"]}
        time.sleep(0.01)
    raise AssertionError("the parts do not come")


def check(server: Server, model: Path, found: dict[str, Any]) -> None:
    weights = model.with_name("weights.bin").read_bytes()
    files = {f["path"]: f["sha256"] for f in found["model"]["files"]}
    digest = hashlib.sha256(weights).hexdigest()
    assert files["weights.bin"] == digest
    stored = server.data_dir / "objects" / digest[:2] / digest[2:4] / digest
    assert stored.read_bytes() == weights
    assert list((server.data_dir / "uploads").iterdir()) == []


def numbers(found: dict[str, Any]) -> set[int]:
    return {int(path.rsplit("/", 1)[-1]) for path in found["sent"]}


def test_a_killed_client_goes_on_where_it_was(server: Server, model: Path) -> None:
    first = sending(server, model)
    parts_held(server, 8)
    first.kill()
    first.communicate()
    held = parts_held(server, 8)
    second = outcome(sending(server, model))
    check(server, model, second)
    count = -(-model.with_name("weights.bin").stat().st_size // PART)
    # what was on its way when it died may be held by now, or not
    assert 8 <= count - len(second["sent"]) <= len(held) + 2
    third = outcome(sending(server, model))
    assert third["sent"] == [] and third["model"]["id"] == second["model"]["id"]


def test_a_client_waits_for_a_killed_server_and_goes_on(server: Server, model: Path) -> None:
    process = sending(server, model)
    held = parts_held(server, 8)
    server.kill()
    server.port = int(server.url.rsplit(":", 1)[-1])
    server.start()
    found = outcome(process)
    check(server, model, found)
    count = -(-model.with_name("weights.bin").stat().st_size // PART)
    assert numbers(found) == set(range(1, count + 1))
    # each once, but for those that were on their way
    assert len(found["sent"]) <= count + 8 and len(held) >= 8


def test_a_server_killed_before_it_checks(server: Server, model: Path) -> None:
    """What was hashed in memory is gone; the file is read."""
    weights = model.with_name("weights.bin").read_bytes()
    sha = hashlib.sha256(weights).hexdigest()
    upload = server.http.post("/v1/uploads", json={"size": len(weights), "sha256": sha}).json()
    url = f"/v1/uploads/{upload['id']}"
    for number in range(1, upload["part_count"] + 1):
        piece = weights[(number - 1) * PART : number * PART]
        assert server.http.put(f"{url}/parts/{number}", content=piece).status_code == 200
    server.kill()
    server.start()
    answer = server.http.post(f"{url}/complete")
    assert answer.status_code == 200, answer.text
    assert answer.json()["state"] == "complete"


def test_a_large_calibration_set_goes_as_an_archive(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "calibration"
    (folder / "with space and ä").mkdir(parents=True)
    rng = np.random.default_rng(1)
    for i in range(3):
        samples = rng.integers(0, 255, (LARGE // 4 // 3 + 1000 * i, 1, 1, 4), np.uint8)
        np.save(folder / "with space and ä" / f"{i}.npy", samples)
    np.save(folder / f"{'long' * 30}.npy", samples)
    files = gather([folder])
    with Client(server.url) as client:
        made = send_calibration(client, [folder], Reporter())
        again = send_calibration(client, [folder], Reporter())
    assert made["id"] == again["id"]
    assert made["digest"] == manifest_digest(files, lambda _: None)
    assert made["name"] == "calibration"
    (upload,) = server.http.get("/v1/uploads").json()["items"]
    assert upload["state"] == "complete" and upload["part_count"] > 50


def test_an_archive_can_be_read_at_any_place(tmp_path: Path) -> None:
    import io
    import tarfile

    files = []
    for i, size in enumerate((0, 1, 511, 512, 513, 3_000_000)):
        path = tmp_path / f"{i}"
        path.write_bytes(os.urandom(size))
        files.append(SampleFile(f"{'d' * 90}/{'é' * 40}/{i}", path, size))
    source = TarSource("x", files)
    whole = b"".join(source.read(0, source.size))
    assert len(whole) == source.size
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        for file, member in zip(files, tar, strict=True):
            stream = tar.extractfile(member)
            assert stream is not None
            assert member.name == file.name and stream.read() == file.path.read_bytes()
    rng = np.random.default_rng(2)
    for _ in range(200):
        start, stop = sorted(int(n) for n in rng.integers(0, source.size + 1, 2))
        assert b"".join(source.read(start, stop)) == whole[start:stop]
