"""Attention masks: what stands for minus infinity does not take the scores' grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qbcompiler.ir import NoAttrs
from qbcompiler.ops.slicing import AxisAttrs
from qbcompiler.quantization import Difference, quantize
from qbcompiler.runtime import IntegerEngine
from qbcompiler.runtime.float_engine import FloatEngine

from .quant_nets import Net, config, observe

TOKENS = 12


def attention(*, read: bool = False, relu: bool = False) -> Any:
    """Scores, one mask for all heads, softmax, mixing."""
    net = Net()
    q, kt, v = (
        net.input(n, 1, 3, *size) for n, size in (("q", (12, 8)), ("kt", (8, 12)), ("v", (12, 8)))
    )
    mask = net.input("mask", 1, 1, 1, TOKENS)
    scores = net.layer("MatMul", "scores", [q, kt])
    masked = net.layer("Adding", "masked", [mask, scores] if relu else [scores, mask])
    last = net.layer("Relu" if relu else "Softmax", "s", [masked], None if relu else AxisAttrs(3))
    outputs = [net.layer("MatMul", "mixed", [last, v])]
    if read:
        outputs.append(net.layer("Relu", "reader", [mask], NoAttrs()))
    return net.finish(*outputs)


def data(graph: Any, deep: float, count: int = 4) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    found = []
    for index in range(count):
        sample = {
            n: rng.normal(size=graph.values[n].shape).astype(np.float32) for n in ("q", "kt", "v")
        }
        mask = np.zeros((1, 1, 1, TOKENS), np.float32)
        mask[..., TOKENS - 1 - 2 * index :] = deep
        found.append({**sample, "mask": mask})
    return found


@pytest.mark.parametrize("method", [0, 1, 2, 3])
@pytest.mark.parametrize("deep", [-1e4, -1e9, float(np.finfo(np.float32).min)])
def test_a_mask_costs_the_scores_little(deep: float, method: int) -> None:
    graph = attention()
    samples = data(graph, deep)
    body = quantize(graph, observe(graph, samples), config(method=method))
    engine, exact = IntegerEngine(body), FloatEngine(graph)
    found = Difference()
    for x in samples:
        found.add(exact.run(x)["mixed.out"], engine.run(x)["mixed.out"])
        shares = engine.run(x, outputs=["s.out"])["s.out"]
        assert shares[..., x["mask"].reshape(-1) < 0].max() <= 1e-3  # what is masked stays so
    assert found.sqnr_db > 28


def test_what_else_reads_the_mask_keeps_its_numbers() -> None:
    graph = attention(read=True)
    body = quantize(graph, observe(graph, data(graph, -1e4)), config(method=2))
    mask = body.values["mask"].quant
    assert (mask.qmin - mask.zero_point) * mask.scale == pytest.approx(-1e4, rel=0.01)


@pytest.mark.parametrize(("deep", "relu"), [(-20.0, False), (-1e4, True)])
def test_no_other_sum_is_narrowed(deep: float, relu: bool) -> None:
    graph = attention(relu=relu)
    seen = observe(graph, data(graph, deep))
    if relu:  # its input would take the clamp's grid otherwise
        graph.outputs.append("masked.out")
    body = quantize(graph, seen, config(method=2))
    low = seen.ranges["masked.out"][0]
    grid = body.values["masked.out"].quant
    assert (grid.qmin - grid.zero_point) * grid.scale == pytest.approx(low, rel=0.02)
