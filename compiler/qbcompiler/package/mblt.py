"""MBLT: the parsed graph and its float weights, cut for a device if one was given."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from ..ir import Graph, Node, layout_name, storage_orders
from ..ops import Registry, default_registry
from ..partition import Cut, LayerSupport, PartitionedGraph, Place, cut_inputs
from .formats import MAX_DIMENSION, MAX_ITEMS, MAX_NAME, MAX_RANK, MBLT_FORMAT
from .graph_json import graph_tensors, graph_to_json, read_graph, read_type
from .identity import compiler_identity
from .json_io import Fields, dump_json, parse_json
from .reader import Container
from .safetensors_io import TensorsReader, tensors_section
from .writer import MANIFEST, Section, Written, hash_sections, write_container

__all__ = [
    "MBLT_FORMAT",
    "Mblt",
    "MbltMeta",
    "mblt_manifest",
    "read_mblt",
    "retarget_manifest",
    "write_mblt",
]

GRAPH = "graph.json"
WEIGHTS = "weights.safetensors"
_PREFIX = "model"
MAX_GRAPH = 512 << 20
"""Largest graph section in bytes."""
_PLACES: tuple[Place, Place, Place] = ("head", "body", "tail")


@dataclass(frozen=True)
class MbltMeta:
    """What the graph does not say about itself.

    Attributes:
        source_sha256: of the source model, external data included.
        producer: what wrote the source model, as it says.
        opset: the source model's operator sets, version by domain.
        parse_options: the resolved options of the parse (input shapes, image channels …);
            JSON data without anything that differs between callers of one build.
    """

    source_sha256: str
    producer: str = ""
    opset: Mapping[str, int] = field(default_factory=dict)
    parse_options: Mapping[str, Any] = field(default_factory=dict)


def mblt_manifest(
    partitioned: PartitionedGraph, meta: MbltMeta, *, registry: Registry | None = None
) -> dict[str, Any]:
    """Return the whole manifest that :func:`write_mblt` would write, section hashes included."""
    records = hash_sections(_sections(partitioned.graph))
    manifest = _manifest(partitioned, meta, registry)
    layers = list(manifest["layers"])
    return {**manifest, "layers": layers, "sections": [r.as_dict() for r in records]}


def retarget_manifest(
    manifest: Mapping[str, Any], partitioned: PartitionedGraph, *, registry: Registry | None = None
) -> dict[str, Any]:
    """Return an MBLT's manifest as it is when the same model is parsed for another device.

    The sections do not depend on the device; the device and the partition's tables do.
    """
    part = _device_part(partitioned, registry)
    return {**manifest, **part, "layers": list(part["layers"])}


def write_mblt(
    path: str | os.PathLike[str],
    partitioned: PartitionedGraph,
    meta: MbltMeta,
    *,
    registry: Registry | None = None,
) -> Written:
    """Write an MBLT.

    Raises:
        OutputWriteError: the file cannot be written.
    """
    manifest = _manifest(partitioned, meta, registry)
    return write_container(path, manifest, _sections(partitioned.graph))


def _sections(graph: Graph) -> list[Section]:
    return [
        Section.of_bytes(GRAPH, "graph", dump_json(graph_to_json(graph, _PREFIX))),
        tensors_section(WEIGHTS, graph_tensors(graph, _PREFIX)),
    ]


def _manifest(
    partitioned: PartitionedGraph, meta: MbltMeta, registry: Registry | None
) -> dict[str, Any]:
    graph = partitioned.graph
    layouts = _layouts(graph, registry or default_registry())
    return {
        "format": MBLT_FORMAT.as_dict(),
        "compiler": compiler_identity(),
        "source": {
            "sha256": meta.source_sha256,
            "producer": meta.producer,
            "opset": {k: int(v) for k, v in sorted(meta.opset.items())},
        },
        "parse_options": dict(meta.parse_options),
        "inputs": [_port(graph, n, layouts) for n in graph.inputs],
        "outputs": [_port(graph, n, layouts) for n in graph.outputs],
        **_device_part(partitioned, registry),
    }


def _device_part(partitioned: PartitionedGraph, registry: Registry | None) -> dict[str, Any]:
    cuts = partitioned.cuts
    return {
        "target_device": partitioned.device,
        "cpu_offload": partitioned.cpu_offload,
        "subgraphs": [
            {
                "place": place,
                "name": cut.name,
                "inputs": list(cut.inputs),
                "outputs": list(cut.outputs),
                "layers": cut.layers,
            }
            for place, cut in cuts.items()
        ],
        "layers": _layers(partitioned, registry or default_registry()),
    }


def _layers(partitioned: PartitionedGraph, registry: Registry) -> Iterator[dict[str, Any]]:
    """Yield each layer's support and size; a constant counts where it is first read."""
    graph = partitioned.graph
    counted: set[str] = set()
    for row in partitioned.support:
        node = graph.node(row.name)
        parameters = 0
        for name in filter(None, node.inputs):
            value = graph.values[name]
            if value.is_const and name not in counted:
                counted.add(name)
                parameters += value.type.size
        yield {
            **row.to_dict(),
            "shapes": [list(graph.values[n].shape) if n else [] for n in node.outputs],
            "parameters": parameters,
            "macs": int(registry[node.op].macs(node, graph)) if node.op in registry else 0,
        }


def _layouts(graph: Graph, registry: Registry) -> dict[str, str | None]:
    def channel_first(node: Node) -> bool:
        return node.op in registry and registry[node.op].channel_first

    orders = storage_orders(graph, channel_first)
    return {name: layout_name(order) for name, order in orders.items()}


def _port(graph: Graph, name: str, layouts: Mapping[str, str | None]) -> dict[str, Any]:
    value = graph.values[name]
    return {
        "name": name,
        "shape": list(value.shape),
        "dtype": value.type.dtype.value,
        "layout": layouts.get(name),
    }


