"""A reader of the protobuf wire format: bounded, without copying, without a schema compiler.

It walks the fields of a message in a buffer (a memory-mapped file, say) and hands out positions;
nothing is allocated in proportion to what a length claims.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Budget", "Buffer", "Field", "WireError", "fields", "text"]

Buffer = bytes | memoryview | mmap.mmap

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """The bytes are not a message; the text says where and why."""


@dataclass(slots=True)
class Budget:
    """How many more fields may be looked at; a bound on time."""

    left: int

    def spend(self) -> None:
        """Take one field off.

        Raises:
            WireError: there is nothing left.
        """
        self.left -= 1
        if self.left < 0:
            raise WireError("it has too many fields")


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its number, wire type, and its value or where its bytes are."""

    number: int
    wire: int
    value: int
    start: int
    stop: int

    @property
    def is_message(self) -> bool:
        """Whether its value is a run of bytes."""
        return self.wire == LENGTH


def fields(data: Buffer, start: int, stop: int, budget: Budget) -> Iterator[Field]:
    """Yield the fields of the message between two positions.

    Raises:
        WireError: the bytes are not a message, or end too early.
    """
    at = start
    while at < stop:
        budget.spend()
        tag_at = at
        tag, at = _varint(data, at, stop)
        number, wire = tag >> 3, tag & 7
        if not 1 <= number < 1 << 29:
            raise WireError(f"byte {tag_at} is not the beginning of a field")
        if wire == VARINT:
            value, end = _varint(data, at, stop)
            yield Field(number, wire, value, at, end)
        elif wire in (FIXED64, FIXED32):
            end = at + (8 if wire == FIXED64 else 4)
            if end > stop:
                raise WireError(_short(number, at, end - at, stop - at))
            yield Field(number, wire, 0, at, end)
        elif wire == LENGTH:
            length, begin = _varint(data, at, stop)
            end = begin + length
            if end > stop:
                raise WireError(_short(number, begin, length, stop - begin))
            yield Field(number, wire, length, begin, end)
        else:
            raise WireError(f"byte {tag_at} is not the beginning of a field")
        at = end


def text(data: Buffer, field: Field, *, limit: int = 4096) -> str:
    """Return a field's bytes as text.

    Raises:
        WireError: they are no text, or longer than the limit.
    """
    if field.wire != LENGTH:
        raise WireError(f"field {field.number} at byte {field.start} is not text")
    if field.stop - field.start > limit:
        raise WireError(f"the text at byte {field.start} is longer than {limit} bytes")
    try:
        found = bytes(data[field.start : field.stop]).decode("utf-8")
    except UnicodeDecodeError:
        raise WireError(f"the text at byte {field.start} is not UTF-8") from None
    if "\0" in found:
        raise WireError(f"the text at byte {field.start} has a NUL character")
    return found


def signed(value: int) -> int:
    """Return a varint as the int64 that it stands for."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _varint(data: Buffer, at: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, min(stop, at + 10)):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    if stop - at < 10:
        raise WireError(f"it ends at byte {stop} in the middle of a number")
    raise WireError(f"the number at byte {at} is too long")


def _short(number: int, at: int, wanted: int, there: int) -> str:
    return f"field {number} at byte {at} claims {wanted} bytes and {there} are left"
