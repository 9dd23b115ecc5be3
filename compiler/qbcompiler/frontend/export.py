"""IR graph to ONNX: the float reference, the ``export`` command and CPU layers all go this way.

Every node writes itself through ``OpSpec.export``. Large constants can be kept out of the
protobuf (``detach``), so that a session shares their memory with the graph and a model over the
2 GB limit of protobuf needs no temporary file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from ..errors import InternalError, OutputWriteError
from ..ir import Array, DType, Graph, Node, TensorType
from ..ops import EXPORT_OPSET, Registry, default_registry
from ..ops.onnx_layer import RawGraph
from .dtypes import element_type

__all__ = [
    "DETACH_BYTES",
    "PROTOBUF_LIMIT",
    "Emitter",
    "ExportedModel",
    "Reduction",
    "export_graph",
    "export_model",
    "make_attribute",
    "save_model",
    "save_onnx",
    "to_onnx",
    "to_onnx_bytes",
    "value_info",
    "write_node",
]

DETACH_BYTES = 4096
"""Constants of at least this many bytes are kept out of the protobuf when detaching."""

PROTOBUF_LIMIT = 2**31 - 1
"""Most bytes of one protobuf message."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """The minimum and maximum of a value, computed inside the exported graph.

    Attributes:
        value: name of a numeric value.
        axis: None for one number over the whole tensor, else the axis that is kept, giving one
            number for each index along it.
    """

    value: str
    axis: int | None = None

    @property
    def min_name(self) -> str:
        """Name of the output that carries the minimum."""
        return f"{self._stem}min"

    @property
    def max_name(self) -> str:
        """Name of the output that carries the maximum."""
        return f"{self._stem}max"

    @property
    def _stem(self) -> str:
        return f"{self.value}::" + ("" if self.axis is None else f"axis{self.axis}::")


@dataclass(frozen=True)
class ExportedModel:
    """An ONNX model and the constants that were kept out of it.

    Attributes:
        proto: the model; detached constants are external tensors without a file.
        detached: their arrays by initializer name, C-contiguous.
    """

    proto: onnx.ModelProto
    detached: dict[str, Array] = field(default_factory=dict)


def export_graph(
    graph: Graph,
    outputs: Sequence[str] | None = None,
    *,
    reductions: Sequence[Reduction] = (),
    detach: bool = False,
    registry: Registry | None = None,
    declare_outputs: bool = True,
    prefix: str = "",
) -> ExportedModel:
    """Write ``graph`` as an ONNX model of opset :data:`~qbcompiler.ops.EXPORT_OPSET` or newer.

    Args:
        graph: a verified graph.
        outputs: value names to give out (any value of the graph); None for the graph's own.
            Only the layers that these and ``reductions`` need are written.
        reductions: minima and maxima to compute as further outputs, after ``outputs``.
        detach: keep constants of :data:`DETACH_BYTES` and more out of the protobuf.
        registry: operators; the built-in ones by default.
        declare_outputs: whether the outputs' types are written.
        prefix: put before names that are made up, to keep those of nested graphs apart.

    Raises:
        InternalError: a name is not a value of the graph, or an operator cannot be written.
    """
    names = list(dict.fromkeys(graph.outputs if outputs is None else outputs))
    wanted = [*names, *(r.value for r in reductions)]
    for name in wanted:
        if name not in graph.values:
            raise InternalError(f"cannot export {name!r}: the graph has no such value")
    emitter = Emitter(graph, detach=detach, prefix=prefix)
    specs = registry or default_registry()
    pending: dict[str, list[Reduction]] = {}
    for reduction in reductions:
        pending.setdefault(reduction.value, []).append(reduction)
    reduced: dict[Reduction, list[onnx.ValueInfoProto]] = {}

    def reduce_now(values: Iterable[str]) -> None:
        # right after the layer, so that a runtime which follows this order can free the tensor
        for value in values:
            for reduction in pending.pop(value, ()):
                reduced[reduction] = emitter.reduce(reduction)

    for node in _needed(graph, wanted):
        write_node(node, graph, emitter, specs)
        reduce_now(node.outputs)
    reduce_now(list(pending))
    infos = []
    for name in names:
        emitter.use_constant(name)
        infos.append(
            value_info(name, graph.values[name].type)
            if declare_outputs
            else onnx.ValueInfoProto(name=name)
        )
    for reduction in dict.fromkeys(reductions):
        infos += reduced[reduction]
    inputs = [value_info(n, graph.values[n].type) for n in graph.inputs]
    return emitter.model(graph.name, inputs, infos)


def write_node(node: Node, graph: Graph, emitter: Emitter, specs: Registry) -> None:
    """Write one layer.

    Raises:
        InternalError: its operator cannot be written.
    """
    domain, version = getattr(node.attrs, "opset", ("", 0))
    emitter.opsets[domain] = max(emitter.opsets.get(domain, 1), version)
    for ref in filter(None, node.inputs):
        emitter.use_constant(ref)
    emitter.enter(node.name, bare=True)
    try:
        specs[node.op].export(node, graph, emitter)
    except (KeyError, TypeError, ValueError) as exc:
        raise InternalError(
            f"layer {node.name!r} ({node.op}) cannot be written as ONNX: {exc}",
            details={"layer": node.name, "operator": node.op},
        ) from exc


def to_onnx(graph: Graph, outputs: Sequence[str] | None = None) -> onnx.ModelProto:
    """Return ``graph`` as one ONNX model with its constants inside."""
    return export_graph(graph, outputs).proto


def to_onnx_bytes(graph: Graph, outputs: Sequence[str] | None = None) -> bytes:
    """Return :func:`to_onnx` serialized, the same bytes for the same graph.

    Raises:
        OutputWriteError: the model is over protobuf's 2 GB; use :func:`save_onnx`.
    """
    if _constant_bytes(graph) >= PROTOBUF_LIMIT:
        raise OutputWriteError(
            "the model is over 2 GB, more than one ONNX file can hold",
            hint="export to a path, which puts the weights into a file of their own",
        )
    data: bytes = to_onnx(graph, outputs).SerializeToString(deterministic=True)
    return data


def save_onnx(graph: Graph, path: Path, outputs: Sequence[str] | None = None) -> list[Path]:
    """Write ``graph`` to ``path``; weights over 2 GB go to ``path`` + ``.data`` beside it.

    Returns:
        The files written, the model first. Writing is not atomic: give a temporary name.
    """
    return save_model(export_model(graph, outputs), path)


def export_model(graph: Graph, outputs: Sequence[str] | None = None) -> ExportedModel:
    """Return :func:`export_graph`'s model; constants are detached where it would be over 2 GB."""
    large = _constant_bytes(graph) >= PROTOBUF_LIMIT - (64 << 20)
    return export_graph(graph, outputs, detach=large)


