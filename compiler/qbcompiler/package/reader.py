"""Read a container: lazily, and trusting nothing in it.

Every header is rebuilt from the directory and compared, so each byte of the file is accounted
for: headers by comparison, the manifest by its CRC-32, every other section by the SHA-256 that
the manifest gives for it. Sizes are checked against the file and against a bound before
anything is allocated; no name is ever used as a path.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from ..errors import ArgumentError, FormatError
from .json_io import Fields, parse_json
from .writer import MANIFEST, MAX_MANIFEST, SectionRecord
from .zip_layout import (
    MAX_SECTIONS,
    TAIL_SIZE,
    Entry,
    local_header,
    locate_directory,
    parse_directory,
)

__all__ = ["Container", "FormatVersion"]

_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class FormatVersion:
    """The format's name and version that a reader understands."""

    name: str
    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.name} {self.major}.{self.minor}"

    def as_dict(self) -> dict[str, Any]:
        """Return the manifest's ``format`` object."""
        return {"name": self.name, "major": self.major, "minor": self.minor}


class Container:
    """An open file. Opening reads the manifest only; sections are checked when first read.

    Attributes:
        path: the file.
        size: its size in bytes.
        manifest: its manifest, parsed.
        sections: the records of its sections, in file order.
    """

    def __init__(self, path: str | os.PathLike[str], *formats: FormatVersion) -> None:
        """Open ``path``, which must be in one of ``formats``.

        Raises:
            ArgumentError: the file does not exist or cannot be opened.
            FormatError: it is not such a file, is damaged, or of a newer major version.
        """
        self.path = Path(path)
        self._verified: set[str] = set()
        self._map: mmap.mmap | None = None
        try:
            # Non-blocking, so that a FIFO is refused below instead of waiting for a writer.
            self._handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as exc:
            raise ArgumentError(
                f"cannot open {self.path}: {exc.strerror or exc}",
                details={"path": str(self.path)},
            ) from exc
        try:
            self._open(formats)
        except BaseException:
            self.close()
            raise

    def _open(self, formats: tuple[FormatVersion, ...]) -> None:
        info = os.fstat(self._handle)
        if not stat.S_ISREG(info.st_mode):
            self._fail("directory", "it is not a regular file")
        self.size = size = info.st_size
        tail = self._pread(max(0, size - TAIL_SIZE), min(size, TAIL_SIZE), "directory")
        try:
            offset, length = locate_directory(tail, size)
            data = self._pread(offset, size - offset, "directory")
            entries = parse_directory(data, offset, length)
        except ValueError as exc:
            self._fail("directory", str(exc))
        self._entries = {e.name: e for e in entries}
        first = entries[0]
        if first.name != MANIFEST:
            self._fail("manifest.json", "it is not the first entry")
        if first.size > MAX_MANIFEST:
            self._fail("manifest.json", f"{first.size} bytes exceed the bound of {MAX_MANIFEST}")
        for entry in entries:
            header = local_header(entry)
            if self._pread(entry.offset, len(header), entry.name) != header:
                self._fail(entry.name, "its local header differs from the directory")
        raw = self._pread(first.data_offset, first.size, MANIFEST)
        if zlib.crc32(raw) != first.crc:
            self._fail(MANIFEST, "its checksum is wrong: the file is damaged")
        self.manifest: dict[str, Any] = Fields(parse_json(raw, MANIFEST), MANIFEST).plain
        fields = Fields(self.manifest, MANIFEST)
        self.format = self._check_format(fields, formats)
        self.sections = self._check_sections(fields, entries[1:])

    def _check_format(self, fields: Fields, formats: tuple[FormatVersion, ...]) -> FormatVersion:
        found = fields.nested("format")
        version = FormatVersion(
            found.text("name", 64),
            found.integer("major", 0, 1 << 30),
            found.integer("minor", 0, 1 << 30),
        )
        for known in formats:
            if known.name != version.name:
                continue
            if version.major > known.major:
                raise FormatError(
                    f"{self.path} has format {version}; this release reads up to {known}",
                    details={
                        "section": MANIFEST,
                        "path": str(self.path),
                        "expected": str(known),
                        "got": str(version),
                    },
                    hint="install a newer release to read it",
                )
            return version
        names = " or ".join(f.name for f in formats)
        raise FormatError(
            f"{self.path} is a {version.name!r} file, not {names}",
            details={"section": MANIFEST, "path": str(self.path), "got": version.name},
        )

    def _check_sections(self, fields: Fields, entries: list[Entry]) -> dict[str, SectionRecord]:
        records = [
            SectionRecord(
                item.text("name", 200),
                item.text("kind", 64),
                item.integer("size", 0, 1 << 62),
                item.sha256("sha256"),
            )
            for item in fields.nested_list("sections", MAX_SECTIONS)
        ]
        if [(r.name, r.size) for r in records] != [(e.name, e.size) for e in entries]:
            self._fail(MANIFEST, "its list of sections differs from the directory")
        return {r.name: r for r in records}

    # -- sections --------------------------------------------------------------------------

    def read(self, name: str, limit: int) -> bytes:
        """Return a section's bytes after checking its size against ``limit`` and its hash."""
        record = self._record(name)
        if record.size > limit:
            self._fail(name, f"{record.size} bytes exceed the bound of {limit}")
        data = self._pread(self._entries[name].data_offset, record.size, name)
        if hashlib.sha256(data).hexdigest() != record.sha256:
            self._fail(name, "its SHA-256 differs from the manifest: the file is damaged")
        self._verified.add(name)
        return data

    def map(self, name: str) -> memoryview:
        """Return a read-only view of a section in the memory-mapped file, its hash checked.

        The view keeps the mapping alive after :meth:`close`.
        """
        record = self._record(name)
        if record.size == 0:
            self.verify(name)
            return memoryview(b"")
        if self._map is None:
            self._map = mmap.mmap(self._handle, 0, access=mmap.ACCESS_READ)
        start = self._entries[name].data_offset
        if start + record.size > len(self._map):
            self._fail(name, "the file has become shorter")
        view = memoryview(self._map)[start : start + record.size]
        self.verify(name)
        return view

    def verify(self, name: str | None = None) -> None:
        """Check the SHA-256 of one section, or of all; each is read once for an open file."""
        for each in [name] if name is not None else list(self.sections):
            record = self._record(each)
            if each in self._verified:
                continue
            digest = hashlib.sha256()
            start, left = self._entries[each].data_offset, record.size
            while left:
                chunk = self._pread(start, min(left, _CHUNK), each)
                digest.update(chunk)
                start += len(chunk)
                left -= len(chunk)
            if digest.hexdigest() != record.sha256:
                self._fail(each, "its SHA-256 differs from the manifest: the file is damaged")
            self._verified.add(each)

    def _record(self, name: str) -> SectionRecord:
        if name not in self.sections:
            self._fail(name, "the file has no such section")
        return self.sections[name]

    def _pread(self, offset: int, size: int, section: str) -> bytes:
        try:
            data = os.pread(self._handle, size, offset)
        except OSError as exc:
            self._fail(section, f"cannot be read: {exc.strerror or exc}")
        while len(data) < size:
            more = os.pread(self._handle, size - len(data), offset + len(data))
            if not more:
                self._fail(section, "the file ends inside it")
            data += more
        return data

    def _fail(self, section: str, reason: str) -> NoReturn:
        raise FormatError(
            f"{self.path}: {section}: {reason}",
            details={"section": section, "path": str(self.path)},
        )

    # -- life ------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the file; views handed out stay valid."""
        if self._map is not None:
            with suppress(BufferError):
                self._map.close()
            self._map = None
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
