"""``bit.auto``: single roundings predict the whole, the target is met, the budget kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qbcompiler import mxq_compile
from qbcompiler.config import CompileConfig
from qbcompiler.errors import ConfigError
from qbcompiler.ir import NoAttrs
from qbcompiler.package import read_mxq
from qbcompiler.quantization import (
    AutoBits,
    Choice,
    Difference,
    QuantSettings,
    choose_steps,
    grid_classes,
    list_units,
    measure_sensitivity,
    quantize,
    rounded_values,
    search_steps,
    validate,
    weighted_layers,
    wide_layers,
)
from qbcompiler.quantization.bit_choice import Step, Unit
from qbcompiler.runtime import IntegerEngine
from qbcompiler.runtime.float_engine import FloatEngine

from .quant_nets import Net, config, observe, residual_net, samples


class Ranges:
    """What quantization asks of calibration."""

    def __init__(self, ranges: Any) -> None:
        self.ranges = ranges

    def ranges_for(self, bits: int) -> Any:
        return self.ranges


def measured(graph: Any, settings: CompileConfig, data: Any, threads: int = 1) -> Any:
    statistics = Ranges(observe(graph, data).ranges)
    base = quantize(graph, statistics, settings)
    classes = grid_classes(graph, statistics, settings)
    found = measure_sensitivity(
        graph,
        base,
        data,
        activations=rounded_values(graph, classes),
        weights=weighted_layers(base),
        threads=threads,
    )
    return statistics, base, classes, found


def sqnr(graph: Any, body: Any, data: Any) -> float:
    engine, exact, found = IntegerEngine(body), FloatEngine(graph), Difference()
    for x in data:
        found.add(exact.run(x)[graph.outputs[0]], engine.run(x)[graph.outputs[0]])
    return found.sqnr_db


@pytest.mark.parametrize("method", [0, 1, 2, 3])
def test_single_roundings_add_up_to_the_whole(method: int) -> None:
    graph, data = residual_net(), samples(residual_net(), 8)
    _, base, _, found = measured(graph, config(method=method), data)
    every = [*found.activations.values(), *found.weights.values()]
    predicted = -10 * np.log10(np.sum(every, axis=0).max())
    assert abs(predicted - sqnr(graph, base, data)) < 3.0
    assert set(found.weights) == {"c1", "c2", "c3", "scores"}
    # relu's output is on the grid that its input was rounded to
    assert "c1.out" in found.activations and "r1.out" not in found.activations


def test_threads_do_not_count() -> None:
    graph, data = residual_net(), samples(residual_net(), 4)
    one, four = (measured(graph, config(), data, n)[3] for n in (1, 4))
    for kind in ("activations", "weights"):
        first, second = getattr(one, kind), getattr(four, kind)
        assert list(first) == list(second)
        for name, noise in first.items():
            np.testing.assert_array_equal(noise, second[name])


def test_the_layer_that_is_rounded_worst_comes_first() -> None:
    """One channel of the first layer's weights is huge: 8 bits leave little for the others."""
    net = Net()
    x = net.input("x", 1, 3, 12, 12)
    a = net.layer("Relu", "r", [net.conv("first", x, 8)])
    graph = net.finish(net.conv("second", net.conv("middle", a, 8), 4))
    weight = graph.values["middle.w"].data
    weight[:, 0] *= 60.0  # an input channel, so in every output channel's scale
    graph.values["first.w"].data[0] /= 60.0
    graph.values["first.b"].data[0] /= 60.0
    data = samples(graph, 6)
    settings = config(method=2)
    _, _, classes, found = measured(graph, settings, data)
    assert max(found.weights, key=lambda n: found.weights[n].max()) == "middle"
    units, macs = list_units(graph, QuantSettings.from_config(settings), classes, found)
    steps = choose_steps(units, list(macs.values()), AutoBits(None, None))
    costly = [s for s in steps if s.share > 0]
    assert any(units[i].name == "middle" for i in costly[0].units)


def unit(kind: str, name: str, noise: float, *readers: int) -> Unit:
    return Unit(kind, name, (name,), np.array([noise]), frozenset(readers), 10)


