"""The float graph as JSON, its constants as tensors of a weights section."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir import Array, DType, Graph, Node, TensorType, VerifyError, verify
from ..ops import Registry, default_registry
from .formats import MAX_DIMENSION, MAX_ITEMS, MAX_NAME, MAX_RANK
from .json_io import Fields
from .safetensors_io import TensorsReader

__all__ = [
    "MAX_DIMENSION",
    "MAX_ITEMS",
    "MAX_NAME",
    "graph_tensors",
    "graph_to_json",
    "read_graph",
    "read_type",
]

_MAX_ELEMENTS = 1 << 38
_MAX_PORTS = 65_536


def graph_to_json(graph: Graph, prefix: str) -> dict[str, Any]:
    """Return the JSON form of ``graph``; values and layers are made as they are read, once.

    Args:
        graph: nodes in topological order.
        prefix: constants are named ``PREFIX/NAME`` in the weights section.
    """
    return {
        "name": graph.name,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "values": (_value_to_json(graph, n, prefix) for n in graph.values),
        "layers": (
            {
                "name": node.name,
                "op": node.op,
                "inputs": list(node.inputs),
                "outputs": list(node.outputs),
                "attrs": node.attrs.to_dict(),
                "source": list(node.source),
            }
            for node in graph.nodes
        ),
    }


def _value_to_json(graph: Graph, name: str, prefix: str) -> dict[str, Any]:
    value = graph.values[name]
    item: dict[str, Any] = {
        "name": name,
        "dtype": value.type.dtype.value,
        "shape": list(value.shape),
    }
    if value.data is not None:
        if value.type.dtype is DType.STRING:
            item["strings"] = [_as_text(s) for s in value.data.reshape(-1).tolist()]
        else:
            item["tensor"] = f"{prefix}/{name}"
    return item


def _as_text(value: Any) -> str:
    # Bytes that are not UTF-8 survive as surrogate escapes.
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def graph_tensors(graph: Graph, prefix: str) -> dict[str, Array]:
    """Return the constants of ``graph`` under the keys that its JSON form names."""
    return {
        f"{prefix}/{v.name}": v.data.view(v.type.dtype.carrier)
        if v.type.dtype.is_extended
        else v.data
        for v in graph.constants()
        if v.data is not None and v.type.dtype is not DType.STRING
    }


def read_graph(
    fields: Fields, tensors: TensorsReader | None, registry: Registry | None = None
) -> Graph:
    """Rebuild a graph from its JSON form and verify it.

    Args:
        fields: the JSON form.
        tensors: where the constants are; None leaves them out (for a look at the layers: such
            a graph cannot be run, and is not verified).
        registry: operators; the built-in ones by default.

    Raises:
        FormatError: anything is not as it must be.
    """
    specs = registry or default_registry()
    graph = Graph(name=fields.text("name", MAX_NAME))
    try:
        for item in fields.nested_list("values", MAX_ITEMS):
            _read_value(item, graph, tensors)
        for item in fields.nested_list("layers", MAX_ITEMS):
            graph.add_node(_read_node(item, specs))
    except ValueError as exc:
        fields.fail(str(exc))
    graph.inputs = fields.texts("inputs", _MAX_PORTS, MAX_NAME)
    graph.outputs = fields.texts("outputs", _MAX_PORTS, MAX_NAME)
    for name in (*graph.inputs, *graph.outputs):
        if name not in graph.values:
            fields.fail(f"{name!r} is listed as input or output but is not a value")
    if tensors is not None:
        try:
            verify(graph, "simplified", specs.infer)
        except VerifyError as exc:
            fields.fail(str(exc))
    return graph


def read_type(fields: Fields) -> TensorType:
    """Read ``dtype`` and ``shape``."""
    try:
        dtype = DType(fields.text("dtype", 16))
    except ValueError:
        fields.fail("unknown dtype")
    # -1: a dimension that depends on the data, after a CPU layer
    shape = tuple(fields.integers("shape", MAX_RANK, -1, MAX_DIMENSION))
    type_ = TensorType(dtype, shape)
    if type_.size > _MAX_ELEMENTS:
        fields.fail("the shape has too many elements")
    return type_


def _read_value(fields: Fields, graph: Graph, tensors: TensorsReader | None) -> None:
    name = fields.text("name", MAX_NAME)
    if not name:
        fields.fail("a value must have a name")
    type_ = read_type(fields)
    data: Array | None = None
    if "strings" in fields:
        strings = fields.texts("strings", MAX_ITEMS, 1 << 20)
        if type_.dtype is not DType.STRING or len(strings) != type_.size:
            fields.fail("strings do not fit the type")
        data = np.empty(len(strings), dtype=object)
        data[:] = strings
        data = data.reshape(type_.shape)
    elif "tensor" in fields and tensors is not None:
        data = tensors.array(fields.text("tensor", 2 * MAX_NAME))
        if type_.dtype.is_extended and data.dtype == type_.dtype.carrier:
            data = data.view(type_.dtype.numpy)
        if data.dtype != type_.dtype.numpy or data.shape != type_.shape:
            fields.fail(f"its tensor is {data.dtype}{list(data.shape)}, not {type_}")
    graph.add_value(name, type_, data)


def _read_node(fields: Fields, specs: Registry) -> Node:
    name = fields.text("name", MAX_NAME)
    op = fields.text("op", MAX_NAME)
    if op not in specs:
        fields.fail(f"layer {name!r} needs the operator {op!r}, which this release lacks")
    try:
        attrs = specs[op].attrs_type.from_dict(fields.mapping("attrs"))
    except (ValueError, TypeError) as exc:
        fields.fail(f"layer {name!r} ({op}): {exc}")
    return Node(
        name,
        op,
        fields.texts("inputs", _MAX_PORTS, MAX_NAME),
        fields.texts("outputs", _MAX_PORTS, MAX_NAME),
        attrs,
        tuple(fields.texts("source", _MAX_PORTS, MAX_NAME)),
    )
