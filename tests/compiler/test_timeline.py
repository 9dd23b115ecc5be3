"""Timings follow the program; the report's pictures and the trace file show them."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from qbcompiler import mxq_compile
from qbcompiler.api import estimate_cost
from qbcompiler.cli import main
from qbcompiler.codegen import Compiled, compile_programs
from qbcompiler.devices import load_device
from qbcompiler.devices.load import DEVICE_PATH
from qbcompiler.errors import DeviceSchemeError
from qbcompiler.ir.program import Tile
from qbcompiler.package import read_mxq
from qbcompiler.report.timeline import lanes_of, roofline_svg, timeline_svg
from qbcompiler.report.trace import trace_events
from qbcompiler.runtime import Accelerator, CoreMode, Model, ModelConfig

from ..support import zoo
from .quant_nets import residual_net

SCHEMES = ["single", "multi", "global4", "global8"]


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compile_programs(residual_net(48), load_device("aries-rb"), SCHEMES)


def test_no_engine_does_two_things_at_a_time(compiled: Compiled) -> None:
    for scheme, timing in compiled.timings.items():
        assert timing.cycles >= max(s.end for s in timing.spans) - 1
        lanes: dict[Any, float] = {}
        for span in sorted(timing.spans, key=lambda s: (s.core, s.engine, s.start, s.end)):
            key = (span.core, span.engine)
            assert span.start >= lanes.get(key, 0.0) - 1e-6, (scheme, span)
            lanes[key] = span.end
        tiles = [s for s in timing.spans if s.kind == "tile"]
        program = compiled.programs[scheme]
        streams = program.streams * (program.cores if program.batch > 1 else 1)
        assert len(tiles) == sum(isinstance(x, Tile) for s in streams for x in s)
        bus = sorted((s.start, s.end) for s in timing.spans if s.size and s.kind != "copy")
        for (_, end), (start, _) in itertools.pairwise(bus):
            assert start >= end - 1e-6  # one transfer at a time on external memory


def test_the_trace_is_what_perfetto_reads(compiled: Compiled) -> None:
    trace = trace_events(compiled)
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert len(names) == 1 + 4 + 4 + 8 and "global8 core 7 (estimate)" in names
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert len(spans) == sum(len(t.spans) for t in compiled.timings.values())
    assert all(e["dur"] >= 0 and {"pid", "tid", "ts", "name"} <= e.keys() for e in spans)
    assert "memory.bandwidth_bytes_per_s" in trace["otherData"]["assumptions"]


def test_the_pictures_are_well_formed_and_say_what_they_rest_on(compiled: Compiled) -> None:
    names = compiled.programs["global8"].layers
    timing = compiled.timings["global8"]
    lanes = lanes_of(timing.spans, names)
    assert len(lanes["cores"]) == 8
    picture = timeline_svg(lanes, timing.cycles, "global8 <&>")
    layers = [x.as_dict() for x in compiled.cost.schemes[0].layers]
    for svg in (picture, roofline_svg(layers, 4096, 55.7)):
        ET.fromstring(svg)
        assert "assumptions" in svg and "<title>" in svg
    assert roofline_svg([], 4096, 55.7) == ""


def made_up(folder: Path, **changes: Any) -> None:
    """Write a device of two cores of one cluster and little memory, in one file."""
    data = yaml.safe_load(
        (Path(__file__).parents[2] / "compiler/qbcompiler/devices/aries-rb.yaml").read_text()
    )
    data |= {
        "name": "made-up",
        "cores": 4,
        "clusters": 1,
        "schemes": ["single", "multi", "global4"],
    }
    data["memory"]["on_chip_bytes"]["value"] = 8192
    data |= changes
    (folder / "made-up.yaml").write_text(yaml.safe_dump(data))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Compile a small network for a device that one file makes up, every scheme."""
    import onnx

    folder = tmp_path_factory.mktemp("made_up")
    (folder / "devices").mkdir()
    made_up(folder / "devices")
    onnx.save(zoo.plain_cnn(17), folder / "net.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DEVICE_PATH, str(folder / "devices"))
        mxq_compile(
            str(folder / "net.onnx"), target_device="made-up", inference_scheme="all",
            use_random_calib=True, save_path=folder / "net.mxq", report_path=folder / "net.html",
            trace_path=folder / "net.trace.json", input_shape_dict={"x": [1, 3, 16, 16]},
        )  # fmt: skip
        yield folder


def test_a_made_up_device_compiles_and_runs_every_scheme(built: Path) -> None:
    path = built / "net.mxq"
    image = np.random.default_rng(0).normal(size=(1, 16, 16, 3)).astype(np.float32)
    found = []
    with read_mxq(path) as mxq:
        assert mxq.schemes == ("single", "multi", "global4")
        for scheme in mxq.schemes:
            program = mxq.program(scheme)
            assert program is not None and program.on_chip == 8192
            assert program.chip_size <= 8192
    for mode in ("single", "multi", "global4"):
        for executor in ("program", "graph"):
            config = ModelConfig(core_mode=CoreMode(mode), executor=executor)  # type: ignore[arg-type]
            with Model(path, config) as model:
                model.launch(Accelerator("made-up"))
                found.append(model.infer(image)[0])
    assert all(np.array_equal(found[0], f) for f in found[1:])


def test_a_package_is_refused_where_it_does_not_belong(built: Path) -> None:
    """Another device, a mode that it lacks, and a choice among several are refused by name."""
    path = built / "net.mxq"
    with pytest.raises(DeviceSchemeError, match="single, multi, global4") as caught:
        Model(path, ModelConfig(core_mode=CoreMode.GLOBAL8))
    assert caught.value.details["expected"] == ["single", "multi", "global4"]
    with pytest.raises(DeviceSchemeError, match="several core modes: single, multi, global4"):
        Model(path)
    with (
        Model(path, ModelConfig(core_mode=CoreMode.MULTI)) as model,
        pytest.raises(DeviceSchemeError, match="built for made-up, not for aries-rb"),
    ):
        model.launch(Accelerator("aries-rb"))


def test_the_report_and_the_trace_are_written(built: Path) -> None:
    page = (built / "net.html").read_text()
    assert page.count('aria-label="Timeline of') == 3 and 'aria-label="Roofline"' in page
    assert "not public but assumed" in page
    trace = json.loads((built / "net.trace.json").read_text())
    assert any(e["ph"] == "X" for e in trace["traceEvents"])


def test_check_follows_the_programs(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--mxq", str(built / "net.mxq")]) == 0
    said = capsys.readouterr().out
    for scheme in ("single", "multi", "global4"):
        assert f"the program {scheme} is sound and gives the graph's bits" in said


def test_an_estimate_writes_a_trace_without_calibration(built: Path) -> None:
    path = built / "estimate.json"
    found = estimate_cost(
        str(built / "net.onnx"),
        target_device="aries-rb",
        inference_scheme="all",
        trace_path=path,
        input_shape_dict={"x": [1, 3, 16, 16]},
    )
    assert [s.scheme for s in found.schemes] == SCHEMES
    assert json.loads(path.read_text())["otherData"]["device"] == "aries-rb"
