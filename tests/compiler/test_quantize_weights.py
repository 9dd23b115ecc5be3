"""Weight scales and rounding by output error: right sums, right rounding, the same everywhere."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from qbcompiler import mxq_compile
from qbcompiler.config import CompileConfig
from qbcompiler.ops import default_registry
from qbcompiler.ops.common import centre, span_of
from qbcompiler.ops.weights import ACC_LIMIT
from qbcompiler.quantization import (
    BiasCorrection,
    WeightMethods,
    apply_plan,
    correct_biases,
    gram,
    improve_weights,
    plan_grids,
    quantize,
)
from qbcompiler.quantization.bias_correction import _reach
from qbcompiler.quantization.gram import gram_of, view_of
from qbcompiler.quantization.weight_rounding import (
    FACTORS,
    best_factor,
    damped,
    decompose,
    round_with_feedback,
    squared_error,
)
from qbcompiler.runtime import IntegerEngine
from qbcompiler.runtime.float_engine import FloatEngine
from qbcompiler.runtime.kernels import ExactKernels

from .ops_harness import build_layer, case_graph, draw, grid, run_float
from .quant_nets import Net, observe, residual_net, samples

SEARCH, FEEDBACK = WeightMethods(search_scales=True), WeightMethods(feedback=True)
BOTH = WeightMethods(search_scales=True, feedback=True)


def correlated(size, rows=400, rank=3, seed=0):
    """Vectors whose elements go together, as those of an image's window do."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, size))
    return np.rint(40 * (common + 0.2 * rng.normal(size=(rows, size)))).clip(-128, 127)


def gptq(w, h, qmax):
    """Round as the GPTQ paper's algorithm 1 says: Cholesky of the inverse, column by column."""
    w = w.copy()
    upper = np.linalg.cholesky(np.linalg.inv(h)).T
    found = np.empty_like(w)
    for j in range(w.shape[1]):
        found[:, j] = np.clip(np.rint(w[:, j]), -qmax, qmax)
        error = (w[:, j] - found[:, j]) / upper[j, j]
        w[:, j:] -= error[:, None] * upper[j, j:]
    return found


def dense(net, x, outputs):
    width = net.graph.values[x].shape[-1]
    w = net.const("w", net.rng.normal(size=(width, outputs)).astype(np.float32))
    return net.layer("MatMul", "m", [x, w])


def moved_net(outputs=8):
    """A convolution of smooth pictures: its inputs are strongly correlated."""
    net = Net()
    graph = net.finish(net.conv("scores", net.input("x", 1, 4, 12, 12), outputs))
    return graph


def smooth(graph, count=6, seed=5):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        low = rng.normal(size=(1, 1, 3, 3))
        x = np.kron(low, np.ones((1, 1, 4, 4))) + 0.1 * rng.normal(size=(1, 4, 12, 12))
        found.append({"x": x.astype(np.float32)})
    return found


def built(graph, data, bits=8, **calibration):
    names = {4: "weight4Bits", 8: "weight8Bits", 16: "weight16Bits"}
    settings = {"calibration": calibration, "bit": {"layerOverrides": {names[bits]: ["*"]}}}
    return quantize(graph, observe(graph, data), CompileConfig.from_data(settings))


def output_error(graph, body, data, name=None):
    name = name or graph.outputs[0]
    engine, exact = IntegerEngine(body), FloatEngine(graph, [name])
    return sum(
        float(((engine.run(x, outputs=[name])[name] - exact.run(x)[name]) ** 2).sum()) for x in data
    )


# -- sums -----------------------------------------------------------------------------------


