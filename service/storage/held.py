"""A store whose objects are held before they are stored, so that the collector leaves them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from .port import ObjectStore

__all__ = ["HeldStore"]


class HeldStore:
    """Passes everything on; ``put_file`` takes a hold on the digest first.

    Args:
        store: where the objects are.
        hold: keeps an object with this digest from being collected.
    """

    def __init__(self, store: ObjectStore, hold: Callable[[str], None]) -> None:
        self._store = store
        self._hold = hold

    @property
    def inner(self) -> ObjectStore:
        """The store that everything is passed to."""
        return self._store

    def put_file(self, path: Path, sha256: str) -> None:
        """Store a file; see :class:`~service.storage.port.ObjectStore`."""
        # also where the object is there already: it may be about to be collected
        self._hold(sha256)
        self._store.put_file(path, sha256)

    def size(self, sha256: str) -> int | None:
        """Return an object's size, or None."""
        return self._store.size(sha256)

    def read(self, sha256: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield a range of an object's bytes."""
        return self._store.read(sha256, start, stop)

    def local_path(self, sha256: str) -> Path | None:
        """Return where an object's file lies, or None."""
        return self._store.local_path(sha256)

    def presign(
        self, sha256: str, *, disposition: str, media_type: str, expires_s: int
    ) -> str | None:
        """Return a URL that serves the object, or None."""
        return self._store.presign(
            sha256, disposition=disposition, media_type=media_type, expires_s=expires_s
        )

    def delete(self, sha256: str) -> bool:
        """Remove an object."""
        return self._store.delete(sha256)

    def digests(self) -> Iterator[str]:
        """Yield the digest of every object."""
        return self._store.digests()

    def check(self) -> None:
        """Raise unless objects can be read and written."""
        self._store.check()
