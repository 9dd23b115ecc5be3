"""What the service and the workers need of an object store.

Objects are immutable and named by the SHA-256 of their bytes. An object is either there, whole,
or not there: nothing shows a half-written one. All calls block; an event loop runs them in
threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from ..domain import ServiceError

__all__ = ["CHUNK", "ObjectMissing", "ObjectStore", "StorageError", "check_digest", "storage_full"]

CHUNK = 1 << 20
"""Bytes that are read or written at a time."""

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


class StorageError(Exception):
    """The store cannot be reached, or refuses; the message has no credentials in it."""


class ObjectMissing(StorageError):  # noqa: N818 (a fact, not a fault)
    """There is no object with this digest."""

    def __init__(self, sha256: str) -> None:
        super().__init__(f"no object {sha256}")
        self.sha256 = sha256


class ObjectStore(Protocol):
    """A place for objects."""

    def put_file(self, path: Path, sha256: str) -> None:
        """Store a file whose digest the caller has computed; the file is gone afterwards.

        Storing what is there already is no error and writes nothing.

        Raises:
            StorageError: it cannot be stored.
            ServiceError: ``OUTPUT_WRITE_ERROR`` when there is no space left.
        """
        ...

    def size(self, sha256: str) -> int | None:
        """Return an object's size, or None when it is not there."""
        ...

    def read(self, sha256: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from ``start`` up to ``stop``, in chunks.

        The object is opened, or found missing, before the first chunk is asked for.

        Raises:
            ObjectMissing: it is not there.
        """
        ...

    def local_path(self, sha256: str) -> Path | None:
        """Return the path of an object that is a file of this machine, for reading; or None."""
        ...

    def presign(
        self, sha256: str, *, disposition: str, media_type: str, expires_s: int
    ) -> str | None:
        """Return a URL that serves the object without the service, or None."""
        ...

    def delete(self, sha256: str) -> bool:
        """Remove an object; say whether it was there."""
        ...

    def digests(self) -> Iterator[str]:
        """Yield the digest of every object."""
        ...

    def check(self) -> None:
        """Raise :class:`StorageError` unless objects can be read and written."""
        ...


def check_digest(sha256: str) -> str:
    """Return the digest; refuse anything else, since it becomes part of a path.

    Raises:
        ValueError: it is not 64 lower-case hex digits.
    """
    if _DIGEST.match(sha256) is None:
        raise ValueError("not a SHA-256 digest in lower-case hex")
    return sha256


def storage_full(what: str) -> ServiceError:
    """Return the error for a disk without space."""
    return ServiceError(
        "OUTPUT_WRITE_ERROR",
        f"no space is left on the server to store {what}",
        hint="free space on the server, or ask its operator to",
        retryable=True,
        retry_after_s=60,
    )
