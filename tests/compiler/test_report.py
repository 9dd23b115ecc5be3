"""``info`` and ``report.json``: what a file and a build tell a person."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest

from qbcompiler.errors import ArgumentError, FormatError, OutputWriteError
from qbcompiler.package import MBLT_FORMAT, CalibrationRecord, write_mblt, write_mxq
from qbcompiler.package.reader import Container
from qbcompiler.package.writer import write_container
from qbcompiler.quantization import quantize, validate
from qbcompiler.report import (
    build_report,
    info,
    info_text,
    report_html,
    warnings_of,
    write_report,
)
from qbcompiler.report.text import clean, table

from .quant_nets import Net, Rules, config, cut, observe, residual_net, samples
from .test_package_files import META, RECORD, contents


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("info")
    parts = cut(residual_net(), Rules())
    write_mblt(folder / "m.mblt", parts, META)
    write_mxq(folder / "m.mxq", contents(parts))
    return folder


@pytest.fixture(scope="module")
def built():
    graph = residual_net()
    data = samples(graph)
    statistics = observe(graph, data)
    int_graph = quantize(graph, statistics, config())
    return int_graph, statistics.ranges, validate(graph, int_graph, data)


def make(built, **changes):
    int_graph, ranges, accuracy = built
    settings = {
        "device": "toy-device",
        "schemes": ("single",),
        "preset": "classification",
        "int_graph": int_graph,
        "ranges": ranges,
        "calibration": RECORD,
        "accuracy": accuracy,
        "config": {"device": "cpu"},
        "phases": {"parse": 0.12345, "quantize": 2.0},
        **changes,
    }
    return build_report(**settings)


def test_info_of_an_mblt(files):
    data = info(files / "m.mblt")
    assert data["kind"] == "mblt" and data["format"] == "mblt 1.0"
    assert data["size"] == (files / "m.mblt").stat().st_size
    assert data["source"]["sha256"] == META.source_sha256
    assert data["operators"] == {
        "Adding": 1,
        "Convolution": 3,
        "DepthwiseConvolution": 1,
        "Relu": 3,
    }
    assert data["inputs"][0] == {
        "name": "image",
        "shape": [1, 3, 16, 16],
        "dtype": "float32",
        "layout": "NCHW",
    }
    assert "schemes" not in data
    json.dumps(data)


def test_info_of_an_mxq(files):
    data = info(files / "m.mxq")
    assert data["kind"] == "mxq" and data["device"] == "toy-device"
    assert data["schemes"] == ["single"] and data["calibration"]["samples"] == 4
    assert data["layers"][0]["quantization"]["weights"]["bits"] == 8
    assert data["accuracy"]["outputs"][0]["sqnr_db"] > 20
    assert data["config"]["inferenceScheme"] == "single"


def test_info_reads_no_section(files, monkeypatch):
    for method in ("read", "map", "verify"):
        monkeypatch.setattr(Container, method, lambda *a: pytest.fail("a section was read"))
    info(files / "m.mblt")
    info(files / "m.mxq")


def test_text_for_people(files):
    text = info_text(info(files / "m.mxq"))
    for part in ("MXQ, format mxq 1.1", "toy-device", "4 samples", "SQNR", "scores.out"):
        assert part in text
    lines = text.splitlines()
    assert any(line.startswith("c1 ") and "Convolution" in line and "NPU" in line for line in lines)
    short = info_text(info(files / "m.mblt"), layers=False)
    assert "MBLT" in short and "\nlayers\n" not in short


def test_why_a_layer_runs_on_the_cpu(tmp_path):
    net = Net()
    head = net.layer("Sigmoid", "first", [net.input("image", 1, 3, 8, 8)])
    parts = cut(
        net.finish(net.conv("c", head, 4)), Rules(Sigmoid="no look-up unit"), cpu_offload=True
    )
    write_mxq(tmp_path / "m", contents(parts))
    data = info(tmp_path / "m")
    first = data["layers"][0]
    assert (first["device"], first["reason"], first["quantization"]) == (
        "cpu",
        "no look-up unit",
        None,
    )
    assert "no look-up unit" in info_text(data)


def test_names_cannot_drive_a_terminal(tmp_path):
    net = Net("n")
    graph = net.finish(net.layer("Relu", "\x1b[2Jevil\n", [net.input("x\x07", 1, 4)]))
    write_mblt(tmp_path / "m", cut(graph), META)
    text = info_text(info(tmp_path / "m"))
    assert "\x1b" not in text and "\x07" not in text
    assert clean("a\nb") == "a\N{REPLACEMENT CHARACTER}b"


def test_sizes_of_layers_and_totals(files):
    data = info(files / "m.mblt")
    first = next(layer for layer in data["layers"] if layer["name"] == "c1")
    graph = residual_net()
    out = graph.values["c1.out"]
    assert first["shapes"] == [list(out.shape)]
    constants = [graph.values[n] for n in graph.node("c1").inputs if graph.values[n].is_const]
    assert first["parameters"] == sum(c.type.size for c in constants) > 0
    weight = constants[0].shape
    assert first["macs"] == out.type.size * weight[1] * weight[2] * weight[3]
    total = data["totals"]
    assert total["layers"] == len(data["layers"]) == total["npu_layers"]
    assert total["parameters"] == sum(c.type.size for c in graph.constants())
    assert total["macs"] == total["npu_macs"] == sum(x["macs"] for x in data["layers"])
    assert info(files / "m.mxq")["totals"] == total


@pytest.mark.parametrize("width", [80, 132])
def test_text_fits_the_terminal(tmp_path, width):
    net = Net()
    x = net.input("a/very/deep/module/path/of/the/image/that/goes/in", 1, 3, 8, 8)
    for i in range(3):
        x = net.conv(f"model/backbone/stage_{i}/block_with_a_long_name/convolution_{i}", x, 3)
    tail = net.layer("Sigmoid", "model/head/activation_of_the_last_layer/sigmoid", [x])
    lacks = Rules(Sigmoid="the device has no look-up unit, which this function needs")
    write_mxq(tmp_path / "m", contents(cut(net.finish(tail), lacks, cpu_offload=True)))
    text = info_text(info(tmp_path / "m"), width=width)
    # a word that has no place to break, the digest, may stand alone on a line
    assert all(len(line) <= width for line in text.splitlines()), text
    assert "CPU tail" in text and "not supported by the NPU" in text
    assert "the device has no look-up unit" in " ".join(text.split())


@pytest.mark.parametrize(
    ("shapes", "message"), [("x", "shapes"), ([[1, "x"]], "shapes"), ([[True]], "shapes")]
)
def test_hostile_sizes_are_refused(files, tmp_path, shapes, message):
    with Container(files / "m.mblt", MBLT_FORMAT) as opened:
        manifest = {k: v for k, v in opened.manifest.items() if k != "sections"}
    manifest["layers"] = [{**manifest["layers"][0], "shapes": shapes}]
    write_container(tmp_path / "m", manifest, [])
    with pytest.raises(FormatError, match=message):
        info(tmp_path / "m")


def test_info_starts_without_the_compiler(files):
    """Whatever ``info`` loads, a user waits for; NumPy alone takes longer than the manifest."""
    heavy = ("numpy", "onnx", "onnxruntime", "pydantic", "networkx", "yaml")
    code = (
        "import sys; from qbcompiler.cli import main; "
        f"main(['info', '--mblt', {str(files / 'm.mblt')!r}, '--table']); "
        f"sys.exit(','.join(m for m in {heavy!r} if m in sys.modules) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_info_of_500_mb_is_a_matter_of_the_manifest(tmp_path):
    net = Net()
    weights = np.zeros((1, 125_000_000), np.float32)  # 500 MB, no page of it touched before
    y = net.layer(
        "AddingConstant", "large", [net.input("x", 1, 125_000_000), net.const("w", weights)]
    )
    path = tmp_path / "large.mblt"
    write_mblt(path, cut(net.finish(y)), META)
    del weights
    assert path.stat().st_size > 500_000_000
    command = [sys.executable, "-m", "qbcompiler", "info", "--mblt", str(path), "--table"]
    bare = [sys.executable, "-c", "import argparse, json, hashlib"]
    took = {
        name: min(_seconds(c) for _ in range(3)) for name, c in (("info", command), ("bare", bare))
    }
    # 0.2 s on an idle machine, start of the interpreter included; a busy one gets its share
    assert took["info"] < max(0.2, 6 * took["bare"]), took


def _seconds(command):
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def test_other_files_are_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"no package")
    with pytest.raises(FormatError):
        info(tmp_path / "x")
    with pytest.raises(ArgumentError):
        info(tmp_path / "none")


def test_tables_align_and_cut():
    lines = table(["a", "b"], [["x" * 300, 1], ["y", 22]])
    assert lines[0].index("b") == lines[2].index("1") == lines[3].index("22")
    assert len(lines[2]) < 100 and "…" in lines[2]


# -- report -------------------------------------------------------------------------------


def test_every_layer_has_ranges_scales_bits_and_errors(built):
    report = make(built)
    int_graph, ranges, _ = built
    assert [x["name"] for x in report["layers"]] == [x.name for x in int_graph.layers]
    first = report["layers"][0]
    assert first["inputs"][0]["range"] == list(ranges["image"])
    assert first["outputs"][0]["scale"] == int_graph.values["c1.out"].quant.scale
    assert first["weights"] == {"bits": 8, "count": 216}
    assert first["sqnr_db"] > 30 and first["own_sqnr_db"] > 30
    assert report["layers"][1]["saturated"] is not None
    assert report["phases"] == {"parse": 0.123, "quantize": 2.0}
    assert report["accuracy"]["outputs"][0]["name"] == "scores.out"
    assert report["warnings"] == []


def test_the_worst_layers_come_first(built):
    report = make(built)
    for key, figure in (("accumulated", "sqnr_db"), ("own", "own_sqnr_db")):
        found = [x[figure] for x in report["worst_layers"][key]]
        assert found == sorted(x[figure] for x in report["layers"])[:10]


def test_warnings_name_what_is_wrong(built):
    _, _, accuracy = built
    noisy = CalibrationRecord("0" * 64, 1, {}, random=True)
    layer = accuracy.layers[1]
    kept = layer.at_limits
    layer.at_limits = layer.elements // 2
    try:
        found = warnings_of(noisy, accuracy, ["bit.auto has no effect"])
    finally:
        layer.at_limits = kept
    assert "random" in found[0] and "not for release" in found[0]
    assert "'r1'" in found[1] and "50.0%" in found[1]
    assert found[2] == "bit.auto has no effect"
    assert "not measured" in warnings_of(RECORD, None)[0]


def test_without_validation_the_report_says_so(built):
    report = make(built, accuracy=None)
    assert report["accuracy"] is None and report["worst_layers"]["own"] == []
    assert report["layers"][0]["sqnr_db"] is None


def test_the_report_is_written_whole_or_not_at_all(built, tmp_path):
    report = make(built)
    write_report(tmp_path / "r.json", report)
    assert json.loads((tmp_path / "r.json").read_text()) == report
    with pytest.raises(OutputWriteError, match="No such file"):
        write_report(tmp_path / "none" / "r.json", report)
    with pytest.raises(ValueError, match="JSON"):
        write_report(tmp_path / "r.json", {"x": np.inf})
    assert json.loads((tmp_path / "r.json").read_text()) == report
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_the_page_is_whole_self_contained_and_escapes_names(built, tmp_path):
    support = [
        {"name": "<script>", "op": "Onnx", "place": "tail", "device": "cpu", "reason": "no & why"}
    ]
    report = make(built, support=support, warnings=["a <b> warning"])
    report["layers"][0]["name"] = '"><script>alert(1)</script>'
    write_report(tmp_path / "r.html", report)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<script" not in page and "http" not in page and " src=" not in page
    assert "no &amp; why" in page and "a &lt;b&gt; warning" in page
    parser = Tags()
    parser.feed(page)
    assert parser.open == []
    assert parser.count["tr"] > len(report["layers"])
    assert parser.count["rect"] == len(report["layers"])


class Tags(HTMLParser):
    """Counts elements and keeps those that are not closed."""

    def __init__(self):
        super().__init__()
        self.open, self.count = [], Counter()

    def handle_starttag(self, tag, attrs):
        self.count[tag] += 1
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.count[tag] += 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_without_measurements(built):
    page = report_html(make(built, accuracy=None))
    assert "Not measured" in page and "<svg" not in page
