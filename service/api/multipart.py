"""Multipart uploads, handed on as they arrive: no part is held in memory or written twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from fastapi import Request
from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import parse_options_header

from ..domain import ServiceError

__all__ = ["PartBegin", "PartData", "PartEnd", "read_multipart"]

_MAX_PARTS = 100_100
_MAX_HEADER = 16 << 10


@dataclass(frozen=True, slots=True)
class PartBegin:
    """A part begins. ``filename`` is None for a plain field."""

    name: str
    filename: str | None


@dataclass(frozen=True, slots=True)
class PartData:
    """Bytes of the current part."""

    data: bytes


@dataclass(frozen=True, slots=True)
class PartEnd:
    """The current part is complete."""


Piece = PartBegin | PartData | PartEnd


@dataclass(slots=True)
class _State:
    pieces: list[Piece] = field(default_factory=list)
    name: bytearray = field(default_factory=bytearray)
    value: bytearray = field(default_factory=bytearray)
    headers: dict[bytes, bytes] = field(default_factory=dict)
    header_bytes: int = 0
    parts: int = 0
    ended: bool = False


async def read_multipart(request: Request) -> AsyncIterator[Piece]:
    """Yield the parts of a ``multipart/form-data`` body.

    Raises:
        ServiceError: another content type; a damaged or cut body.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise ServiceError(
            "UNSUPPORTED_MEDIA_TYPE",
            "the body must be multipart/form-data",
            hint="curl -F file=@model.onnx …",
        )
    state = _State()
    try:
        parser = MultipartParser(boundary, _callbacks(state))  # type: ignore[arg-type]
        async for chunk in request.stream():
            parser.write(chunk)
            for piece in state.pieces:
                yield piece
            state.pieces.clear()
        parser.finalize()
    except MultipartParseError as exc:
        raise ServiceError("BAD_REQUEST", "the multipart body is damaged") from exc
    for piece in state.pieces:
        yield piece
    if not state.ended:
        raise ServiceError("BAD_REQUEST", "the multipart body is cut short")


def _callbacks(state: _State) -> dict[str, object]:
    def begin() -> None:
        state.headers = {}
        state.header_bytes = 0
        state.parts += 1
        if state.parts > _MAX_PARTS:
            raise ServiceError("PAYLOAD_TOO_LARGE", f"the body has more than {_MAX_PARTS} parts")

    def header_field(data: bytes, start: int, end: int) -> None:
        _bounded(end - start)
        state.name += data[start:end]

    def header_value(data: bytes, start: int, end: int) -> None:
        _bounded(end - start)
        state.value += data[start:end]

    def _bounded(count: int) -> None:
        state.header_bytes += count
        if state.header_bytes > _MAX_HEADER:
            raise ServiceError("BAD_REQUEST", "a part of the body has headers that are too long")

    def header_end() -> None:
        state.headers[bytes(state.name).lower()] = bytes(state.value)
        state.name.clear()
        state.value.clear()

    def headers_finished() -> None:
        kind, options = parse_options_header(state.headers.get(b"content-disposition", b""))
        name = options.get(b"name")
        if kind != b"form-data" or name is None:
            raise ServiceError("BAD_REQUEST", "a part of the body has no name")
        filename = options.get(b"filename")
        state.pieces.append(PartBegin(_text(name), None if filename is None else _text(filename)))

    def part_data(data: bytes, start: int, end: int) -> None:
        state.pieces.append(PartData(data[start:end]))

    def part_end() -> None:
        state.pieces.append(PartEnd())

    def end() -> None:
        state.ended = True

    return {
        "on_part_begin": begin,
        "on_header_field": header_field,
        "on_header_value": header_value,
        "on_header_end": header_end,
        "on_headers_finished": headers_finished,
        "on_part_data": part_data,
        "on_part_end": part_end,
        "on_end": end,
    }


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ServiceError("BAD_REQUEST", "a name in the multipart body is not UTF-8") from None
