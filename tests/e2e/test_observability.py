"""What an operator sees of one job: a trace through every process, log lines, metrics."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from .server import serving, stand_in_engine

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "4e1f0c7a9b3d5e8f2a6c1b0d9e7f3a5c"


@dataclass
class Collector:
    """Takes traces as an OpenTelemetry collector does."""

    url: str
    spans: list[dict[str, Any]] = field(default_factory=list)

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {a.key: a.value.string_value for a in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        {
                            "service": names["service.name"],
                            "name": span.name,
                            "trace": span.trace_id.hex(),
                            "id": span.span_id.hex(),
                            "parent": span.parent_span_id.hex(),
                            "seconds": (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                            **{a.key: a.value.string_value for a in span.attributes},
                        }
                    )


@pytest.fixture
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            found.take(body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Collector(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield found
        server.shutdown()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_one_job_in_traces_logs_and_metrics(
    tmp_path: Path, tiny_onnx: bytes, collector: Collector
) -> None:
    port = free_port()
    env = {
        "QB_ENGINES": json.dumps({"stand-in": stand_in_engine("good")}),
        "QB_OTLP_ENDPOINT": collector.url,
        "QB_LOG_JSON": "true",
        "QB_SIGNING_SECRET": SECRET,
        "QB_WORKER_METRICS_PORT": str(port),
    }
    with serving(tmp_path / "data", env) as server:
        model = server.upload_model(tiny_onnx)
        answer = server.http.post(
            "/v1/jobs",
            json={
                "type": "compile", "model_id": model["id"], "target_device": "regulus-rb",
                "use_random_calib": True, "engine": "stand-in",
            },
            headers={
                "traceparent": f"00-{TRACE}-{CALLER}-01",
                "X-Request-Id": "asked-by-the-test",
                "Authorization": "Bearer qb_a-token-that-must-not-show",
            },
        )  # fmt: skip
        job = server.wait(answer.json()["id"])
        assert job["state"] == "succeeded"
        link = server.http.post(f"/v1/artifacts/{job['artifacts'][0]['id']}/links", json={}).json()
        server.http.get(link["url"], follow_redirects=True)
        families = {}
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
            families = {f.name: f for f in text_string_to_metric_families(text)}
            if families["qb_worker_attempts"].samples:
                break
            time.sleep(0.05)
        assert server.http.get("/metrics").status_code == 200
        assert server.stop() == 0
        log = server.log()

    # metrics: the worker counted its attempt, with its phases
    ended = [s for s in families["qb_worker_attempts"].samples if s.name.endswith("_total")]
    assert [(s.labels["outcome"], s.value) for s in ended] == [("succeeded", 1.0)]
    phases = {s.labels["phase"] for s in families["qb_worker_phase_seconds"].samples}
    assert {"fetch", "parse", "store"} <= phases

    # traces: one for the request, its message and its build; sent when the processes stopped
    ours = {s["name"]: s for s in collector.spans if s["trace"] == TRACE}
    request, message = ours["POST /v1/jobs"], ours["publish qb.run_build"]
    build, fetch = ours["build compile"], ours["phase fetch"]
    assert (request["service"], request["parent"]) == ("qb-service", CALLER)
    assert message["parent"] == request["id"]
    assert (build["service"], build["parent"]) == ("qb-worker", request["id"])
    assert fetch["parent"] == ours["phase store"]["parent"] == build["id"]
    assert build["qb.build_id"] == job["build_id"] and build["qb.outcome"] == "succeeded"
    assert build["seconds"] >= fetch["seconds"] > 0
    # probes and other requests are no part of it
    assert all("/metrics" not in s["name"] for s in collector.spans)
    assert len({s["trace"] for s in collector.spans}) > 1

    # logs: every line is JSON, names what it is about, and tells no secret
    # Valkey and Celery have their own way to say that they stop
    others = re.compile(r"\d+:([A-Z]|signal-handler) |worker: Warm shutdown|$")
    ours_only = [x for x in log.splitlines() if not others.match(x)]
    lines = [json.loads(line) for line in ours_only]
    asked = [x for x in lines if x.get("request_id") == "asked-by-the-test"]
    assert {x["job_id"] for x in asked if "job_id" in x} == {job["id"]}
    assert {x["trace_id"] for x in asked} == {TRACE}
    (answered,) = [x for x in asked if x.get("status") == 202]
    assert (answered["route"], answered["method"]) == ("/v1/jobs", "POST")
    built = [x for x in lines if x.get("build_id") == job["build_id"] and x["process"] == "worker"]
    assert {x["trace_id"] for x in built if "attempt" in x} == {TRACE}
    assert any(x["message"].endswith("attempt 1 succeeded") for x in built)
    for secret in (SECRET, "that-must-not-show", "signature="):
        assert secret not in log
