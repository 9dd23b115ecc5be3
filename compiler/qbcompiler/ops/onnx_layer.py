"""An ONNX operator that the IR does not model, kept whole as a CPU layer.

Its attributes travel as canonical JSON, its output types are what ONNX shape inference (or the
operator itself, run once) said when the model was parsed. A dimension of -1 depends on the data:
only these layers may have one.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir import Attrs, DType, Graph, Node, TensorType, Value
from .spec import OnnxEmitter, OpSpec, QuantRule

__all__ = [
    "OnnxAttrs",
    "OnnxLayer",
    "RawGraph",
    "decode_attributes",
    "encode_attributes",
    "format_type",
    "parse_type",
]


@dataclass(frozen=True, slots=True)
class RawGraph:
    """A sub-graph attribute: a serialized ``GraphProto`` and the outer values that it reads.

    Attributes:
        data: the protobuf.
        captures: for each outer value that the graph reads, its name inside and outside.
    """

    data: bytes
    captures: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class OnnxAttrs(Attrs):
    """Attributes of a CPU layer.

    Attributes:
        op_type, domain, version: the ONNX operator and the opset that it is written for.
        attributes: its ONNX attributes, :func:`encode_attributes`.
        types: types of the outputs, :func:`format_type`; "" for an unused one.
        captures: names that the operator's sub-graphs have for the last inputs of the layer,
            which are not inputs of the ONNX node but read from inside.
        reason: why the layer is not one of the IR's own operators.
    """

    op_type: str
    domain: str
    version: int
    attributes: str
    types: tuple[str, ...]
    captures: tuple[str, ...] = ()
    reason: str = ""

    @property
    def opset(self) -> tuple[str, int]:
        """Domain and opset that an exported model must import."""
        return self.domain, self.version


class OnnxLayer(OpSpec[OnnxAttrs]):
    """Any ONNX operator, with ONNX's own meaning; runs on the CPU."""

    name = "Onnx"
    attrs_type = OnnxAttrs
    rule = QuantRule.FLOAT

    def infer(self, attrs: OnnxAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        """Return the recorded types."""
        return [parse_type(t) for t in attrs.types]

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        """Write the operator back as it was."""
        attrs = node.attrs
        assert isinstance(attrs, OnnxAttrs)
        explicit = len(node.inputs) - len(attrs.captures)
        values = decode_attributes(attrs.attributes)
        outer = dict(zip(attrs.captures, node.inputs[explicit:], strict=True))
        for key, value in values.items():
            if isinstance(value, RawGraph):
                values[key] = RawGraph(value.data, tuple(outer.items()))
        to.emit(attrs.op_type, node.inputs[:explicit], node.outputs, domain=attrs.domain, **values)

    def unsupported(self, node: Node, graph: Graph) -> str | None:
        """Return why the IR does not model the operator."""
        attrs = node.attrs
        assert isinstance(attrs, OnnxAttrs)
        return attrs.reason or f"the ONNX operator {attrs.op_type} has no integer form"


def format_type(type_: TensorType | None) -> str:
    """Return ``float32[1,2]``; "" for None."""
    return "" if type_ is None else str(type_)


def parse_type(text: str) -> TensorType:
    """Reverse :func:`format_type` ("" gives a scalar); ValueError for anything else."""
    if not text:
        return TensorType(DType.FLOAT32, ())
    name, _, dims = text.partition("[")
    if not dims.endswith("]"):
        raise ValueError(f"{text!r} is not a tensor type")
    shape = tuple(int(d) for d in dims[:-1].split(",")) if dims != "]" else ()
    if any(d < -1 for d in shape):
        raise ValueError(f"{text!r} has a dimension below -1")
    return TensorType(DType(name), shape)


def encode_attributes(attributes: Mapping[str, Any]) -> str:
    """Return attribute values as JSON: keys sorted, no spaces, each value with its kind.

    Values: int, float, str, bytes, arrays, :class:`RawGraph`, and lists of int, float or str.
    """
    encoded = {k: _encode(attributes[k]) for k in sorted(attributes)}
    return json.dumps(encoded, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def decode_attributes(text: str) -> dict[str, Any]:
    """Reverse :func:`encode_attributes`.

    Raises:
        ValueError: the text is not what it returns.
    """
    try:
        data = json.loads(text)
        return {k: _decode(v[0], v[1]) for k, v in data.items()}
    except (KeyError, IndexError, TypeError, AttributeError) as exc:
        raise ValueError(f"malformed ONNX attributes: {exc}") from exc


def _encode(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return ["int", int(value)]
    if isinstance(value, (int, np.integer)):
        return ["int", int(value)]
    if isinstance(value, (float, np.floating)):
        return ["float", _float(float(value))]
    if isinstance(value, str):
        return ["str", value]
    if isinstance(value, bytes):
        return ["bytes", base64.b64encode(value).decode()]
    if isinstance(value, RawGraph):
        return ["graph", base64.b64encode(value.data).decode()]
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return ["strings", [list(value.shape), [str(v) for v in value.ravel()]]]
        packed = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False)
        data = base64.b64encode(packed.tobytes()).decode()
        return ["tensor", [DType.of(value.dtype).value, list(value.shape), data]]
    if isinstance(value, (list, tuple)):
        kinds = [_encode(v) for v in value]
        kind = "float" if any(k[0] == "float" for k in kinds) else kinds[0][0] if kinds else "int"
        return [f"{kind}s", [k[1] for k in kinds]]
    raise ValueError(f"no JSON form for an attribute of type {type(value).__name__}")


def _decode(kind: str, value: Any) -> Any:
    if kind == "int":
        return int(value)
    if kind == "float":
        return float(value)
    if kind == "str":
        return str(value)
    if kind == "bytes":
        return base64.b64decode(value)
    if kind == "graph":
        return RawGraph(base64.b64decode(value))
    if kind == "tensor":
        dtype, shape, data = value
        return np.frombuffer(base64.b64decode(data), DType(dtype).numpy).reshape(shape)
    if kind == "strings" and value and isinstance(value[0], list):
        return np.asarray(value[1], dtype=object).reshape(value[0])
    if kind in ("ints", "floats", "strs"):
        return [_decode(kind[:-1], v) for v in value]
    raise ValueError(f"unknown attribute kind {kind!r}")


def _float(value: float) -> float | str:
    # JSON has no infinities; Python's float() reads these words back
    return value if math.isfinite(value) else str(value)
