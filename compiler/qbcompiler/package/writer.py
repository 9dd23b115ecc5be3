"""Write a container in one pass.

Hashes are computed while streaming; the manifest, first in the file, is written with blank
hashes and filled in at the end (a hash always takes 64 characters, so nothing moves).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..errors import OutputWriteError
from .json_io import dump_json
from .zip_layout import MAX_SECTIONS, Entry, directory, is_section_name, local_header

__all__ = [
    "MANIFEST",
    "MAX_MANIFEST",
    "Section",
    "SectionRecord",
    "Written",
    "hash_sections",
    "write_container",
]

MANIFEST = "manifest.json"
MAX_MANIFEST = 64 << 20
"""Largest manifest in bytes."""

_BLANK_HASH = "0" * 64


@dataclass(frozen=True, slots=True)
class Section:
    """One entry to write.

    Attributes:
        name: lower-case path of the entry.
        kind: what it holds; shown in the manifest (``graph``, ``weights`` …).
        size: bytes; ``chunks`` yields exactly so many.
        chunks: returns a fresh iterator over the bytes.
    """

    name: str
    kind: str
    size: int
    chunks: Callable[[], Iterable[bytes | memoryview]]

    @classmethod
    def of_bytes(cls, name: str, kind: str, data: bytes) -> Section:
        """Return a section that holds ``data``."""
        return cls(name, kind, len(data), lambda: (data,))


@dataclass(frozen=True, slots=True)
class SectionRecord:
    """What the manifest says of a section: its name, kind, size in bytes and SHA-256."""

    name: str
    kind: str
    size: int
    sha256: str

    def as_dict(self) -> dict[str, Any]:
        """Return the manifest's entry."""
        return {"name": self.name, "kind": self.kind, "size": self.size, "sha256": self.sha256}


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written: where, its SHA-256 and its size in bytes."""

    path: Path
    sha256: str
    size: int


def write_container(
    path: str | os.PathLike[str],
    manifest: Mapping[str, Any],
    sections: Sequence[Section],
) -> Written:
    """Write a container; the file appears under its name only when it is complete.

    The manifest is written with a last key ``sections``, a list of :class:`SectionRecord`.
    The bytes depend on ``manifest`` and ``sections`` alone.

    Args:
        path: where to; the folder must exist.
        manifest: JSON data without the key ``sections``, for :func:`dump_json`.
        sections: the entries in file order.

    Raises:
        OutputWriteError: the file cannot be written (missing folder, permission, full disk).
        ValueError: a section's name, number or size is not what the format allows (ours).
    """
    target = Path(path)
    _check_sections(sections)
    draft = _manifest_bytes(
        manifest, [SectionRecord(s.name, s.kind, s.size, _BLANK_HASH) for s in sections]
    )
    if len(draft) > MAX_MANIFEST:
        raise ValueError(f"the manifest takes {len(draft)} bytes, more than {MAX_MANIFEST}")
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("x+b") as file:
            _write_entries(file, sections, draft)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = os.fstat(file.fileno()).st_size
        temporary.replace(target)
    except OSError as exc:
        raise OutputWriteError(
            f"cannot write {target}: {exc.strerror or exc}",
            details={"path": str(target), "errno": exc.errno},
            hint="choose an existing, writable folder with enough free space",
        ) from exc
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    _sync_folder(target.parent)
    return Written(target, digest, size)


def hash_sections(sections: Sequence[Section]) -> list[SectionRecord]:
    """Return the records of sections without writing them."""
    records = []
    for section in sections:
        digest = hashlib.sha256()
        for chunk in _exactly(section):
            digest.update(chunk)
        records.append(SectionRecord(section.name, section.kind, section.size, digest.hexdigest()))
    return records


def _write_entries(file: IO[bytes], sections: Sequence[Section], draft: bytes) -> None:
    first = Entry(MANIFEST, len(draft), 0, 0)
    file.write(local_header(first))
    file.write(draft)
    records: list[SectionRecord] = []
    entries: list[Entry] = []
    position = first.end
    for section in sections:
        blank = Entry(section.name, section.size, 0, position)
        file.write(local_header(blank))
        digest, crc = hashlib.sha256(), 0
        for chunk in _exactly(section):
            digest.update(chunk)
            crc = zlib.crc32(chunk, crc)
            file.write(chunk)
        entries.append(Entry(section.name, section.size, crc, position))
        records.append(SectionRecord(section.name, section.kind, section.size, digest.hexdigest()))
        position = blank.end
    tail = _records_bytes(records)  # as long as that of the draft, which ends with it
    final = draft[: -len(tail)] + tail
    entries.insert(0, Entry(MANIFEST, len(final), zlib.crc32(final), 0))
    file.write(directory(entries, position))
    for entry in entries:
        file.seek(entry.offset)
        file.write(local_header(entry))
    file.seek(entries[0].data_offset)
    file.write(final)


def _manifest_bytes(manifest: Mapping[str, Any], records: Sequence[SectionRecord]) -> bytes:
    if "sections" in manifest:
        raise ValueError("the manifest has sections already")
    return dump_json({**manifest, "sections": []})[: -len(b"[]}")] + _records_bytes(records)


def _records_bytes(records: Sequence[SectionRecord]) -> bytes:
    return dump_json([r.as_dict() for r in records]) + b"}"


def _check_sections(sections: Sequence[Section]) -> None:
    names = [MANIFEST, *(s.name for s in sections)]
    if len(names) > MAX_SECTIONS or len(set(names)) != len(names):
        raise ValueError("too many sections, or two of one name")
    for name in names:
        if not is_section_name(name):
            raise ValueError(f"{name!r} is not a section name")


def _exactly(section: Section) -> Iterator[bytes | memoryview]:
    seen = 0
    for chunk in section.chunks():
        seen += len(chunk)
        yield chunk
    if seen != section.size:
        raise ValueError(f"section {section.name!r} has {seen} bytes, not {section.size}")


def _sync_folder(folder: Path) -> None:
    """Make the rename durable; file systems that cannot do that are left alone."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
