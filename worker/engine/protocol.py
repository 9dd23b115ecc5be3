"""The engine's JSON lines: read leniently, for an engine may be another one or a newer one.

An object with a known ``type`` and sound fields is a message; unknown types are ignored; every
other line is text for the log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.domain import Failure, Phase

__all__ = ["MAX_LINE", "Lines", "Message", "Progress", "Result", "Said", "read_line"]

MAX_LINE = 1 << 20
"""Longest line that is read as a message; a longer one is cut and logged."""

_CODE = re.compile(r"[A-Z][A-Z0-9_]{1,63}\Z")
_MAX_TEXT = 4000


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the engine is."""

    phase: Phase
    current: int | None = None
    total: int | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """A line for the log."""

    text: str


@dataclass(frozen=True, slots=True)
class Result:
    """The files of a success, as the engine names them."""

    files: tuple[Mapping[str, Any], ...]
    summary: Mapping[str, Any]


Message = Progress | Said | Result | Failure


class Lines:
    """Cuts a byte stream into lines of bounded length."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that ``data`` completes; of a line too long only the beginning."""
        lines: list[str] = []
        self._rest += data
        while True:
            end = self._rest.find(b"\n")
            if end < 0:
                if len(self._rest) > self._limit:
                    if not self._skipping:
                        lines.append(_text(self._rest[: self._limit]) + " …")
                    self._rest, self._skipping = b"", True
                return lines
            line, self._rest = self._rest[:end], self._rest[end + 1 :]
            if self._skipping:
                self._skipping = False
            else:
                lines.append(_text(line[: self._limit]))

    def close(self) -> list[str]:
        """Return what is left without a line end."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest and not self._skipping else []


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r")


def read_line(line: str) -> Message | None:
    """Return what a line of standard output says; None for nothing of interest."""
    if not line.startswith("{"):
        return Said(line) if line.strip() else None
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return Said(line)
    kind = data.get("type")
    if kind == "progress":
        return _progress(data, data.get("current"), data.get("total"))
    if kind == "status":
        return _progress(data, None, None) if data.get("phase") is not None else None
    if kind == "log":
        level = str(data.get("level", "info"))[:16]
        return Said(f"{level}: {data.get('message', '')}")
    if kind == "result":
        return _result(data)
    if kind == "error":
        return _failure(data)
    return None


def _progress(data: Mapping[str, Any], current: Any, total: Any) -> Progress | None:
    try:
        phase = Phase(str(data.get("phase")))
    except ValueError:
        return None
    message = data.get("message")
    return Progress(
        phase,
        _count(current),
        _count(total),
        message[:_MAX_TEXT] if isinstance(message, str) else None,
    )


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return min(max(int(value), 0), 2**31 - 1)
    except (OverflowError, ValueError):
        return None


def _result(data: Mapping[str, Any]) -> Result:
    files = data.get("files")
    summary = data.get("summary")
    return Result(
        tuple(f for f in files if isinstance(f, dict)) if isinstance(files, list) else (),
        summary if isinstance(summary, dict) else {},
    )


def _failure(data: Mapping[str, Any]) -> Failure:
    code = data.get("code")
    hint = data.get("hint")
    details = data.get("details")
    return Failure(
        code=code if isinstance(code, str) and _CODE.match(code) else "INTERNAL_ERROR",
        message=str(data.get("message") or "the engine gave no message")[:_MAX_TEXT],
        details=details if isinstance(details, dict) else {},
        hint=hint[:_MAX_TEXT] if isinstance(hint, str) else None,
    )
