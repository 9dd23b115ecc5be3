"""Unfinished uploads: parts come in any order, and become one object when the digest is right.

Locally an upload is one file into which parts are written at their places, so that nothing is
copied at the end. Whoever writes a part holds a shared lock on it and an exclusive one on the
part's bytes, whoever finishes an exclusive one; a lock goes with its process, however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ..domain import ServiceError, Upload
from .local import LocalStore, sync_folder
from .port import StorageError
from .spool import write_error

__all__ = ["Heartbeat", "LocalStaging", "PartWriter", "Staging", "gone", "wrong_length"]

_READ = 4 << 20
_LOCK_SECONDS = 10.0

_BEAT_SECONDS = 3.0


class Heartbeat:
    """Says now and then that long work goes on.

    Args:
        renew: says it; raises when the work is no longer this process's.
    """

    def __init__(self, renew: Callable[[], None]) -> None:
        self._renew = renew
        self._last = 0.0

    def now(self) -> None:
        """Say it at once."""
        self._renew()
        self._last = time.monotonic()

    def __call__(self) -> None:
        """Say it if that is due."""
        if time.monotonic() - self._last > _BEAT_SECONDS:
            self.now()


class PartWriter(Protocol):
    """Takes the bytes of one part."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes; refuses more than the part has."""
        ...

    def finish(self) -> None:
        """The part is whole: make it last."""
        ...


class Staging(Protocol):
    """A place for unfinished uploads."""

    def begin(self, upload: Upload) -> str | None:
        """Prepare an upload; return the store's own name for it, where it has one."""
        ...

    def part_url(self, upload: Upload, number: int, expires_s: int) -> str | None:
        """Return a URL that takes the part without the service, or None."""
        ...

    def part_writer(
        self, upload: Upload, number: int, scratch: Path
    ) -> contextlib.AbstractContextManager[PartWriter]:
        """Open a part for the service to write; nobody else writes it meanwhile.

        Raises:
            ServiceError: ``CONFLICT``: another request is writing it, or it comes too late.
        """
        ...

    def landed(self, upload: Upload, number: int, mark: str) -> None:
        """Learn that a part is held now; may take its time."""
        ...

    def held(self, upload: Upload) -> dict[int, int]:
        """Return the sizes of the parts held, by number."""
        ...

    def joined(self, upload: Upload) -> bool:
        """Say whether the parts became one already, by a process that died after that."""
        ...

    def finish(self, upload: Upload, alive: Heartbeat) -> str:
        """Join the parts and return the SHA-256 of the whole; publish it where that is right.

        Args:
            upload: with all its parts held, and none taken any more.
            alive: raises when the upload takes parts again, and the work was for nothing.

        Raises:
            ServiceError: ``CONFLICT``: a part is still being written.
            StorageError: the store fails.
        """
        ...

    def discard(self, upload: Upload) -> None:
        """Remove what is left of an upload; nothing left is no error."""
        ...


def gone(upload: Upload) -> ServiceError:
    """Return the refusal of a part that comes too late."""
    return ServiceError(
        "CONFLICT",
        f"upload {upload.id} takes no more parts",
        hint="GET /v1/uploads/{id} tells its state; POST /v1/uploads opens another",
        retryable=False,
    )


def wrong_length(upload: Upload, number: int, got: str) -> ServiceError:
    """Return the refusal of a part that is not as long as it must be."""
    return ServiceError(
        "ARGUMENT_ERROR",
        f"part {number} has {got}; it must have {upload.size_of(number)} bytes",
        hint="cut the file at multiples of part_size",
        details={"number": number, "size": upload.size_of(number)},
    )


