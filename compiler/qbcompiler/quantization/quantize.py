"""Float graph and statistics to integer graph: plan, then apply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from ..ir import Graph, IntGraph
from ..ops import Registry
from .apply import apply_plan
from .copies import elementwise_values, is_copy
from .inner import inner_values
from .plan import GridPlan, Range, plan_grids
from .settings import QuantSettings

if TYPE_CHECKING:
    from ..config import CompileConfig

__all__ = ["RangeSource", "grid_classes", "quantize"]


class RangeSource(Protocol):
    """What quantization asks of calibration (``observers.Statistics`` has it)."""

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The chosen ``(low, high)`` of each float value that is not a constant, for 8 bits."""
        ...

    def ranges_for(self, bits: int) -> Mapping[str, Range]:
        """Return the same for grids of so many bits."""
        ...


def grid_classes(
    graph: Graph,
    statistics: RangeSource,
    config: CompileConfig,
    *,
    registry: Registry | None = None,
) -> Mapping[str, str]:
    """Return the class of each float value: values of one class share their grid.

    Args:
        graph: the NPU body of a partition, in topological order.
        statistics: the ranges that calibration found.
        config: methods and bits.
        registry: operators; the built-in ones by default.
    """
    settings = QuantSettings.from_config(config).for_graph(graph, registry)
    return _plan(graph, statistics, settings, registry).classes


def quantize(
    graph: Graph,
    statistics: RangeSource,
    config: CompileConfig,
    device: object = None,
    *,
    registry: Registry | None = None,
) -> IntGraph:
    """Return the integer graph of ``graph``.

    Args:
        graph: the NPU body of a partition, in topological order.
        statistics: the ranges that calibration found.
        config: methods and bits.
        device: the target; what it lacks was settled when the graph was partitioned.
        registry: operators; the built-in ones by default.

    Raises:
        UnsupportedOperatorError: lists every layer without integer form.
        QuantizationError: a method or bit width that is not served, a range that is not finite,
            or a layer whose numbers do not allow it.
    """
    settings = QuantSettings.from_config(config).for_graph(graph, registry)
    plan = _plan(graph, statistics, settings, registry)
    return apply_plan(graph, plan, weight_bits=settings.weight_bits_of, registry=registry)


def _plan(
    graph: Graph, statistics: RangeSource, settings: QuantSettings, registry: Registry | None
) -> GridPlan:
    def planned(bits: Mapping[str, int]) -> GridPlan:
        return plan_grids(
            graph,
            statistics.ranges,
            method_of=settings.method_of,
            input_method=settings.method,
            bits=bits,
            wide_ranges=statistics.ranges_for(16) if bits else None,
            registry=registry,
        )

    bits = settings.activation_bits(graph)
    plan = planned(bits)
    more: dict[str, int] = {}
    if settings.inner_bits > 8:
        more.update(dict.fromkeys(inner_values(graph, plan.classes, registry), settings.inner_bits))
    copied = {n.inputs[0] for n in graph.nodes if is_copy(n)}
    if copied or settings.elementwise_bits > 8:
        for name in elementwise_values(graph, plan.classes, registry):
            if name in copied or settings.elementwise_bits > 8:
                more[name] = 16
    return planned({**bits, **more}) if more else plan
