"""Unpacks an uploaded archive: nothing leaves the folder, nothing grows without bound.

Links, devices, encrypted entries, absolute names and names with ``..`` are refused by name.
Entries, unpacked bytes and the ratio to the packed bytes are counted while they are written.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import zstandard

from ..domain import FileRef
from ..storage import CHUNK, inside
from ..storage.port import storage_full

__all__ = ["ArchiveError", "ArchiveLimits", "archive_kind", "unpack"]

# small archives may well be all zeros
_RATIO_FREE = 16 << 20
_MAX_NAME = 1024
# tarfile reads an extended header in one call; more than this is an attack
_MAX_READ = 4 << 20
_IGNORED_NAMES = frozenset({"thumbs.db", "desktop.ini"})
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class ArchiveError(ValueError):
    """The archive is damaged, hostile or of another kind; the text names the entry.

    Args:
        message: one line.
        hint: the way out.
        too_large: whether a bound was met.
    """

    def __init__(self, message: str, hint: str | None = None, *, too_large: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.too_large = too_large


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Bounds of one archive."""

    entries: int
    unpacked_bytes: int
    ratio: float


def archive_kind(path: Path) -> str | None:
    """Return ``zip``, ``gz``, ``zst`` or ``tar`` by the first bytes, else None."""
    with path.open("rb") as file:
        head = file.read(512)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if head.startswith(b"\x1f\x8b"):
        return "gz"
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return "zst"
    # an archive of nothing is blocks of zeros
    if head[257:262] == b"ustar" or (len(head) == 512 and not any(head)):
        return "tar"
    return None


