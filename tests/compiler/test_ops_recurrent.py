"""Recurrent layers in integers: what is left of the error once the weights are on their grid."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qbcompiler import mxq_compile
from qbcompiler.codegen.work import list_work
from qbcompiler.devices import load_device
from qbcompiler.frontend import load_model, parse
from qbcompiler.ir import Graph, QuantParams
from qbcompiler.ops import Case, OpSpec, default_registry
from qbcompiler.ops.fixedpoint import dequantize, quantize
from qbcompiler.ops.recurrent_integer import MAX_STATE
from qbcompiler.package import read_mxq
from qbcompiler.partition import partition
from qbcompiler.runtime.kernels import ExactKernels

from ..support import zoo
from .ops_harness import build_layer, case_graph, draw, grid, run_float, run_layer
from .reference_kernels import ReferenceKernels

REGISTRY = default_registry()
CASES = [
    pytest.param(REGISTRY[name], case, id=f"{name}-{case.id}")
    for name in ("LSTM", "GRU", "RNN")
    for case in REGISTRY[name].cases()
]


def prepared(spec: OpSpec[Any], case: Case, zero_point: bool = False) -> tuple[Any, ...]:
    graph = case_graph(spec, case)
    drawn = draw(graph, case)
    grids: dict[str, QuantParams] = {"x0": grid(drawn["x0"], zero_point=zero_point)}
    grids["y0"] = grid(run_float(graph, drawn)[0], zero_point=zero_point)
    return graph, grids, quantize(drawn["x0"], grids["x0"]), build_layer(spec, graph, grids)


@pytest.mark.parametrize("zero_point", [False, True], ids=["symmetric", "zero_point"])
@pytest.mark.parametrize("spec,case", CASES)
def test_nothing_but_the_weights_is_rounded_noticeably(
    spec: OpSpec[Any], case: Case, zero_point: bool
) -> None:
    graph, grids, x, layer = prepared(spec, case, zero_point)
    found = run_layer(spec, layer, graph, grids, {"x0": x})[0]
    form = spec.real_form(layer, grids)
    exact = dataclasses.replace(case, inputs=[case.inputs[0], *form.inputs[1:]])  # type: ignore[union-attr]
    real = {"x0": dequantize(x, grids["x0"])}
    out = grids["y0"]
    steps = run_float(case_graph(spec, exact), real)[0] / out.scale + out.zero_point
    assert np.abs(found - np.clip(steps, -128, 127)).max() <= 0.75


@pytest.mark.parametrize("spec,case", CASES)
def test_kernels_agree(spec: OpSpec[Any], case: Case) -> None:
    graph, grids, x, layer = prepared(spec, case)
    first = run_layer(spec, layer, graph, grids, {"x0": x}, ReferenceKernels())[0]
    again = run_layer(spec, layer, graph, grids, {"x0": x}, ExactKernels())[0]
    np.testing.assert_array_equal(first, again)


def test_huge_weights_saturate_and_nothing_overflows() -> None:
    spec = REGISTRY["LSTM"]
    case = spec.cases()[0]
    shape, w, r, b = (np.asarray(c) if i else c for i, c in enumerate(case.inputs))
    w, r, b = np.full_like(w, 1e6), np.full_like(r, 1e6), np.zeros_like(b)
    grids = {"x0": QuantParams((4 / 127,)), "y0": QuantParams((1 / 127,))}
    # gates shut: no state; all open: the cell counts the steps, and the state is its tanh
    counted = np.rint(127 * np.tanh(np.arange(1.0, 7.0)))
    for sign, expected in ((-1, np.zeros(6)), (1, counted)):
        case = dataclasses.replace(case, inputs=[shape, sign * w, r, b])
        graph = case_graph(spec, case)
        layer = build_layer(spec, graph, grids)
        x = np.full(graph.values["x0"].shape, 127, np.int8)
        found = run_layer(spec, layer, graph, grids, {"x0": x})[0]
        assert np.abs(found[:, 0] - expected[:, None, None]).max() <= 1


def test_a_state_too_wide_and_weights_that_vary_have_no_integer_form() -> None:
    spec = REGISTRY["RNN"]
    graph = case_graph(spec, spec.cases()[0])
    node = graph.nodes[0]
    wide = dataclasses.replace(node.attrs, hidden=MAX_STATE + 1)  # type: ignore[type-var]
    node.attrs = wide
    assert spec.unsupported(node, graph) == "its state has 1001 units, more than 1000"
    graph.values["x2"].data = None
    assert spec.unsupported(node, graph) == "'x2' is not constant"
    graph.values["x1"].data = np.full(graph.values["x1"].shape, np.nan, np.float32)
    reason = spec.unsupported(node, graph)
    assert reason == "its constant 'x1' holds a value that is not finite"


def recurrent(model: Any, **shapes: tuple[int, ...]) -> Graph:
    return parse(load_model(model), input_shapes=shapes)


@pytest.mark.parametrize("device", ["aries-rb", "regulus-rb"])
def test_recurrent_networks_need_no_cpu(device: str) -> None:
    for graph in (recurrent(zoo.lstm()), recurrent(zoo.gru(), x=(10, 1, 8))):
        parts = partition(graph, load_device(device), cpu_offload=False)
        assert parts.head is None and parts.tail is None


def test_a_device_without_curves_says_so() -> None:
    parts = partition(recurrent(zoo.lstm()), load_device("regulus-ra"), cpu_offload=True)
    reasons = {r.reason for r in parts.unsupported if r.op == "LSTM"}
    assert reasons == {
        "regulus-ra has no multi-function unit, and this operator gates with a sigmoid"
    }


def test_the_estimate_counts_every_step() -> None:
    graph = recurrent(zoo.gru(), x=(10, 1, 8))
    (work,) = (w for w in list_work(graph, channel_alignment=64) if w.op == "GRU")
    assert work.kind == "matrix" and work.macs == 10 * (24 * 8 + 24 * 8) and work.whole


def test_a_network_compiles_and_stays_close(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rng = np.random.default_rng(1)
    for i in range(16):
        np.save(data / f"{i:02}.npy", rng.normal(size=(1, 12, 8)).astype(np.float32))
    output = tmp_path / "lstm.mxq"
    built = mxq_compile(
        zoo.lstm(), calib_data_path=str(data), target_device="regulus-rb", save_path=output
    )
    assert min(o["sqnr_db"] for o in outputs(built.summary["accuracy"])) > 25
    with read_mxq(output) as opened:
        assert [layer.op for layer in opened.body.layers].count("LSTM") == 2
        assert opened.head is None and opened.tail is None


def outputs(accuracy: Any) -> list[dict[str, Any]]:
    found = accuracy["outputs"]
    return list(found.values()) if isinstance(found, dict) else list(found)
