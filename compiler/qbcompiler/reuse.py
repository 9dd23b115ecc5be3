"""What a build takes from earlier ones, in a folder that it shares with them.

The parsed graph of the same model, for any device and preset; calibration statistics of the same
model and data.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .errors import QbCompilerError
from .options import Plan

if TYPE_CHECKING:
    from .calibration import Dataset
    from .ir import Graph
    from .package import MbltMeta
    from .partition import PartitionedGraph
    from .quantization.observers import Statistics

__all__ = ["CACHE_VARIABLE", "observe", "parsed"]

CACHE_VARIABLE = "QBCOMPILER_CACHE_DIR"
"""Environment variable that names the cache folder where no argument does."""

MAX_GRAPHS = 8
"""Most parsed graphs of a folder; those that were not used for longest go."""

MAX_GRAPH_BYTES = 8 << 30
"""Most bytes of all of them."""


def cache_folder(plan: Plan) -> Path | None:
    """Return the folder that builds share, or None where none is named."""
    folder = plan.options.get("cache_dir") or os.environ.get(CACHE_VARIABLE)
    return Path(folder) if folder else None


def parsed(
    plan: Plan,
    meta: MbltMeta,
    channels: int | None,
    parse: Callable[[], Graph],
    cut: Callable[[Graph], PartitionedGraph],
) -> PartitionedGraph:
    """Parse a model, or take the graph that an earlier build of the same model kept.

    A graph is kept as an MBLT. It is the same for every device, which only decides where it is cut,
    and depends on nothing but what is in the key: the source's digest with its external data, the
    parse options, and this compiler's version.

    Args:
        plan: the request; ``plan.reuse`` tells whether the graph was reused.
        meta: of the MBLT.
        channels: ``image_channels`` of the configuration.
        parse: returns the float graph.
        cut: divides it between NPU and CPU.
    """
    folder = cache_folder(plan)
    if folder is None:
        return cut(parse())
    key = [1, __version__, meta.source_sha256, dict(meta.parse_options), channels]
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    path = folder / f"{name}.parsed.mblt"
    graph = _kept_graph(path)
    plan.reuse["parse"] = {"reused": graph is not None}
    if graph is not None:
        plan.reporter.info("parse: the graph is known from an earlier build on this model")
        return cut(graph)
    found = cut(parse())
    _keep_graph(path, found, meta)
    return found


def _kept_graph(path: Path) -> Graph | None:
    from .package import read_mblt

    if not path.is_file():
        return None
    try:
        with read_mblt(path) as opened:
            opened.verify()
            graph = opened.graph
        # it goes last when old ones are cleared away
        os.utime(path)
    except (QbCompilerError, OSError):
        return None
    return graph


def _keep_graph(path: Path, graph: PartitionedGraph, meta: MbltMeta) -> None:
    """Keep a graph; a folder that cannot be written keeps nothing."""
    from .package import write_mblt

    with contextlib.suppress(QbCompilerError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_mblt(path, graph, meta)
        _clear_old_graphs(path.parent)


def _clear_old_graphs(folder: Path) -> None:
    entries = [(p, p.stat()) for p in folder.glob("*.parsed.mblt")]
    entries.sort(key=lambda entry: entry[1].st_mtime, reverse=True)
    total = 0
    for number, (path, stat) in enumerate(entries):
        total += stat.st_size
        if number >= MAX_GRAPHS or (number and total > MAX_GRAPH_BYTES):
            path.unlink(missing_ok=True)


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
    folder = cache_folder(plan)
    if folder is None:
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
