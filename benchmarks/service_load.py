"""What the server does under load: event streams, status polls, and jobs from end to end.

    python -m benchmarks.service_load [--streams N] [--polls N] [--seconds S] [--builds N]

It runs ``qbserver serve`` as :mod:`benchmarks.service` does. First N parse jobs of a tiny model are
submitted at once, and the time until the last has ended gives the throughput of one worker, the
jobs' own times the wait in the queue. Then a job whose compiler only sleeps is
followed by N event streams, while N status calls a second come at even distances. A call's time
counts from when it was due, so a server that falls behind cannot hide it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from .service import _at, _finished, _model, server

SLEEPER = {"sleeper": {"command": ["sh", "-c", "sleep 3600"], "version": "1"}}


async def _follow(client: httpx.AsyncClient, job_id: str, opened: list[float]) -> None:
    start = time.perf_counter()
    async with client.stream("GET", f"/v1/jobs/{job_id}/events", timeout=None) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                opened.append((time.perf_counter() - start) * 1e3)
                break
        # held open until the end
        await asyncio.Event().wait()


async def load(url: str, job_id: str, streams: int, polls: int, seconds: float) -> dict[str, Any]:
    """Follow a job with so many streams, and ask for its state so often."""
    opened: list[float] = []
    took: list[float] = []
    errors = 0
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client:
        followers = [asyncio.create_task(_follow(client, job_id, opened)) for _ in range(streams)]
        deadline = time.monotonic() + 60
        while len(opened) < streams and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

        async def poll(due: float) -> None:
            nonlocal errors
            try:
                answer = await client.get(f"/v1/jobs/{job_id}")
                answer.raise_for_status()
            except httpx.HTTPError:
                errors += 1
            took.append((time.perf_counter() - due) * 1e3)

        start = time.perf_counter()
        calls = []
        for i in range(int(polls * seconds)):
            due = start + i / polls
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            calls.append(asyncio.create_task(poll(due)))
        await asyncio.gather(*calls)
        for task in followers:
            task.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
    return {
        "streams open": len(opened),
        "stream's first event": percentiles(opened),
        "status call": percentiles(took),
        "errors": errors,
    }


def percentiles(found: list[float]) -> dict[str, float]:
    """Return p50, p99 and the largest."""
    ordered = sorted(found)
    return {
        "p50_ms": round(statistics.median(ordered), 1),
        "p99_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 1),
        "max_ms": round(ordered[-1], 1),
    }


def throughput(http: httpx.Client, model: str, builds: int) -> dict[str, Any]:
    """Submit so many jobs at once; return jobs a second and the wait in the queue."""
    bodies = [
        {
            "type": "parse",
            "model_id": model,
            "cache": "off",
            "input_shapes": {"x": [1, 3, 8, 8 + i]},
        }
        for i in range(builds)
    ]
    # the first one wakes the worker
    _finished(http, bodies[0])
    start = time.perf_counter()
    for body in bodies:
        http.post("/v1/jobs", json=body).raise_for_status()
    while True:
        page = http.get("/v1/jobs", params={"limit": 200}).json()["items"]
        if all(job["state"] not in ("queued", "running") for job in page):
            break
        time.sleep(0.1)
    took = time.perf_counter() - start
    waits = [(_at(j["started_at"]) - _at(j["created_at"])) * 1e3 for j in page[:builds]]
    return {"jobs_per_s": round(builds / took, 2), "wait in the queue": percentiles(waits)}


def main() -> int:
    """Measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description="Load the server.")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--polls", type=int, default=100, help="status calls a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--builds", type=int, default=20, help="at most 200")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="qb-bench-") as folder,
        server(Path(folder), QB_ENGINES=json.dumps(SLEEPER)) as url,
    ):
        with httpx.Client(base_url=url, timeout=120) as http:
            answer = http.post("/v1/models", files={"file": ("m.onnx", _model())})
            answer.raise_for_status()
            model = answer.json()["id"]
            found = throughput(http, model, args.builds)
            answer = http.post(
                "/v1/jobs", json={"type": "parse", "model_id": model, "engine": "sleeper"}
            )
            answer.raise_for_status()
            job = answer.json()
        found |= asyncio.run(load(url, job["id"], args.streams, args.polls, args.seconds))
    text = json.dumps(found, indent=2) + "\n"
    sys.stdout.write(text)
    if args.json is not None:
        args.json.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
