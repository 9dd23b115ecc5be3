"""Objects as files of a folder: ``ab/cd/<digest>``.

A file gets its name only when it is whole and on the disk: it is written elsewhere on the same
file system, synced, renamed, and the folder is synced.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .port import CHUNK, ObjectMissing, StorageError, check_digest, storage_full

__all__ = ["LocalStore", "sync_folder"]

_FULL = (errno.ENOSPC, errno.EDQUOT)


class LocalStore:
    """Objects in a local folder.

    Args:
        root: the folder; made when missing.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._incoming = root / ".incoming"

    def put_file(self, path: Path, sha256: str) -> None:
        """Store a file; see :class:`~service.storage.port.ObjectStore`."""
        target = self._path(sha256)
        if target.exists():
            path.unlink()
            return
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _sync_file(path)
            try:
                # the name appears with the whole content behind it
                path.replace(target)
            except OSError as exc:
                if exc.errno != errno.EXDEV:
                    raise
                self._copy(path, target)
            target.chmod(0o444)
            sync_folder(target.parent)
        except OSError as exc:
            if exc.errno in _FULL:
                raise storage_full("the file") from exc
            raise StorageError(f"cannot store an object: {exc.strerror}") from exc

    def _copy(self, path: Path, target: Path) -> None:
        self._incoming.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._incoming)
        try:
            with os.fdopen(handle, "wb") as out, path.open("rb") as source:
                shutil.copyfileobj(source, out, CHUNK)
                out.flush()
                os.fsync(out.fileno())
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        path.unlink()

    def size(self, sha256: str) -> int | None:
        """Return an object's size, or None."""
        try:
            return self._path(sha256).stat().st_size
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise StorageError(f"cannot look up an object: {exc.strerror}") from exc

    def read(self, sha256: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield a range of an object's bytes."""
        try:
            file = self._path(sha256).open("rb")
        except FileNotFoundError:
            raise ObjectMissing(sha256) from None
        except OSError as exc:
            raise StorageError(f"cannot read an object: {exc.strerror}") from exc

        def chunks() -> Iterator[bytes]:
            with file:
                file.seek(start)
                left = None if stop is None else stop - start
                while left is None or left > 0:
                    data = file.read(CHUNK if left is None else min(CHUNK, left))
                    if not data:
                        return
                    if left is not None:
                        left -= len(data)
                    yield data

        return chunks()

    def local_path(self, sha256: str) -> Path | None:
        """Return an object's path."""
        return self._path(sha256)

    def presign(
        self, sha256: str, *, disposition: str, media_type: str, expires_s: int
    ) -> str | None:
        """Return None: the service itself serves the files."""
        return None

    def delete(self, sha256: str) -> bool:
        """Remove an object."""
        try:
            self._path(sha256).unlink()
        except FileNotFoundError:
            return False
        return True

    def digests(self) -> Iterator[str]:
        """Yield the digest of every object."""
        for path in sorted(self.root.glob("[0-9a-f][0-9a-f]/[0-9a-f][0-9a-f]/*")):
            if len(path.name) == 64:
                yield path.name

    def check(self) -> None:
        """Raise unless the folder can be written."""
        try:
            self._incoming.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._incoming) as file:
                file.write(b"x")
                file.flush()
        except OSError as exc:
            raise StorageError(f"the object folder cannot be written: {exc.strerror}") from exc

    def _path(self, sha256: str) -> Path:
        check_digest(sha256)
        return self.root / sha256[:2] / sha256[2:4] / sha256


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
