"""The integer graph as JSON: layers in execution order, stored shapes, quantization."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..ir import Array, IntGraph, IntLayer, IntValue, QuantParams, TensorType
from ..ops import OpSpec, QuantRule, Registry, default_registry
from .graph_json import MAX_ITEMS, MAX_NAME, read_type
from .int4 import pack, unpack
from .json_io import Fields
from .safetensors_io import TensorsReader

__all__ = [
    "int_graph_tensors",
    "int_graph_to_json",
    "quant_to_json",
    "read_int_graph",
    "read_quant",
]

_MAX_PORTS = 65_536
_MAX_ATTRS = 256
_MAX_LIST = 1 << 20
_MAX_INT = 1 << 63


def int_graph_to_json(graph: IntGraph, prefix: str) -> dict[str, Any]:
    """Return the JSON form of ``graph``.

    Args:
        graph: layers in execution order.
        prefix: the tensor ``role`` of a layer is named ``PREFIX/LAYER:role`` in the weights
            section.

    Raises:
        ValueError: an attribute holds a float or another thing that is not allowed (ours).
    """
    return {
        "name": graph.name,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "values": [_value_to_json(v) for v in graph.values.values()],
        "layers": [
            {
                "name": layer.name,
                "op": layer.op,
                "inputs": list(layer.inputs),
                "outputs": list(layer.outputs),
                "attrs": {k: _plain(v, layer.name, k) for k, v in layer.attrs.items()},
                "tensors": {r: f"{prefix}/{layer.name}:{r}" for r in layer.tensors},
                "source": list(layer.source),
                "real": dict(layer.real),
                **_packed_shapes(layer),
            }
            for layer in graph.layers
        ],
    }


def _is_packed(layer: IntLayer, role: str) -> bool:
    """Whether a tensor is stored as 4-bit numbers, two in a byte."""
    return role == "weight" and layer.attrs.get("weight_bits") == 4


def _packed_shapes(layer: IntLayer) -> dict[str, Any]:
    shapes = {r: list(t.shape) for r, t in layer.tensors.items() if _is_packed(layer, r)}
    return {"packed": shapes} if shapes else {}


def _value_to_json(value: IntValue) -> dict[str, Any]:
    return {
        "name": value.name,
        "dtype": value.type.dtype.value,
        "shape": list(value.type.shape),
        "storage": list(value.storage or range(value.type.rank)),
        "stored_shape": list(value.stored_shape),
        "quant": None if value.quant is None else quant_to_json(value.quant),
    }


def quant_to_json(quant: QuantParams) -> dict[str, Any]:
    """Return the JSON form of a grid; scales are float32 values written exactly."""
    return {
        "scales": [float(s) for s in quant.scales],
        "zero_point": int(quant.zero_point),
        "bits": int(quant.bits),
        "axis": quant.axis,
    }


def _plain(value: Any, layer: str, key: str) -> Any:
    if isinstance(value, np.integer):
        value = int(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(v, layer, key) for v in value]
    raise ValueError(f"layer {layer!r}: attribute {key!r} is a {type(value).__name__}")


def int_graph_tensors(graph: IntGraph, prefix: str) -> dict[str, Array]:
    """Return all tensors of the layers under the keys that the JSON form names."""
    return {
        f"{prefix}/{layer.name}:{role}": pack(array) if _is_packed(layer, role) else array
        for layer in graph.layers
        for role, array in layer.tensors.items()
    }


def read_int_graph(
    fields: Fields, tensors: TensorsReader | None, registry: Registry | None = None
) -> IntGraph:
    """Rebuild an integer graph from its JSON form and check it.

    Args:
        fields: the JSON form.
        tensors: where the layers' tensors are; None leaves them out (a look at the layers).
        registry: operators; the built-in ones by default.

    Raises:
        FormatError: anything is not as it must be.
    """
    specs = registry or default_registry()
    values: dict[str, IntValue] = {}
    for item in fields.nested_list("values", MAX_ITEMS):
        value = _read_value(item)
        if value.name in values:
            item.fail(f"value {value.name!r} is listed twice")
        values[value.name] = value
    inputs = fields.texts("inputs", _MAX_PORTS, MAX_NAME)
    outputs = fields.texts("outputs", _MAX_PORTS, MAX_NAME)
    made = dict.fromkeys(inputs)
    layers: list[IntLayer] = []
    names: set[str] = set()
    for item in fields.nested_list("layers", MAX_ITEMS):
        layer = _read_layer(item, tensors, specs)
        if layer.name in names:
            item.fail(f"layer {layer.name!r} is listed twice")
        names.add(layer.name)
        for ref in filter(None, layer.inputs):
            if ref not in made:
                item.fail(f"layer {layer.name!r} reads {ref!r} before it is made")
        for out in filter(None, layer.outputs):
            if out in made:
                item.fail(f"value {out!r} is made twice")
            made[out] = None
        layers.append(layer)
    for name in (*made, *outputs):
        if name not in values:
            fields.fail(f"{name!r} is not a value")
    for name in outputs:
        if name not in made:
            fields.fail(f"output {name!r} is not made")
    return IntGraph(fields.text("name", MAX_NAME), inputs, outputs, values, layers)


def _read_value(fields: Fields) -> IntValue:
    name = fields.text("name", MAX_NAME)
    type_ = read_type(fields)
    if not type_.is_static or type_.dtype.is_extended:
        fields.fail("an integer tensor has a fixed shape and a plain element type")
    storage = tuple(fields.integers("storage", type_.rank, 0, max(type_.rank - 1, 0)))
    if sorted(storage) != list(range(type_.rank)):
        fields.fail("storage is not an order of the dimensions")
    quant = None
    if fields.raw("quant") is not None:
        quant = read_quant(fields.nested("quant"), type_)
        if quant.dtype is not type_.dtype:
            fields.fail(f"{quant.bits}-bit quantization of {type_.dtype.value} elements")
    value = IntValue(name, type_, quant, storage)
    if fields.array("stored_shape", type_.rank) != list(value.stored_shape):
        fields.fail("stored_shape does not follow from shape and storage")
    return value


def read_quant(fields: Fields, type_: TensorType) -> QuantParams:
    """Read a grid of a tensor of ``type_``; FormatError where it does not fit."""
    bits = fields.integer("bits", 8, 16)
    if bits not in (8, 16):
        fields.fail("bits must be 8 or 16")
    limit = 1 << (bits - 1)
    axis = None
    if fields.raw("axis") is not None:
        axis = fields.integer("axis", 0, max(type_.rank - 1, 0))
        if type_.rank == 0:
            fields.fail("a scalar has no axis")
    scales = fields.array("scales", _MAX_LIST)
    if len(scales) != (1 if axis is None else type_.shape[axis]):
        fields.fail("the number of scales does not fit the shape")
    for scale in scales:
        if (
            not isinstance(scale, float)
            or not math.isfinite(scale)
            or scale <= 0
            or not _is_float32(scale)
        ):
            fields.fail("a scale must be a positive float32 number")
    return QuantParams(tuple(scales), fields.integer("zero_point", -limit, limit - 1), bits, axis)


def _is_float32(value: float) -> bool:
    if value > 3.4028234663852886e38:
        return False
    return float(np.float32(value)) == value


def _read_layer(fields: Fields, tensors: TensorsReader | None, specs: Registry) -> IntLayer:
    name = fields.text("name", MAX_NAME)
    op = fields.text("op", MAX_NAME)
    if op not in specs or specs[op].rule is QuantRule.FLOAT:
        fields.fail(f"layer {name!r} needs the operator {op!r}, which this release lacks")
    attrs = fields.mapping("attrs")
    if len(attrs) > _MAX_ATTRS:
        fields.fail(f"layer {name!r} has too many attributes")
    for key, value in attrs.items():
        if not _is_plain(value):
            fields.fail(f"layer {name!r}: attribute {key[:200]!r} must not hold such a value")
    arrays: dict[str, Array] = {}
    packed: Mapping[str, Any] = fields.mapping("packed") if "packed" in fields else {}
    for role, shape in packed.items():
        if not _is_shape(shape) or role not in fields.mapping("tensors"):
            fields.fail(f"layer {name!r}: packed tensor {role[:200]!r} has no shape or no data")
    keys: Mapping[str, Any] = fields.mapping("tensors")
    for role, key in keys.items():
        if not isinstance(key, str) or len(key) > 2 * MAX_NAME:
            fields.fail(f"layer {name!r}: tensor {role[:200]!r} must be named by a string")
        if tensors is not None:
            arrays[role] = tensors.array(key)
            if role in packed:
                try:
                    arrays[role] = unpack(arrays[role], packed[role])
                except ValueError as exc:
                    fields.fail(f"layer {name!r}: tensor {role[:200]!r}: {exc}")
            if arrays[role].dtype.kind not in "iubf":
                fields.fail(f"layer {name!r}: tensor {role[:200]!r} is not made of numbers")
    return IntLayer(
        name,
        op,
        fields.texts("inputs", _MAX_PORTS, MAX_NAME),
        fields.texts("outputs", _MAX_PORTS, MAX_NAME),
        attrs,
        arrays,
        tuple(fields.texts("source", _MAX_PORTS, MAX_NAME)),
        _read_real(fields, specs[op]),
    )


def _read_real(fields: Fields, spec: OpSpec[Any]) -> dict[str, Any]:
    real = fields.mapping("real") if "real" in fields else {}
    if real:
        try:
            spec.attrs_type.from_dict(real)
        except ValueError as exc:
            fields.fail(f"real: {exc}")
    return real


def _is_shape(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= 16
        and all(isinstance(d, int) and not isinstance(d, bool) and 0 <= d < 1 << 40 for d in value)
    )


def _is_plain(value: Any, depth: int = 8) -> bool:
    if value is None or isinstance(value, (bool, str)):
        return True
    if isinstance(value, int):
        return -_MAX_INT <= value < _MAX_INT
    if isinstance(value, list) and depth:
        return all(_is_plain(v, depth - 1) for v in value)
    return False
