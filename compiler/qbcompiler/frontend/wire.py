"""Splits a serialized ONNX model into a small protobuf and views of its weights.

Parsing a model whole copies every weight. Here the wire format is walked instead (only the
model's, the graph's and the weights' own fields, a linear scan) and the payload of large
initializers is left where it is; ``Constant`` nodes with as large a tensor, in which some
exporters keep all weights, become initializers. So a model costs its own size in memory, or
nothing but page cache when the buffer is a memory map. Field numbers are those of
``onnx.proto3``; the
encoding is that of https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["INLINE_BYTES", "SplitModel", "WireError", "split_model"]

INLINE_BYTES = 1024
"""Payloads of fewer bytes stay in the protobuf."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5

_MODEL_GRAPH = 7
_GRAPH_NODE = 1
_GRAPH_INITIALIZER = 5
_NODE_INPUT = 1
_NODE_OUTPUT = 2
_NODE_OP_TYPE = 4
_NODE_ATTRIBUTE = 5
_NODE_DOMAIN = 7
_ATTRIBUTE_NAME = 1
_ATTRIBUTE_TENSOR = 5
_TENSOR_NAME = 8
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
        lifted: names of the initializers that were ``Constant`` nodes; they follow the others.
    """

    skeleton: bytes
    payloads: dict[int, memoryview] = field(default_factory=dict)
    graphs: int = 0
    lifted: list[str] = field(default_factory=list)


def split_model(
    data: memoryview, inline_bytes: int = INLINE_BYTES, *, lift: bool = True
) -> SplitModel:
    """Split the serialized ``ModelProto`` in ``data``.

    Args:
        data: the bytes.
        inline_bytes: payloads of fewer bytes stay.
        lift: make large ``Constant`` nodes initializers.

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
            graph = _split_graph(data, body, position, result, inline_bytes, lift)
            if graph is not None:
                pieces += (data[kept:start], _tag(number), _varint(sum(map(len, graph))), *graph)
                kept = position
    pieces.append(data[kept:end])
    result.skeleton = b"".join(pieces)
    return result


def _split_graph(
    data: memoryview, start: int, end: int, result: SplitModel, inline_bytes: int, lift: bool
) -> list[bytes | memoryview] | None:
    """Return the graph's pieces without large payloads, None when there are none."""
    payloads = result.payloads
    lifted: list[_Constant] = []
    pieces: list[bytes | memoryview] = []
    kept = position = start
    index = 0
    while position < end:
        begin = position
        number, wire, position, body = _field(data, position, end)
        if lift and number == _GRAPH_NODE and wire == _LENGTH and position - body >= inline_bytes:
            constant = _constant_node(data, body, position, inline_bytes)
            if constant is not None:
                lifted.append(constant)
                pieces.append(data[kept:begin])
                kept = position
            continue
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
    for constant in lifted:
        head, payload, tail = constant.tensor
        payloads[index] = payload
        result.lifted.append(constant.name.decode("utf-8", "replace"))
        # of a field that is there twice the last one counts
        name = _tag(_TENSOR_NAME) + _varint(len(constant.name)) + constant.name
        size = len(head) + len(tail) + len(name)
        pieces += (_tag(_GRAPH_INITIALIZER), _varint(size), head, tail, name)
        index += 1
    return pieces


@dataclass(frozen=True, slots=True)
class _Constant:
    """A ``Constant`` node: its output's name and its tensor, split."""

    name: bytes
    tensor: tuple[memoryview, memoryview, memoryview]


def _constant_node(data: memoryview, start: int, end: int, inline_bytes: int) -> _Constant | None:
    """Return a node that is nothing but a large tensor, None for any other."""
    outputs: list[bytes] = []
    op_type = b""
    attribute: tuple[int, int] | None = None
    position = start
    while position < end:
        number, wire, position, body = _field(data, position, end)
        if wire != _LENGTH:
            return None
        if number == _NODE_OUTPUT:
            outputs.append(bytes(data[body:position]))
        elif number == _NODE_OP_TYPE:
            op_type = bytes(data[body : min(position, body + 16)])
        elif number == _NODE_ATTRIBUTE and attribute is None:
            attribute = body, position
        elif number in (_NODE_ATTRIBUTE, _NODE_INPUT) or (
            number == _NODE_DOMAIN and bytes(data[body:position]) not in (b"", b"ai.onnx")
        ):
            return None
    if op_type != b"Constant" or attribute is None or len(outputs) != 1 or not outputs[0]:
        return None
    name, tensor = b"", None
    position, last = attribute
    while position < last:
        number, wire, position, body = _field(data, position, last)
        if number == _ATTRIBUTE_NAME and wire == _LENGTH:
            name = bytes(data[body : min(position, body + 16)])
        elif number == _ATTRIBUTE_TENSOR:
            if tensor is not None or wire != _LENGTH:
                return None
            tensor = body, position
    split = None if tensor is None else _split_tensor(data, *tensor, inline_bytes)
    return _Constant(outputs[0], split) if name == b"value" and split is not None else None


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
