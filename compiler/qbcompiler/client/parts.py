"""Large files, sent in parts: what the server holds already of them is not sent again."""

from __future__ import annotations

import bisect
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol

from ..errors import CalibrationDataError, ModelLoadError
from .connection import Server, ServerError, path_of
from .samples import SampleFile

__all__ = ["LARGE", "BytesSource", "FileSource", "Source", "TarSource", "upload_parts"]

LARGE = 32 << 20
"""Bytes above which a file goes in parts."""

_CHUNK = 1 << 20
_BATCH = 100
# several at once hide the time that each spends on its way to the disk
_AT_ONCE = 2
_AT_ONCE_TO_BUCKET = 4
_PATIENCE_SECONDS = 120.0


class Source(Protocol):
    """Bytes that can be read at any place, and again."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def size(self) -> int:
        """How many bytes."""
        ...

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes from ``start`` up to ``stop``."""
        ...


class BytesSource:
    """Bytes in memory."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.size = len(data)
        self._data = data

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield a range."""
        for at in range(start, stop, _CHUNK):
            yield self._data[at : min(at + _CHUNK, stop)]


class FileSource:
    """A file."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.name = name or path.name
        self.size = path.stat().st_size
        self._path = path

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield a range.

        Raises:
            ModelLoadError: the file has become shorter.
        """
        with self._path.open("rb", buffering=0) as stream:
            stream.seek(start)
            while start < stop:
                data = stream.read(min(_CHUNK, stop - start))
                if not data:
                    raise ModelLoadError(f"{self.name} changed while it was sent")
                start += len(data)
                yield data


class TarSource:
    """A tar of files that exists nowhere: its bytes follow from names, sizes and the files."""

    def __init__(self, name: str, files: Sequence[SampleFile]) -> None:
        self.name = name
        self._starts: list[int] = []
        self._pieces: list[tuple[bytes, SampleFile]] = []
        at = 0
        for file in files:
            info = tarfile.TarInfo(file.name)
            info.size, info.mode = file.size, 0o644
            header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            self._starts.append(at)
            self._pieces.append((header, file))
            at += len(header) + -(-file.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        self._end = at
        self.size = at + 2 * tarfile.BLOCKSIZE

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield a range.

        Raises:
            CalibrationDataError: a file is no longer as long as it was.
        """
        index = max(0, bisect.bisect_right(self._starts, start) - 1)
        while start < min(stop, self._end):
            header, file = self._pieces[index]
            index += 1
            after = self._starts[index] if index < len(self._starts) else self._end
            base = self._starts[index - 1]
            for data in _piece(header, file, start - base, min(stop, after) - base):
                start += len(data)
                yield data
        if start < stop:
            yield bytes(stop - start)


def _piece(header: bytes, file: SampleFile, start: int, stop: int) -> Iterator[bytes]:
    """Yield a range of a header, a file, and zeros after it."""
    if start < len(header):
        yield header[start:stop]
    start, stop = max(0, start - len(header)), stop - len(header)
    if start < min(stop, file.size):
        with file.path.open("rb", buffering=0) as stream:
            stream.seek(start)
            while start < min(stop, file.size):
                data = stream.read(min(_CHUNK, min(stop, file.size) - start))
                if not data:
                    raise CalibrationDataError(f"{file.name} changed while it was sent")
                start += len(data)
                yield data
    if start < stop:
        yield bytes(stop - start)


def upload_parts(
    server: Server, source: Source, sha256: str, progress: Callable[[int], None]
) -> str:
    """Bring a file to the server and return the id of its completed upload.

    Parts that an earlier call sent, of this process or another, are not sent again. A server that
    is away is waited for, as long as it was not silent for two minutes.

    Args:
        server: the server.
        source: the bytes.
        sha256: their digest.
        progress: told how many bytes the server holds.

    Raises:
        QbCompilerError: the server refuses the file, or cannot be reached.
    """
    patience = _Patience()
    while True:
        try:
            return _attempt(server, source, sha256, progress, patience)
        except ServerError as exc:
            if not exc.retryable or patience.is_over():
                raise
            time.sleep(patience.pause())


class _Patience:
    """How long the same thing is tried without any success."""

    def __init__(self) -> None:
        self.succeeded()

    def succeeded(self) -> None:
        self._since = time.monotonic()
        self._tries = 0

    def is_over(self) -> bool:
        return time.monotonic() - self._since > _PATIENCE_SECONDS

    def pause(self) -> float:
        self._tries += 1
        return float(min(5.0, 0.25 * 2**self._tries))


def _attempt(
    server: Server,
    source: Source,
    sha256: str,
    progress: Callable[[int], None],
    patience: _Patience,
) -> str:
    body = {"size": source.size, "sha256": sha256, "name": source.name[:255]}
    upload = server.post(path_of("uploads"), body)
    patience.succeeded()
    if upload["state"] == "open":
        _send_missing(server, source, upload, progress, patience)
        _complete(server, upload["id"], patience)
    progress(source.size)
    return str(upload["id"])


def _send_missing(
    server: Server,
    source: Source,
    upload: Mapping[str, Any],
    progress: Callable[[int], None],
    patience: _Patience,
) -> None:
    held = {int(p["number"]): int(p["size"]) for p in upload["parts"]}
    done = sum(held.values())
    progress(done)
    missing = [n for n in range(1, int(upload["part_count"]) + 1) if n not in held]
    for at in range(0, len(missing), _BATCH):
        # asked for a batch at a time: signed URLs do not live long
        numbers = missing[at : at + _BATCH]
        targets = server.post(path_of("uploads", upload["id"], "parts"), {"numbers": numbers})
        for size in _send_batch(server, source, targets["items"]):
            patience.succeeded()
            done += size
            progress(done)


def _send_batch(
    server: Server, source: Source, targets: Sequence[Mapping[str, Any]]
) -> Iterator[int]:
    """Send parts, a few at once; yield the size of each that has arrived."""
    at_once = _AT_ONCE_TO_BUCKET if targets[0]["signed"] else _AT_ONCE
    with ThreadPoolExecutor(at_once, thread_name_prefix="upload") as pool:
        waiting = iter(targets)
        running: set[Future[int]] = set()
        try:
            while True:
                for target in waiting:
                    running.add(pool.submit(_send, server, source, target))
                    if len(running) == at_once:
                        break
                if not running:
                    return
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _send(server: Server, source: Source, target: Mapping[str, Any]) -> int:
    start, size = int(target["offset"]), int(target["size"])
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
    try:
        server.request(
            "PUT",
            str(target["url"]),
            body=source.read(start, start + size),
            headers=headers,
            anonymous=bool(target["signed"]),
        )
    except ServerError as exc:
        # a signature that ran out: the next try asks for another
        if target["signed"] and exc.status in (400, 401, 403, 404):
            exc.retryable = True
        raise
    return size


def _complete(server: Server, upload_id: str, patience: _Patience) -> None:
    while True:
        try:
            server.post(path_of("uploads", upload_id, "complete"))
            return
        except ServerError as exc:
            # the check runs: of a call before this one, whose answer was lost
            if exc.code != "CONFLICT" or not exc.retryable:
                raise
            patience.succeeded()
            time.sleep(1.0)
