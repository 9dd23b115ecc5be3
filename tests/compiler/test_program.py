"""Programs give the integer graph's bits, whatever the scheme; the checker finds what is wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from qbcompiler.codegen import generate_all
from qbcompiler.devices import Device, load_device
from qbcompiler.errors import FormatError
from qbcompiler.ir import Graph, IntGraph
from qbcompiler.ir.program import Copy, Fetch, Load, Program, Store, Sync, Tile
from qbcompiler.ir.verify_program import verify_program
from qbcompiler.ops.pooling import PoolingAttrs
from qbcompiler.ops.resize import ResizeAttrs
from qbcompiler.ops.shapes import ReshapeAttrs, TransposeAttrs
from qbcompiler.ops.slicing import AxisAttrs
from qbcompiler.ops.softmax import AxisAttrs as SoftmaxAxis
from qbcompiler.package.json_io import Fields, dump_json, parse_json
from qbcompiler.package.program_json import program_to_json, read_program
from qbcompiler.quantization import quantize
from qbcompiler.runtime import IntegerEngine
from qbcompiler.runtime.program_engine import ProgramEngine

from .quant_nets import Net, config, observe, residual_net, samples

SCHEMES = ("single", "multi", "global4", "global8")


def device(on_chip: int = 2 << 20, **figures: int) -> Device:
    """Return ARIES with another on-chip memory."""
    found = load_device("aries-rb")
    memory = found.memory.model_copy(update={"on_chip_bytes": on_chip, **figures})
    return found.model_copy(update={"memory": memory})


def quantized(graph: Graph) -> tuple[IntGraph, list[Any]]:
    data = samples(graph, 2)
    return quantize(graph, observe(graph, data), config()), data


def programs(
    graph: Graph, integers: IntGraph, on_chip: int, schemes: Any = SCHEMES
) -> dict[str, Program]:
    return generate_all(graph, device(on_chip), schemes, integers=integers)


@pytest.fixture(scope="module")
def residual() -> tuple[Graph, IntGraph, list[Any]]:
    graph = residual_net(24)
    return graph, *quantized(graph)


@pytest.mark.parametrize("on_chip", [1 << 20, 16384, 4096, 1024, 256])
def test_every_scheme_gives_the_graphs_bits(residual: Any, on_chip: int) -> None:
    graph, integers, data = residual
    want = IntegerEngine(integers).run(data[0], integers=True)
    for scheme, program in programs(graph, integers, on_chip).items():
        assert verify_program(program, integers) == []
        assert program.chip_size <= on_chip
        for backwards in (False, True):
            engine = ProgramEngine(integers, program, backwards=backwards)
            got = engine.run(data[0], integers=True)
            assert got.keys() == want.keys()
            assert all(np.array_equal(got[n], want[n]) for n in want), (scheme, on_chip)


def mixed_net() -> Graph:
    """Return branches of the kinds of layers that are cut, and attention."""
    net = Net("mixed")
    x = net.input("image", 1, 3, 20, 20)
    a = net.layer("Relu", "r1", [net.conv("c1", x, 16, stride=2)])
    pool = PoolingAttrs("max", (3, 3), (2, 2), (1, 1, 1, 1), (1, 1))
    b = net.layer("Pooling", "p1", [a], pool)
    b = net.layer("Sigmoid", "s1", [net.conv("c2", b, 16, 5, groups=16)])
    up = ResizeAttrs((1, 16, 10, 10), (1.0, 1.0, 2.0, 2.0), "nearest", "asymmetric", "floor")
    c = net.layer("Concatenate", "cat", [a, net.layer("Resize", "up", [b], up)], AxisAttrs(1))
    c = net.layer("Relu", "r3", [net.conv("c3", c, 24, 1, groups=1)])
    c = net.layer("Multiply", "gate", [c, net.layer("GlobalAveragePooling", "gap", [c])])
    tokens = net.layer("Reshape", "flat", [c], ReshapeAttrs((1, 24, 100)))
    tokens = net.layer("Transpose", "turn", [tokens], TransposeAttrs((0, 2, 1)))
    keys = net.layer("Transpose", "keys", [tokens], TransposeAttrs((0, 2, 1)))
    scores = net.layer("MatMul", "scores", [tokens, keys])
    scores = net.layer("Softmax", "soft", [scores], SoftmaxAxis(2))
    mixed = net.layer("MatMul", "mix", [scores, tokens])
    w = net.const("w", (net.rng.normal(size=(24, 40)) * 0.2).astype(np.float32))
    wide = net.layer("MatMul", "dense", [mixed, w])
    return net.finish(wide, c)


@pytest.fixture(scope="module")
def mixed() -> tuple[Graph, IntGraph, list[Any]]:
    graph = mixed_net()
    return graph, *quantized(graph)


@pytest.mark.parametrize("on_chip", [1 << 20, 8192, 2048])
def test_branches_and_attention_give_the_graphs_bits(mixed: Any, on_chip: int) -> None:
    graph, integers, data = mixed
    want = IntegerEngine(integers).run(data[0], integers=True)
    for scheme, program in programs(graph, integers, on_chip).items():
        assert verify_program(program, integers) == []
        engine = ProgramEngine(integers, program, backwards=scheme == "global4")
        got = engine.run(data[0], integers=True)
        assert all(np.array_equal(got[n], want[n]) for n in want), (scheme, on_chip)


def test_chains_pass_over_a_tile_together(residual: Any) -> None:
    """Where whole tensors do not fit, layers take turns on bands, and less leaves the chip."""
    graph, integers, data = residual
    program = programs(graph, integers, 8192, ["single"])["single"]
    order = [x.layer for x in program.streams[0] if isinstance(x, Tile)]
    assert order != sorted(
        order
    )  # a later layer of a chain comes before an earlier one's next band
    stored = {x.source.tensor for x in program.streams[0] if isinstance(x, Store)}
    assert stored < {n for layer in integers.layers for n in layer.outputs}
    want = IntegerEngine(integers).run(data[1], integers=True)
    got = ProgramEngine(integers, program).run(data[1], integers=True)
    assert all(np.array_equal(got[n], want[n]) for n in want)


# -- the checker --------------------------------------------------------------------------


def mutated(program: Program, core: int, index: int, *put: Any) -> Program:
    """Return a copy whose instruction is replaced (by nothing: it is left out)."""
    streams = [list(s) for s in program.streams]
    streams[core][index : index + 1] = put
    return dataclasses.replace(program, streams=streams)


def kinds(program: Program, integers: IntGraph) -> set[str]:
    return {fault.kind for fault in verify_program(program, integers)}


def where(program: Program, kind: type, core: int = 0, last: bool = False) -> int:
    found = [i for i, x in enumerate(program.streams[core]) if isinstance(x, kind)]
    return found[-1 if last else 0]


@pytest.fixture(scope="module")
def tight(residual: Any) -> tuple[IntGraph, dict[str, Program]]:
    graph, integers, _ = residual
    return integers, programs(graph, integers, 4096)


@pytest.mark.parametrize("kind", [Load, Fetch, Tile])
def test_a_missing_instruction_is_found(tight: Any, kind: type) -> None:
    integers, found = tight
    for program in found.values():
        broken = mutated(program, 0, where(program, kind))
        assert "read before written" in kinds(broken, integers)


def test_a_missing_store_is_found(tight: Any) -> None:
    integers, found = tight
    broken = mutated(found["single"], 0, where(found["single"], Store, last=True))
    assert "read before written" in kinds(broken, integers)


def test_each_missing_barrier_is_found(tight: Any) -> None:
    integers, found = tight
    for scheme in ("global4", "global8"):
        program = found[scheme]
        barriers = [i for i, x in enumerate(program.streams[0]) if isinstance(x, Sync)]
        assert barriers
        for nth in range(len(barriers)):
            streams = []
            for stream in program.streams:
                at = [i for i, x in enumerate(stream) if isinstance(x, Sync)][nth]
                streams.append(stream[:at] + stream[at + 1 :])
            broken = dataclasses.replace(program, streams=streams)
            assert "missing synchronisation" in kinds(broken, integers), nth
        uneven = mutated(program, 0, barriers[0])
        assert "missing synchronisation" in kinds(uneven, integers)


def test_a_copy_from_a_core_that_is_not_there_is_found(residual: Any) -> None:
    graph, integers, _ = residual
    program = programs(graph, integers, 1 << 20, ["global4"])["global4"]
    index = where(program, Copy, 1)
    copy = program.streams[1][index]
    assert isinstance(copy, Copy)
    for core in (9, 3 - copy.core):
        broken = mutated(program, 1, index, dataclasses.replace(copy, core=core))
        assert kinds(broken, integers) & {"out of bounds", "read before written"}


def test_buffers_that_share_bytes_are_found(tight: Any) -> None:
    """Move a buffer onto one that is in use at the same time."""
    integers, found = tight
    program = found["single"]
    hit = 0
    for i, a in enumerate(program.chip):
        for j, b in enumerate(program.chip):
            if i != j and a.first <= b.last and b.first <= a.last and b.size <= a.size:
                chip = list(program.chip)
                chip[j] = dataclasses.replace(b, offset=a.offset)
                broken = dataclasses.replace(program, chip=chip)
                hit += "overwritten while live" in kinds(broken, integers)
    assert hit > 5


def test_tensors_that_share_bytes_outside_are_found(tight: Any) -> None:
    integers, found = tight
    program = found["single"]
    live = [(n, p) for n, p in program.external.items() if p.last > p.first]
    external = dict(program.external)
    (name, first), (_, second) = live[0], live[1]
    external[name] = dataclasses.replace(first, offset=second.offset)
    broken = dataclasses.replace(program, external=external, external_size=1 << 24)
    assert "overwritten while live" in kinds(broken, integers)


def test_places_outside_memory_are_found(tight: Any) -> None:
    integers, found = tight
    program = found["single"]
    chip = [dataclasses.replace(p, offset=p.offset + 4096) for p in program.chip]
    assert kinds(dataclasses.replace(program, chip=chip), integers) == {"out of bounds"}
    small = dataclasses.replace(program, external_size=program.external_size - 64)
    assert kinds(small, integers) == {"out of bounds"}
    index = where(program, Load)
    load = program.streams[0][index]
    assert isinstance(load, Load)
    low, high = load.target.box[2]
    for box in (
        (*load.target.box[:2], (low, high + 1000), load.target.box[3]),
        (*load.target.box[:2], (low, high + 1), load.target.box[3]),
    ):
        bad = dataclasses.replace(load, target=dataclasses.replace(load.target, box=box))
        assert "out of bounds" in kinds(mutated(program, 0, index, bad), integers)


def test_tiles_of_other_operands_are_found(tight: Any) -> None:
    integers, found = tight
    program = found["single"]
    index = where(program, Tile)
    tile = program.streams[0][index]
    assert isinstance(tile, Tile)
    operand = tile.inputs[0]
    assert operand is not None
    other = next(n for n in integers.values if n != operand.tensor)
    for change in (
        {"inputs": ()},
        {"inputs": (dataclasses.replace(operand, tensor=other),)},
        {"outputs": ()},
        {"part": (0, 1, 0, 1)},
        {"layer": tile.layer + 1},
    ):
        broken = mutated(program, 0, index, dataclasses.replace(tile, **change))  # type: ignore[arg-type]
        assert kinds(broken, integers), change
    assert kinds(dataclasses.replace(program, layers=[]), integers) == {"incomplete"}


def test_an_engine_refuses_a_program_with_a_fault(tight: Any) -> None:
    integers, found = tight
    broken = mutated(found["single"], 0, where(found["single"], Load))
    with pytest.raises(FormatError, match="read before written"):
        ProgramEngine(integers, broken)


# -- the file -----------------------------------------------------------------------------


def test_programs_survive_the_file_and_are_the_same_every_time(tight: Any, residual: Any) -> None:
    integers, found = tight
    for scheme, again in programs(residual[0], integers, 4096).items():
        text = dump_json(program_to_json(found[scheme]))
        assert dump_json(program_to_json(again)) == text
        read = read_program(Fields(parse_json(text, "p"), "p"))
        assert read.streams == found[scheme].streams and read.chip == found[scheme].chip
        assert dump_json(program_to_json(read)) == text


@pytest.mark.parametrize(
    "change",
    [
        {"cores": 0},
        {"cores": 3},
        {"batch": 2},
        {"tensors": []},
        {"boxes": [[0, 1, 2]]},
        {"boxes": [[3, 3]]},
        {"chip": [[-1, 4, 0, 0]]},
        {"chip": []},
        {"external": [["x", 1, 2]]},
        {"splits": [7]},
        {"streams": [[[9]]]},
        {"streams": [[[1, 0, 0, 0, 0, 0]]]},
        {"streams": [[["x"]]]},
        {"streams": [[5]]},
        {"streams": [[[5, 0, 0, 0, 0, -1, -1, 3, 9]]]},
        {"aliases": {"a": "b", "b": "c"}},
    ],
)
def test_damaged_programs_are_format_errors(tight: Any, change: dict[str, Any]) -> None:
    _, found = tight
    data = {**program_to_json(found["single"]), **change}
    with pytest.raises(FormatError):
        read_program(Fields(data, "programs/single.json"))
