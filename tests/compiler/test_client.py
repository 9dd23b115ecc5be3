"""The client against a server that misbehaves."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qbcompiler.client import (
    Server,
    ServerError,
    connect,
    fetch_artifacts,
    follow_job,
    forget_token,
    save_token,
)
from qbcompiler.client.samples import gather, manifest_digest
from qbcompiler.client.uploads import ModelFile
from qbcompiler.errors import ArgumentError, CalibrationDataError, ModelLoadError
from qbcompiler.progress import CallbackReporter, Reporter

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class Fake:
    """A server that answers each path as a test says, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                fake.seen.append((path, {k.lower(): v for k, v in self.headers.items()}))
                queue = fake.answers[path]
                (queue.pop(0) if len(queue) > 1 else queue[0])(self)

            def log_message(self, *args: Any) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def on(self, path: str, *answers: Answer) -> None:
        self.answers[path] = list(answers)


@pytest.fixture
def fake() -> Iterator[Fake]:
    server = Fake()
    yield server
    server.http.shutdown()
    server.http.server_close()


def reply(
    status: int, body: bytes, *, length: int | None = None, headers: dict[str, str] | None = None
) -> Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        handler.wfile.write(body)
        handler.wfile.flush()
        handler.close_connection = True

    return answer


def as_json(status: int, data: Any) -> Answer:
    return reply(status, json.dumps(data).encode())


def artifact(data: bytes, **more: Any) -> dict[str, Any]:
    return {
        "id": "art_1", "kind": "mxq", "name": "model.mxq", "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(), "content_url": "/v1/content", **more,
    }  # fmt: skip


def test_a_download_that_breaks_off_goes_on_where_it_was(fake, tmp_path):
    data = os.urandom(300_000)
    fake.on(
        "/v1/content",
        reply(200, data[:100_000], length=len(data)),
        reply(206, data[100_000:]),
    )
    job = {"id": "job_1", "artifacts": [artifact(data)]}
    with Server(fake.url) as server:
        (entry,) = fetch_artifacts(server, job, {"mxq": tmp_path / "a.mxq"}, Reporter())
    assert (tmp_path / "a.mxq").read_bytes() == data and entry["size"] == len(data)
    assert fake.seen[1][1]["range"] == "bytes=100000-"


@pytest.mark.parametrize("body", [b"other bytes....", b"far more bytes than were announced"])
def test_other_bytes_than_the_servers_own_digest_are_refused(fake, tmp_path, body):
    fake.on("/v1/content", reply(200, body))
    job = {"id": "job_1", "artifacts": [artifact(b"the right bytes")]}
    with Server(fake.url) as server, pytest.raises(ServerError) as caught:
        fetch_artifacts(server, job, {"mxq": tmp_path / "a.mxq"}, Reporter())
    assert caught.value.code == "DIGEST_MISMATCH" and caught.value.exit_code == 3
    assert list(tmp_path.iterdir()) == []


def test_a_redirect_to_another_host_goes_without_the_token(fake, tmp_path):
    other = Fake()
    try:
        data = b"from the object store"
        other.on("/bucket/key", reply(200, data))
        url = other.url.replace("127.0.0.1", "localhost") + "/bucket/key"
        fake.on("/v1/content", reply(307, b"", headers={"Location": url}))
        job = {"id": "job_1", "artifacts": [artifact(data)]}
        with Server(fake.url, "secret") as server:
            fetch_artifacts(server, job, {"mxq": tmp_path / "a.mxq"}, Reporter())
        assert fake.seen[0][1]["authorization"] == "Bearer secret"
        assert "authorization" not in other.seen[0][1]
        assert (tmp_path / "a.mxq").read_bytes() == data
    finally:
        other.http.shutdown()
        other.http.server_close()


def test_events_go_on_after_a_lost_connection(fake):
    def event(number: int, name: str, **data: Any) -> bytes:
        return f"id: {number}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode()

    first = event(1, "phase", phase="parse") + event(2, "log", text="warning: mind the gap")
    last = event(3, "phase", phase="store") + event(4, "state", state="succeeded")
    fake.on("/v1/jobs/job_1/events", reply(200, first, length=10_000), reply(200, last))
    fake.on(
        "/v1/jobs/job_1",
        as_json(200, {"id": "job_1", "state": "succeeded"}),
    )
    said: list[Any] = []
    with Server(fake.url) as server:
        job = follow_job(server, "job_1", CallbackReporter(said.append))
    assert job["state"] == "succeeded"
    phases = [m["phase"] for m in said if m["type"] == "status"]
    assert phases == ["parse", "store"]
    assert {"type": "log", "level": "warning", "message": "mind the gap"} in said
    events = [headers for path, headers in fake.seen if path.endswith("/events")]
    assert [e.get("last-event-id") for e in events] == [None, "2"]


