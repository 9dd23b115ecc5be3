"""Transforms inside attention and gated blocks: the float function stays, channels are balanced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qbcompiler.ops.rotary import RotaryAttrs
from qbcompiler.ops.shapes import TransposeAttrs
from qbcompiler.ops.slicing import AxisAttrs
from qbcompiler.ops.views import HeaderViewAttrs
from qbcompiler.quantization import attention, equalize
from qbcompiler.quantization.equalize import Equalization
from qbcompiler.runtime.float_engine import FloatEngine

from .quant_nets import Net, samples
from .test_equalize import alone, dense, peaks_of, uneven
from .test_transformer_bits import compiled, sqnr

SPREAD = np.exp2(np.linspace(-3, 3, 16))


def block(*, rotary: bool = False, twice: bool = False) -> Any:
    """Attention with two heads of eight channels, and a gated block behind it."""
    net = Net()
    x = net.layer("Tanh", "start", [net.input("x", 1, 6, 16)])
    made = {name: dense(net, name, x, 16) for name in ("q", "k", "v")}
    uneven(net, "q", SPREAD, axis=1)
    uneven(net, "k", 1 / SPREAD, axis=1)
    uneven(net, "v", SPREAD, axis=1)
    for name, view in (("q", HeaderViewAttrs(2)), ("v", HeaderViewAttrs(2))):
        made[name + "h"] = net.layer("HeaderView", f"{name}.heads", [made[name]], view)
    key = made["k"]
    made["kh"] = net.layer(
        "HeaderView", "k.heads", [key], HeaderViewAttrs(2, transposed=not rotary)
    )
    if rotary:
        cos, sin = (net.const(n, net.rng.normal(size=(6, 8)).astype("f4")) for n in ("cos", "sin"))
        for name in ("qh", "kh"):
            made[name] = net.layer(
                "RotaryEmbedding", f"{name}.r", [made[name], cos, sin], RotaryAttrs()
            )
        made["kh"] = net.layer("Transpose", "turn", [made["kh"]], TransposeAttrs((0, 1, 3, 2)))
    scores = net.layer("MatMul", "scores", [made["qh"], made["kh"]])
    scaled = net.layer(
        "MultiplyConstant", "scaled", [scores, net.const("c", np.asarray(0.05, np.float32))]
    )
    share = net.layer("Softmax", "share", [scaled], AxisAttrs(3))
    mixed = net.layer("MatMul", "mixed", [share, made["vh"]])
    merged = net.layer("HeaderViewRevert", "merged", [mixed])
    y = dense(net, "o", merged, 16)
    if twice:
        y = net.layer("Adding", "again", [y, made["v"]])
    gate = net.layer("Swish", "gated", [dense(net, "gate", y, 16)])
    up = dense(net, "up", y, 16)
    uneven(net, "up", SPREAD, axis=1)
    product = net.layer("Multiply", "product", [gate, up])
    return net.finish(dense(net, "down", product, 8))


def ranges(graph: Any, names: list[str], data: Any) -> dict[str, Any]:
    """Return the largest magnitude of each channel, the last axis."""
    found: dict[str, Any] = {}
    for x in data:
        made = FloatEngine(graph, names).run(x)
        for name in names:
            peak = np.abs(made[name]).max(axis=tuple(range(made[name].ndim - 1)))
            found[name] = np.maximum(found.get(name, 0), peak.astype(np.float64))
    return found


def same_function(graph: Any, done: Equalization, data: Any) -> Any:
    changed = graph.with_constants(done.constants)
    name = graph.outputs[0]
    for x in data:
        before = FloatEngine(graph).run(x)[name]
        np.testing.assert_allclose(
            FloatEngine(changed).run(x)[name], before, atol=3e-5 * np.abs(before).max()
        )
    return changed


def unevenness(peaks: Any) -> float:
    return float(peaks.max() / np.exp(np.log(peaks).mean()))


def test_the_parts_of_attention_are_found() -> None:
    found = attention.find_attention(block(), alone)
    assert [
        (a.name, a.query.name, a.key.name, a.value.name, a.output.name, a.heads) for a in found
    ] == [("scores", "q", "k", "v", "o", 2)]


@pytest.mark.parametrize("which", ["vo", "ud"])
def test_a_link_balances_what_its_reader_reads(which: str) -> None:
    graph = block()
    data = samples(graph, 5)
    if which == "vo":
        links = attention.find_value_links(attention.find_attention(graph, alone))
        expected = ("v.out", "merged.out", "o")
    else:
        links = attention.find_up_links(graph, alone, 1.0)
        expected = ("up.out", "product.out", "down")
    assert [(x.made, x.read, x.readers[0].name) for x in links] == [expected]
    done = equalize(graph, links, peaks_of(graph, links, data))
    changed = same_function(graph, done, data)
    read = expected[1]
    before = unevenness(ranges(graph, [read], data)[read])
    assert unevenness(ranges(changed, [read], data)[read]) < 0.7 * before


def test_smoothing_says_how_much_of_a_range_moves() -> None:
    graph = block()
    data = samples(graph, 5)
    left = []
    for smoothing in (0.0, 0.5, 1.0):
        links = attention.find_up_links(graph, alone, smoothing)
        done = equalize(graph, links, peaks_of(graph, links, data))
        changed = graph.with_constants(done.constants)
        left.append(unevenness(ranges(changed, ["product.out"], data)["product.out"]))
    assert left[0] > 1.5 * left[1] and left[1] > left[2]
    assert left[2] < 1.3  # all of it, but for the limits of factors and their steps


def test_query_and_key_get_the_same_ranges() -> None:
    graph = block()
    data = samples(graph, 5)
    names = ["q.out", "k.out"]
    before = ranges(graph, names, data)
    done = Equalization()
    found = attention.find_attention(graph, alone)
    (row,) = attention.balance_scores(graph, found, before, done)
    assert row["layer"] == "scores" and row["largest_factor"] > 2
    changed = same_function(graph, done, data)
    after = ranges(changed, names, data)
    ratio = after["q.out"] / after["k.out"]
    np.testing.assert_allclose(ratio, ratio[0], rtol=2 ** (1 / 4))
    assert after["q.out"].max() * after["k.out"].max() < 0.5 * (
        before["q.out"].max() * before["k.out"].max()
    )


@pytest.mark.parametrize(
    ("rotate", "name"),
    [(attention.rotate_values, "v.out"), (attention.rotate_scores, "q.out")],
)
def test_a_rotation_spreads_a_wide_channel_over_its_head(rotate: Any, name: str) -> None:
    graph = block()
    data = samples(graph, 5)
    done = Equalization()
    assert rotate(graph, attention.find_attention(graph, alone), done) == ["scores"]
    changed = same_function(graph, done, data)
    before, after = (ranges(g, [name], data)[name].reshape(2, 8) for g in (graph, changed))
    for head in range(2):
        assert unevenness(after[head]) < 0.6 * unevenness(before[head])


def test_rotations_are_orthonormal_for_any_size() -> None:
    for size in (1, 6, 8, 24, 32):
        matrix = attention.hadamard(size)
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(size), atol=1e-12)
    assert (np.abs(attention.hadamard(6)) > 0).sum() == 12  # blocks of two


def test_what_is_read_elsewhere_or_encodes_positions_stays() -> None:
    (found,) = attention.find_attention(block(twice=True), alone)
    assert found.value is None and found.query is not None
    (found,) = attention.find_attention(block(rotary=True), alone)
    assert found.query is None and found.key is None and found.value is not None
    done = Equalization()
    assert attention.rotate_scores(block(rotary=True), [found], done) == []
    assert [r.layer for r in done.refused] == ["scores"] and not done.constants
    (found,) = attention.find_attention(block(), lambda name: name == "o.w")
    assert found.output is None and found.key is not None


NAMES = ("qk", "ud", "vo", "spinR2", "qkRotation")
ALL = {"equivalentTransformation": {name: {"apply": True} for name in NAMES}}


def test_a_build_reports_each_transform(digits_vit: Path, digits: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    result = compiled(digits_vit, digits, tmp_path / "a", ALL, report_path=path)
    report = json.loads(path.read_text())
    assert len(report["transforms"]["qk"]) == 3
    assert len(report["transforms"]["spinR2"]) == len(report["transforms"]["qkRotation"]) == 3
    assert sqnr(result) > 20


def test_a_transform_without_effect_is_told(digits_cnn: Path, digits: Any, tmp_path: Path) -> None:
    result = compiled(digits_cnn, digits, tmp_path / "a", ALL, samples=4)
    for name in NAMES:
        assert (
            f"equivalentTransformation.{name}: the model has nothing that it could change"
            in result.summary["warnings"]
        )
