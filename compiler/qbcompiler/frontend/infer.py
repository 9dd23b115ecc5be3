"""Output types of one ONNX operator, from ONNX's own shape inference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import onnx
from onnx import TypeProto, helper, numpy_helper

from ..ir import DType, TensorType, Value
from .dtypes import element_type
from .export import make_attribute
from .op import Op, tensor_type

__all__ = ["InferenceError", "infer_types", "node_proto", "schema_of"]

DATA_ELEMENTS = 1024
"""Constants of up to this many elements are shown to the inference (shapes, axes, sizes)."""


class InferenceError(Exception):
    """ONNX says that the operator's inputs or attributes do not fit."""


@cache
def schema_of(op_type: str, version: int, domain: str) -> Any | None:
    """Return the schema in force, None for an operator that onnx does not know."""
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


def node_proto(op: Op) -> onnx.NodeProto:
    """Return the operator as a node over made-up input names ``i0 …`` and outputs ``o0 …``."""
    node = onnx.NodeProto(
        op_type=op.op_type,
        domain=op.domain,
        input=[f"i{k}" if x is not None else "" for k, x in enumerate(op.inputs)],
        output=[f"o{k}" if name else "" for k, name in enumerate(op.outputs)],
    )
    for key in sorted(op.attrs):
        node.attribute.append(make_attribute(op.op_type, op.domain, key, op.attrs[key]))
    return node


def infer_types(op: Op) -> list[TensorType | None]:
    """Return the type of each output, None where ONNX does not know it.

    Dimensions that depend on data are -1.

    Raises:
        InferenceError: the operator is invalid, with ONNX's reason on one line.
    """
    schema = schema_of(op.op_type, op.version, op.domain)
    if schema is None:
        return [None] * len(op.outputs)
    types: dict[str, TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for k, entity in enumerate(op.inputs):
        if entity is None:
            continue
        if not isinstance(entity, Value):
            return [None] * len(op.outputs)
        types[f"i{k}"] = _type_proto(entity.type)
        if entity.data is not None and entity.data.size <= DATA_ELEMENTS:
            if entity.type.dtype is DType.STRING:
                continue
            data[f"i{k}"] = numpy_helper.from_array(entity.data, f"i{k}")
    node = node_proto(op)
    imports = [helper.make_opsetid(op.domain, op.version)]
    try:
        found = onnx.shape_inference.infer_node_outputs(
            schema, node, types, data, opset_imports=imports
        )
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as exc:
        raise InferenceError(_one_line(exc)) from exc
    result = [tensor_type(found[f"o{k}"]) if f"o{k}" in found else None for k in _range(op)]
    if all(t is not None or not name for t, name in zip(result, op.outputs, strict=True)):
        return result
    return _infer_model(op, node, types, data, result)


def _infer_model(
    op: Op,
    node: onnx.NodeProto,
    types: dict[str, TypeProto],
    data: dict[str, onnx.TensorProto],
    known: Sequence[TensorType | None],
) -> list[TensorType | None]:
    """Ask the inference of whole models, which also looks into an operator's function body."""
    model = helper.make_model(
        helper.make_graph(
            [node],
            "one",
            [onnx.ValueInfoProto(name=n, type=t) for n, t in types.items() if n not in data],
            [onnx.ValueInfoProto(name=n) for n in node.output if n],
            list(data.values()),
        ),
        opset_imports=[helper.make_opsetid(op.domain, op.version)],
    )
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return list(known)
    found = {v.name: tensor_type(v.type) for v in inferred.graph.output}
    return [k or found.get(f"o{i}") for i, k in enumerate(known)]


def _range(op: Op) -> range:
    return range(len(op.outputs))


def _type_proto(type_: TensorType) -> TypeProto:
    dims = [d if d >= 0 else None for d in type_.shape]
    proto: TypeProto = helper.make_tensor_type_proto(element_type(type_.dtype), dims)
    return proto


def _one_line(exc: Exception) -> str:
    text = " ".join(str(exc).split())
    # ONNX prefixes where in its own code the check failed
    _, marker, rest = text.partition("[ShapeInferenceError] ")
    return rest if marker else text
