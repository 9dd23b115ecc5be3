"""Build the integer graph of a planned float graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import QuantizationError, UnsupportedOperatorError
from ..ir import (
    Array,
    DType,
    Graph,
    IntGraph,
    IntLayer,
    IntValue,
    Node,
    QuantParams,
    TensorType,
    storage_orders,
)
from ..ops import Registry, default_registry
from .plan import GridPlan

__all__ = ["apply_plan", "integer_refusals"]

_SHOWN = 8


class _Context:
    """The :class:`~qbcompiler.ops.spec.QuantContext` of one graph."""

    def __init__(
        self,
        graph: Graph,
        grids: Mapping[str, QuantParams],
        weight_bits: Callable[[Node], int],
    ) -> None:
        self._graph = graph
        self._grids = grids
        self._weight_bits = weight_bits

    @property
    def graph(self) -> Graph:
        return self._graph

    def params(self, value: str) -> QuantParams:
        try:
            return self._grids[value]
        except KeyError:
            raise ValueError(f"{value!r} has no grid: it is not a real activation") from None

    def is_const(self, value: str) -> bool:
        return self._graph.values[value].is_const

    def const(self, value: str) -> Array:
        data = self._graph.values[value].data
        if data is None:
            raise ValueError(f"{value!r} is not a constant")
        return data

    def weight_bits(self, node: Node) -> int:
        return self._weight_bits(node)


def integer_refusals(graph: Graph, registry: Registry | None = None) -> list[dict[str, str]]:
    """Return the layers without integer form: name, operator, reason."""
    specs = registry or default_registry()
    found = []
    for node in graph.nodes:
        if node.op not in specs:
            reason: str | None = "the integer runtime has no such operator"
        else:
            reason = specs[node.op].unsupported(node, graph)
        if reason is not None:
            found.append({"layer": node.name, "operator": node.op, "reason": reason})
    return found


def apply_plan(
    graph: Graph,
    plan: GridPlan,
    *,
    weight_bits: Callable[[Node], int] = lambda node: 8,
    registry: Registry | None = None,
) -> IntGraph:
    """Return the integer graph.

    Args:
        graph: the NPU body, in topological order.
        plan: its grids.
        weight_bits: bits of a layer's weights.
        registry: operators; the built-in ones by default.

    Raises:
        UnsupportedOperatorError: lists every layer without integer form.
        QuantizationError: a layer's numbers do not allow it; names the layer.
    """
    specs = registry or default_registry()
    refused = integer_refusals(graph, specs)
    if refused:
        raise _unsupported(refused)
    context = _Context(graph, plan.grids, weight_bits)
    orders = storage_orders(graph, lambda node: specs[node.op].channel_first)
    values: dict[str, IntValue] = {}
    layers: list[IntLayer] = []
    for name in graph.inputs:
        values[name] = _value(graph, name, plan, orders)
    for node in graph.nodes:
        where: dict[str, Any] = {"layer": node.name, "operator": node.op}
        try:
            layer = specs[node.op].quantize(node, context)
        except ValueError as exc:
            raise QuantizationError(
                f"layer {node.name!r} ({node.op}) cannot be quantized: {exc}", details=where
            ) from exc
        layer.real = node.attrs.to_dict()
        if weight_bits(node) == 4 and "weight" in layer.tensors:
            layer.attrs["weight_bits"] = 4  # for the file, which packs them
        layers.append(layer)
        for name in filter(None, layer.outputs):
            values[name] = _value(graph, name, plan, orders)
    for name in graph.outputs:
        if name not in values:
            raise QuantizationError(
                f"output {name!r} is a constant: nothing is left to compute",
                details={"output": name},
                hint="remove it from the model's outputs",
            )
    return IntGraph(graph.name, list(graph.inputs), list(graph.outputs), values, layers)


def _value(
    graph: Graph, name: str, plan: GridPlan, orders: Mapping[str, tuple[int, ...]]
) -> IntValue:
    type_ = graph.values[name].type
    quant = plan.grids.get(name)
    dtype: DType = type_.dtype if quant is None else quant.dtype
    return IntValue(name, TensorType(dtype, type_.shape), quant, orders[name])


def _unsupported(refused: list[dict[str, str]]) -> UnsupportedOperatorError:
    shown = [f"{r['layer']} ({r['operator']}): {r['reason']}" for r in refused[:_SHOWN]]
    if len(refused) > _SHOWN:
        shown.append(f"and {len(refused) - _SHOWN} more")
    count = "1 layer has" if len(refused) == 1 else f"{len(refused)} layers have"
    return UnsupportedOperatorError(
        f"{count} no integer form: {'; '.join(shown)}",
        details={"layers": refused},
        hint="--cpu-offload (cpuOffload: true) runs such layers on the CPU",
    )
