"""Output types of one ONNX operator, from ONNX's own shape inference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import onnx
from onnx import TypeProto, helper, numpy_helper

from ..ir import DType, TensorType, Value
from ..ops import EXPORT_OPSET
from .dtypes import dtype_of, element_name, element_type
from .export import make_attribute
from .op import Op, tensor_type

__all__ = [
    "InferenceError",
    "export_version",
    "infer_types",
    "node_proto",
    "ranked_types",
    "schema_of",
]

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
    except (
        onnx.shape_inference.InferenceError,
        onnx.checker.ValidationError,
        RuntimeError,
        ValueError,
    ) as exc:
        raise InferenceError(_one_line(exc)) from exc
    result = [tensor_type(found[f"o{k}"]) if f"o{k}" in found else None for k in _range(op)]
    for type_ in result:
        if type_ is not None and min(type_.shape, default=0) < -1:
            raise InferenceError(f"its output has the shape {list(type_.shape)}")
    if all(t is not None or not name for t, name in zip(result, op.outputs, strict=True)):
        return result
    return _infer_model(op, node, types, data, result)


def ranked_types(op: Op, known: Sequence[TensorType | None]) -> list[TensorType | None]:
    """Fill in types whose rank is known although a number that is not constant sets the shape."""
    rank = _rank(op)
    x = op.value(0)
    if rank is None or x is None:
        return list(known)
    dtype: DType | None = x.type.dtype
    if op.op_type == "MelWeightMatrix":
        dtype = dtype_of(int(op.attrs.get("output_datatype", onnx.TensorProto.FLOAT)))
    if dtype is None:
        return list(known)
    dims = [-1] * rank
    if op.op_type == "Split":
        dims = list(x.shape)
        dims[int(op.attrs.get("axis", 0))] = -1
    return [t or TensorType(dtype, tuple(dims)) for t in known]


def _rank(op: Op) -> int | None:
    x, second = op.value(0), op.value(1)
    if x is None or op.domain:
        return None
    rank = x.type.rank
    count = second.type.size if second is not None and second.type.is_static else None
    if op.op_type in ("Split", "MaxUnpool"):
        return rank
    if op.op_type == "Unsqueeze":
        return None if count is None else rank + count
    if op.op_type == "Squeeze":
        return None if count is None else rank - count
    if op.op_type.startswith("Reduce"):
        if op.attrs.get("keepdims", 1):
            return rank
        return None if count is None else rank - (count or rank)
    return {"STFT": 4, "MelWeightMatrix": 2}.get(op.op_type)


_CHANGED = frozenset({"Mod"})
"""Operators that gained a meaning after the export's opset without a new attribute or type."""


def export_version(op: Op) -> int:
    """Return the opset that an operator which is kept whole is written for.

    The oldest one from :data:`~qbcompiler.ops.EXPORT_OPSET` on that has all its attributes and
    takes its element types: newer versions mostly just take more types, and runtimes lag behind.
    """
    schema = schema_of(op.op_type, op.version, op.domain)
    if op.domain != "" or schema is None:
        return op.version
    if schema.since_version <= EXPORT_OPSET:
        return EXPORT_OPSET
    if op.op_type in _CHANGED:
        return int(schema.since_version)
    old = schema_of(op.op_type, EXPORT_OPSET, op.domain)
    if old is None or set(op.attrs) - set(old.attributes):
        return int(schema.since_version)
    inputs = list(old.inputs)
    for index, entity in enumerate(op.inputs):
        if entity is None:
            continue
        if not isinstance(entity, Value) or index >= len(inputs):
            return int(schema.since_version)
        name = element_name(element_type(entity.type.dtype))
        if f"tensor({name})" not in inputs[index].types:
            return int(schema.since_version)
    return EXPORT_OPSET


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
