"""What parsing costs: memory in proportion to the model, time in proportion to its length."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from benchmarks import models
from benchmarks import parse as benchmark
from qbcompiler.frontend import load_model, parse


def _peak(model: Path, folder: Path) -> int:
    command = benchmark.commands(model, {}, folder)["qbcompiler"]
    found = benchmark.measure(command, benchmark.ROOT)
    assert not isinstance(found, str), found
    return found.peak


def test_memory_stays_within_2_2_times_a_model_whose_weights_all_change(tmp_path: Path) -> None:
    small, large = tmp_path / "one.onnx", tmp_path / "resnet50.onnx"
    models.one_node(small)
    models.resnet50(large)  # batch normalization is folded into every convolution
    added = _peak(large, tmp_path) - _peak(small, tmp_path)
    assert added < 2.2 * large.stat().st_size


def test_a_chains_time_is_linear_in_its_length(tmp_path: Path) -> None:
    took = {}
    for length in (2_500, 10_000):
        path = tmp_path / f"{length}.onnx"
        models.chain(path, length)
        source = load_model(path)
        start = time.process_time()
        graph = parse(source, input_shapes={}, image_channels=None)
        took[length] = time.process_time() - start
        assert len(graph) == length
    # 4 where it is linear, 16 where it is quadratic
    assert took[10_000] / took[2_500] < 8, took


def test_the_benchmark_runs(
    ocr_cls: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ocr_cls.is_file()
    out = tmp_path / "figures.json"
    assert benchmark.main(["--runs", "1", "--only", "ppocrv4_cls", "--json", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    ours = row["tools"]["qbcompiler"]
    assert 0 < ours["seconds"] < 60 and ours["peak_bytes"] > ours["added_bytes"] > 0
    assert "qbcompiler" in capsys.readouterr().out
