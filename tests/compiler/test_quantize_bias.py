"""Bias correction: means move to the float model's, biases keep their room."""

from __future__ import annotations

import numpy as np
import pytest

from qbcompiler.config import CompileConfig
from qbcompiler.ir import TensorType
from qbcompiler.ops import default_registry
from qbcompiler.ops.common import span_of
from qbcompiler.ops.weights import ACC_LIMIT
from qbcompiler.quantization import BiasCorrection, correct_biases, quantize
from qbcompiler.quantization import sweep as module
from qbcompiler.quantization.bias_correction import _reach
from qbcompiler.runtime import IntegerEngine
from qbcompiler.runtime.float_engine import FloatEngine
from qbcompiler.runtime.pipeline import BodyInputs

from .ops_harness import build_layer, case_graph, draw, grid, run_float
from .quant_nets import Net, config, observe, residual_net, samples

WHOLE = BiasCorrection(samples=64, iterations=1, rate=1.0)


def built(graph, data, **calibration):
    return quantize(graph, observe(graph, data), config(**calibration))


def shifts(graph, body, data, name="scores.out"):
    """The mean error of each channel of an output."""
    engine, exact = IntegerEngine(body), FloatEngine(graph, [name])
    found = [engine.run(x, outputs=[name])[name] - exact.run(x)[name] for x in data]
    errors = np.stack(found)
    return errors.mean(axis=tuple(i for i in range(errors.ndim) if i != 2))


@pytest.mark.parametrize("method", [0, 2])
def test_the_means_of_all_channels_come_close_to_the_float_models(method):
    graph = residual_net()
    data = samples(graph, 12)
    body = built(graph, data, method=method)
    shares = {"c2.out": 0.25, "scores.out": 0.5}  # scores have one element for each sample
    before = {n: np.abs(shifts(graph, body, data, n)).mean() for n in shares}
    assert correct_biases(graph, body, data, WHOLE) > 0
    for name, share in shares.items():
        assert np.abs(shifts(graph, body, data, name)).mean() < share * before[name]


def test_a_round_corrects_its_share():
    net = Net()
    graph = net.finish(net.conv("scores", net.input("x", 1, 8, 12, 12), 6))
    data = samples(graph, 8)
    plain = built(graph, data)
    plain.layers[0].tensors["bias"] = plain.layers[0].tensors["bias"] + 20_000  # a large shift
    before = shifts(graph, plain, data)
    for rounds in (1, 2):
        body = built(graph, data)
        body.layers[0].tensors["bias"] = plain.layers[0].tensors["bias"]
        correct_biases(graph, body, data, BiasCorrection(64, rounds, 0.25))
        after = shifts(graph, body, data)
        np.testing.assert_allclose(after / before, 0.75**rounds, atol=0.02)


def test_threads_do_not_count():
    graph = residual_net()
    data = samples(graph, 6)
    found = []
    for threads in (1, 2):
        body = built(graph, data)
        correct_biases(graph, body, data, BiasCorrection(6, 2, 0.5), threads=threads)
        found.append([x.tensors["bias"] for x in body.layers if "bias" in x.tensors])
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_what_a_clamp_cuts_off_is_no_error():
    """Relu's input has its grid from 0 on: the float mean counts with negatives cut off."""
    net = Net()
    c = net.conv("c", net.input("x", 1, 3, 16, 16), 4)
    graph = net.finish(net.layer("Relu", "r", [c]))
    data = samples(graph, 8)
    body = built(graph, data, method=2)
    before = body.layers[0].tensors["bias"].copy()
    correct_biases(graph, body, data, WHOLE)
    step = body.layers[0].tensors["weight_scale"] * body.values["x"].quant.scale
    moved = np.abs(body.layers[0].tensors["bias"] - before) * step
    assert moved.max() < 2 * body.values["c.out"].quant.scale


