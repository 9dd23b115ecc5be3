"""The ZIP records of both files: the one form that is written and the only one accepted.

Entries are stored without gaps, their data aligned to 64 bytes by a private extra field; time
stamps are fixed; the central directory stands right behind the last entry; ZIP64 records appear
only where a number does not fit 32 bits. Records: PKWARE APPNOTE 6.3.10, sections 4.3 and 4.5.3.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "ALIGNMENT",
    "MAX_DIRECTORY",
    "MAX_SECTIONS",
    "TAIL_SIZE",
    "Entry",
    "directory",
    "is_section_name",
    "local_header",
    "locate_directory",
    "parse_directory",
]

ALIGNMENT = 64
"""Entries' data starts at multiples of this many bytes."""
MAX_SECTIONS = 256
"""Largest number of entries, the manifest included."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*(?:/[a-z0-9][a-z0-9_.-]*)*")
_MAX_NAME = 120
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR64 = struct.Struct("<4sIQI")
_EXTRA = struct.Struct("<2H")
_ZIP64_ID = 0x0001
_PAD_ID = 0x4251  # "QB": a private extra field that holds nothing but padding
_MAX32 = 0xFFFFFFFF
_VERSION = 20
_VERSION64 = 45
_DOS_DATE = 0x0021  # 1980-01-01, the earliest date there is; the time is 00:00
_UTF8 = 0x0800

TAIL_SIZE = _END64.size + _LOCATOR64.size + _END.size
"""Bytes at the end of a file that hold its end records at most."""
MAX_DIRECTORY = MAX_SECTIONS * (_CENTRAL.size + _MAX_NAME + _EXTRA.size + 24)
"""Largest central directory in bytes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored entry.

    Attributes:
        name: its path in the archive.
        size: bytes of data.
        crc: CRC-32 of the data.
        offset: where its local header begins.
    """

    name: str
    size: int
    crc: int
    offset: int

    @property
    def data_offset(self) -> int:
        """Where the data begins, a multiple of :data:`ALIGNMENT`."""
        return self.offset + len(local_header(self))

    @property
    def end(self) -> int:
        """The first byte behind the data."""
        return self.data_offset + self.size


def is_section_name(name: str) -> bool:
    """Whether ``name`` may be an entry: lower-case path parts, none of them hidden or ``..``."""
    return len(name) <= _MAX_NAME and _NAME.fullmatch(name) is not None


def local_header(entry: Entry) -> bytes:
    """Return the header in front of an entry's data; its length does not depend on the CRC."""
    name = entry.name.encode("ascii")
    big = entry.size >= _MAX32
    extra = _zip64_extra([entry.size, entry.size] if big else [])
    bare = entry.offset + _LOCAL.size + len(name) + len(extra) + _EXTRA.size
    padding = -bare % ALIGNMENT
    extra += _EXTRA.pack(_PAD_ID, padding) + bytes(padding)
    size32 = _MAX32 if big else entry.size
    version = _VERSION64 if big else _VERSION
    fields = (version, _UTF8, 0, 0, _DOS_DATE, entry.crc, size32, size32, len(name), len(extra))
    return _LOCAL.pack(b"PK\x03\x04", *fields) + name + extra


def directory(entries: Sequence[Entry], offset: int) -> bytes:
    """Return the central directory, to be written at ``offset``, and the end records."""
    out = bytearray()
    for entry in entries:
        name = entry.name.encode("ascii")
        numbers: list[int] = []
        size32, offset32 = entry.size, entry.offset
        if entry.size >= _MAX32:
            numbers += [entry.size, entry.size]
            size32 = _MAX32
        if entry.offset >= _MAX32:
            numbers.append(entry.offset)
            offset32 = _MAX32
        extra = _zip64_extra(numbers)
        version = _VERSION64 if numbers else _VERSION
        fields = (version, version, _UTF8, 0, 0, _DOS_DATE, entry.crc, size32, size32)
        tail = (len(name), len(extra), 0, 0, 0, 0, offset32)
        out += _CENTRAL.pack(b"PK\x01\x02", *fields, *tail) + name + extra
    size, count = len(out), len(entries)
    if offset >= _MAX32:
        versions = (_VERSION64, _VERSION64)
        counts = (0, 0, count, count)
        out += _END64.pack(b"PK\x06\x06", _END64.size - 12, *versions, *counts, size, offset)
        out += _LOCATOR64.pack(b"PK\x06\x07", 0, offset + size, 1)
    out += _END.pack(b"PK\x05\x06", 0, 0, count, count, size, min(offset, _MAX32), 0)
    return bytes(out)