def save_model(model: ExportedModel, path: Path) -> list[Path]:
    """Write a model to ``path``, what was detached to ``path`` + ``.data`` beside it.

    Returns:
        The files written, the model first. Writing is not atomic: give a temporary name.
    """
    if not model.detached:
        path.write_bytes(model.proto.SerializeToString(deterministic=True))
        return [path]
    data_path = path.with_name(path.name + ".data")
    offset = 0
    with data_path.open("wb") as file:
        for tensor in model.proto.graph.initializer:
            array = model.detached.get(tensor.name)
            if array is None:
                continue
            padding = -offset % 64
            file.write(b"\0" * padding)
            offset += padding
            file.write(array.data)
            _point_outside(tensor, data_path.name, offset, array.nbytes)
            offset += array.nbytes
    path.write_bytes(model.proto.SerializeToString(deterministic=True))
    return [path, data_path]


class Emitter:
    """The ``OnnxEmitter`` that operators write to.

    Args:
        graph: whose constants are written where a node reads them, and whose names are taken.
        detach: keep constants of :data:`DETACH_BYTES` and more out of the protobuf.
        prefix: put before names that are made up.
    """

    def __init__(self, graph: Graph, *, detach: bool = False, prefix: str = "") -> None:
        self._graph = graph
        self._prefix = prefix
        self._detach = detach
        self._taken: set[str] = set(graph.values)
        self._counts: dict[str, int] = {}
        self._written: set[str] = set()
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.detached: dict[str, Array] = {}
        self.opsets: dict[str, int] = {"": EXPORT_OPSET}
        self._layer = ""
        self._bare = False
        self._names: dict[str, int] = {}

    def model(
        self,
        name: str,
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
    ) -> ExportedModel:
        """Return what was written as a model."""
        proto = helper.make_model(
            helper.make_graph(self.nodes, name or "graph", inputs, outputs, self.initializers),
            producer_name="qbcompiler",
            opset_imports=[helper.make_opsetid(d, v) for d, v in sorted(self.opsets.items())],
            ir_version=_ir_version(self.opsets[""]),
        )
        return ExportedModel(proto, self.detached)

    def emit(
        self,
        op_type: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        domain: str = "",
        **attrs: Any,
    ) -> None:
        """Add an ONNX node.

        Attribute values may be int, float, bool, str, bytes, ``DType`` (written as ONNX's code),
        arrays (written as tensors), protobuf graphs, lists of these; None leaves one out.
        """
        for name in filter(None, inputs):
            self.use_constant(name)
        node = onnx.NodeProto(op_type=op_type, input=inputs, output=outputs, domain=domain)
        node.name = self._node_name(op_type)
        for key in sorted(attrs):
            if attrs[key] is not None:
                node.attribute.append(make_attribute(op_type, domain, key, attrs[key]))
        self.nodes.append(node)
        self.opsets.setdefault(domain, 1)

    def enter(self, layer: str, *, bare: bool = False) -> None:
        """Name the nodes to come after a layer.

        Args:
            layer: its name.
            bare: whether the first of them is the layer itself and has its name alone; others
                have the operator's behind it.
        """
        self._layer, self._bare = layer, bare

    def _node_name(self, op_type: str) -> str:
        base = self._layer if self._bare and self._layer else f"{self._layer}/{op_type}"
        self._bare = False
        base = base.lstrip("/") if not self._layer else base
        number = self._names.get(base, 0)
        self._names[base] = number + 1
        return f"{base}_{number}" if number else base

    def temp(self, hint: str = "t") -> str:
        """Return a tensor name that no value of the graph has."""
        base = f"{self._prefix}{hint}~"
        number = self._counts.get(base, 0)
        while (name := f"{base}{number}") in self._taken:
            number += 1
        self._counts[base] = number + 1
        self._taken.add(name)
        return name

    def reserve(self, name: str) -> str:
        """Keep :meth:`temp` from using a name that the graph got since."""
        self._taken.add(name)
        return name

    def const(self, data: Array, hint: str = "c") -> str:
        """Add an initializer."""
        name = self.temp(hint)
        self._initialize(name, np.asarray(data))
        return name

    def use_constant(self, name: str) -> None:
        """Write a constant of the graph as an initializer, once; other names are left alone."""
        if name in self._written:
            return
        value = self._graph.values.get(name)
        if value is not None and value.data is not None:
            self._written.add(name)
            self._initialize(name, value.data)

    def reduce(self, reduction: Reduction) -> list[onnx.ValueInfoProto]:
        """Add the nodes of a reduction; return its two outputs."""
        type_ = self._graph.values[reduction.value].type
        name = reduction.value
        if type_.dtype is DType.FLOAT16:
            name = self.temp("wide")
            self.emit("Cast", [reduction.value], [name], to=TensorProto.FLOAT)
            type_ = TensorType(DType.FLOAT32, type_.shape)
        shape = () if reduction.axis is None else (type_.shape[reduction.axis],)
        inputs = [name]
        if reduction.axis is not None:
            kept = reduction.axis % type_.rank
            axes = [i for i in range(type_.rank) if i != kept]
            inputs.append(self.const(np.asarray(axes, dtype=np.int64), "axes"))
        infos = []
        for op_type, out in (
            ("ReduceMin", reduction.min_name),
            ("ReduceMax", reduction.max_name),
        ):
            self.emit(op_type, inputs, [out], keepdims=0, noop_with_empty_axes=1)
            if reduction.axis is None:
                # without axes the flag would mean "reduce nothing"
                del self.nodes[-1].attribute[-1]
            infos.append(value_info(out, TensorType(type_.dtype, shape)))
        return infos

    def _initialize(self, name: str, data: Array) -> None:
        if self._detach and data.dtype != object and data.nbytes >= DETACH_BYTES:
            array = np.ascontiguousarray(data)
            tensor = TensorProto(
                name=name,
                data_type=element_type(DType.of(array.dtype)),
                dims=array.shape,
            )
            _point_outside(tensor, "detached", 0, array.nbytes)
            self.detached[name] = array
        else:
            tensor = numpy_helper.from_array(np.asarray(data), name)
        self.initializers.append(tensor)