def test_a_bias_stays_where_its_accumulator_has_room():
    net = Net()
    graph = net.finish(net.conv("scores", net.input("x", 1, 8, 4, 4), 6))
    data = samples(graph, 2)
    body = built(graph, data)
    layer = body.layers[0]
    room = ACC_LIMIT - _reach(layer) * span_of(body.values["x"].quant)
    far = [{"x": x["x"] + np.float32(1e7)} for x in data]  # nothing like the calibrated range
    correct_biases(graph, body, far, WHOLE)
    assert (np.abs(layer.tensors["bias"]) <= room).all()
    assert (np.abs(layer.tensors["bias"]) == np.floor(room)).any()
    assert layer.tensors["bias"].dtype == np.int32


@pytest.mark.parametrize(
    "name", ["Convolution", "GroupConvolution", "TransposeConvolution", "MatMul"]
)
def test_the_reach_of_a_channel_is_found_by_trying(name):
    """An input of the weights' signs gives each channel's largest sum."""
    spec = default_registry()[name]
    for case in spec.cases():
        if not all(isinstance(x, TensorType) for x in case.inputs[:1]) or (
            name == "MatMul" and isinstance(case.inputs[1], TensorType)
        ):
            continue
        graph = case_graph(spec, case)
        drawn = draw(graph, case)
        grids = {n: grid(x) for n, x in drawn.items()} | {"y0": grid(run_float(graph, drawn)[0])}
        layer = build_layer(spec, graph, grids)
        weight = layer.tensors["weight"].astype(np.int64)
        channels = layer.tensors["bias"].size
        axis = {"MatMul": weight.ndim - 1, "TransposeConvolution": 1}.get(name, 0)
        groups = channels // weight.shape[axis]
        parts = np.split(weight, groups) if groups > 1 else [weight]
        want = [
            np.abs(np.take(part, i, axis=axis)).sum()
            for part in parts
            for i in range(weight.shape[axis])
        ]
        np.testing.assert_array_equal(_reach(layer), want)


def test_samples_are_spread_and_no_more_than_memory_holds(monkeypatch):
    graph = residual_net()
    data = samples(graph, 10)
    asked = []

    class Watched(list):
        def __getitem__(self, index):
            asked.append(index)
            return super().__getitem__(index)

    correct_biases(graph, built(graph, data), Watched(data), BiasCorrection(4, 1, 0.5))
    assert set(asked) == {0, 2, 5, 7}
    asked.clear()
    monkeypatch.setattr(module, "SWEEP_BYTES", 1)
    correct_biases(graph, built(graph, data), Watched(data), BiasCorrection(4, 1, 0.5))
    assert set(asked) == {0}


def test_no_sample_or_no_rate_changes_nothing():
    graph = residual_net()
    data = samples(graph, 2)
    body = built(graph, data)
    assert correct_biases(graph, body, [], WHOLE) == 0
    assert correct_biases(graph, body, data, BiasCorrection(rate=0.0)) == 0


def test_progress_ends_at_its_total():
    graph = residual_net()
    data = samples(graph, 2)
    body = built(graph, data)
    seen = []
    correct_biases(
        graph, body, data, BiasCorrection(2, 3, 0.1), progress=lambda *now: seen.append(now)
    )
    total = 3 * len(body.layers)
    assert seen == [(i + 1, total) for i in range(total)]


def test_the_settings_come_from_the_configuration():
    assert BiasCorrection.from_config(CompileConfig()) is None
    data = {"apply": True, "attributes": {"numSamples": 7, "iterations": 2, "correctionRate": 0.5}}
    read = CompileConfig.from_data({"layerBiasCorrection": data})
    assert BiasCorrection.from_config(read) == BiasCorrection(7, 2, 0.5)


def test_the_bodys_inputs_come_from_the_head():
    net = Net()
    head = net.finish(net.conv("c", net.input("x", 1, 3, 6, 6), 2))
    data = samples(head, 3)
    inputs = BodyInputs(head, ["c.out"], data)
    assert len(inputs) == 3
    want = FloatEngine(head, ["c.out"]).run(data[1])["c.out"]
    np.testing.assert_array_equal(inputs[1]["c.out"], want)
    assert BodyInputs(None, ["x"], data)[2]["x"] is data[2]["x"]
