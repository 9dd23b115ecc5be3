"""Which layers a device supports, and why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ..ir import Graph, Node
from ..ops import Registry

__all__ = ["DeviceRules", "LayerSupport", "Place", "layer_reason"]

Place = Literal["head", "body", "tail"]


class DeviceRules(Protocol):
    """What partitioning asks of a target device (``qbcompiler.devices.Device`` has it)."""

    @property
    def name(self) -> str:
        """The device string."""
        ...

    @property
    def max_rank(self) -> int:
        """The largest tensor rank."""
        ...

    @property
    def unsupported_operators(self) -> Mapping[str, str]:
        """IR operators the device lacks, each with the reason."""
        ...


@dataclass(frozen=True, slots=True)
class LayerSupport:
    """One layer's row in the support table.

    Attributes:
        name: the layer.
        op: IR operator.
        source: the source model's nodes that it stands for.
        place: head, body or tail.
        device: ``npu`` or ``cpu``: where it runs.
        reason: why the NPU does not support it; None where it does (a supported layer in the
            head or tail runs on the CPU because of its neighbours).
    """

    name: str
    op: str
    source: tuple[str, ...]
    place: Place
    device: Literal["npu", "cpu"]
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "op": self.op,
            "source": list(self.source),
            "place": self.place,
            "device": self.device,
            "reason": self.reason,
        }


def layer_reason(
    node: Node,
    graph: Graph,
    registry: Registry,
    device: DeviceRules | None,
    refused: Mapping[str, str],
) -> str | None:
    """Return why the NPU cannot run the layer, or None when it can.

    Args:
        node, graph: the layer.
        registry: the operators.
        device: the target; None asks only what any device needs.
        refused: reasons noted by the front end by node name, for operators kept whole.
    """
    if node.op not in registry:
        return refused.get(node.name) or "the NPU has no such operator"
    if device is not None and node.op in device.unsupported_operators:
        return device.unsupported_operators[node.op]
    reason = registry[node.op].unsupported(node, graph)
    if reason is not None:
        return refused.get(node.name) or reason
    if device is not None:
        for name in (*node.inputs, *node.outputs):
            if name and graph.values[name].type.rank > device.max_rank:
                rank = graph.values[name].type.rank
                return (
                    f"tensor {name!r} has rank {rank}; {device.name} takes up to {device.max_rank}"
                )
    return None