class Mblt:
    """An open MBLT. Only the manifest is read until :attr:`partitioned` is asked for.

    The weights of the graph are read-only views of the memory-mapped file; they stay valid
    after :meth:`close`.
    """

    def __init__(self, path: str | os.PathLike[str], *, registry: Registry | None = None) -> None:
        """Open ``path``.

        Raises:
            ArgumentError: it cannot be opened.
            FormatError: it is not an MBLT, is damaged, or of a newer major version.
        """
        self._registry = registry
        self.container = Container(path, MBLT_FORMAT)
        try:
            fields = Fields(self.manifest, MANIFEST)
            self.meta = _read_meta(fields)
            self.target_device = fields.optional_text("target_device", 200)
            self.cpu_offload = fields.boolean("cpu_offload")
            self._ports = {key: _read_ports(fields, key) for key in ("inputs", "outputs")}
        except BaseException:
            self.container.close()
            raise

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest as it is in the file."""
        return self.container.manifest

    @cached_property
    def graph(self) -> Graph:
        """The whole float graph.

        Raises:
            FormatError: a section is damaged or does not hold what it must.
        """
        data = parse_json(self.container.read(GRAPH, MAX_GRAPH), GRAPH)
        tensors = TensorsReader(self.container.map(WEIGHTS), WEIGHTS)
        graph = read_graph(Fields(data, GRAPH), tensors, self._registry)
        if self._ports != {"inputs": list(graph.inputs), "outputs": list(graph.outputs)}:
            Fields(self.manifest, MANIFEST).fail("its inputs and outputs are not the graph's")
        return graph

    @cached_property
    def partitioned(self) -> PartitionedGraph:
        """The graph with the partition that the manifest records.

        Raises:
            FormatError: as :attr:`graph`, or the manifest's tables do not fit the graph.
        """
        fields = Fields(self.manifest, MANIFEST)
        graph = self.graph
        support = [_read_support(item) for item in fields.nested_list("layers", MAX_ITEMS)]
        nodes = graph.nodes
        if [(r.name, r.op) for r in support] != [(n.name, n.op) for n in nodes]:
            fields.fail("its layers are not those of the graph")
        cuts: dict[Place, Cut] = {}
        for item in fields.nested_list("subgraphs", len(_PLACES)):
            text = item.text("place", 16)
            place = next((p for p in _PLACES if p == text), None)
            if place is None or place in cuts:
                item.fail("place must be head, body or tail, each once")
            chosen = [n for n, r in zip(nodes, support, strict=True) if r.place == place]
            cuts[place] = _read_cut(graph, item, chosen)
        known = set(graph.inputs)
        for place in _PLACES:
            if place in cuts:
                if not set(cuts[place].inputs) <= known:
                    fields.fail(f"the {place} reads what is made after it")
                known.update(cuts[place].outputs)
        if {r.place for r in support} - set(cuts):
            fields.fail("a layer's place has no subgraph")
        return PartitionedGraph(
            graph=graph,
            cuts=cuts,
            support=support,
            device=self.target_device,
            cpu_offload=self.cpu_offload,
        )

    def verify(self) -> None:
        """Check the hash of every section."""
        self.container.verify()

    def close(self) -> None:
        """Close the file."""
        self.container.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_mblt(path: str | os.PathLike[str], *, registry: Registry | None = None) -> Mblt:
    """Open an MBLT; see :class:`Mblt`."""
    return Mblt(path, registry=registry)


def _read_meta(fields: Fields) -> MbltMeta:
    source = fields.nested("source")
    opset = source.mapping("opset")
    for domain, version in opset.items():
        if len(domain) > 512 or isinstance(version, bool) or not isinstance(version, int):
            source.fail("opset must give a version for each domain")
    options = fields.nested("parse_options")
    if options.plain.get("input_shapes") is not None:
        shapes = options.nested("input_shapes")
        for name in shapes.plain:
            shapes.integers(name, MAX_RANK, 0, MAX_DIMENSION)
    return MbltMeta(
        source.sha256("sha256"),
        source.text("producer", 65_536),
        opset,
        fields.mapping("parse_options"),
    )


def _read_ports(fields: Fields, key: str) -> list[str]:
    """Return the names of the manifest's inputs or outputs, each of which must have a type."""
    names = []
    for port in fields.nested_list(key, MAX_ITEMS):
        read_type(port)
        port.optional_text("layout", 64)
        names.append(port.text("name", MAX_NAME))
    return names


def _read_support(fields: Fields) -> LayerSupport:
    place = fields.text("place", 16)
    device = fields.text("device", 16)
    if place not in _PLACES or device not in ("npu", "cpu"):
        fields.fail("unknown place or device")
    return LayerSupport(
        name=fields.text("name", MAX_NAME),
        op=fields.text("op", MAX_NAME),
        source=tuple(fields.texts("source", 65_536, MAX_NAME)),
        place=place,
        device=device,  # type: ignore[arg-type]
        reason=fields.optional_text("reason", 65_536),
    )


def _read_cut(graph: Graph, fields: Fields, nodes: list[Node]) -> Cut:
    outputs = fields.texts("outputs", 65_536, MAX_NAME)
    inputs = fields.texts("inputs", 65_536, MAX_NAME)
    made = {o for n in nodes for o in n.outputs if o}
    if not set(outputs) <= made or len(set(outputs)) != len(outputs):
        fields.fail("its outputs are not made by its layers")
    if sorted(cut_inputs(graph, nodes)) != sorted(inputs):
        fields.fail("its inputs are not those that its layers read")
    return Cut(fields.text("name", MAX_NAME), tuple(inputs), tuple(outputs), len(nodes))
