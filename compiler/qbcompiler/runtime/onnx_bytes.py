"""A minimal writer of ONNX protobuf bytes for the one-node models of the kernels.

The runtime needs ONNX Runtime but not the ``onnx`` package. The wire format is that of Protocol
Buffers (varint keys, length-delimited messages); field numbers are those of ``onnx.proto3``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..ir import Array

__all__ = ["one_node_model"]

_OPSET = 13
_IR_VERSION = 8
_ELEMENT_TYPES = {"float32": 1, "int64": 7, "float64": 11}


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode("utf-8"))


def _attribute(name: str, value: int | Sequence[int]) -> bytes:
    """AttributeProto: name=1, i=3, ints=8, type=20 (INT 2, INTS 7)."""
    if isinstance(value, int):
        return _text(1, name) + _int(3, value) + _int(20, 2)
    return _text(1, name) + b"".join(_int(8, v) for v in value) + _int(20, 7)


def _tensor(name: str, data: Array) -> bytes:
    """TensorProto: dims=1, data_type=2, name=8, raw_data=9."""
    raw = np.ascontiguousarray(data)
    return (
        b"".join(_int(1, d) for d in raw.shape)
        + _int(2, _ELEMENT_TYPES[raw.dtype.name])
        + _text(8, name)
        + _bytes(9, raw.tobytes())
    )


def _value_info(name: str, element: str) -> bytes:
    """ValueInfoProto: name=1, type=2 {tensor_type=1 {elem_type=1}}; the shape is left open."""
    return _text(1, name) + _bytes(2, _bytes(1, _int(1, _ELEMENT_TYPES[element])))


def one_node_model(
    op_type: str,
    *,
    inputs: Sequence[str],
    element: str = "float32",
    constants: Mapping[str, Array] | None = None,
    attrs: Mapping[str, int | Sequence[int]] | None = None,
) -> bytes:
    """Return the serialized model ``y = op_type(inputs…, constants…)``.

    Args:
        op_type: an operator of the default domain.
        inputs: names of the graph inputs, of element type ``element`` and any shape.
        element: ``float32`` or ``float64``.
        constants: initializers, passed to the node after the inputs.
        attrs: integer and integer-list attributes.
    """
    constants = constants or {}
    # NodeProto: input=1, output=2, op_type=4, attribute=5
    node = b"".join(_text(1, n) for n in (*inputs, *constants))
    node += _text(2, "y") + _text(4, op_type)
    node += b"".join(_bytes(5, _attribute(k, v)) for k, v in (attrs or {}).items())
    # GraphProto: node=1, name=2, initializer=5, input=11, output=12
    graph = _bytes(1, node) + _text(2, "kernel")
    graph += b"".join(_bytes(5, _tensor(k, v)) for k, v in constants.items())
    graph += b"".join(_bytes(11, _value_info(n, element)) for n in inputs)
    graph += _bytes(12, _value_info("y", element))
    # ModelProto: ir_version=1, graph=7, opset_import=8 {domain=1, version=2}
    return _int(1, _IR_VERSION) + _bytes(7, graph) + _bytes(8, _text(1, "") + _int(2, _OPSET))
