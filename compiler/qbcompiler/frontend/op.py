"""An ONNX operator in flight: with its inputs resolved, before it becomes layers of the IR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from ..errors import ModelLoadError
from ..ir import Array, DType, TensorType, Value
from .dtypes import dtype_of, element_name

__all__ = [
    "Entity",
    "Op",
    "TensorSequence",
    "attribute_value",
    "constant",
    "constant_of",
    "tensor_type",
]


@dataclass(frozen=True, slots=True, eq=False)
class TensorSequence:
    """A sequence of tensors whose length is known at compile time; it never reaches the IR.

    ``None`` as the only use of ``items`` stands for an optional that holds nothing.
    """

    items: tuple[Value, ...] | None


Entity = Value | TensorSequence
"""What a name of the source model stands for."""


@dataclass(slots=True, eq=False)
class Op:
    """A node of the source model.

    Attributes:
        name: the layer's name, unique and never empty.
        op_type, domain, version: operator, domain ("" for ai.onnx) and the opset in force.
        attrs: attribute values; sub-graphs are ``onnx.GraphProto``.
        inputs: what it reads; None for absent optional inputs.
        outputs: names of what it makes ("" for unused ones).
        source: names of the source nodes that it stands for.
        chained: where it is one of several steps, the input that the step before makes.
        unread: names among ``outputs`` that nothing reads.
    """

    name: str
    op_type: str
    domain: str
    version: int
    attrs: dict[str, Any]
    inputs: list[Entity | None]
    outputs: list[str]
    source: tuple[str, ...] = ()
    chained: int = 0
    unread: frozenset[str] = frozenset()

    def value(self, index: int) -> Value | None:
        """Return the input at ``index`` if it is a tensor."""
        entity = self.inputs[index] if index < len(self.inputs) else None
        return entity if isinstance(entity, Value) else None

    def const(self, index: int) -> Array | None:
        """Return the input at ``index`` if it is a constant."""
        value = self.value(index)
        return None if value is None else value.data

    @property
    def label(self) -> str:
        """How messages name it."""
        domain = f"{self.domain}::" if self.domain else ""
        return f"node {self.name!r} ({domain}{self.op_type})"


def constant(data: Array, name: str = "") -> Value:
    """Return a constant that belongs to no graph yet."""
    array = np.asarray(data)
    return Value(name, TensorType(DType.of(array.dtype), tuple(array.shape)), array)


def constant_of(tensor: TensorProto, name: str = "") -> Value:
    """Return a tensor of the source model as a constant.

    Raises:
        ModelLoadError: its element type has no counterpart, or its data is malformed.
    """
    if dtype_of(tensor.data_type) is None:
        kind = element_name(tensor.data_type)
        raise ModelLoadError(
            f"tensor {tensor.name or name!r} has element type {kind}, which is not supported",
            details={"tensor": tensor.name or name, "got": kind},
        )
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as exc:
        raise ModelLoadError(
            f"tensor {tensor.name or name!r} is malformed: {exc}",
            details={"tensor": tensor.name or name},
        ) from exc
    if tensor.data_type == TensorProto.STRING:
        array = np.asarray(array, dtype=object)
    return constant(array, name or tensor.name)


def tensor_type(proto: onnx.TypeProto) -> TensorType | None:
    """Return a tensor type, -1 for dimensions without a value; None when it is no such type."""
    if proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.HasField("shape"):
        return None
    dtype = dtype_of(proto.tensor_type.elem_type)
    if dtype is None:
        return None
    dims = tuple(
        d.dim_value if d.HasField("dim_value") else -1 for d in proto.tensor_type.shape.dim
    )
    return TensorType(dtype, dims)


def attribute_value(
    attribute: AttributeProto, outer: Mapping[str, Any] | None = None
) -> tuple[bool, Any]:
    """Return whether an attribute is set, and its value.

    Tensors become arrays, strings text (undecodable bytes kept by surrogate escapes), sub-graphs
    stay protobufs. A reference is looked up in ``outer``, the attributes of the function call.
    """
    if attribute.ref_attr_name:
        if outer is None or attribute.ref_attr_name not in outer:
            return False, None
        return True, outer[attribute.ref_attr_name]
    kind = attribute.type
    if kind == AttributeProto.STRING:
        return True, attribute.s.decode("utf-8", "surrogateescape")
    if kind == AttributeProto.STRINGS:
        return True, [s.decode("utf-8", "surrogateescape") for s in attribute.strings]
    if kind == AttributeProto.TENSOR:
        return True, constant_of(attribute.t).data
    if kind in (AttributeProto.INTS, AttributeProto.FLOATS):
        return True, list(helper.get_attribute_value(attribute))
    if kind == AttributeProto.GRAPH:
        return True, attribute.g
    return True, helper.get_attribute_value(attribute)