def _needed(graph: Graph, outputs: Iterable[str]) -> list[Any]:
    """Return the nodes that ``outputs`` depend on, in graph order."""
    live: set[str] = set()
    work = list(outputs)
    while work:
        node = graph.producer(work.pop())
        if node is not None and node.name not in live:
            live.add(node.name)
            work.extend(filter(None, node.inputs))
    return [n for n in graph.nodes if n.name in live]


def _constant_bytes(graph: Graph) -> int:
    return sum(v.type.nbytes for v in graph.constants())


def value_info(name: str, type_: TensorType) -> onnx.ValueInfoProto:
    """Return the declaration of an input or output; negative dimensions are left open."""
    dims = [d if d >= 0 else None for d in type_.shape]
    return helper.make_tensor_value_info(name, element_type(type_.dtype), dims)


def _point_outside(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def _ir_version(opset: int) -> int:
    return max(10, helper.find_min_ir_version_for([helper.make_opsetid("", opset)]))


def make_attribute(op_type: str, domain: str, key: str, value: Any) -> AttributeProto:
    """Return an attribute of an operator; for the values see :class:`OnnxEmitter`'s ``emit``."""
    if isinstance(value, DType):
        return helper.make_attribute(key, element_type(value))
    if isinstance(value, RawGraph):
        value = _inner_graph(value)
    if isinstance(value, np.ndarray):
        return helper.make_attribute(key, numpy_helper.from_array(value))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if isinstance(value, (list, tuple)):
        value = [_plain_item(v) for v in value]
        if not value:
            kind = _schema_attributes(op_type, domain).get(key, AttributeProto.INTS)
            return AttributeProto(name=key, type=kind)  # type: ignore[arg-type]
        if any(isinstance(v, (float, np.floating)) for v in value):
            value = [float(v) for v in value]
    return helper.make_attribute(key, value)


def _plain_item(value: Any) -> Any:
    if isinstance(value, (bool, np.integer)):
        return int(value)
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _inner_graph(raw: RawGraph) -> onnx.GraphProto:
    """Return a sub-graph that reads its captured values under their names outside."""
    graph: onnx.GraphProto = onnx.GraphProto.FromString(raw.data)
    names = dict(raw.captures)
    if names:
        _rename_reads(graph, names)
    return graph


def _rename_reads(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in names:
                node.input[index] = names[name]
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                _rename_reads(attribute.g, names)


@cache
def _schema_attributes(op_type: str, domain: str) -> Mapping[str, int]:
    """Return the attribute kinds that the newest schema of an operator declares."""
    try:
        schema = onnx.defs.get_schema(op_type, domain=domain)
    except onnx.defs.SchemaError:
        return {}
    return {k: int(a.type.value) for k, a in schema.attributes.items()}  # type: ignore[attr-defined]
