"""Run the samples through the float model and observe its activations, in one pass.

Extremes alone are computed inside the graph, so that activations never leave ONNX Runtime. Where
a mode needs the distribution, the activations of one sample come out, are counted and dropped.
Memory does not grow with the number of samples.

Each sample runs on one thread of ONNX Runtime and several samples run at once; what is gathered
is exact under any order, so the result does not depend on the number of threads.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...calibration import Dataset
from ...errors import CalibrationMissingError, InternalError, QuantizationError
from ...ir import Array, Graph
from ...ops import Registry
from ...runtime.float_engine import FloatEngine, Reduction
from .clips import clip_for
from .extremes import RANGE, Extremes
from .histogram import HISTOGRAM
from .needed import needed_values
from .settings import CalibrationSettings
from .spans import LogHistogram
from .statistics import Statistics, TensorStatistics

__all__ = ["ACTIVATION_BUDGET", "Progress", "collect"]

Progress = Callable[[int, int], None]
"""Called with the samples done and the samples in all, from the calling thread."""

ACTIVATION_BUDGET = 512 << 20
"""Bytes of activations that may be outside ONNX Runtime at once; more are taken in turns."""


@dataclass(slots=True)
class _Seen:
    """What has been gathered of one tensor."""

    extremes: Extremes | None = None
    histogram: LogHistogram | None = None
    bad_index: int | None = None


def collect(
    graph: Graph,
    dataset: Dataset,
    settings: CalibrationSettings | None = None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    registry: Registry | None = None,
    values: Sequence[str] | None = None,
) -> Statistics:
    """Observe the activations of ``graph`` on every sample.

    Args:
        graph: the float graph, in topological order; its inputs are the data set's.
        dataset: the samples.
        settings: modes and their parameters; mode 0 by default.
        threads: samples at once; None for the number of cores that may be used.
        progress: told after each sample; an exception that it raises stops the work and is
            passed on.
        registry: operators; the built-in ones by default.
        values: the values to observe; None for those that have a say in a grid.

    Returns:
        Statistics; the same for any number of threads.

    Raises:
        CalibrationDataError: a sample is bad; the first one in order is reported.
        CalibrationMissingError: the data set has no sample.
        QuantizationError: the graph has no float activation, or its outputs are NaN.
        ResourceLimitError: memory does not suffice.
    """
    settings = settings or CalibrationSettings()
    if len(dataset) == 0:
        raise CalibrationMissingError("No calibration dataset is provided")
    names = needed_values(graph, registry) if values is None else list(dict.fromkeys(values))
    if not names:
        # where the model fixes every grid itself, its samples are still looked at
        ends = (*graph.inputs, *graph.outputs)
        names = [n for n in ends if graph.values[n].type.dtype.is_float][:1]
    if not names:
        raise QuantizationError("the graph has no float activation to calibrate")
    modes = {n: settings.mode_of(graph, n) for n in names}
    counted = [n for n in names if clip_for(modes[n], settings).needs_histogram]
    plain = [n for n in names if n not in set(counted)]
    workers = max(1, min(threads or _cores(), len(dataset)))
    groups, workers = _groups(graph, counted, workers)
    seen = {n: _Seen() for n in names}
    passes = len(groups)
    for number, group in enumerate(groups):
        reduced = plain if number == 0 else []
        checked = [n for n in graph.outputs if n in set(plain)] if number == 0 else []
        engine = FloatEngine(
            graph,
            [*group, *checked],
            reductions=[Reduction(n) for n in reduced if n not in set(checked)],
            threads=1,
            registry=registry,
        )
        worker = _Worker(engine, dataset, set(group), set(checked), reduced, seen)
        done = number * len(dataset)
        _run(worker, len(dataset), workers, _scaled(progress, done, passes, len(dataset)))
    if any(s.bad_index is not None for s in seen.values()):
        _blame_weights(graph)
    tensors = {n: _finish(graph, dataset, n, seen[n], modes[n], settings) for n in names}
    return Statistics(settings, tensors, samples=len(dataset), digest=dataset.digest())


def _blame_weights(graph: Graph) -> None:
    """Raise where a weight, and not the data, is why values are not numbers."""
    for node in graph.nodes:
        for name in filter(None, node.inputs):
            value = graph.values[name]
            if value.data is None or not value.type.dtype.is_float:
                continue
            # the minimum of anything with a NaN is NaN: no copy of the weight is made
            if value.data.size and np.isnan(np.min(value.data)):
                raise QuantizationError(
                    f"weight {name!r} of layer {node.name!r} ({node.op}) holds NaN",
                    details={"layer": node.name, "operator": node.op, "value": name},
                    hint="the model was saved after its training diverged; export another state",
                )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _groups(graph: Graph, counted: Sequence[str], workers: int) -> tuple[list[list[str]], int]:
    """Split the tensors that leave the graph so that all workers together keep to the budget.

    Fewer workers come first, for another group costs another run of the model.
    """
    sizes = {n: graph.values[n].type.nbytes for n in counted}
    total = sum(sizes.values())
    while workers > 1 and total * workers > ACTIVATION_BUDGET:
        workers -= 1
    if total <= ACTIVATION_BUDGET:
        return [list(counted)], workers
    groups: list[list[str]] = [[]]
    filled = 0
    for name in counted:
        if groups[-1] and filled + sizes[name] > ACTIVATION_BUDGET:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += sizes[name]
    return groups, workers


def _scaled(progress: Progress | None, done: int, passes: int, samples: int) -> Progress | None:
    if progress is None:
        return None
    return lambda current, total: progress(done + current, passes * samples)


class _Worker:
    """Runs one sample and merges what it gives. Called from several threads."""

    def __init__(
        self,
        engine: FloatEngine,
        dataset: Dataset,
        counted: set[str],
        checked: set[str],
        reduced: Sequence[str],
        seen: Mapping[str, _Seen],
    ) -> None:
        self._engine = engine
        self._dataset = dataset
        self._counted = counted
        self._checked = checked
        self._reduced = reduced
        self._seen = seen
        self._lock = threading.Lock()

    def __call__(self, index: int) -> None:
        found = self._engine.run(self._dataset[index])
        for name in self._reduced:
            if name in self._checked:
                extremes = RANGE.reduce(found.pop(name))
            else:
                reduction = Reduction(name)
                low, high = found[reduction.min_name], found[reduction.max_name]
                extremes = Extremes(float(low), float(high))
            self._merge(name, index, extremes, None)
        for name in self._counted:
            array: Array = found.pop(name)  # frees each tensor once it is counted
            extremes = RANGE.reduce(array)
            usable = _usable(extremes)
            self._merge(name, index, extremes, HISTOGRAM.reduce(array) if usable else None)

    def _merge(
        self, name: str, index: int, extremes: Extremes, histogram: LogHistogram | None
    ) -> None:
        with self._lock:
            seen = self._seen[name]
            bad = seen.bad_index
            if not _usable(extremes) and (bad is None or index < bad):
                seen.bad_index = index
            if seen.extremes is None:
                seen.extremes, seen.histogram = extremes, histogram
                return
            seen.extremes = RANGE.merge(seen.extremes, extremes)
            if histogram is not None:
                old = seen.histogram
                seen.histogram = histogram if old is None else HISTOGRAM.merge(old, histogram)


def _usable(extremes: Extremes) -> bool:
    """Whether every value is a finite float32."""
    return extremes.finite and extremes.peak <= float(np.finfo(np.float32).max)


def _run(work: Callable[[int], None], count: int, workers: int, progress: Progress | None) -> None:
    """Call ``work`` with 0 … count-1 on some threads; raise the failure of least index.

    Indices are handed out in order, so every index before a failing one is finished too, and
    which failure is reported does not depend on the number of threads.
    """
    if workers == 1:
        for index in range(count):
            work(index)
            if progress is not None:
                progress(index + 1, count)
        return
    lock = threading.Lock()
    stop = threading.Event()
    finished: queue.SimpleQueue[tuple[int, BaseException | None] | None] = queue.SimpleQueue()
    upcoming = iter(range(count))

    def loop() -> None:
        while not stop.is_set():
            with lock:
                index = next(upcoming, None)
            if index is None:
                break
            try:
                work(index)
            except BaseException as exc:
                stop.set()
                finished.put((index, exc))
            else:
                finished.put((index, None))
        finished.put(None)

    pool = [
        threading.Thread(target=loop, name=f"calibrate-{i}", daemon=True) for i in range(workers)
    ]
    for thread in pool:
        thread.start()
    failures: list[tuple[int, BaseException]] = []
    running, done = workers, 0
    try:
        while running:
            item = finished.get()
            if item is None:
                running -= 1
            elif item[1] is not None:
                failures.append((item[0], item[1]))
            else:
                done += 1
                if progress is not None and not failures:
                    progress(done, count)
    finally:
        stop.set()
        for thread in pool:
            thread.join()
    if failures:
        raise min(failures, key=lambda f: f[0])[1]


def _finish(
    graph: Graph,
    dataset: Dataset,
    name: str,
    seen: _Seen,
    mode: int,
    settings: CalibrationSettings,
) -> TensorStatistics:
    if seen.extremes is None:
        raise InternalError(f"calibration observed nothing of {name!r}")
    maker = graph.producer(name)
    return TensorStatistics(
        name=name,
        extremes=seen.extremes,
        histogram=seen.histogram,
        mode=mode,
        symmetric=settings.symmetric(graph, name),
        layer=None if maker is None else maker.name,
        bad_sample=None if seen.bad_index is None else dataset.sample_names[seen.bad_index],
    )
