"""Rewrites of the float model that keep its function and make it easier to quantize.

They come after the partition and before calibration, and change constants alone. Ranges, grids and
weights are made of the transformed model; what a build compares itself with stays the original.
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
    from .ir import Array, Graph
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
    from .quantization import equalize, find_links

    if not plan.config.equivalent_transformation.cross_layer_equalization.apply:
        return Transformed(graph, graph, "", {})
    body, whole = graph.body, graph.graph
    assert body is not None
    links, refused = find_links(body, lambda name: len(whole.consumers(name)) > 1)
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
        {"cross_layer_equalization": done.as_dict()},
    )


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
