"""Run the embedded server (``qbserver serve``) as a child process, for examples and tests."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

STOP_SECONDS = 20.0


@contextlib.contextmanager
def embedded_server(data_dir: Path, log: Path, *, start_seconds: float = 60.0) -> Iterator[str]:
    """Start a server on a free port; yield its address; stop it in every case.

    Args:
        data_dir: its data folder; kept.
        log: file that its log goes to.
        start_seconds: how long it may take to be ready.

    Raises:
        RuntimeError: it did not start; the message has the end of its log.
    """
    command = [sys.executable, "-m", "worker.cli", "serve"]
    command += ["--host", "127.0.0.1", "--port", "0", "--data-dir", str(data_dir)]
    # settings of the caller's shell must not reach it
    env = {k: v for k, v in os.environ.items() if not k.startswith("QB_")}
    with (
        log.open("wb") as log_file,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log_file, env=env
        ) as process,
    ):
        try:
            yield _address(process, log, start_seconds)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(process: subprocess.Popen[bytes], log: Path, seconds: float) -> str:
    """Wait for the one line that the server writes on standard output when it is ready."""
    assert process.stdout is not None
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, left))
        line = process.stdout.readline().decode() if ready else ""
        if line.startswith("serving on "):
            return line.removeprefix("serving on ").strip()
        if not line:
            tail = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the server did not start within {seconds:.0f} s:\n{tail}")
