"""Networks of every usual kind: each scheme's program is sound and gives the graph's bits."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qbcompiler.codegen import generate_all
from qbcompiler.devices import load_device
from qbcompiler.frontend import load_model, parse
from qbcompiler.ir import Graph
from qbcompiler.ir.verify_program import verify_program
from qbcompiler.partition import partition
from qbcompiler.quantization import quantize
from qbcompiler.runtime import IntegerEngine
from qbcompiler.runtime.float_engine import FloatEngine
from qbcompiler.runtime.program_engine import ProgramEngine

from .quant_nets import config, observe
from .test_model_kinds import BUILT, parsed

SCHEMES = ("single", "multi", "global4", "global8")


def check(graph: Graph, feed: dict[str, Any], on_chip: int) -> None:
    device = load_device("aries-rb")
    cut = partition(graph, device, cpu_offload=True)
    assert cut.body is not None
    known = dict(feed)
    if cut.head is not None:
        known.update(FloatEngine(cut.head).run({n: known[n] for n in cut.head.inputs}))
    sample = {n: known[n] for n in cut.body.inputs}
    integers = quantize(cut.body, observe(cut.body, [sample]), config())
    want = IntegerEngine(integers).run(sample, integers=True)
    memory = device.memory.model_copy(update={"on_chip_bytes": on_chip})
    small = device.model_copy(update={"memory": memory})
    for scheme, program in generate_all(cut.body, small, SCHEMES, integers=integers).items():
        assert verify_program(program, integers) == []
        assert program.chip_size <= on_chip
        engine = ProgramEngine(integers, program, backwards=scheme == "global8")
        got = engine.run(sample, integers=True)
        assert all(np.array_equal(got[n], want[n]) for n in want), scheme


@pytest.mark.parametrize("name", BUILT)
def test_every_scheme_gives_the_bits_of_every_kind_of_network(name: str) -> None:
    make, feed = BUILT[name]
    sample = feed()
    check(parsed(make(), sample), sample, 16384)


def test_every_scheme_gives_the_bits_of_a_trained_network(models_dir: Path) -> None:
    shape = (1, 3, 48, 192)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = parse(load_model(models_dir / "ppocrv4_cls.onnx"), input_shapes={"x": shape})
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    check(graph, {"x": x}, 65536)