def linear_cases():
    for name in ("Convolution", "DepthwiseConvolution", "GroupConvolution", "Convolution3d"):
        for case in default_registry()[name].cases():
            yield pytest.param(name, case, id=f"{name}-{case.id}")
    for case in default_registry()["MatMul"].cases():
        if isinstance(case.inputs[1], np.ndarray) and case.inputs[1].ndim == 2:
            yield pytest.param("MatMul", case, id=f"MatMul-{case.id}")
    case = next(c for c in default_registry()["TransposeConvolution"].cases() if c.id == "2x2")
    yield pytest.param("TransposeConvolution", case, id="TransposeConvolution-2x2")


def layer_of(name, case, bits=8):
    spec = default_registry()[name]
    graph = case_graph(spec, case)
    drawn = draw(graph, case)
    grids = {n: grid(x) for n, x in drawn.items()} | {"y0": grid(run_float(graph, drawn)[0])}
    layer = build_layer(spec, graph, grids)
    return layer, grids[layer.inputs[0]], drawn[layer.inputs[0]]


@pytest.mark.parametrize(("name", "case"), list(linear_cases()))
@pytest.mark.parametrize("most", [gram.MAX_COLUMNS, 1])
def test_the_gram_matrix_tells_what_a_change_of_weights_does_to_the_output(
    name, case, most, monkeypatch
):
    """``E H E^T`` is the sum of the squares of what the layer makes of ``E``, exactly."""
    monkeypatch.setattr(gram, "MAX_COLUMNS", most)
    layer, quant, x = layer_of(name, case)
    rng = np.random.default_rng(1)
    x = rng.integers(-128, 128, size=x.shape).astype(np.int8)
    view = view_of(layer)
    weight = layer.tensors["weight"]
    np.testing.assert_array_equal(view.weight(view.blocks(weight)), weight)
    grams = gram_of(layer, view, [x], quant, 1).sums
    starts = (0, *view.cuts[:-1])
    for index, (start, stop) in enumerate(zip(starts, view.cuts, strict=True)):
        change = rng.integers(-3, 4, size=weight.shape).astype(np.int8)
        blocks = view.blocks(change)
        kept = [b if i == index else np.zeros_like(b) for i, b in enumerate(blocks)]
        assert blocks[index].shape[2] == (stop - start) * view.positions
        part = view.weight(kept).astype(np.int8)
        y = run_linear(layer, centre(x, quant), part)
        axis = y.ndim - 1 if name == "MatMul" else 1
        want = (y**2).sum(axis=tuple(i for i in range(y.ndim) if i != axis))
        got = view.by_channel((np.matmul(kept[index], grams[index]) * kept[index]).sum(axis=2))
        np.testing.assert_array_equal(got, want)


def run_linear(layer, x, weight):
    kernels = ExactKernels()
    if layer.op == "MatMul":
        return kernels.matmul(x, weight)
    names = ["strides", "pads", "dilations", "groups"]
    if layer.op == "TransposeConvolution":
        names.append("output_padding")
    run = kernels.conv_transpose if layer.op == "TransposeConvolution" else kernels.conv
    return run(x, weight, **{n: layer.attrs[n] for n in names})


def test_every_transposed_convolution_keeps_its_weights_in_order():
    for case in default_registry()["TransposeConvolution"].cases():
        layer, _, _ = layer_of("TransposeConvolution", case)
        view = view_of(layer)
        weight = layer.tensors["weight"]
        np.testing.assert_array_equal(view.weight(view.blocks(weight)), weight)
        channels = np.arange(layer.tensors["bias"].size, dtype=np.float64)
        spread = view.by_row(channels)[:, :, 0]
        positions = int(np.prod(weight.shape[2:]))
        np.testing.assert_array_equal(view.by_channel(spread), channels * positions)


def test_of_many_positions_some_are_taken_evenly(monkeypatch):
    layer, quant, x = layer_of("Convolution", default_registry()["Convolution"].cases()[1])
    monkeypatch.setattr(gram, "_MIN_ROWS", 10)
    monkeypatch.setattr(gram, "_ROWS_PER_COLUMN", 0)
    view = view_of(layer)
    x = np.ones(x.shape, np.int8)
    few = gram_of(layer, view, [x, x], quant, 2)
    assert few.vectors == 10
    few = few.sums[0]
    centred = 1 - quant.zero_point
    np.testing.assert_array_equal(few, np.full_like(few, 10 * centred**2))