def test_steps_keep_to_the_budget_and_prefer_what_costs_little() -> None:
    units = [
        unit("activation", "dear", 0.5, 0),
        unit("weight", "dear", 0.1, 0),
        unit("activation", "cheap", 0.3, 1),
        unit("weight", "cheap", 0.05, 1),
        unit("activation", "free", 0.01),
        unit("weight", "nothing", 1e-9, 2),
    ]
    macs = [900, 60, 40]
    names = [[units[i].name for i in s.units] for s in choose_steps(units, macs, AutoBits(None, 1))]
    assert names == [["cheap", "cheap"], ["free"], ["dear", "dear"]]
    kept = choose_steps(units, macs, AutoBits(None, 0.5))
    assert [units[i].name for s in kept for i in s.units] == ["cheap", "cheap", "free"]
    assert kept[-1].share == pytest.approx(0.06)
    # what is wide already costs nothing more
    again = choose_steps(units, macs, AutoBits(None, 0.96), wide=[0])
    assert {units[i].name for s in again[:2] for i in s.units} == {"dear"}


def test_the_least_number_of_steps_is_found_with_few_measurements() -> None:
    steps = [Step((), 10.0 + i, 0.0) for i in range(100)]
    for needed in (1, 7, 50, 93, 100):
        choice = Choice([], steps)
        asked: list[int] = []

        def measure(count: int, needed: int = needed, asked: list[int] = asked) -> float:
            asked.append(count)
            return 30.0 if count >= needed else 20.0

        found = search_steps(choice, 30.0, measure)
        assert needed <= found <= needed + 3
        assert len(asked) == len(set(asked)) <= 10
    choice = Choice([], steps)
    assert search_steps(choice, 60.0, lambda count: count / 10) == 100  # the best there is
    assert search_steps(Choice([], []), 60.0, lambda count: 5.0) == 0
    assert search_steps(Choice([], steps), None, lambda count: 40.0 - count) == 0


