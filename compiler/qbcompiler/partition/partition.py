"""Split a graph into CPU head, NPU body and CPU tail for one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..errors import UnsupportedOperatorError
from ..ir import Graph, Node
from ..ops import Registry, default_registry
from .cut import levels
from .postprocess import postprocessing
from .support import DeviceRules, LayerSupport, Place, layer_reason

__all__ = ["Cut", "PartitionedGraph", "cut_inputs", "partition", "support_table"]

_PLACES: tuple[Place, Place, Place] = ("head", "body", "tail")


@dataclass(frozen=True, slots=True)
class Cut:
    """A part of a model by what it passes; ``layers`` counts its layers."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    layers: int


@dataclass(eq=False)
class PartitionedGraph:
    """A model cut for a device.

    The parts' graphs are made on first use, since they need as much memory as the whole; the
    graph must not change after it was cut.

    Attributes:
        graph: the whole float graph.
        cuts: the parts that have a layer, by place. They pass tensors by name: what the body
            reads is a model input or made by the head, and so on.
        support: one row for each layer, in execution order.
        device: the device's name; None for a parse without a target.
        cpu_offload: whether head and tail may run on the CPU.
    """

    graph: Graph
    cuts: Mapping[Place, Cut]
    support: list[LayerSupport]
    device: str | None
    cpu_offload: bool

    @cached_property
    def head(self) -> Graph | None:
        """The layers on the CPU before the body; None where there is none."""
        return self._part("head")

    @cached_property
    def body(self) -> Graph | None:
        """The layers on the NPU; None where there is none."""
        return self._part("body")

    @cached_property
    def tail(self) -> Graph | None:
        """The layers on the CPU after the body; None where there is none."""
        return self._part("tail")

    def with_body(self, body: Graph) -> PartitionedGraph:
        """Return the same cut with another graph for the body, which passes the same tensors."""
        other = replace(self)
        other.__dict__["body"] = body  # where cached_property looks first
        return other

    def _part(self, place: Place) -> Graph | None:
        cut = self.cuts.get(place)
        if cut is None:
            return None
        nodes = [self.graph.node(row.name) for row in self.support if row.place == place]
        part = self.graph.subgraph(cut.name, nodes, cut.outputs)
        part.inputs = list(cut.inputs)
        return part

    @property
    def unsupported(self) -> list[LayerSupport]:
        """The layers that the NPU does not support."""
        return [row for row in self.support if row.reason is not None]


def support_table(
    graph: Graph,
    device: DeviceRules | None,
    *,
    registry: Registry | None = None,
    refused: Mapping[str, str] | None = None,
) -> list[LayerSupport]:
    """Return each layer's support and the place that the best cut gives it."""
    registry = registry or default_registry()
    nodes = graph.nodes
    reasons = {n.name: layer_reason(n, graph, registry, device, refused or {}) for n in nodes}
    place = levels(
        [n.name for n in nodes],
        {n.name: _followers(graph, n) for n in nodes},
        {n.name: _worth(n, graph, registry) for n in nodes},
        frozenset(name for name, reason in reasons.items() if reason is not None),
    )
    body, tail = (frozenset(n for n, level in place.items() if level == k) for k in (1, 2))
    place.update(dict.fromkeys(postprocessing(graph, registry, body, tail), 2))
    return [
        LayerSupport(
            name=n.name,
            op=n.op,
            source=n.source,
            place=_PLACES[place[n.name]],
            device="npu" if place[n.name] == 1 else "cpu",
            reason=reasons[n.name],
        )
        for n in nodes
    ]