def locate_directory(tail: bytes, file_size: int) -> tuple[int, int]:
    """Return offset and size of the central directory from the last bytes of a file.

    Raises:
        ValueError: the end records are not there or contradict the file's size.
    """
    if len(tail) < _END.size:
        raise ValueError("the file is too short to be a package")
    end = _END.unpack(tail[-_END.size :])
    if end[0] != b"PK\x05\x06" or end[7] != 0:
        raise ValueError("the end record is missing: the file is truncated or not a package")
    count, size, offset = end[4], end[5], end[6]
    behind = _END.size
    if offset == _MAX32:
        at = len(tail) - TAIL_SIZE
        if at < 0:
            raise ValueError("the ZIP64 end record is missing")
        end64 = _END64.unpack_from(tail, at)
        if end64[0] != b"PK\x06\x06":
            raise ValueError("the ZIP64 end record is missing")
        count, size, offset = end64[7], end64[8], end64[9]
        behind = TAIL_SIZE
    if not 1 <= count <= MAX_SECTIONS or size > MAX_DIRECTORY:
        raise ValueError(f"the directory claims {count} entries in {size} bytes")
    if offset + size + behind != file_size:
        raise ValueError("the directory is not where the end record says")
    return offset, size


def parse_directory(data: bytes, offset: int, size: int) -> list[Entry]:
    """Return the entries of ``data``: the central directory of ``size`` bytes and all behind it.

    Args:
        data: the file from ``offset`` to its end.
        offset: where the directory begins.
        size: its size in bytes.

    Raises:
        ValueError: the bytes are not what :func:`directory` writes for these entries, or the
            entries do not follow one another without gaps from the start of the file.
    """
    entries: list[Entry] = []
    at = 0
    while at < size:
        if at + _CENTRAL.size > size:
            raise ValueError("a directory record is cut off")
        fields = _CENTRAL.unpack_from(data, at)
        if fields[0] != b"PK\x01\x02":
            raise ValueError("a directory record has a wrong signature")
        crc, entry_size, name_size, extra_size = fields[7], fields[9], fields[10], fields[11]
        entry_offset = fields[16]
        at += _CENTRAL.size
        raw = data[at : at + name_size]
        extra = data[at + name_size : at + name_size + extra_size]
        at += name_size + extra_size
        name = raw.decode("ascii", "replace")
        if at > size or not is_section_name(name):
            raise ValueError("a directory record has a name that is not allowed")
        numbers = [struct.unpack_from("<Q", extra, i)[0] for i in range(4, len(extra) - 7, 8)]
        if entry_size == _MAX32 and len(numbers) >= 2:
            entry_size = numbers[0]
            numbers = numbers[2:]
        if entry_offset == _MAX32 and numbers:
            entry_offset = numbers[0]
        entries.append(Entry(name, entry_size, crc, entry_offset))
        if len(entries) > MAX_SECTIONS:
            raise ValueError("the directory has too many entries")
    position = 0
    for entry in entries:
        if entry.offset != position:
            raise ValueError(f"entry {entry.name!r} is not right behind the one before it")
        position = entry.end
    if position != offset or directory(entries, offset) != data:
        raise ValueError("the directory is not in the form that packages have")
    return entries


def _zip64_extra(numbers: Sequence[int]) -> bytes:
    if not numbers:
        return b""
    return _EXTRA.pack(_ZIP64_ID, 8 * len(numbers)) + struct.pack(f"<{len(numbers)}Q", *numbers)