@pytest.fixture(scope="module")
def calibration(digits: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("auto")
    for i, image in enumerate(digits.train_images[:16]):
        np.save(folder / f"{i:02}.npy", image[None])
    return folder


def build(model: Path, data: Path, folder: Path, bit: Any, **options: Any) -> Any:
    folder.mkdir()
    return mxq_compile(
        model,
        calib_data_path=data,
        target_device="regulus-rb",
        save_path=folder / "m.mxq",
        report_path=folder / "r.json",
        config_save_path=folder / "c.yaml",
        compile_config={"calibration": {"method": 2}, "bit": bit},
        **options,
    )


def test_a_build_reaches_the_target_within_the_budget(
    digits_cnn: Path, calibration: Path, tmp_path: Path
) -> None:
    auto = {"auto": {"apply": True, "targetSqnr": 37.0, "budget": 0.25}}
    result = build(digits_cnn, calibration, tmp_path / "a", auto, threads=1)
    assert result.summary["accuracy"]["outputs"][0]["sqnr_db"] >= 37.0
    report = json.loads((tmp_path / "a" / "r.json").read_text())["auto_bits"]
    assert report["sqnr_db"]["before"] < 37.0 < report["sqnr_db"]["after"]
    assert 0 < report["share"] <= 0.25
    assert {row["bits"] for row in report["sensitivity"]} == {8, 16}
    rows = [row["sqnr_db"] for row in report["sensitivity"]]
    assert rows == sorted(rows)
    # the package says the same
    with read_mxq(tmp_path / "a" / "m.mxq") as opened:
        wide = wide_layers(opened.body)
        recorded = opened.manifest["config"]["bit"]
    assert wide and recorded["auto"]["apply"] is False
    assert recorded["layerOverrides"]["activation16Bits"]
    # nothing is left to chance: the same again, with other threads, and from what was recorded
    build(digits_cnn, calibration, tmp_path / "b", auto, threads=3)
    first = (tmp_path / "a" / "m.mxq").read_bytes()
    assert (tmp_path / "b" / "m.mxq").read_bytes() == first
    mxq_compile(
        digits_cnn,
        calib_data_path=calibration,
        target_device="regulus-rb",
        save_path=tmp_path / "again.mxq",
        compile_config=tmp_path / "a" / "c.yaml",
    )
    assert (tmp_path / "again.mxq").read_bytes() == first


def test_what_8_bits_reach_raises_nothing(
    digits_cnn: Path, calibration: Path, tmp_path: Path
) -> None:
    auto = {"auto": {"apply": True, "targetSqnr": 20.0}}
    build(digits_cnn, calibration, tmp_path / "a", auto)
    with read_mxq(tmp_path / "a" / "m.mxq") as opened:
        assert not wide_layers(opened.body)


def test_a_target_out_of_reach_is_said(digits_cnn: Path, calibration: Path, tmp_path: Path) -> None:
    auto = {"auto": {"apply": True, "targetSqnr": 90.0, "budget": 0.05}}
    result = build(digits_cnn, calibration, tmp_path / "a", auto)
    assert any("bit.auto reached" in w for w in result.summary["warnings"])
    report = json.loads((tmp_path / "a" / "r.json").read_text())["auto_bits"]
    assert report["share"] <= 0.05
    assert report["sqnr_db"]["after"] > report["sqnr_db"]["before"]


def test_layers_whose_bits_are_given_are_left_alone(
    digits_cnn: Path, calibration: Path, tmp_path: Path
) -> None:
    bit = {
        "auto": {"apply": True, "budget": 1.0},
        "layerOverrides": {"weight8Bits": ["*"], "activation16Bits": ["image"]},
    }
    build(digits_cnn, calibration, tmp_path / "a", bit)
    with read_mxq(tmp_path / "a" / "m.mxq") as opened:
        weights = [x.tensors["weight"] for x in opened.body.layers if "weight" in x.tensors]
        assert all(w.dtype == np.int8 for w in weights)
        assert opened.body.values["image"].quant.bits == 16
    report = json.loads((tmp_path / "a" / "r.json").read_text())["auto_bits"]
    assert {row["kind"] for row in report["sensitivity"]} == {"activation"}
    assert "image" not in {row["name"] for row in report["sensitivity"]}


def test_nothing_wanted_is_refused() -> None:
    with pytest.raises(ConfigError, match="targetSqnr, budget or both"):
        CompileConfig.from_data({"bit": {"auto": {"apply": True}}})


def test_tensors_on_one_grid_are_raised_together() -> None:
    net = Net()
    x = net.input("x", 1, 4, 6, 6)
    a, b = net.conv("a", x, 4), net.conv("b", x, 4)
    graph = net.finish(net.layer("Adding", "sum", [a, b], NoAttrs()))
    data = samples(graph, 4)
    settings = config(method=1)
    statistics, _, classes, found = measured(graph, settings, data)
    units, _ = list_units(graph, QuantSettings.from_config(settings), classes, found)
    (both,) = [u for u in units if u.kind == "activation" and u.name in ("a", "b")]
    alone = [found.activations[n] for n in ("a.out", "b.out")]
    np.testing.assert_allclose(both.noise, np.sum(alone, axis=0))
    raised = CompileConfig.from_data(
        {
            "calibration": {"method": 1},
            "bit": {"layerOverrides": {"activation16Bits": list(both.names)}},
        }
    )
    body = quantize(graph, statistics, raised)
    assert body.values["a.out"].quant.bits == body.values["b.out"].quant.bits == 16
    assert validate(graph, body, data).outputs[0].difference.count


def test_bits_are_chosen_with_the_weights_that_the_build_will_have(
    digits_cnn: Path, calibration: Path, tmp_path: Path
) -> None:
    found = []
    for index, weights in enumerate(({}, {"hessianQuant": {"apply": True}})):
        (tmp_path / str(index)).mkdir()
        mxq_compile(
            digits_cnn,
            calib_data_path=calibration,
            target_device="regulus-rb",
            save_path=tmp_path / str(index) / "m.mxq",
            report_path=tmp_path / str(index) / "r.json",
            compile_config={
                "calibration": {"method": 2},
                "bit": {"auto": {"apply": True, "targetSqnr": 36.0}},
                **weights,
            },
        )
        report = json.loads((tmp_path / str(index) / "r.json").read_text())["auto_bits"]
        found.append(
            {r["name"]: r["sqnr_db"] for r in report["sensitivity"] if r["kind"] == "weight"}
        )
    assert any(found[0][name] != found[1][name] for name in found[0])