def partition(
    graph: Graph,
    device: DeviceRules | None = None,
    *,
    cpu_offload: bool = False,
    registry: Registry | None = None,
    refused: Mapping[str, str] | None = None,
) -> PartitionedGraph:
    """Cut ``graph`` for ``device``.

    Without a device nothing is refused: the table says what any device would need. With one,
    an unsupported layer is an error unless ``cpu_offload`` is on.

    Args:
        graph: a final float graph in topological order.
        device: the target, or None.
        cpu_offload: keep head and tail as CPU graphs.
        registry: operators; the built-in ones by default.
        refused: the front end's reasons for operators kept whole, by node name.

    Raises:
        UnsupportedOperatorError: lists every unsupported layer with operator, place and reason,
            and says what would help.
    """
    table = support_table(graph, device, registry=registry, refused=refused)
    missing = [row for row in table if row.reason is not None]
    if missing and device is not None and not cpu_offload:
        raise _refuse(missing, table, device.name)
    if missing and device is not None and not any(row.place == "body" for row in table):
        raise _no_body(missing, device.name)
    parts: dict[Place, list[Node]] = {place: [] for place in _PLACES}
    for node, row in zip(graph.nodes, table, strict=True):
        parts[row.place].append(node)
    return PartitionedGraph(
        graph=graph,
        cuts={place: _cut(graph, place, nodes) for place, nodes in parts.items() if nodes},
        support=table,
        device=None if device is None else device.name,
        cpu_offload=cpu_offload,
    )


def _followers(graph: Graph, node: Node) -> list[str]:
    seen: dict[str, None] = {}
    for out in filter(None, node.outputs):
        seen.update((user.name, None) for user in graph.consumers(out))
    return list(seen)


def _worth(node: Node, graph: Graph, registry: Registry) -> int:
    """Arithmetic first; among equals, elements moved, then layers."""
    if node.op not in registry:
        return 1
    elements = sum(graph.values[o].type.size for o in node.outputs if o)
    return (registry[node.op].macs(node, graph) << 20) + elements + 1


def _cut(graph: Graph, place: Place, nodes: Sequence[Node]) -> Cut:
    inside = {n.name for n in nodes}
    outputs = [
        out
        for node in nodes
        for out in node.outputs
        if out
        and (out in graph.outputs or any(user.name not in inside for user in graph.consumers(out)))
    ]
    # a body that is the whole model keeps the model's own order of inputs and outputs
    ordered = [o for o in graph.outputs if o in outputs]
    ordered += [o for o in outputs if o not in ordered]
    found = cut_inputs(graph, nodes)
    inputs = [i for i in graph.inputs if i in found]
    inputs += [i for i in found if i not in graph.inputs]
    return Cut(f"{graph.name}.{place}", tuple(inputs), tuple(ordered), len(nodes))


def cut_inputs(graph: Graph, nodes: Sequence[Node]) -> list[str]:
    """Return the values, constants apart, that nodes read and do not make, by first use."""
    made = {out for node in nodes for out in node.outputs}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name)
    return [n for n in read if n not in made and not graph.values[n].is_const]


def _describe(rows: Sequence[LayerSupport], limit: int = 8) -> str:
    lines = [f"{r.name} ({r.op}, {r.place}): {r.reason}" for r in rows[:limit]]
    if len(rows) > limit:
        lines.append(f"and {len(rows) - limit} more")
    return "; ".join(lines)


def _details(rows: Sequence[LayerSupport], device: str) -> dict[str, Any]:
    return {"device": device, "layers": [row.to_dict() for row in rows]}


def _refuse(
    missing: Sequence[LayerSupport], table: Sequence[LayerSupport], device: str
) -> UnsupportedOperatorError:
    count = len(missing)
    what = "1 layer" if count == 1 else f"{count} layers"
    body = sum(1 for row in table if row.place == "body")
    places = sorted({row.place for row in missing})
    if body == 0:
        hint = "No part of the model runs on this device; `qbcompiler devices` lists others."
    else:
        hint = (
            f"--cpu-offload (cpuOffload: true) runs the {' and '.join(places)} on the CPU and "
            f"{body} of {len(table)} layers on the NPU; or cut the model before the first of these "
            "layers and run the rest yourself."
        )
    return UnsupportedOperatorError(
        f"{device} does not support {what}: {_describe(missing)}",
        details=_details(missing, device),
        hint=hint,
    )


def _no_body(missing: Sequence[LayerSupport], device: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"no layer of the model can run on {device}: {_describe(missing)}",
        details=_details(missing, device),
        hint="`qbcompiler devices` lists other devices and what each lacks.",
    )