def test_few_vectors_say_little_of_what_is_off_the_diagonal():
    sums = np.array([[[4.0, 2.0], [2.0, 8.0]]])
    kept = gram.Gram([sums], [np.zeros((1, 1, 2))], 6).shrunk()[0]
    np.testing.assert_allclose(kept, [[[4.0, 1.5], [1.5, 8.0]]])


# -- rounding -------------------------------------------------------------------------------


@pytest.mark.parametrize("qmax", [7, 127])
@pytest.mark.parametrize("block", [1, 5, 256])
def test_rounding_with_feedback_is_gptq(qmax, block):
    rng = np.random.default_rng(2)
    vectors = correlated(24)
    h = damped((vectors.T @ vectors)[None], 0.01)
    w = rng.uniform(-qmax, qmax, size=(1, 10, 24))
    got = round_with_feedback(w, decompose(h), qmax, block)
    want = gptq(w[0], h[0], qmax)
    assert (got[0] != want).mean() < 0.005  # the last bits of a Cholesky decomposition
    assert np.abs(got).max() <= qmax


def test_blocks_do_not_change_the_result():
    rng = np.random.default_rng(3)
    vectors = correlated(64)
    parts = decompose(damped((vectors.T @ vectors)[None], 0.01))
    w = rng.uniform(-7, 7, size=(1, 50, 64))
    found = {round_with_feedback(w, parts, 7, b).tobytes() for b in (1, 3, 16, 64, 1000)}
    assert len(found) == 1


def test_the_decomposition_gives_the_matrix_back():
    vectors = correlated(20)
    h = damped(np.stack([vectors.T @ vectors, np.eye(20)]), 0.05)
    upper = decompose(h).feedback + np.eye(20)
    middle = np.linalg.inv(upper) @ h @ np.linalg.inv(upper).transpose(0, 2, 1)
    off = middle - np.einsum("bij,ij->bij", middle, np.eye(20))
    assert np.abs(off).max() < 1e-9 * np.abs(h).max()


def test_columns_with_large_inputs_may_come_first():
    rng = np.random.default_rng(4)
    vectors = correlated(16) * np.array([1, 8] * 8)
    h = damped((vectors.T @ vectors)[None], 0.01)
    parts = decompose(h, by_size=True)
    assert (np.diff(np.diagonal(h[0])[parts.order[0]]) <= 0).all()
    w = rng.uniform(-7, 7, size=(1, 30, 16))
    got = round_with_feedback(w, parts, 7, 256)
    order = parts.order[0]
    plain = round_with_feedback(w[:, :, order], decompose(h[:, order][:, :, order]), 7, 256)
    np.testing.assert_array_equal(got[:, :, order], plain)


def test_feedback_leaves_less_error_than_rounding_to_nearest():
    rng = np.random.default_rng(6)
    vectors = correlated(32)
    h = (vectors.T @ vectors)[None]
    w = rng.uniform(-7, 7, size=(1, 40, 32))
    got = round_with_feedback(w, decompose(damped(h, 0.01)), 7, 256)
    before, after = squared_error(w - np.rint(w), h).sum(), squared_error(w - got, h).sum()
    assert after < 0.25 * before


def test_an_input_that_is_always_zero_decides_nothing():
    h = np.zeros((1, 4, 4))
    w = np.array([[[0.4, 1.6, -2.4, 3.0]]])
    got = round_with_feedback(w, decompose(damped(h, 0.01)), 7, 256)
    np.testing.assert_array_equal(got, np.rint(w))


