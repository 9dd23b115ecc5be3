"""What was observed of a model on a data set, kept for the next build on the same two.

Extremes and histograms do not depend on the device, the preset or the bits, so a second build
only chooses ranges anew. An entry is named by the digests of the float graph with its weights and
of the samples, and by the versions that could change a float. Whatever is wrong with an entry
makes it a miss, never an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..._version import __version__
from ...ir import Graph
from .clips import clip_for
from .collect import Progress, collect
from .settings import CalibrationSettings
from .statistics import Statistics, TensorStatistics

__all__ = ["StatisticsCache", "collect_cached"]

MAX_ENTRY_BYTES = 256 << 20
MAX_ENTRIES = 128


class StatisticsCache:
    """A folder of observations.

    Args:
        folder: made when something is kept.
        model: digest of the float graph and its weights.
        data: digest of the samples, as the model gets them.
        runtime: version of the float engine.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, model: str, data: str, runtime: str
    ) -> None:
        text = json.dumps([1, __version__, runtime, model, data])
        name = hashlib.sha256(text.encode()).hexdigest()
        self._path = Path(folder) / f"{name}.statistics.json"

    def load(self) -> dict[str, TensorStatistics]:
        """Return what is kept, by tensor; empty where nothing is, or what is there is damaged."""
        try:
            if self._path.stat().st_size > MAX_ENTRY_BYTES:
                return {}
            document = json.loads(self._path.read_bytes())
            if document["check"] != _check(document["statistics"]):
                return {}
            kept = Statistics.from_dict(document["statistics"]).tensors
        except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
            return {}
        # the entry is in use: it goes last when old ones are cleared away
        with contextlib.suppress(OSError):
            os.utime(self._path)
        return kept

    def keep(self, statistics: Statistics) -> None:
        """Keep statistics; a folder that cannot be written keeps nothing."""
        plain = _plain(statistics.to_dict())
        data = json.dumps({"check": _check(plain), "statistics": plain}).encode()
        if len(data) > MAX_ENTRY_BYTES:
            return
        part = self._path.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(data)
            part.replace(self._path)
            self._clear_old()
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def _clear_old(self) -> None:
        entries = sorted(
            self._path.parent.glob("*.statistics.json"), key=lambda p: p.stat().st_mtime
        )
        for path in entries[:-MAX_ENTRIES]:
            path.unlink(missing_ok=True)


def collect_cached(
    graph: Graph,
    dataset: Any,
    settings: CalibrationSettings,
    cache: StatisticsCache,
    *,
    values: Sequence[str],
    threads: int | None = None,
    progress: Progress | None = None,
    collect: Callable[..., Statistics] = collect,
) -> tuple[Statistics, int]:
    """Return the statistics of ``values``, observing only what the cache lacks.

    The statistics are those that ``collect`` returns.

    Returns:
        The statistics, and how many of the tensors had to be observed.
    """
    known = cache.load()
    lacking = [n for n in values if not _serves(known.get(n), graph, n, settings)]
    fresh: Mapping[str, TensorStatistics] = {}
    if lacking:
        found = collect(
            graph, dataset, settings, threads=threads, progress=progress, values=lacking
        )
        fresh = found.tensors
    tensors = {
        n: fresh[n] if n in fresh else _adapted(known[n], graph, n, settings) for n in values
    }
    result = Statistics(settings, tensors, samples=len(dataset), digest=dataset.digest())
    if lacking:
        merged = {**known, **tensors}
        cache.keep(Statistics(settings, merged, samples=len(dataset), digest=dataset.digest()))
    return result, len(lacking)


def _serves(
    found: TensorStatistics | None, graph: Graph, name: str, settings: CalibrationSettings
) -> bool:
    if found is None:
        return False
    wants = clip_for(settings.mode_of(graph, name), settings).needs_histogram
    return found.histogram is not None or not wants


def _adapted(
    found: TensorStatistics, graph: Graph, name: str, settings: CalibrationSettings
) -> TensorStatistics:
    """Return an observation as this build's settings see it."""
    maker = graph.producer(name)
    return dataclasses.replace(
        found,
        mode=settings.mode_of(graph, name),
        symmetric=settings.symmetric(graph, name),
        layer=None if maker is None else maker.name,
    )


def _check(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no such number; the reader of floats takes the word
        return str(value)
    return value
