"""JSON in and out: one canonical form to write, strict and bounded reading."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NoReturn

from ..errors import FormatError

__all__ = ["Fields", "dump_json", "parse_json"]

_MAX_ITEMS = 8_000_000
_BATCH = 64  # items of a list encoded at a time
_SHA256 = re.compile(r"[0-9a-f]{64}")


def dump_json(data: Any) -> bytes:
    """Return compact ASCII JSON, keys in insertion order; ValueError for NaN or infinity.

    The lists of an object (layers, values …) are written some items at a time, since the encoder
    needs many times what it returns; they may be iterators, which are then used up.
    """
    if not isinstance(data, dict):
        return _dumps(data)
    out = io.BytesIO()
    for index, (key, value) in enumerate(data.items()):
        out.write((b"," if index else b"{") + _dumps(str(key)) + b":")
        if isinstance(value, (list, Iterator)):
            _write_list(out, iter(value))
        else:
            out.write(_dumps(value))
    out.write(b"}" if data else b"{}")
    return out.getvalue()


def _write_list(out: io.BytesIO, items: Iterator[Any]) -> None:
    lead = b"["
    while batch := list(islice(items, _BATCH)):
        out.write(lead + _dumps(batch)[1:-1])
        lead = b","
    out.write(b"]" if lead == b"," else b"[]")


def _dumps(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


def parse_json(data: bytes | memoryview, section: str) -> Any:
    """Parse JSON strictly: UTF-8, no duplicate keys, no NaN, a bounded number of items.

    The number of items is bounded before parsing, because each costs many times its text.

    Raises:
        FormatError: names the section.
    """
    raw = bytes(data)
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > _MAX_ITEMS:
        raise FormatError(f"{section}: more than {_MAX_ITEMS} items", details={"section": section})
    try:
        return json.loads(
            raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as exc:
        reason = "nested too deeply" if isinstance(exc, RecursionError) else str(exc)
        raise FormatError(
            f"{section} is not valid JSON: {reason}", details={"section": section}
        ) from exc


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is given twice")
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not allowed")


class Fields:
    """Typed access to a JSON object of a file; each error names the section and the place.

    Unknown keys are ignored, so that a newer minor version can add some.
    """

    __slots__ = ("_data", "_where", "section")

    def __init__(self, data: Any, section: str, where: str = "") -> None:
        """Wrap ``data``, which must be an object; FormatError otherwise."""
        self.section = section
        self._where = where
        if not isinstance(data, dict):
            self.fail(f"expected an object, got {_kind(data)}")
        self._data: Mapping[str, Any] = data

    def fail(self, reason: str) -> NoReturn:
        """Raise FormatError for this place."""
        place = f"{self.section}: {self._where}" if self._where else self.section
        raise FormatError(f"{place}: {reason}", details={"section": self.section})

    @property
    def plain(self) -> dict[str, Any]:
        """The wrapped object."""
        return dict(self._data)

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def raw(self, key: str) -> Any:
        """Return the value of ``key`` as it is."""
        if key not in self._data:
            self.fail(f"lacks {key!r}")
        return self._data[key]

    def text(self, key: str, limit: int = 4096) -> str:
        """Return a string of at most ``limit`` characters."""
        value = self.raw(key)
        if not isinstance(value, str) or len(value) > limit:
            self.fail(f"{key!r} must be a string of at most {limit} characters")
        return value

    def optional_text(self, key: str, limit: int = 4096) -> str | None:
        """Return a string, or None where the key is absent or null."""
        return None if self._data.get(key) is None else self.text(key, limit)

    def sha256(self, key: str) -> str:
        """Return 64 lower-case hexadecimal digits."""
        value = self.raw(key)
        if not isinstance(value, str) or not _SHA256.fullmatch(value):
            self.fail(f"{key!r} must be a SHA-256")
        return value

    def integer(self, key: str, low: int, high: int) -> int:
        """Return an integer within ``low..high``."""
        value = self.raw(key)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.fail(f"{key!r} must be an integer in {low}..{high}")
        return value

    def boolean(self, key: str) -> bool:
        """Return a boolean."""
        value = self.raw(key)
        if not isinstance(value, bool):
            self.fail(f"{key!r} must be true or false")
        return value

    def array(self, key: str, limit: int) -> list[Any]:
        """Return a list of at most ``limit`` items."""
        value = self.raw(key)
        if not isinstance(value, list) or len(value) > limit:
            self.fail(f"{key!r} must be a list of at most {limit} items")
        return value

    def texts(self, key: str, limit: int, length: int = 4096) -> list[str]:
        """Return a list of strings."""
        value = self.array(key, limit)
        if any(not isinstance(v, str) or len(v) > length for v in value):
            self.fail(f"{key!r} must hold strings of at most {length} characters")
        return value

    def integers(self, key: str, limit: int, low: int, high: int) -> list[int]:
        """Return a list of integers within ``low..high``."""
        value = self.array(key, limit)
        for v in value:
            if not isinstance(v, int) or isinstance(v, bool) or not low <= v <= high:
                self.fail(f"{key!r} must hold integers in {low}..{high}")
        return value

    def nested(self, key: str) -> Fields:
        """Return the object under ``key``."""
        return Fields(self.raw(key), self.section, self._inner(key))

    def mapping(self, key: str) -> dict[str, Any]:
        """Return the object under ``key`` as plain data."""
        value = self.raw(key)
        if not isinstance(value, dict):
            self.fail(f"{key!r} must be an object")
        return value

    def nested_list(self, key: str, limit: int) -> Iterator[Fields]:
        """Yield the objects of a list."""
        for i, item in enumerate(self.array(key, limit)):
            yield Fields(item, self.section, self._inner(f"{key}[{i}]"))

    def _inner(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return names.get(type(value), "null" if value is None else "a number")