def test_the_scale_with_the_least_error_is_taken():
    """One large weight that meets a small input, among small weights that meet large ones."""
    rng = np.random.default_rng(8)
    net = Net()
    graph = net.finish(net.conv("scores", net.input("x", 1, 4, 12, 12), 3, kernel=1))
    weight = graph.values["scores.w"].data
    weight[:] = rng.normal(size=weight.shape) * 0.05
    weight[:, 0] = 1.0
    data = [
        {"x": (x["x"] * np.array([0.02, 1, 1, 1]).reshape(1, 4, 1, 1)).astype(np.float32)}
        for x in samples(graph, 4)
    ]
    body = built(graph, data, bits=4)
    layer = body.layers[0]
    first = layer.tensors["weight_scale"].astype(np.float64)
    before = output_error(graph, body, data)
    view = view_of(layer)
    quantized = [IntegerEngine(body).run(x, outputs=["x"], integers=True)["x"] for x in data]
    sums = gram_of(layer, view, quantized, body.values["x"].quant, len(data))
    h = sums.centred().shrunk()[0][0]
    rows = weight.reshape(3, 4).astype(np.float64)
    want = []
    for row, scale in zip(rows, first, strict=True):
        errors = []
        for factor in FACTORS:
            step = scale * factor
            e = row - np.clip(np.rint(row / step), -7, 7) * step
            errors.append(float(e @ h @ e))
        want.append(FACTORS[int(np.argmin(errors))])
    changes = improve_weights(graph, body, data, SEARCH)
    np.testing.assert_allclose(layer.tensors["weight_scale"] / first, want, rtol=1e-3)
    assert min(want) < 1.0
    assert changes[0].gain_db > 1
    assert output_error(graph, body, data) < 0.8 * before


def test_the_largest_of_equal_scales_is_taken():
    assert best_factor([np.array([2.0, 1.0]), np.array([2.0, 0.5])]).tolist() == [0, 1]


# -- layers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "methods"),
    [(4, SEARCH), (4, FEEDBACK), (8, FEEDBACK), (4, BOTH), (8, BOTH)],
    ids=["search-4", "feedback-4", "feedback-8", "both-4", "both-8"],
)
def test_each_method_lowers_the_error_of_weights(bits, methods):
    graph = moved_net()
    data = smooth(graph)
    wide = {"x": 16, "scores.out": 16}  # so that the weights' error is what there is
    plan = plan_grids(graph, observe(graph, data).ranges, bits=wide)
    body = apply_plan(graph, plan, weight_bits=lambda node: bits)
    before = output_error(graph, body, data)
    changes = improve_weights(graph, body, data, methods)
    after = output_error(graph, body, data)
    assert after < before
    if methods.feedback:
        assert after < 0.5 * before
        assert changes[0].changed > 0.02
    assert changes[0].gain_db > 0.5


@pytest.mark.parametrize("method", [0, 2])
@pytest.mark.parametrize("methods", [SEARCH, FEEDBACK], ids=["search", "feedback"])
def test_the_mean_of_what_rounding_takes_away_goes_into_the_bias(method, methods):
    """Inputs far from 0: without it, a channel would move by the sum of its weights' errors."""
    net = Net()
    graph = net.finish(dense(net, net.input("x", 1, 30, 24), 10))
    data = [{"x": np.abs(x["x"]) + np.float32(2)} for x in samples(graph, 8)]
    wide = {"x": 16, "m.out": 16}
    plan = plan_grids(
        graph,
        observe(graph, data).ranges,
        bits=wide,
        method_of=lambda n: method,
        input_method=method,
    )
    shifts = []
    for body in (apply_plan(graph, plan, weight_bits=lambda node: 4) for _ in range(2)):
        if shifts:
            improve_weights(graph, body, data, methods)
        engine, exact = IntegerEngine(body), FloatEngine(graph)
        off = [engine.run(x)["m.out"] - exact.run(x)["m.out"] for x in data]
        shifts.append(np.abs(np.mean(off, axis=(0, 1, 2))).max())
    assert shifts[1] < 0.01 * shifts[0]


