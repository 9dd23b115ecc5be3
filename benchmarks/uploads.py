"""How fast a large file reaches the server, and what memory that takes there.

    python -m benchmarks.uploads [--gib N] [--runs N] [--folder FOLDER] [--json FILE]

Each run copies a file of random bytes with ``cp``, reads the copy with ``sha256sum``, and then
sends the file to ``qbserver serve`` with the client's own code, on the same disk: the client's
digest, the parts through the service, the service's digest. ``ratio`` is that of the two times.
``ratio_synced`` counts a sync of the copy too, since the service syncs every part before it says
that it has it. Memory is the resident set of all of the server's processes, sampled 20 times a
second, less what it was before the upload.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from qbcompiler.client import Server
from qbcompiler.client.parts import FileSource, upload_parts

from .service import server

_MIB = 1 << 20


@dataclass
class Memory:
    """Resident bytes of processes, and the most that they were."""

    before: int = 0
    peak: int = 0


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gib", type=float, default=3.0, help="size of the file")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", help="where to work; needs three times the size")
    parser.add_argument("--json", help="write the figures to a file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="uploads-") as name:
        figures = measure(Path(name), int(options.gib * 1024) * _MIB, options.runs)
    print(json.dumps(figures, indent=2))
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=2) + "\n")


def measure(folder: Path, size: int, runs: int) -> dict[str, float]:
    """Return medians over the runs; the memory is the worst of them."""
    rows: list[dict[str, float]] = []
    file, copy = folder / "file", folder / "copy"
    with server(folder / "data") as url:
        for _ in range(runs):
            _fill(file, size)
            row = {"cp_s": _timed("cp", str(file), str(copy))}
            row["sync_s"] = _timed("sync", "-d", str(copy))
            row["sha256sum_s"] = _timed("sha256sum", str(copy))
            copy.unlink()
            _upload(url, file, row)
            plain = row["cp_s"] + row["sha256sum_s"]
            row["ratio"] = plain / row["upload_s"]
            row["ratio_synced"] = (plain + row["sync_s"]) / row["upload_s"]
            row["ratio_without_client_digest"] = plain / (row["upload_s"] - row["client_digest_s"])
            rows.append(row)
            print(json.dumps({k: round(v, 2) for k, v in row.items()}), flush=True)
    figures = {k: round(statistics.median(r[k] for r in rows), 2) for k in rows[0]}
    figures["server_growth_mib"] = round(max(r["server_growth_mib"] for r in rows), 1)
    return {"gib": size / (1 << 30), "runs": runs, **figures}


def _fill(path: Path, size: int) -> None:
    with path.open("wb") as out:
        for _ in range(0, size, _MIB):
            out.write(os.urandom(_MIB))
        out.flush()
        os.fsync(out.fileno())


def _timed(*command: str) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _upload(url: str, file: Path, row: dict[str, float]) -> None:
    started = time.perf_counter()
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    row["client_digest_s"] = time.perf_counter() - started
    with Server(url) as client, _watching() as memory:
        upload_id = upload_parts(client, FileSource(file), digest, lambda done: None)
    row["upload_s"] = time.perf_counter() - started
    row["server_growth_mib"] = (memory.peak - memory.before) / _MIB
    shown = httpx.get(f"{url}/v1/uploads/{upload_id}").raise_for_status().json()
    if shown["state"] != "complete" or shown["already_present"]:
        raise SystemExit("the upload did not do what it should")


@contextmanager
def _watching() -> Iterator[Memory]:
    """Sample the memory of this process's children, which are the server's."""
    processes = psutil.Process().children(recursive=True)

    def resident() -> int:
        total = 0
        for process in processes:
            with suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    memory = Memory(before=resident())
    memory.peak = memory.before
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            memory.peak = max(memory.peak, resident())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield memory
    finally:
        done.set()
        thread.join()


if __name__ == "__main__":
    main()
