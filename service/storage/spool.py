"""Incoming bytes on their way to the object store: a scratch file that is hashed as it grows."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from ..domain import ServiceError
from .port import ObjectStore, storage_full

__all__ = ["Spool", "write_error"]


class Spool:
    """A scratch file with a bound on its size.

    Use it as a context manager; what was not stored is removed at the end, in every case.

    Args:
        folder: scratch folder, best on the same file system as a local object store.
        limit: most bytes.
        what: names the content in errors.
    """

    def __init__(self, folder: Path, *, limit: int, what: str) -> None:
        self._limit = limit
        self._what = what
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=folder, prefix="spool-", suffix=".tmp")
        except OSError as exc:
            raise write_error(exc, what) from exc
        self.path = Path(name)
        self._file = os.fdopen(handle, "wb", buffering=0)
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes.

        Raises:
            ServiceError: ``PAYLOAD_TOO_LARGE`` above the limit, ``OUTPUT_WRITE_ERROR`` without
                space.
        """
        self.size += len(data)
        if self.size > self._limit:
            raise ServiceError(
                "PAYLOAD_TOO_LARGE",
                f"{self._what} is larger than {self._limit} bytes",
                hint="GET /v1/limits lists every bound",
                details={"limit": self._limit},
            )
        self._hash.update(data)
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except OSError as exc:
            raise write_error(exc, self._what) from exc

    @property
    def sha256(self) -> str:
        """The digest of what was written so far."""
        return self._hash.hexdigest()

    def finish(self) -> None:
        """Close the file; nothing more comes."""
        self._file.close()

    def store(self, store: ObjectStore) -> str:
        """Hand the file over to the object store and return its digest."""
        digest = self.sha256
        self._file.close()
        store.put_file(self.path, digest)
        return digest

    def close(self) -> None:
        """Remove the file unless it was stored."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def write_error(exc: OSError, what: str) -> ServiceError:
    """Return the refusal for a scratch folder that cannot be written."""
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return storage_full(what)
    return ServiceError(
        "OUTPUT_WRITE_ERROR",
        f"the server cannot write its scratch folder: {exc.strerror}",
        hint="ask the server's operator to look at QB_DATA_DIR",
    )