def test_centred_sums_are_the_covariance():
    layer, quant, x = layer_of("Convolution", default_registry()["Convolution"].cases()[0])
    view = view_of(layer)
    x = np.random.default_rng(0).integers(0, 100, size=x.shape).astype(np.int8)
    found = gram_of(layer, view, [x, x], quant, 2)
    rows = gram._rows(layer, view, centre(x, quant).astype(np.float64), 10**6)[0]
    want = 2 * len(rows) * np.cov(rows.T, bias=True)
    np.testing.assert_allclose(found.centred().sums[0][0], want, atol=1e-6 * np.abs(want).max())


def test_16_bit_weights_are_rounded_too():
    graph = moved_net()
    data = smooth(graph)
    body = built(graph, data, bits=16)
    changes = improve_weights(graph, body, data, FEEDBACK)
    layer = body.layers[0]
    assert layer.tensors["weight"].dtype == np.int16 and layer.tensors["bias"].dtype == np.int64
    assert changes[0].gain_db > 3


@pytest.mark.parametrize("method", [0, 2])
def test_a_whole_network_keeps_closer_to_float_with_4_bit_weights(method):
    graph = residual_net(8)
    data = samples(graph, 8)
    plain, better = built(graph, data, 4, method=method), built(graph, data, 4, method=method)
    changes = improve_weights(graph, better, data, BOTH)
    assert output_error(graph, better, data) < 0.6 * output_error(graph, plain, data)
    assert [c.layer for c in changes] == ["c1", "c2", "c3", "scores"]
    fresh = samples(graph, 8, seed=77)
    assert output_error(graph, better, fresh) < 0.95 * output_error(graph, plain, fresh)


def test_each_layer_is_measured_with_what_its_predecessors_give(monkeypatch):
    """The second layer's Gram matrix is that of the first layer's new outputs."""
    graph = residual_net(8)
    data = samples(graph, 3)
    body = built(graph, data, 4)
    seen = {}
    whole = gram.gram_of

    def watched(layer, view, inputs, quant, count):
        inputs = list(inputs)
        seen[layer.name] = inputs
        return whole(layer, view, inputs, quant, count)

    monkeypatch.setattr("qbcompiler.quantization.weight_methods.gram_of", watched)
    improve_weights(graph, body, data, FEEDBACK)
    engine = IntegerEngine(body)
    for layer in body.layers:
        if layer.name in seen:
            want = [
                engine.run(x, outputs=[layer.inputs[0]], integers=True)[layer.inputs[0]]
                for x in data
            ]
            for a, b in zip(seen[layer.name], want, strict=True):
                np.testing.assert_array_equal(a, b)
    assert len(seen) == 4


def test_an_accumulator_keeps_its_room():
    """Weights at the accumulator's limit: whatever rounds up must not overflow."""
    net = Net()
    x = net.input("x", 1, 8, 6, 6)
    graph = net.finish(net.conv("scores", x, 4))
    graph.values["scores.b"].data[:] = 3e6
    data = samples(graph, 2)
    body = built(graph, data)
    improve_weights(graph, body, data, BOTH)
    layer = body.layers[0]
    span = span_of(body.values["x"].quant)
    total = _reach(layer) * span + np.abs(layer.tensors["bias"].astype(np.int64))
    assert (total <= ACC_LIMIT).all()


def test_what_cannot_be_treated_is_left_and_named():
    net = Net()
    x = net.input("x", 2, 3, 4)
    w = net.const("w", net.rng.normal(size=(2, 4, 5)).astype(np.float32))
    graph = net.finish(net.layer("MatMul", "m", [x, w]))
    data = samples(graph, 2)
    body = built(graph, data)
    before = body.layers[0].tensors["weight"].copy()
    (change,) = improve_weights(graph, body, data, BOTH)
    assert change.as_dict() == {
        "layer": "m",
        "operator": "MatMul",
        "reason": "its weights are a batch of matrices",
    }
    np.testing.assert_array_equal(body.layers[0].tensors["weight"], before)