@pytest.mark.parametrize(
    ("status", "body", "code", "exit_code", "words"),
    [
        (401, {"code": "UNAUTHENTICATED", "detail": "no token"}, "UNAUTHENTICATED", 2, "no token"),
        (422, {"code": "CONFIG_ERROR", "detail": "bad"}, "CONFIG_ERROR", 2, "bad"),
        (500, {"code": "INTERNAL_ERROR", "detail": "a fault"}, "INTERNAL_ERROR", 69, "a fault"),
        (404, {"hello": 1}, "SERVER_UNAVAILABLE", 69, "answered with status 404"),
        (200, None, "SERVER_UNAVAILABLE", 69, "not JSON"),
    ],
)
def test_problems_become_typed_errors(fake, status, body, code, exit_code, words):
    fake.on("/v1/jobs", reply(200, b"<html>") if body is None else as_json(status, body))
    with Server(fake.url) as server, pytest.raises(Exception, match=words) as caught:
        server.get("/v1/jobs")
    assert (caught.value.code, caught.value.exit_code) == (code, exit_code)


def test_a_server_that_is_not_there_is_named():
    with Server("127.0.0.1:9") as server, pytest.raises(ServerError) as caught:
        server.request("GET", "/v1/jobs")
    assert caught.value.message == (
        "the compile server http://127.0.0.1:9 cannot be reached: Connection refused"
    )
    assert caught.value.exit_code == 69 and "--local" in str(caught.value.hint)


@pytest.mark.parametrize(
    "url", ["", "ftp://host", "http://", "http://a b", "http://u:p@h", "http://h:x"]
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ArgumentError):
        Server(url)


def test_a_server_cannot_ask_for_a_file_that_the_model_does_not_name(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"... weights.bin ...")
    (tmp_path / "weights.bin").write_bytes(b"w")
    (tmp_path / "secret.txt").write_bytes(b"s")
    (tmp_path.parent / "above.txt").write_bytes(b"s")
    model = ModelFile(tmp_path / "model.onnx")
    assert model.external("weights.bin") == tmp_path / "weights.bin"
    for name in ("secret.txt", "../above.txt", "/etc/hostname", "..\\above.txt"):
        with pytest.raises(ModelLoadError, match="cannot be sent"):
            model.external(name)


def test_a_folder_keeps_its_names_and_lists_keep_their_order(tmp_path):
    folder = tmp_path / "set"
    for name in ("b", "a", "sub/c"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{name}.npy", np.zeros(3, np.float32))
    (folder / "notes.md").write_text("not a sample")
    assert [f.name for f in gather([folder])] == ["a.npy", "b.npy", "sub/c.npy"]
    (tmp_path / "list.json").write_text(
        json.dumps([{"x": "set/b.npy", "y:0": "set/a.npy"}, {"x": "set/a.npy", "y:0": "set/b.npy"}])
    )
    files = gather([tmp_path / "list.json"])
    assert [f.name for f in files] == [
        "00/000000/x.npy", "00/000000/y_0.npy", "00/000001/x.npy", "00/000001/y_0.npy",
    ]  # fmt: skip
    # `x` of the first sample in the order of a local build, which sorts by the first part's name
    assert files[0].path.name in ("a.npy", "b.npy")
    assert [f.name for f in gather([folder / "a.npy"])] == ["a.npy"]
    both = gather([folder, folder / "a.npy"])
    assert [f.name for f in both][-1] == "01/000000/a.npy" and len(both) == 4
    assert manifest_digest(gather([folder]), lambda _: None) != manifest_digest(
        both, lambda _: None
    )
    with pytest.raises(CalibrationDataError, match="does not exist"):
        gather([tmp_path / "none"])


def test_tokens_are_kept_for_their_owner_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("QB_TOKEN", raising=False)
    path = save_token("http://host:1/", "one")
    save_token("http://other", "two")
    assert path.stat().st_mode & 0o777 == 0o600
    assert connect("http://host:1")._headers["Authorization"] == "Bearer one"
    monkeypatch.setenv("QB_TOKEN", "three")
    assert connect("http://host:1")._headers["Authorization"] == "Bearer three"
    monkeypatch.delenv("QB_TOKEN")
    assert forget_token("http://host:1") and not forget_token("http://host:1")
    assert "Authorization" not in connect("http://host:1")._headers
    path.chmod(0o644)
    with pytest.raises(ArgumentError, match="can be read by others"):
        connect("http://other")


def test_without_an_address_the_way_out_is_said(monkeypatch):
    monkeypatch.delenv("QB_SERVER", raising=False)
    with pytest.raises(ArgumentError) as caught:
        connect(None)
    assert "QB_SERVER" in str(caught.value.hint)


def test_the_token_file_is_not_followed_into_nonsense(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path: Path = save_token("http://host", "one")
    path.write_text("[1]")
    with pytest.raises(ArgumentError, match="not a map"):
        connect("http://host")
