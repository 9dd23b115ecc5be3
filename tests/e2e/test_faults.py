"""SIGKILL in the middle of a job: of the compiler, the worker, the broker, the HTTP process and
the whole server. Nothing is lost; the job ends ``succeeded`` with one set of artifacts.

A stand-in engine that waits at a gate makes "the middle" exact.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.servers import new_bucket, new_database

from .server import Server, serving, stand_in_engine


@pytest.fixture(params=["embedded", "team-parts"])
def gated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    """A server whose engine waits for the gate file: all local, or on Postgres and S3."""
    gate = tmp_path / "gate"
    env = {"QB_ENGINES": json.dumps({"stand-in": stand_in_engine(f"gate:{gate}")})}
    if request.param == "team-parts":
        env["QB_DATABASE_URL"] = new_database(request.getfixturevalue("postgres_url"))
        env |= new_bucket(request.getfixturevalue("s3_endpoint"))
    with serving(tmp_path / "data", env) as server:
        yield server, gate


def start_job(server: Server, model: bytes, **more: Any) -> tuple[dict[str, Any], int]:
    uploaded = server.upload_model(model)
    job = server.submit(
        model_id=uploaded["id"],
        target_device="regulus-rb",
        use_random_calib=True,
        engine="stand-in",
        **more,
    )
    return job, server.waiting(job["id"])


def check_success(server: Server, job_id: str) -> dict[str, Any]:
    job = server.wait(job_id)
    assert job["state"] == "succeeded", job
    artifacts = server.artifacts(job)
    assert {"mxq", "mblt", "report"} <= set(artifacts)
    for artifact in artifacts.values():
        server.download(artifact)
    server.check_objects()
    scratch = server.data_dir / "tmp" / "builds"
    deadline = time.monotonic() + 10
    while any(scratch.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(scratch.iterdir())
    return job


def test_the_compiler_is_killed(gated: tuple[Server, Path], tiny_onnx: bytes) -> None:
    server, gate = gated
    job, compiler = start_job(server, tiny_onnx)
    psutil.Process(compiler).kill()
    gate.touch()
    check_success(server, job["id"])


def test_the_worker_is_killed(gated: tuple[Server, Path], tiny_onnx: bytes) -> None:
    server, gate = gated
    job, compiler = start_job(server, tiny_onnx)
    server.child("worker.cli worker").kill()
    deadline = time.monotonic() + 5
    while psutil.pid_exists(compiler) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(compiler), "the compiler outlived its worker"
    gate.touch()
    check_success(server, job["id"])


def test_the_http_process_is_killed(gated: tuple[Server, Path], tiny_onnx: bytes) -> None:
    server, gate = gated
    job, _ = start_job(server, tiny_onnx)
    server.child("worker.http").kill()
    gate.touch()
    check_success(server, job["id"])


def test_the_broker_is_killed_with_jobs_waiting(
    gated: tuple[Server, Path], tiny_onnx: bytes
) -> None:
    """The messages die with it; the database still knows the jobs."""
    server, gate = gated
    first, _ = start_job(server, tiny_onnx)
    second = server.submit(
        model_id=first["model_id"], target_device="regulus-ra", use_random_calib=True,
        engine="stand-in",
    )  # fmt: skip
    server.child("valkey-server").kill()
    gate.touch()
    check_success(server, first["id"])
    check_success(server, second["id"])


def test_the_whole_server_is_killed(gated: tuple[Server, Path], tiny_onnx: bytes) -> None:
    server, gate = gated
    job, _ = start_job(server, tiny_onnx)
    waiting = server.submit(
        model_id=job["model_id"], target_device="regulus-ra", use_random_calib=True,
        engine="stand-in",
    )  # fmt: skip
    server.kill()
    gate.touch()
    server.start()
    check_success(server, job["id"])
    check_success(server, waiting["id"])


def test_cancel_kills_the_compiler_within_two_seconds(
    gated: tuple[Server, Path], tiny_onnx: bytes
) -> None:
    server, _ = gated
    job, compiler = start_job(server, tiny_onnx)
    at = time.monotonic()
    answer = server.http.post(f"/v1/jobs/{job['id']}/cancel")
    assert answer.status_code in (200, 202), answer.text
    while psutil.pid_exists(compiler) and time.monotonic() < at + 5:
        time.sleep(0.01)
    assert time.monotonic() - at < 2.0
    assert server.wait(job["id"])["state"] == "cancelled"


def test_a_build_killed_every_time_ends_as_lost(tmp_path: Path, tiny_onnx: bytes) -> None:
    env = {"QB_ENGINES": json.dumps({"stand-in": stand_in_engine("killed")})}
    with serving(tmp_path / "data", env) as server:
        uploaded = server.upload_model(tiny_onnx)
        job = server.submit(
            model_id=uploaded["id"], target_device="regulus-rb", use_random_calib=True,
            engine="stand-in",
        )  # fmt: skip
        job = server.wait(job["id"])
        assert job["state"] == "failed" and job["error"]["code"] == "WORKER_LOST"


def test_a_second_server_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    import os
    import subprocess
    import sys

    with serving(tmp_path / "data") as server:
        done = subprocess.run(
            [sys.executable, "-m", "worker.cli", "serve", "--port", "0"],
            capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, "QB_DATA_DIR": str(server.data_dir)},
        )  # fmt: skip
        assert done.returncode == 1
        assert "another server" in done.stderr and "QB_DATA_DIR" in done.stderr
        assert "Traceback" not in done.stderr
        assert server.stop() == 0
    assert not (tmp_path / "data" / "valkey.sock").exists()