def test_no_sample_changes_nothing():
    graph = moved_net()
    body = built(graph, smooth(graph))
    assert improve_weights(graph, body, [], BOTH) == []


def test_it_combines_with_bias_correction():
    graph = residual_net(8)
    data = samples(graph, 8)
    body = built(graph, data, 4, method=2)
    improve_weights(graph, body, data, BOTH)
    before = output_error(graph, body, data)
    assert correct_biases(graph, body, data, BiasCorrection(8, 1, 1.0)) > 0
    assert output_error(graph, body, data) < before


# -- the same everywhere --------------------------------------------------------------------

_SCRIPT = """
import hashlib, sys
from tests.compiler.test_quantize_weights import BOTH, built, improve_weights, residual_net, samples
graph = residual_net(8)
data = samples(graph, 6)
body = built(graph, data, 4, method=2)
improve_weights(graph, body, data, BOTH, threads=int(sys.argv[1]))
digest = hashlib.sha256()
for layer in body.layers:
    for name in sorted(layer.tensors):
        digest.update(layer.tensors[name].tobytes())
print(digest.hexdigest())
"""


def test_threads_do_not_count():
    """Neither the engine's threads nor those of NumPy's matrix products."""
    found = set()
    for threads in ("1", "2", "4"):
        limits = dict.fromkeys(
            ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads
        )
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, threads],
            cwd=Path(__file__).parents[2],
            env={**os.environ, **limits},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout.strip())
    assert len(found) == 1 and len(found.pop()) == 64


def test_a_build_reports_it_and_repeats_it(digits_cnn, digits, tmp_path):
    """Whole builds: the same bytes with and without kept statistics, another file than plain."""
    data = tmp_path / "data"
    data.mkdir()
    for index in range(8):
        np.save(data / f"{index}.npy", digits.train_images[index : index + 1])
    digests = {}
    kept = str(tmp_path / "cache")
    settings = {
        "hessianQuant": {"apply": True},
        "searchWeightScale": {"apply": True},
        "layerBiasCorrection": {"apply": True, "attributes": {"iterations": 1, "numSamples": 4}},
    }
    for name, more in (
        ("plain", {"cache_dir": kept}),
        ("new", {"compile_config": settings, "cache_dir": kept}),
        ("again", {"compile_config": settings}),
    ):
        path = tmp_path / f"{name}.mxq"
        mxq_compile(
            model=str(digits_cnn),
            calib_data_path=str(data),
            input_shape_dict={"image": (1, 1, 8, 8)},
            save_path=str(path),
            report_path=str(path.with_suffix(".json")),
            target_device="regulus-rb",
            **more,
        )
        digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digests["new"] == digests["again"] != digests["plain"]
    report = json.loads((tmp_path / "new.json").read_text())
    rows = report["refined"]["weights"]
    linear = [x for x in report["layers"] if x["weights"]]
    assert {r["layer"] for r in rows} == {x["name"] for x in linear}
    assert np.mean([r["gain_db"] for r in rows]) > 1
    assert report["refined"]["biases"] > 0
    assert json.loads((tmp_path / "plain.json").read_text())["refined"] == {}


def test_the_settings_come_from_the_configuration():
    assert WeightMethods.from_config(CompileConfig()) is None
    read = CompileConfig.from_data(
        {
            "hessianQuant": {
                "apply": True,
                "attributes": {"actOrder": True, "blockSize": 64, "percDamp": 0.1},
            }
        }
    )
    assert WeightMethods.from_config(read) == WeightMethods(False, True, True, 64, 0.1)
    read = CompileConfig.from_data({"searchWeightScale": {"apply": True}})
    assert WeightMethods.from_config(read) == WeightMethods(True, False)
