"""A running service in a thread of the test: real sockets, real database, no worker."""

from __future__ import annotations

import io
import json
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import uvicorn
from onnx import TensorProto, helper

from service.api import create_app
from service.api.context import Context
from service.db import Message
from service.domain import ArtifactKind, Claim, StoredFile
from service.settings import Settings
from service.storage import Spool


@dataclass
class Live:
    """A service and a client of it."""

    http: httpx.Client
    context: Context
    url: str
    sent: list[Message] = field(default_factory=list)

    # what a client does

    def upload(self, data: bytes | None = None, **fields: str) -> dict[str, Any]:
        answer = self.http.post(
            "/v1/models", files={"file": ("m.onnx", data or tiny_onnx())}, data=fields
        )
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def calibrate(self, files: dict[str, bytes] | None = None) -> dict[str, Any]:
        files = files or {f"{i}.npy": npy(np.full((1, 3, 8, 8), i, np.float32)) for i in range(3)}
        answer = self.http.post("/v1/calibrations", files={"file": ("c.tar", tar(files))})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def submit(self, expect: int = 202, **body: Any) -> dict[str, Any]:
        answer = self.http.post("/v1/jobs", json=body)
        assert answer.status_code == expect, answer.text
        return dict(answer.json())

    def parse_job(self, variant: int = 0, **body: Any) -> dict[str, Any]:
        """Submit a parse job; another variant is another build."""
        if "model_id" not in body:
            body["model_id"] = self.upload()["id"]
        return self.submit(type="parse", input_shapes={"x": [1, 3, 8, 8 + variant]}, **body)

    def job(self, job_id: str) -> dict[str, Any]:
        answer = self.http.get(f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    # what a worker does

    def claim(self, job: dict[str, Any], worker: str = "test") -> Claim:
        claim = self.context.builds.claim(job["build_id"], worker)
        assert claim is not None
        return claim

    def put(self, data: bytes, kind: ArtifactKind, name: str) -> StoredFile:
        with Spool(self.context.settings.scratch_dir, limit=1 << 30, what="x") as spool:
            spool.write(data)
            return StoredFile(kind, name, spool.store(self.context.store), len(data))

    def finish(
        self, job: dict[str, Any], data: bytes = b"result", name: str = "m.mblt"
    ) -> dict[str, Any]:
        """Do a job as a worker would; return its artifact."""
        claim = self.claim(job)
        self.context.builds.append_log(claim, "working\n")
        self.context.builds.succeed(claim, [self.put(data, ArtifactKind.MBLT, name)], {"a": 1})
        (artifact,) = self.job(job["id"])["artifacts"]
        return dict(artifact)


@contextmanager
def serving(settings: Settings, *, real_broker: bool = False) -> Iterator[Live]:
    """Run a service; its messages go into a list, or to the broker of the settings."""
    sent: list[Message] = []
    app = create_app(settings, sender=None if real_broker else sent.append)
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="on")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive() and time.monotonic() < deadline, "the service did not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=url, timeout=60) as http:
        try:
            yield Live(http, app.state.qb, url, sent)
        finally:
            http.close()
            server.should_exit = True
            thread.join(30)


def tiny_onnx(width: int | str = "w", *, external: str | None = None) -> bytes:
    """A model with one weight that is an input too (as old files have it) and an open shape."""
    weight = helper.make_tensor(
        "k", TensorProto.FLOAT, [1], np.ones(1, np.float32).tobytes(), raw=True
    )
    if external is not None:
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        entry = weight.external_data.add()
        entry.key, entry.value = "location", external
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "k"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "h", width]),
            helper.make_tensor_value_info("k", TensorProto.FLOAT, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, "h", width])],
        [weight],
    )
    model = helper.make_model(
        graph, producer_name="test", opset_imports=[helper.make_opsetid("", 17)]
    )
    model.producer_version = "1.0"
    data: bytes = model.SerializeToString()
    assert onnx.load_model_from_string(data).graph.node
    return data


def npy(array: np.ndarray[Any, Any], **kwargs: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **kwargs)
    return buffer.getvalue()


def tar(files: dict[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mtime = 1_700_000_000
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Parse a stream of server-sent events."""
    event: dict[str, Any] = {}
    for line in lines:
        if not line:
            if "data" in event:
                yield event
            event = {}
        elif line.startswith(":"):
            yield {"comment": line[1:].strip()}
        else:
            name, _, value = line.partition(": ")
            event[name] = json.loads(value) if name == "data" else value


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check that an answer is a problem document as it must be, and return it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = dict(answer.json())
    assert body["code"] == code, body
    assert body["status"] == status
    assert body["type"] == f"urn:qb:problem:{code.lower().replace('_', '-')}"
    assert body["title"] and body["detail"]
    assert set(body) >= {"hint", "retryable", "request_id"}
    assert body["request_id"] == answer.headers["x-request-id"]
    for word in ("Traceback", "/work", str(Path.home()), "SELECT", "sqlalchemy", 'File "'):
        assert word not in answer.text
    return body
