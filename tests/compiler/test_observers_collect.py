"""Collecting over graphs: one pass, any number of threads, what is observed, what is refused."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qbcompiler.calibration import InputSpec, RandomSpec, open_dataset, specs_of_graph
from qbcompiler.config import CompileConfig
from qbcompiler.errors import CalibrationDataError, CalibrationMissingError, QuantizationError
from qbcompiler.frontend import load_model, parse
from qbcompiler.ir import Array, DType, Graph, Node
from qbcompiler.ops import Registry, default_registry
from qbcompiler.ops.unary import Sigmoid
from qbcompiler.quantization import quantize
from qbcompiler.quantization.observers import (
    CalibrationSettings,
    LogHistogram,
    Statistics,
    collect,
    needed_values,
)
from qbcompiler.runtime.float_engine import FloatEngine

from .quant_nets import Net


def net() -> Graph:
    n = Net()
    x = n.input("x", 1, 3, 8, 8)
    a = n.layer("Relu", "relu", [n.conv("c1", x, 8)])
    b = n.conv("c2", a, 8)
    c = n.layer("Adding", "add", [a, b])
    d = n.layer("Sigmoid", "sig", [c])
    return n.finish(d, b)


class FixedSigmoid(Sigmoid):
    def grid(self, node: Node, graph: Graph) -> tuple[float, float] | None:
        return (0.0, 1.0)


def data(graph: Graph, count: int = 6) -> Any:
    return open_dataset(RandomSpec(count), specs_of_graph(graph))


def brute_force(graph: Graph, dataset: Any, names: list[str]) -> dict[str, np.ndarray]:
    engine = FloatEngine(graph, names)
    found = [engine.run(s) for s in dataset]
    return {n: np.concatenate([f[n].ravel() for f in found]) for n in names}


def test_only_tensors_that_decide_a_grid_are_observed() -> None:
    graph = net()
    # c1.out is only read by a relu
    assert needed_values(graph) == ["x", "relu.out", "c2.out", "add.out", "sig.out"]
    specs = default_registry().specs
    registry = Registry([FixedSigmoid() if s.name == "Sigmoid" else s for s in specs])
    assert needed_values(graph, registry) == ["x", "relu.out", "c2.out", "add.out"]
    n = Net()
    x = n.input("x", 1, 4, 4, 4)
    ids = n.input("ids", 1, 4, dtype=DType.INT64)
    b = n.conv("c", x, 4)
    n.finish(n.layer("Relu", "r", [b]), b, ids)
    # an output of the model keeps its range even though a relu reads it
    assert needed_values(n.graph) == ["x", "c.out", "r.out"]


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_what_is_observed_is_what_the_float_model_gives(mode: int) -> None:
    graph = net()
    dataset = data(graph)
    found = collect(graph, dataset, CalibrationSettings(mode=mode), threads=2)
    assert list(found.tensors) == needed_values(graph)
    values = brute_force(graph, dataset, list(found.tensors))
    assert found.samples == 6 and found.digest == dataset.digest()
    for name, tensor in found.tensors.items():
        np.testing.assert_allclose(
            [tensor.extremes.low, tensor.extremes.high],
            [values[name].min(), values[name].max()],
            rtol=1e-5,
            atol=1e-6,
        )
        if mode == 0:
            assert tensor.histogram is None
            peak = max(abs(tensor.extremes.low), tensor.extremes.high)
            assert found.ranges[name] == (-peak, peak)
        else:
            assert tensor.histogram is not None
            assert tensor.histogram.total == values[name].size
    assert found.tensors["x"].layer is None and found.tensors["c2.out"].layer == "c2"


def test_the_model_input_is_counted_exactly() -> None:
    graph = net()
    dataset = data(graph)
    found = collect(graph, dataset, CalibrationSettings(mode=2))
    whole = LogHistogram.of(np.stack([s["x"] for s in dataset]))
    assert found.tensors["x"].histogram == whole


def plain(value: Any) -> str:
    """A digest of statistics, or of any part of their plain form."""
    if isinstance(value, Statistics):
        value = value.to_dict()
    if isinstance(value, dict):
        text = repr([(k, plain(v)) for k, v in value.items()])
    elif isinstance(value, np.ndarray):
        text = f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    else:
        text = repr(value)
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_any_number_of_threads_gives_the_same(mode: int) -> None:
    graph = net()
    results = {
        plain(collect(graph, data(graph, 9), CalibrationSettings(mode=mode), threads=t))
        for t in (1, 2, 4, 20)
    }
    assert len(results) == 1


def test_turns_within_the_memory_budget_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    module = sys.modules["qbcompiler.quantization.observers.collect"]
    graph = net()
    chosen = CalibrationSettings(mode=2)
    seen: list[tuple[int, int]] = []
    whole = collect(graph, data(graph), chosen, threads=2)
    monkeypatch.setattr(module, "ACTIVATION_BUDGET", 3000)
    parts = collect(graph, data(graph), chosen, threads=2, progress=lambda *p: seen.append(p))
    # 768 + 2048 bytes together, the other three tensors one at a time
    assert seen == [(i, 24) for i in range(1, 25)]
    for name, tensor in whole.tensors.items():
        np.testing.assert_allclose(
            parts.tensors[name].extremes.high, tensor.extremes.high, rtol=1e-5
        )
        assert parts.range(name) == pytest.approx(whole.range(name), rel=1e-2)


def test_layers_may_have_modes_of_their_own() -> None:
    graph = net()
    chosen = CalibrationSettings(mode=0, modes={"c*": 2, "src/add": 1}, methods={"add": 2})
    found = collect(graph, data(graph), chosen)
    counted = {n for n, t in found.tensors.items() if t.histogram is not None}
    assert counted == {"c2.out", "add.out"}
    assert {n: t.mode for n, t in found.tensors.items()} == {
        "x": 0,
        "relu.out": 0,
        "c2.out": 2,
        "add.out": 1,
        "sig.out": 0,
    }
    assert not found.tensors["add.out"].symmetric
    low, high = found.ranges["add.out"]
    assert low != -high


def test_values_may_be_chosen() -> None:
    graph = net()
    found = collect(graph, data(graph), values=["c1.out", "sig.out", "c1.out"])
    assert list(found.tensors) == ["c1.out", "sig.out"]
    assert 0 < found.tensors["sig.out"].extremes.low < found.tensors["sig.out"].extremes.high < 1


def test_progress_comes_in_order_from_the_calling_thread() -> None:
    graph = net()
    seen: list[tuple[int, int]] = []
    here = threading.get_ident()

    def progress(current: int, total: int) -> None:
        assert threading.get_ident() == here
        seen.append((current, total))

    for threads in (1, 3):
        seen.clear()
        collect(graph, data(graph, 7), threads=threads, progress=progress)
        assert seen == [(i, 7) for i in range(1, 8)]


@pytest.mark.parametrize("threads", [1, 3])
def test_work_stops_when_progress_says_so(threads: int) -> None:
    graph = net()
    read: list[int] = []

    def slowly(index: int) -> None:
        read.append(index)
        time.sleep(0.005)

    dataset = Spy(data(graph, 50), slowly)

    def stop(current: int, total: int) -> None:
        if current == 3:
            raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        collect(graph, dataset, threads=threads, progress=stop)
    assert len(read) < 50
    assert threading.active_count() == before


class Spy:
    """A data set that tells which samples are read."""

    def __init__(self, whole: Any, told: Callable[[int], object]) -> None:
        self._whole, self._told = whole, told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def __len__(self) -> int:
        return len(self._whole)

    def __getitem__(self, index: int) -> dict[str, Array]:
        self._told(index)
        return self._whole[index]  # type: ignore[no-any-return]


def test_each_sample_is_read_once() -> None:
    graph = net()
    for mode in (0, 1, 2):
        read: list[int] = []
        collect(graph, Spy(data(graph, 5), read.append), CalibrationSettings(mode=mode), threads=2)
        assert sorted(read) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_the_first_bad_sample_is_the_one_reported(tmp_path: Path, threads: int) -> None:
    graph = net()
    for i in range(30):
        array = np.zeros((1, 3, 8, 8), np.float32)
        if i in (11, 13, 14, 29):
            array[0, 0, 0, 0] = np.nan
        np.save(tmp_path / f"{i:02d}.npy", array)
    dataset = open_dataset(tmp_path, specs_of_graph(graph))
    for _ in range(5):
        with pytest.raises(CalibrationDataError, match=r"'11\.npy'"):
            collect(graph, dataset, threads=threads)


def test_an_empty_data_set_is_missing(tmp_path: Path) -> None:
    graph = net()
    with pytest.raises(CalibrationMissingError, match="No calibration dataset is provided"):
        collect(graph, data(graph, 0))


def test_a_graph_without_float_tensors_has_nothing_to_calibrate() -> None:
    n = Net()
    n.finish(n.input("ids", 1, 4, dtype=DType.INT64))
    with pytest.raises(QuantizationError, match="no float activation"):
        collect(n.graph, data(n.graph))


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_overflow_names_the_layer_and_the_sample(tmp_path: Path, mode: int) -> None:
    n = Net()
    x = n.input("x", 1, 4)
    y = n.layer("Exp", "exp", [x])
    n.finish(n.layer("Adding", "add", [y, x]))
    for i, top in enumerate([1.0, 200.0, 300.0]):
        np.save(tmp_path / f"{i}.npy", np.asarray([[0, 1, 2, top]], np.float32))
    dataset = open_dataset(tmp_path, [InputSpec("x", (1, 4), DType.FLOAT32)])
    found = collect(n.graph, dataset, CalibrationSettings(mode=mode), threads=2)
    assert found.ranges["x"][1] == 300
    with pytest.raises(QuantizationError, match="layer 'exp' gives values") as error:
        found.ranges["exp.out"]
    assert error.value.details["sample"] == "1.npy"


@pytest.mark.parametrize("mode", [0, 1])
def test_nan_is_found_in_any_mode(tmp_path: Path, mode: int) -> None:
    n = Net()
    x = n.input("x", 1, 4)
    y = n.layer("Sqrt", "sqrt", [x])
    n.finish(n.layer("Adding", "add", [y, x]))
    np.save(tmp_path / "0.npy", np.asarray([[4, 1, 2, 3]], np.float32))
    np.save(tmp_path / "1.npy", np.asarray([[4, -1, 2, 3]], np.float32))
    dataset = open_dataset(tmp_path, [InputSpec("x", (1, 4), DType.FLOAT32)])
    found = collect(n.graph, dataset, CalibrationSettings(mode=mode))
    with pytest.raises(QuantizationError, match="not finite"):
        [found.ranges[v] for v in found.tensors]
    assert found.tensors["add.out"].bad_sample == "1.npy"


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_real_model_is_calibrated_and_quantized(
    ocr_cls: Path, ocr_calibration: Path, mode: int
) -> None:
    graph = parse(load_model(ocr_cls), input_shapes={"x": (1, 3, 48, 192)}, image_channels=None)
    dataset = open_dataset(ocr_calibration, specs_of_graph(graph))
    chosen = CalibrationSettings(mode=mode)
    one = collect(graph, dataset, chosen, threads=1)
    two = collect(graph, dataset, chosen, threads=2)
    assert plain(one) == plain(two)
    config = CompileConfig.model_validate({"calibration": {"mode": mode}})
    integers = quantize(graph, one, config)
    assert len(integers.layers) > 10
    wide = collect(graph, dataset, CalibrationSettings(mode=0))
    for name, (_, high) in one.ranges.items():
        assert 0 < high <= wide.ranges[name][1] * 1.0001
