"""Graph and report of a job, where there is none to show, and MBLT files that are damaged."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from service.domain import ArtifactKind
from service.intake.graph_section import GraphUnreadableError, read_graph

from .live import Live, problem

MANIFEST = {"target_device": None, "layers": [{"name": "a", "device": "cpu", "reason": "why"}]}
GRAPH = {
    "name": "g",
    "inputs": ["x"],
    "outputs": ["y"],
    "values": [{"name": "x"}, {"name": "w", "tensor": "model/w"}, {"name": "y"}],
    "layers": [
        {
            "name": "a",
            "op": "Convolution",
            "inputs": ["x", "w", ""],
            "outputs": ["y"],
            "attrs": {"groups": 1, "long": "z" * 5000},
        }
    ],
}


def package(manifest: Any = MANIFEST, graph: Any = GRAPH, compress: int = 0) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compress) as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr("graph.json", json.dumps(graph))
        archive.writestr("weights.safetensors", b"\0" * (4 << 20))
    return buffer.getvalue()


def test_weights_are_neither_shown_nor_read() -> None:
    data, fetched = package(), []

    def read(start: int, stop: int) -> Iterator[bytes]:
        fetched.append(stop - start)
        yield data[start:stop]

    (layer,) = read_graph(read, len(data))["layers"]
    assert layer["inputs"] == ["x"] and layer["outputs"] == ["y"]
    assert (layer["device"], layer["reason"]) == ("cpu", "why")
    assert layer["attributes"] == {"groups": 1}
    assert sum(fetched) < len(data) / 3


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no archive",
        package()[:-40],
        package(compress=zipfile.ZIP_DEFLATED),
        package(manifest=[]),
        package(graph={**GRAPH, "layers": [{"op": "x"}]}),
        package(graph={**GRAPH, "values": None}),
        package(graph={**GRAPH, "layers": [None]}),
    ],
)
def test_what_is_no_mblt_is_refused(data: bytes) -> None:
    with pytest.raises(GraphUnreadableError):
        read_graph(lambda start, stop: iter([data[start:stop]]), len(data))


@pytest.mark.parametrize(("variant", "what"), [(1, "graph"), (2, "report")])
def test_only_a_job_that_succeeded_has_them(live: Live, variant: int, what: str) -> None:
    job = live.parse_job(variant)
    problem(live.http.get(f"/v1/jobs/{job['id']}/{what}"), 409, "JOB_NOT_FINISHED")
    problem(live.http.get(f"/v1/jobs/{job['id'][:-1]}0/{what}"), 404, "NOT_FOUND")
    live.finish(job, b"an engine's own format")
    problem(live.http.get(f"/v1/jobs/{job['id']}/{what}"), 404, "NOT_FOUND")


def test_both_are_answered_from_the_build(live: Live) -> None:
    job = live.parse_job(3)
    files = [
        live.put(package(), ArtifactKind.MBLT, "m.mblt"),
        replace(
            live.put(b'{"version": 1}', ArtifactKind.REPORT, "m.json"),
            media_type="application/json",
        ),
    ]
    live.context.builds.succeed(live.claim(job), files, {})
    assert live.http.get(f"/v1/jobs/{job['id']}/report").json() == {"version": 1}
    graph = live.http.get(f"/v1/jobs/{job['id']}/graph").json()
    assert [layer["name"] for layer in graph["layers"]] == ["a"]
