"""Builds with a graph and a report that a test chose."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from typing import Any

from service.domain import ArtifactKind
from tests.service.live import Live


def chain(count: int, *, prefix: str = "layer", cpu: int = -1, branch: int = 7) -> dict[str, Any]:
    """A graph of ``count`` layers; every ``branch``-th reads one that lies further back, too."""
    layers = []
    for i in range(count):
        inputs = [f"t{i}"]
        if i >= branch and i % branch == 0:
            inputs.append(f"t{i - branch + 1}")
        layers.append(
            {
                "name": f"{prefix}_{i}",
                "op": "Adding" if len(inputs) == 2 else "Convolution",
                "source": [f"node_{i}"],
                "inputs": inputs,
                "outputs": [f"t{i + 1}"],
                "attrs": {"groups": 1},
                "device": "cpu" if i == cpu else "npu",
            }
        )
    return {"name": "g", "inputs": ["t0"], "outputs": [f"t{count}"], "layers": layers}


def package(graph: dict[str, Any]) -> bytes:
    """An MBLT without weights."""
    facts = [
        {"name": x["name"], "device": x["device"], "place": "body", "reason": x.get("reason"),
         "shapes": [[1, 8, 4, 4]], "parameters": 10, "macs": 1000}
        for x in graph["layers"]
    ]  # fmt: skip
    body = {**graph, "values": [], "layers": [
        {k: v for k, v in x.items() if k not in ("device", "reason")} for x in graph["layers"]
    ]}  # fmt: skip
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(
            "manifest.json", json.dumps({"target_device": "aries-rb", "layers": facts})
        )
        archive.writestr("graph.json", json.dumps(body))
    return buffer.getvalue()


def report(graph: dict[str, Any], *, better: float = 0.0, **more: Any) -> dict[str, Any]:
    """A report with an error for each layer, falling along the graph."""
    layers = [
        {"name": x["name"], "op": x["op"], "inputs": [], "outputs": [],
         "bits": {"activation": 8, "weight": 8, "why": "8 is the default"},
         "sqnr_db": 45 - 30 * i / len(graph["layers"]) + better, "own_sqnr_db": 48.0 - i % 5,
         "saturated": 0.001, "used": 0.7}
        for i, x in enumerate(graph["layers"])
    ]  # fmt: skip
    return {"version": 1, "layers": layers, "advice": [], **more}


def finish(
    live: Live,
    job: dict[str, Any],
    graph: dict[str, Any],
    found: dict[str, Any] | None = None,
    *,
    log: str = "working\n",
    name: str = "m.mblt",
    summary: dict[str, Any] | None = None,
) -> None:
    """Do a job as a worker would."""
    claim = live.claim(job)
    live.context.builds.append_log(claim, log)
    files = [live.put(package(graph), ArtifactKind.MBLT, name)]
    if found is not None:
        data = json.dumps(found).encode()
        files.append(
            replace(live.put(data, ArtifactKind.REPORT, "r.json"), media_type="application/json")
        )
    live.context.builds.succeed(claim, files, summary or {})
