"""What a build takes from earlier ones: calibration statistics of the same model and data."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .options import Plan

if TYPE_CHECKING:
    from .calibration import Dataset
    from .partition import PartitionedGraph
    from .quantization.observers import Statistics

__all__ = ["CACHE_VARIABLE", "observe"]

CACHE_VARIABLE = "QBCOMPILER_CACHE_DIR"
"""Environment variable that names the cache folder where no argument does."""


def observe(
    plan: Plan,
    graph: PartitionedGraph,
    manifest: Mapping[str, Any],
    dataset: Dataset,
    transformed: str = "",
) -> Statistics:
    """Observe the body's activations, or take what the cache has of this model and this data.

    The statistics are the same either way; what was reused goes into ``plan.reuse``.

    Args:
        plan: the request.
        graph: the partitioned float graph, with a body.
        manifest: its MBLT manifest, whose section digests name graph and weights.
        dataset: the samples.
        transformed: digest of what transforms made of the weights; empty where nothing changed.
    """
    from .quantization.observers import (
        CalibrationSettings,
        StatisticsCache,
        collect,
        collect_cached,
        needed_values,
    )
    from .runtime import float_engine_version

    assert graph.body is not None
    settings = CalibrationSettings.from_config(plan.config)
    values = needed_values(graph.body)
    progress = plan.reporter.step("calibrate")
    folder = plan.options.get("cache_dir") or os.environ.get(CACHE_VARIABLE)
    if not folder:
        return collect(
            graph.graph, dataset, settings, threads=plan.threads, progress=progress, values=values
        )
    cache = StatisticsCache(
        folder,
        model=json.dumps(manifest["sections"], sort_keys=True) + transformed,
        data=dataset.digest(),
        runtime=float_engine_version(),
    )
    statistics, observed = collect_cached(
        graph.graph,
        dataset,
        settings,
        cache,
        values=values,
        threads=plan.threads,
        progress=progress,
    )
    plan.reuse["statistics"] = {"reused": len(values) - observed, "observed": observed}
    if observed < len(values):
        plan.reporter.info(
            f"calibration: the statistics of {len(values) - observed} of {len(values)} tensors"
            " are known from an earlier build on this model and data"
        )
    return statistics