class _Prefix:
    """The digest of the beginning of a file, fed part by part while later parts arrive."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.hash = hashlib.sha256()
        # what each part was when it was hashed
        self.marks: list[str] = []
        # held, and not hashed yet
        self.waiting: dict[int, str] = {}

    def is_of(self, upload: Upload) -> bool:
        """Say whether the parts that were hashed are those that are held now."""
        return all(upload.marks.get(n) == m for n, m in enumerate(self.marks, 1))


class LocalStaging:
    """Unfinished uploads as files of a folder.

    Args:
        root: the folder, on the file system of the objects.
        store: where finished ones go.
    """

    def __init__(self, root: Path, store: LocalStore) -> None:
        self._root = root
        self._store = store
        self._prefixes: dict[str, _Prefix] = {}
        self._lock = threading.Lock()

    def begin(self, upload: Upload) -> str | None:
        """Make the file."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path(upload), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.close(handle)
            sync_folder(self._root)
        except FileExistsError:
            return None
        except OSError as exc:
            raise write_error(exc, "the upload") from exc
        return None

    def part_url(self, upload: Upload, number: int, expires_s: int) -> str | None:
        """Return None: parts come to the service."""
        return None

    @contextmanager
    def part_writer(self, upload: Upload, number: int, scratch: Path) -> Iterator[PartWriter]:
        """Open the file at the part's place."""
        try:
            handle = os.open(self._path(upload), os.O_RDWR)
        except FileNotFoundError:
            raise gone(upload) from None
        except OSError as exc:
            raise write_error(exc, "the upload") from exc
        try:
            _lock(handle, fcntl.LOCK_SH)
            # it may have become an object while this waited for the lock
            if not self._same(handle, upload):
                raise gone(upload)
            start = (number - 1) * upload.part_size
            _lock_range(handle, start, max(1, upload.size_of(number)))
            yield _LocalPart(handle, upload, number)
        finally:
            os.close(handle)

    def landed(self, upload: Upload, number: int, mark: str) -> None:
        """Hash the part if it is the next one, and those that wait for it.

        Its bytes are still in memory, and the whole digest is known soon after the last part.
        After a restart, :meth:`finish` reads the file.
        """
        with self._lock:
            prefix = self._prefixes.setdefault(upload.id, _Prefix())
            prefix.waiting[number] = mark
        with prefix.lock, contextlib.suppress(OSError, StorageError):
            while True:
                number = len(prefix.marks) + 1
                with self._lock:
                    found = prefix.waiting.pop(number, None)
                if found is None:
                    return
                start = (number - 1) * upload.part_size
                with self._path(upload).open("rb", buffering=0) as file:
                    trial = prefix.hash.copy()
                    _feed(trial, file.fileno(), start, start + upload.size_of(number), _nothing)
                prefix.hash = trial
                prefix.marks.append(found)

    def held(self, upload: Upload) -> dict[int, int]:
        """Return what the database says."""
        return dict(upload.parts)

    def joined(self, upload: Upload) -> bool:
        """Return False: the database's list of the parts says all."""
        return False

    def finish(self, upload: Upload, alive: Heartbeat) -> str:
        """Hash what is not hashed yet; then the file becomes an object by a rename."""
        path = self._path(upload)
        try:
            handle = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            # a process died between the rename and the database; or all was cleared away
            alive.now()
            if self._store.size(upload.sha256) == upload.size:
                return upload.sha256
            raise StorageError(f"the file of upload {upload.id} is missing") from None
        try:
            _lock(handle, fcntl.LOCK_EX)
            # with the lock and this said, nobody has written since the parts were listed
            alive.now()
            if not self._same(handle, upload):
                return upload.sha256
            digest = self._digest(handle, upload, alive)
            if digest == upload.sha256 and os.fstat(handle).st_size == upload.size:
                self._store.put_file(path, digest)
            return digest
        except OSError as exc:
            raise StorageError(f"cannot read an upload: {exc.strerror}") from exc
        finally:
            os.close(handle)

    def _digest(self, handle: int, upload: Upload, alive: Heartbeat) -> str:
        with self._lock:
            prefix = self._prefixes.pop(upload.id, None)
        if prefix is None:
            prefix = _Prefix()
        with _waiting(prefix.lock, alive):
            if not prefix.is_of(upload):
                prefix = _Prefix()
            digest = prefix.hash.copy()
            start = min(len(prefix.marks) * upload.part_size, upload.size)
            _feed(digest, handle, start, upload.size, alive)
        return digest.hexdigest()

    def discard(self, upload: Upload) -> None:
        """Remove the file."""
        with self._lock:
            self._prefixes.pop(upload.id, None)
        try:
            self._path(upload).unlink(missing_ok=True)
        except OSError as exc:
            raise StorageError(f"cannot remove an upload: {exc.strerror}") from exc

    def _path(self, upload: Upload) -> Path:
        return self._root / upload.id

    def _same(self, handle: int, upload: Upload) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self._path(upload).stat())
        except FileNotFoundError:
            return False


class _LocalPart:
    def __init__(self, handle: int, upload: Upload, number: int) -> None:
        self._handle = handle
        self._upload = upload
        self._number = number
        self._at = (number - 1) * upload.part_size
        self._end = self._at + upload.size_of(number)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        if self._at + len(view) > self._end:
            raise wrong_length(self._upload, self._number, "more bytes")
        try:
            while view:
                done = os.pwrite(self._handle, view, self._at)
                self._at += done
                view = view[done:]
        except OSError as exc:
            raise write_error(exc, "the upload") from exc

    def finish(self) -> None:
        if self._at != self._end:
            size = self._upload.size_of(self._number) - (self._end - self._at)
            raise wrong_length(self._upload, self._number, f"{size} bytes")
        try:
            # a part that the database says is held must outlive a power cut
            os.fdatasync(self._handle)
        except OSError as exc:
            raise write_error(exc, "the upload") from exc


def _lock(handle: int, kind: int) -> None:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise _busy("a part of the upload is still being written") from None
            time.sleep(0.02)


def _lock_range(handle: int, start: int, length: int) -> None:
    """Lock bytes for this open file alone; others wait a while, and then are refused."""
    # struct flock: type, whence, start, length, process
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, wanted)
            return
        except OSError as exc:
            if exc.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            if time.monotonic() > deadline:
                raise _busy("another request is sending this part") from None
            time.sleep(0.02)


@contextmanager
def _waiting(lock: threading.Lock, alive: Callable[[], None]) -> Iterator[None]:
    """Take a lock; go on saying that this lives while it is another's."""
    while not lock.acquire(timeout=0.5):
        alive()
    try:
        yield
    finally:
        lock.release()


def _busy(detail: str) -> ServiceError:
    return ServiceError(
        "CONFLICT",
        detail,
        hint="ask again when it has arrived",
        retryable=True,
        retry_after_s=1,
    )


def _feed(
    digest: hashlib._Hash, handle: int, start: int, stop: int, alive: Callable[[], None]
) -> None:
    buffer = memoryview(bytearray(min(_READ, max(1, stop - start))))
    while start < stop:
        done = os.preadv(handle, [buffer[: min(len(buffer), stop - start)]], start)
        if not done:
            raise StorageError("the file of an upload is shorter than it was")
        digest.update(buffer[:done])
        start += done
        alive()


def _nothing() -> None:
    return None