def unpack(path: Path, folder: Path, limits: ArchiveLimits) -> list[FileRef]:
    """Unpack the regular files of an archive below a folder; return them in archive order.

    Raises:
        ArchiveError: see the class.
        ServiceError: no space is left.
    """
    kind = archive_kind(path)
    packed = path.stat().st_size
    out = _Sink(folder, limits, packed)
    try:
        if kind == "zip":
            _unzip(path, out)
        elif kind in ("gz", "zst"):
            plain = folder.parent / f"{folder.name}.plain"
            try:
                _decompress(path, plain, kind, out)
                _untar(plain, out)
            finally:
                plain.unlink(missing_ok=True)
        elif kind == "tar":
            _untar(path, out)
        else:
            raise ArchiveError(
                "not an archive that can be read",
                "send a .zip, .tar, .tar.gz or .tar.zst",
            )
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        zstandard.ZstdError,
        EOFError,
        RecursionError,
        NotImplementedError,
        UnicodeError,
        gzip.BadGzipFile,
    ) as exc:
        raise ArchiveError(
            f"the archive is damaged or cut short: {exc}"[:300], "pack and upload it again"
        ) from exc
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise storage_full("the archive's content") from exc
        if exc.errno == errno.EINVAL:  # a ZIP whose directory points before the file's beginning
            raise ArchiveError(
                "the archive is damaged or cut short", "pack and upload it again"
            ) from exc
        if exc.errno in (errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
            raise ArchiveError("two entries of the archive are in each other's way") from exc
        raise
    return out.files


class _Sink:
    """Where entries go, with the bounds."""

    def __init__(self, folder: Path, limits: ArchiveLimits, packed: int) -> None:
        self.folder = folder
        self.files: list[FileRef] = []
        self._limits = limits
        self._most = min(
            limits.unpacked_bytes, max(_RATIO_FREE, int(max(packed, 1) * limits.ratio))
        )
        self._by_ratio = self._most < limits.unpacked_bytes
        self._entries = 0
        self._bytes = 0
        self._names: set[str] = set()

    def entry(self, name: str) -> None:
        """Count an entry, of whatever kind."""
        self._entries += 1
        if self._entries > self._limits.entries:
            raise ArchiveError(
                f"the archive has more than {self._limits.entries} entries", too_large=True
            )
        if len(name) > _MAX_NAME:
            raise ArchiveError(f"the entry {name[:80]!r}… has a name that is too long")

    def grow(self, count: int) -> None:
        """Count unpacked bytes."""
        self._bytes += count
        self.check(self._bytes)

    def check(self, total: int) -> None:
        """Refuse a total above the bounds."""
        if total <= self._most:
            return
        if self._by_ratio:
            raise ArchiveError(
                f"the archive unpacks to more than {self._limits.ratio:g} times its size",
                "pack it with less compression, or upload plain .tar",
                too_large=True,
            )
        raise ArchiveError(
            f"the archive unpacks to more than {self._limits.unpacked_bytes} bytes", too_large=True
        )

    def write(self, name: str, source: IO[bytes]) -> None:
        """Write one file."""
        if _ignored(name):
            return
        try:
            target = inside(self.folder, name)
            relative = target.relative_to(self.folder).as_posix()
            relative.encode("utf-8")
        except ValueError:
            raise ArchiveError(
                f"the entry {name[:200]!r} would be written outside the archive's folder",
                "pack the folder with relative names",
            ) from None
        if relative.casefold() in self._names:
            raise ArchiveError(f"the archive has {relative!r} twice")
        self._names.add(relative.casefold())
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        size = 0
        with target.open("xb") as out:
            while data := source.read(CHUNK):
                self.grow(len(data))
                digest.update(data)
                out.write(data)
                size += len(data)
        self.files.append(FileRef(relative, digest.hexdigest(), size))


def _ignored(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return (
        any(p == "__MACOSX" or (p.startswith(".") and p not in (".", "..")) for p in parts)
        or parts[-1].lower() in _IGNORED_NAMES
    )


def _unzip(path: Path, out: _Sink) -> None:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            out.entry(info.filename)
            mode = info.external_attr >> 16
            kind = mode & 0o170000
            if info.is_dir():
                continue
            if kind not in (0, 0o100000):
                raise ArchiveError(
                    f"the entry {info.filename[:200]!r} is a link or a device",
                    "pack the files themselves",
                )
            if info.flag_bits & 1:
                raise ArchiveError(f"the entry {info.filename[:200]!r} is encrypted")
            if info.compress_type not in _ZIP_METHODS:
                raise ArchiveError(
                    f"the entry {info.filename[:200]!r} is compressed in a way that is not read",
                    "use plain ZIP (deflate), or .tar.gz, .tar.zst",
                )
            with archive.open(info) as source:
                out.write(info.filename, source)


def _decompress(path: Path, plain: Path, kind: str, out: _Sink) -> None:
    total = 0
    with path.open("rb") as packed, plain.open("xb") as target:
        for data in _plain_chunks(packed, kind):
            total += len(data)
            # the headers of a tar come on top of its files
            out.check(total - (1 << 20) - total // 4)
            target.write(data)


def _plain_chunks(packed: IO[bytes], kind: str) -> Iterator[bytes]:
    if kind == "gz":
        with gzip.GzipFile(fileobj=packed) as source:
            while data := source.read(CHUNK):
                yield data
        return
    # a window of 128 MiB is the most that a decoder has to allow
    decoder = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    with decoder.stream_reader(packed, read_across_frames=True) as reader:
        while data := reader.read(CHUNK):
            yield data


class _BoundedReads(io.RawIOBase):
    """A file whose single reads are bounded."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > _MAX_READ:
            raise ArchiveError("the archive has a header that is too large")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def _untar(path: Path, out: _Sink) -> None:
    with path.open("rb") as file:
        bounded: Any = _BoundedReads(file)
        with tarfile.open(fileobj=bounded, mode="r:") as tar:
            while (member := tar.next()) is not None:
                # tarfile keeps every member; a hundred thousand of them need not stay
                tar.members.clear()  # type: ignore[attr-defined]
                out.entry(member.name)
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse() or member.size < 0:
                    raise ArchiveError(
                        f"the entry {member.name[:200]!r} is a link, a device or a sparse file",
                        "pack the files themselves (tar --dereference)",
                    )
                source = tar.extractfile(member)
                assert source is not None
                out.write(member.name, source)
