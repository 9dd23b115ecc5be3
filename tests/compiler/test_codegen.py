"""Memory plans never overlap and stay near the bound; estimates follow the machine's figures."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qbcompiler.codegen import Buffer, Estimate, compile_programs, estimate, list_work, place
from qbcompiler.codegen.memory import Gaps
from qbcompiler.devices import load_device
from qbcompiler.frontend import load_model, parse
from qbcompiler.ir import Graph
from qbcompiler.ir.program import Fetch, Tile

from .onnx_suite.cases import light_models
from .quant_nets import Net


def parsed(path: Path, shape: tuple[int, ...] | None = None) -> Graph:
    shapes = {} if shape is None else {"x": shape}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return parse(load_model(path), input_shapes=shapes)


@pytest.fixture(scope="module")
def resnet50() -> Graph:
    return parsed(light_models()["light_resnet50"])


@pytest.fixture(scope="module")
def resnet_on_aries(resnet50: Graph) -> Estimate:
    device = load_device("aries-rb")
    return estimate(resnet50, device, device.schemes)


buffers = st.lists(
    st.tuples(st.integers(1, 500), st.integers(0, 20), st.integers(0, 8)), min_size=1, max_size=25
).map(
    lambda rows: [
        Buffer(f"b{i}", size, first, first + life) for i, (size, first, life) in enumerate(rows)
    ]
)


@settings(max_examples=150, deadline=None)
@given(buffers, st.sampled_from([1, 16, 64]))
def test_no_two_live_buffers_overlap(wanted: list[Buffer], alignment: int) -> None:
    plan = place(wanted, alignment=alignment)
    for a, b in itertools.combinations(wanted, 2):
        if a.last < b.first or b.last < a.first:
            continue
        start_a, start_b = plan.offsets[a.name], plan.offsets[b.name]
        assert start_a + a.size <= start_b or start_b + b.size <= start_a
    assert all(o % alignment == 0 for o in plan.offsets.values())
    assert plan.size == max(
        plan.offsets[b.name] + -(-b.size // alignment) * alignment for b in wanted
    )
    live = [
        sum(-(-b.size // alignment) * alignment for b in wanted if b.first <= t <= b.last)
        for t in range(30)
    ]
    assert plan.bound == max(live) <= plan.size
    assert place(wanted, alignment=alignment) == plan


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([Buffer("a", 1, 0, 1), Buffer("a", 1, 2, 3)], "one name"),
        ([Buffer("a", 0, 0, 1)], "empty"),
        ([Buffer("a", 1, 2, 1)], "before it starts"),
    ],
)
def test_impossible_buffers_are_refused(bad: list[Buffer], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        place(bad)


@pytest.mark.parametrize("name", ["regulus-rb", "aries-rb"])
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("ppocrv4_cls.onnx", (1, 3, 48, 192)),
        ("ppocrv4_det.onnx", (1, 3, 320, 320)),
        ("ppocrv4_rec.onnx", (1, 3, 48, 320)),
    ],
)
def test_plans_of_real_models_are_within_5_percent(
    model: str, shape: tuple[int, ...], name: str, models_dir: Path
) -> None:
    device = load_device(name)
    found = estimate(parsed(models_dir / model, shape), device, device.schemes)
    assert found.activation_ratio <= 1.05
    for scheme in found.schemes:
        assert scheme.on_chip_bytes <= 1.05 * scheme.on_chip_bound, scheme.scheme
        assert scheme.on_chip_bytes <= device.figure("memory.on_chip_bytes")


def test_the_work_of_resnet50_is_what_is_published(resnet50: Graph) -> None:
    works = list_work(resnet50, channel_alignment=64)
    assert sum(w.macs for w in works) == pytest.approx(4.09e9, rel=0.02)
    assert sum(w.weight_bytes for w in works) == pytest.approx(25.6e6, rel=0.02)


def test_no_scheme_beats_the_arrays_peak(resnet_on_aries: Estimate) -> None:
    for scheme in resnet_on_aries.schemes:
        assert 0 < scheme.utilisation <= 1
        assert scheme.inputs_per_s * resnet_on_aries.macs * 2 <= 80e12
        for layer in scheme.layers:
            assert layer.cycles >= layer.macs * scheme.batch / (4096 * scheme.cores) * 0.999


def test_more_cores_on_one_input_cut_its_latency(resnet_on_aries: Estimate) -> None:
    """By four or more in arithmetic; weights that must all be fetched bound the whole."""
    by_name = {s.scheme: s for s in resnet_on_aries.schemes}
    single, four, eight = (by_name[n] for n in ("single", "global4", "global8"))
    assert eight.cycles < four.cycles < single.cycles
    assert sum(x.compute for x in single.layers) / sum(x.compute for x in eight.layers) > 4
    fetch = resnet_on_aries.weight_bytes / (68e9 / 1220703125)
    assert fetch <= eight.cycles <= 1.2 * fetch
    # weights leave external memory once for all cores that share them
    assert eight.external_bytes < 1.1 * resnet_on_aries.weight_bytes
    assert "latency" in eight.note and "external memory" in eight.note and "barriers" in eight.note


def test_global8_cuts_the_latency_of_a_yolo_shape_by_four() -> None:
    graph = yolo_shape()
    device = load_device("aries-rb")
    by_name = {s.scheme: s for s in estimate(graph, device, device.schemes).schemes}
    gain = by_name["single"].cycles / by_name["global8"].cycles
    assert gain >= 4


def yolo_shape() -> Graph:
    """Return the convolutions of a small detector's backbone at 640 by 640."""
    net = Net("yolo")
    x = net.input("image", 1, 3, 640, 640)
    for i, width in enumerate((32, 64, 128, 256, 512)):
        x = net.layer("Relu", f"down{i}.r", [net.conv(f"down{i}", x, width, stride=2)])
        for k in range(2 if i else 0):
            y = net.layer("Relu", f"{i}.{k}.r", [net.conv(f"{i}.{k}.a", x, width // 2, 1, pad=0)])
            y = net.conv(f"{i}.{k}.b", y, width)
            x = net.layer("Adding", f"{i}.{k}.add", [x, y])
    return net.finish(x)


def test_multi_has_four_times_the_throughput_where_arithmetic_decides() -> None:
    """Per cluster, against one core alone; on layers with little to move for much to compute."""
    net = Net("deep")
    x = net.input("image", 1, 128, 32, 32)
    for i in range(8):
        x = net.layer("Relu", f"r{i}", [net.conv(f"c{i}", x, 128)])
    graph = net.finish(x)
    device = load_device("aries-rb")
    found = estimate(graph, device, ["single", "multi"])
    single, multi = found.schemes
    assert 3.6 <= multi.batch * single.cycles / multi.cycles <= 4.0
    assert multi.note == ""


def test_multi_fetches_weights_once_for_four_inputs(resnet_on_aries: Estimate) -> None:
    by_name = {s.scheme: s for s in resnet_on_aries.schemes}
    single, multi = by_name["single"], by_name["multi"]
    assert multi.batch == 4
    assert multi.external_bytes < 4 * single.external_bytes - 2 * resnet_on_aries.weight_bytes
    assert multi.inputs_per_s >= single.inputs_per_s


def test_less_bandwidth_makes_layers_wait_for_memory(resnet50: Graph) -> None:
    device = load_device("regulus-rb")
    slow = device.model_copy(
        update={"memory": device.memory.model_copy(update={"bandwidth_bytes_per_s": 10**9})}
    )
    fast = estimate(resnet50, device, ["single"]).schemes[0]
    waiting = estimate(resnet50, slow, ["single"]).schemes[0]
    assert waiting.cycles > fast.cycles
    assert sum(x.bound == "memory" for x in waiting.layers) > sum(
        x.bound == "memory" for x in fast.layers
    )


def test_small_on_chip_memory_still_gives_tiles(resnet50: Graph) -> None:
    device = load_device("regulus-rb")
    tiny = device.model_copy(
        update={"memory": device.memory.model_copy(update={"on_chip_bytes": 262144})}
    )
    large, small = (estimate(resnet50, d, ["single"]) for d in (device, tiny))
    assert small.on_chip_bytes <= 262144
    assert small.schemes[0].external_bytes > large.schemes[0].external_bytes


def test_an_estimate_says_what_it_assumes(resnet_on_aries: Estimate) -> None:
    plain = resnet_on_aries.as_dict()
    assert plain["estimate"] is True
    assert "memory.bandwidth_bytes_per_s" in plain["assumptions"]
    assert len(plain["schemes"][0]["layers"]) == len(resnet_on_aries.schemes[0].layers)


def test_a_gap_is_the_earliest_and_then_the_lowest() -> None:
    memory = Gaps(100, 10)
    memory.add(0, 38, 0, 4)  # to 40, aligned
    memory.add(60, 20, 2, 9)
    assert memory.take(25, 0, 3) is None  # between and above there are 20
    assert memory.take(25, 0, 5) == (0, 5)  # only when the first has gone
    assert memory.take(20, 1, 3) == (40, 1)
    assert memory.take(20, 1, 3) == (80, 1)
    assert memory.take(10, 1, 3) is None
    assert memory.take(10, 1, 6) == (40, 4)  # earlier than at 30, lower than at 50 and 80


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6), st.integers(0, 3)), max_size=24),
    st.sampled_from([1, 8]),
)
def test_gaps_never_overlap(wanted: list[tuple[int, int, int]], alignment: int) -> None:
    memory, found = Gaps(96, alignment), []
    for last, (size, earliest, _) in enumerate(wanted):
        gap = memory.take(size, min(earliest, last), last)
        if gap is not None:
            offset, first = gap
            assert offset % alignment == 0 and offset + size <= 96
            assert min(earliest, last) <= first <= last
            found.append((offset, offset + size, first, last))
    for a, b in itertools.combinations(found, 2):
        assert a[1] <= b[0] or b[1] <= a[0] or a[3] < b[2] or b[3] < a[2]


def test_constants_come_long_before_their_layer_in_the_layers_order(resnet50: Graph) -> None:
    program = compile_programs(resnet50, load_device("aries-rb"), ["global8"]).programs["global8"]
    for stream in program.streams:
        fetched = [x.layer for x in stream if isinstance(x, Fetch)]
        assert fetched == sorted(fetched)
        lead, now = 0, 0
        for x in stream:
            if isinstance(x, Tile):
                now = x.layer
            elif isinstance(x, Fetch):
                lead = max(lead, x.layer - now)
        assert lead > 4
