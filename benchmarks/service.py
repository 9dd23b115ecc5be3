"""How fast the server answers: submit to a worker's claim, a cache hit, lists of many jobs.

    python -m benchmarks.service [--jobs N] [--runs N] [--json FILE]

It runs ``qbserver serve`` on a free port, with a data folder of its own that it removes, whose
SQLite database has N finished jobs before the first request. Times are those of whole HTTP calls
on one connection that stays open, save for the claim: from the moment at which the service made the
job to the moment at which a worker had taken it, by the job's own times. The worker then fetches
the inputs and starts the engine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import onnx
from onnx import TensorProto, helper

from service.db import run_migrations

from .service_fill import fill

START_S = 120.0


@contextmanager
def server(folder: Path, **settings: str) -> Iterator[str]:
    """Run an embedded server on a data folder, with these ``QB_*``; yield its address."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QB_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "worker.cli", "serve", "--port", "0", "--data-dir", str(folder)],
        env={**environment, "QB_LOG_LEVEL": "warning", **settings},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("serving on "):
            raise SystemExit("the server did not start")
        yield line.removeprefix("serving on ").strip()
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def timed(runs: int, call: Callable[[], httpx.Response]) -> dict[str, float]:
    """Return the median and the largest of so many calls, ms, after one that is not counted."""
    call().raise_for_status()
    found = []
    for _ in range(runs):
        start = time.perf_counter()
        answer = call()
        found.append((time.perf_counter() - start) * 1e3)
        answer.raise_for_status()
    return summary(found)


def summary(found: list[float]) -> dict[str, float]:
    """Return the median and the largest."""
    return {"median_ms": round(statistics.median(found), 1), "max_ms": round(max(found), 1)}


def measure(url: str, commit: str, runs: int) -> dict[str, dict[str, float]]:
    """Return each figure."""
    found = {}
    with httpx.Client(base_url=url, timeout=120) as http:
        answer = http.post("/v1/models", files={"file": ("m.onnx", _model())})
        answer.raise_for_status()
        model = answer.json()["id"]
        starts = []
        body: dict[str, Any] = {}
        for i in range(runs + 1):
            body = {
                "type": "parse",
                "model_id": model,
                "input_shapes": {"x": [1, 3, 8, 8 + i]},
            }
            job = _finished(http, body)
            starts.append((_at(job["started_at"]) - _at(job["created_at"])) * 1e3)
        # the first one wakes the worker
        found["submit to a worker's claim"] = summary(starts[1:])
        found["cache hit answered"] = timed(runs, lambda: http.post("/v1/jobs", json=body))
        lists: dict[str, dict[str, Any]] = {
            "list": {},
            "list, state=failed": {"state": "failed"},
            "list, a label of half of the jobs": {"label": "team=b"},
            "list, a label of 10 jobs": {"label": f"commit={commit}"},
            "list, two common labels": {"label": ["branch=b1", "team=b"]},
            "list, a common and a rare label": {"label": ["branch=b1", f"commit={commit}"]},
            "list, two common labels that no job has both of": {"label": ["nightly=yes", "team=b"]},
        }
        for name, params in lists.items():
            found[name] = timed(
                runs, lambda p=params: http.get("/v1/jobs", params={"limit": 50, **p})
            )
    return found


def _finished(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    answer = http.post("/v1/jobs", json=body)
    answer.raise_for_status()
    job = dict(answer.json())
    deadline = time.monotonic() + START_S
    while job["state"] in ("queued", "running"):
        if time.monotonic() > deadline:
            raise SystemExit(f"{job['id']} did not end")
        answer = http.get(f"/v1/jobs/{job['id']}", params={"wait": 10})
        answer.raise_for_status()
        job = dict(answer.json())
    if job["state"] != "succeeded":
        raise SystemExit(f"{job['id']} {job['state']}: {job['error']}")
    return job


def _at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _model() -> bytes:
    shape = ["n", 3, 8, "w"]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    opsets = [helper.make_opsetid("", 17)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model.SerializeToString()


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Time the server's answers.")
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs in the database before")
    parser.add_argument("--runs", type=int, default=20, help="calls of each kind")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    if args.jobs < 10 or args.runs < 1:
        parser.error("at least 10 jobs and 1 run")
    with tempfile.TemporaryDirectory(prefix="qb-bench-") as folder:
        url = f"sqlite:///{Path(folder) / 'qb.sqlite3'}"
        run_migrations(url)
        commit = fill(url, args.jobs)
        with server(Path(folder)) as address:
            found = measure(address, commit, args.runs)
    sys.stdout.write("| | median ms | largest ms |\n| --- | --- | --- |\n")
    for name, figure in found.items():
        sys.stdout.write(f"| {name} | {figure['median_ms']} | {figure['max_ms']} |\n")
    if args.json is not None:
        args.json.write_text(json.dumps({"jobs": args.jobs, "figures": found}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
