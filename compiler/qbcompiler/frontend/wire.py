"""Splits a serialized ONNX model into a small protobuf and views of its weights.

Parsing a model whole copies every weight. Here the wire format is walked instead (only the
model's, the graph's and the initializers' own fields, a linear scan) and the payload of large
initializers is left where it is, so that a model costs its own size in memory, or nothing but
page cache when the buffer is a memory map. Field numbers are those of ``onnx.proto3``; the
encoding is that of https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["INLINE_BYTES", "SplitModel", "WireError", "split_model"]

INLINE_BYTES = 1024
"""Payloads of fewer bytes stay in the protobuf."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5

_MODEL_GRAPH = 7
_GRAPH_INITIALIZER = 5
_TENSOR_FLOAT_DATA = 4
_TENSOR_RAW_DATA = 9
_TENSOR_DOUBLE_DATA = 10
_PAYLOADS = (_TENSOR_RAW_DATA, _TENSOR_FLOAT_DATA, _TENSOR_DOUBLE_DATA)


class WireError(Exception):
    """The bytes are not well-formed protobuf.

    Attributes:
        truncated: whether a field claims to reach beyond the end of the buffer.
        offset: where.
        claimed: the size that the field needs the buffer to have, when truncated.
    """

    def __init__(self, message: str, offset: int, claimed: int | None = None) -> None:
        super().__init__(message)
        self.offset = offset
        self.claimed = claimed

    @property
    def truncated(self) -> bool:
        """Whether the buffer ends too early."""
        return self.claimed is not None


@dataclass(slots=True)
class SplitModel:
    """The result of :func:`split_model`.

    Attributes:
        skeleton: the serialized model without the payloads of large initializers.
        payloads: initializer index -> little-endian bytes of its elements. Packed
            ``float_data`` and ``double_data`` have the same layout as ``raw_data``.
        graphs: how many graph fields the model has (one, when it is valid).
    """

    skeleton: bytes
    payloads: dict[int, memoryview] = field(default_factory=dict)
    graphs: int = 0


def split_model(data: memoryview, inline_bytes: int = INLINE_BYTES) -> SplitModel:
    """Split the serialized ``ModelProto`` in ``data``.

    Raises:
        WireError: the bytes are not well-formed, or end early.
    """
    result = SplitModel(b"")
    pieces: list[bytes | memoryview] = []
    kept = position = 0
    end = len(data)
    while position < end:
        start = position
        number, wire, position, body = _field(data, position, end)
        if number == _MODEL_GRAPH and wire == _LENGTH:
            result.graphs += 1
            graph = _split_graph(data, body, position, result.payloads, inline_bytes)
            if graph is not None:
                pieces += (data[kept:start], _tag(number), _varint(sum(map(len, graph))), *graph)
                kept = position
    pieces.append(data[kept:end])
    result.skeleton = b"".join(pieces)
    return result


def _split_graph(
    data: memoryview, start: int, end: int, payloads: dict[int, memoryview], inline_bytes: int
) -> list[bytes | memoryview] | None:
    """Return the graph's pieces without large payloads, None when there are none."""
    pieces: list[bytes | memoryview] = []
    kept = position = start
    index = 0
    while position < end:
        begin = position
        number, wire, position, body = _field(data, position, end)
        if number != _GRAPH_INITIALIZER or wire != _LENGTH:
            continue
        if position - body >= inline_bytes:
            tensor = _split_tensor(data, body, position, inline_bytes)
            if tensor is not None:
                head, payload, tail = tensor
                payloads[index] = payload
                size = len(head) + len(tail)
                pieces += (data[kept:begin], _tag(number), _varint(size), head, tail)
                kept = position
        index += 1
    if not pieces:
        return None
    pieces.append(data[kept:end])
    return pieces


def _split_tensor(
    data: memoryview, start: int, end: int, inline_bytes: int
) -> tuple[memoryview, memoryview, memoryview] | None:
    """Return what precedes the payload, the payload, what follows; None to keep it whole."""
    found: tuple[int, int, int] | None = None
    position = start
    while position < end:
        begin = position
        number, wire, position, body = _field(data, position, end)
        if number in _PAYLOADS:
            if found is not None or wire != _LENGTH:
                return None  # in several chunks or unpacked: the general parser merges them
            found = begin, body, position
    if found is None or found[2] - found[1] < inline_bytes:
        return None
    begin, body, after = found
    return data[start:begin], data[body:after], data[after:end]


def _field(data: memoryview, position: int, end: int) -> tuple[int, int, int, int]:
    """Return a field's number, wire type, the position after it, and where its body starts."""
    start = position
    tag, position = _read_varint(data, position, end)
    number, wire = tag >> 3, tag & 7
    if number == 0 or number >= 1 << 29:
        raise WireError(f"field number {number} at byte {start}", start)
    body = position
    if wire == _LENGTH:
        length, body = _read_varint(data, position, end)
        position = body + length
    elif wire == _VARINT:
        _, position = _read_varint(data, position, end)
    elif wire == _FIXED64:
        position += 8
    elif wire == _FIXED32:
        position += 4
    else:
        raise WireError(f"wire type {wire} at byte {start}", start)
    if position > end:
        raise WireError(f"field {number} at byte {start} ends at {position}", start, position)
    return number, wire, position, body


def _read_varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= end:
            raise WireError(f"ends inside a number at byte {position}", position, position + 1)
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise WireError(f"a number of more than 64 bits at byte {position}", position)


def _tag(number: int) -> bytes:
    return _varint(number << 3 | _LENGTH)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
