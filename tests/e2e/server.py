"""A whole server as a user starts it: ``qbserver serve`` as a process, spoken to over HTTP."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

STAND_IN = Path(__file__).resolve().parents[1] / "worker" / "stand_in.py"
TERMINAL = ("succeeded", "failed", "cancelled", "timed_out")


def write_project(folder: Path, model: Path, images: Any) -> None:
    """Make a folder with ``model.onnx`` and ``calibration/NNN.npy``, of images [N, C, H, W]."""
    (folder / "calibration").mkdir(parents=True)
    shutil.copy(model, folder / "model.onnx")
    for i, image in enumerate(images):
        np.save(folder / "calibration" / f"{i:03}.npy", image.transpose(1, 2, 0))


def stand_in_engine(behaviour: str) -> dict[str, Any]:
    """An engine entry of ``QB_ENGINES``."""
    return {"command": [sys.executable, str(STAND_IN), behaviour], "version": "1"}


@dataclass
class Server:
    """One ``qbserver serve``; restartable on the same data."""

    data_dir: Path
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    url: str = ""
    port: int = 0
    http: httpx.Client = field(default_factory=httpx.Client)

    def start(self) -> None:
        env = {
            **os.environ,
            "QB_DATA_DIR": str(self.data_dir),
            "QB_RECONCILE_SECONDS": "0.5",
            "QB_LEASE_SECONDS": "4",
            "QB_RESEND_SECONDS": "2",
            "QB_HEARTBEAT_SECONDS": "0.2",
            **self.env,
        }
        log = (self.data_dir.parent / "server.log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "worker.cli", "serve", "--port", str(self.port)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=env, text=True,
        )  # fmt: skip
        log.close()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("serving on http"), self.log()[-3000:]
        self.url = line.split()[-1]
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def log(self) -> str:
        return (self.data_dir.parent / "server.log").read_text()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(30)
        self.http.close()
        return code

    def kill(self) -> None:
        """SIGKILL the supervisor; its children must die with it."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        self.http.close()
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive, [p.cmdline() for p in alive]

    def child(self, mark: str) -> psutil.Process:
        """Return the process below the supervisor whose command has ``mark``."""
        assert self.process is not None
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    command = process.cmdline()
                    if mark in " ".join(command) and "-I" not in command:
                        return process
            time.sleep(0.05)
        raise AssertionError(f"no process with {mark!r}\n{self.log()[-3000:]}")

    # what a client does ---------------------------------------------------------------------

    def upload_model(self, data: bytes, name: str = "model.onnx") -> dict[str, Any]:
        answer = self.http.post("/v1/models", files={"file": (name, data)})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def upload_calibration(self, folder: Path) -> dict[str, Any]:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for path in sorted(folder.iterdir()):
                tar.add(path, arcname=path.name)
        files = {"file": ("calibration.tar.gz", buffer.getvalue())}
        answer = self.http.post("/v1/calibrations", files=files)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def submit(self, **body: Any) -> dict[str, Any]:
        answer = self.http.post("/v1/jobs", json={"type": "compile", **body})
        assert answer.status_code == 202, answer.text
        return dict(answer.json())

    def job(self, job_id: str) -> dict[str, Any]:
        answer = self.http.get(f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def wait(
        self,
        job_id: str,
        until: Callable[[dict[str, Any]], bool] | None = None,
        seconds: float = 90,
    ) -> dict[str, Any]:
        """Poll until the job has ended, or ``until`` holds."""
        deadline = time.monotonic() + seconds
        done = until or (lambda job: job["state"] in TERMINAL)
        while True:
            with contextlib.suppress(httpx.TransportError):
                job = self.job(job_id)
                if done(job):
                    return job
            assert time.monotonic() < deadline, f"{job}\n{self.log()[-4000:]}"
            time.sleep(0.05)

    def waiting(self, job_id: str) -> int:
        """Wait until a gated stand-in says that it waits; return its process id."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            text = self.http.get(f"/v1/jobs/{job_id}/log").text
            lines = [x for x in text.splitlines() if "waiting as" in x]
            for line in reversed(lines):
                pid = int(line.split()[-1])
                if psutil.pid_exists(pid):
                    return pid
            time.sleep(0.05)
        raise AssertionError(self.log()[-3000:])

    def events(self, job_id: str, last_id: str | None = None) -> Iterator[tuple[str, str, Any]]:
        """Yield (id, event, data) of the job's stream to its end."""
        headers = {"Last-Event-ID": last_id} if last_id else {}
        with self.http.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            entry: dict[str, str] = {}
            for line in answer.iter_lines():
                if not line:
                    if "data" in entry:
                        yield entry.get("id", ""), entry.get("event", ""), json.loads(entry["data"])
                    entry = {}
                elif not line.startswith(":"):
                    name, _, value = line.partition(":")
                    entry[name] = value.removeprefix(" ")

    def artifacts(self, job: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the job's artifacts by kind; each kind must be there once."""
        kinds = [a["kind"] for a in job["artifacts"]]
        assert len(kinds) == len(set(kinds)), kinds
        return {a["kind"]: a for a in job["artifacts"]}

    def download(self, artifact: dict[str, Any]) -> bytes:
        answer = self.http.get(f"/v1/artifacts/{artifact['id']}/content", follow_redirects=True)
        assert answer.status_code == 200
        assert hashlib.sha256(answer.content).hexdigest() == artifact["sha256"]
        return answer.content

    def check_objects(self) -> None:
        """Nothing half-written lies in the local object folder: each name is its digest."""
        for path in (self.data_dir / "objects").rglob("*"):
            if path.is_file() and ".incoming" not in path.parts:
                assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


@contextlib.contextmanager
def serving(data_dir: Path, env: dict[str, str] | None = None) -> Iterator[Server]:
    """Run a server on a folder; kill what is left at the end."""
    server = Server(data_dir, env or {})
    server.start()
    try:
        yield server
    finally:
        if server.process is not None and server.process.poll() is None:
            server.stop()


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def stop_signal(process: psutil.Process) -> None:
    process.send_signal(signal.SIGKILL)
