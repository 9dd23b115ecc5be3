"""Rewrites of the float model that keep its function and make it easier to quantize.

They come after the partition and before calibration: first tensors get the copies that they need,
then constants change. Ranges, grids and weights are made of the transformed model; what a build
compares itself with stays the original.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .options import Plan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .calibration import Dataset
    from .ir import Array, Graph, Node
    from .partition import PartitionedGraph
    from .quantization import Link

__all__ = ["Transformed", "transform"]

SAMPLES = 32
"""Samples on which the channels' ranges are observed, at most."""


@dataclass(frozen=True)
class Transformed:
    """A model ready for calibration.

    Attributes:
        graph: the partition, with the constants that the transforms gave.
        reference: the partition whose whole graph is the original and whose body is transformed:
            what the integers are compared with.
        digest: of the changed constants; empty where nothing changed. Part of what names kept
            statistics.
        report: what was done, by transform.
    """

    graph: PartitionedGraph
    reference: PartitionedGraph
    digest: str
    report: dict[str, Any]


def transform(plan: Plan, graph: PartitionedGraph, dataset: Dataset) -> Transformed:
    """Apply the transforms that the configuration asks for.

    Args:
        plan: the request.
        graph: the partitioned float graph, with a body; not changed.
        dataset: the calibration samples, inputs of the whole model.
    """
    from .quantization import equalize, find_links, is_copy, is_linear, is_norm

    graph, report = _with_copies(plan, graph)
    switches = plan.config.equivalent_transformation
    balance, norms = switches.cross_layer_equalization.apply, switches.norm_conv.apply
    wanted = _balanced_outputs(plan)

    def makers(node: Node) -> bool:
        if is_copy(node):
            return balance or norms or bool(wanted)
        if is_norm(node):
            return norms or wanted.of(node)
        return is_linear(node) and (balance or wanted.of(node))

    if not (balance or norms or wanted):
        return Transformed(graph, graph, "", report)
    body, whole = graph.body, graph.graph
    assert body is not None
    links, refused = find_links(body, lambda name: len(whole.consumers(name)) > 1, makers)
    done = equalize(body, links, _peaks(plan, whole, links, dataset))
    done.refused[:0] = refused
    plan.reporter.info(
        f"cross-layer equalization: {len(done.links)} tensors balanced,"
        f" {len(done.refused)} left as they are"
    )
    new_body = body.with_constants(done.constants)
    changed = replace(graph, graph=whole.with_constants(done.constants)).with_body(new_body)
    return Transformed(
        changed,
        graph.with_body(new_body),
        _digest(done.constants),
        {**report, "cross_layer_equalization": done.as_dict()},
    )


@dataclass(frozen=True)
class _Outputs:
    """Of which layers ``calibration.output`` is 1."""

    general: bool
    overrides: Mapping[str, int]

    def __bool__(self) -> bool:
        return self.general or 1 in self.overrides.values()

    def of(self, node: Node) -> bool:
        from .quantization.settings import matches

        found = self.general
        for pattern in sorted(self.overrides):
            if matches(node, pattern):
                found = self.overrides[pattern] == 1
        return found


def _balanced_outputs(plan: Plan) -> _Outputs:
    calibration = plan.config.calibration
    return _Outputs(calibration.output == 1, calibration.layer_overrides.output)


def _with_copies(plan: Plan, graph: PartitionedGraph) -> tuple[PartitionedGraph, dict[str, Any]]:
    """Return the partition with copies of tensors for what multiplies them, and a report on it."""
    from .quantization import find_copies, find_links, insert_copies

    streams = plan.config.bit.elementwise_activations > 8
    wanted = _balanced_outputs(plan)
    if not (streams or wanted):
        return graph, {}
    assert graph.body is not None
    links, _ = find_links(graph.body, lambda name: len(graph.graph.consumers(name)) > 1)
    passed = {link.read for link in links}
    copies = find_copies(
        graph.body,
        streams=streams,
        balanced=lambda name, maker: name not in passed and wanted.of(maker),
    )
    if not copies:
        return graph, {}
    body, whole = graph.body.copy(), graph.graph.copy()
    for part in (body, whole):
        insert_copies(part, copies)
    plan.reporter.info(f"{len(copies)} tensors have copies of 8 bits for what multiplies them")
    rows = [{"tensor": c.value, "readers": list(c.readers)} for c in copies]
    return replace(graph, graph=whole).with_body(body), {"copies": rows}


def _peaks(
    plan: Plan, graph: Graph, links: list[Link], dataset: Dataset
) -> dict[str, NDArray[np.float64]]:
    """Return the largest magnitude of each channel of what the links' readers read."""
    import numpy as np

    from .runtime.float_engine import FloatEngine, Reduction

    reductions = [Reduction(link.read, link.axis) for link in links]
    if not reductions:
        return {}
    engine = FloatEngine(graph, [], reductions=reductions, threads=1)
    count = min(SAMPLES, len(dataset))
    found: dict[str, NDArray[np.float64]] = {}
    for index in range(count):
        made = engine.run(dataset[index * len(dataset) // count])
        for reduction in reductions:
            peak = np.maximum(np.abs(made[reduction.min_name]), np.abs(made[reduction.max_name]))
            old = found.get(reduction.value)
            peak = np.nan_to_num(peak.astype(np.float64), nan=0.0, posinf=0.0)
            found[reduction.value] = peak if old is None else np.maximum(old, peak)
        plan.reporter.progress("calibrate", index + 1, count)
    return found


def _digest(constants: Mapping[str, Array]) -> str:
    if not constants:
        return ""
    digest = hashlib.sha256()
    for name in sorted(constants):
        array = constants[name]
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
