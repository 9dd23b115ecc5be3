"""Kept calibration statistics: the same bytes, less work, and nothing that a bad entry can do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qbcompiler import mxq_compile
from qbcompiler.config import CalibrationConfig
from qbcompiler.quantization import observers
from qbcompiler.quantization.observers import cache


def build(
    model: Path, calibration: Path, output: Path, cache_dir: Path | None, **more: Any
) -> dict[str, Any]:
    result = mxq_compile(
        model=str(model),
        calib_data_path=str(calibration),
        input_shape_dict={"x": (1, 3, 48, 192)},
        save_path=str(output),
        report_path=str(output.with_suffix(".json")),
        cache_dir=None if cache_dir is None else str(cache_dir),
        **{"target_device": "regulus-rb", **more},
    )
    assert result.path == output
    report: dict[str, Any] = json.loads(output.with_suffix(".json").read_text())
    return report


def test_a_second_build_observes_nothing_and_gives_the_same_bytes(
    ocr_cls: Path, ocr_calibration: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "cache"
    plain = build(ocr_cls, ocr_calibration, tmp_path / "plain.mxq", None)
    first = build(ocr_cls, ocr_calibration, tmp_path / "first.mxq", kept)
    second = build(ocr_cls, ocr_calibration, tmp_path / "second.mxq", kept)
    assert plain["reuse"] == {}
    assert first["reuse"]["statistics"]["reused"] == 0
    assert second["reuse"]["statistics"]["observed"] == 0
    assert second["reuse"]["statistics"]["reused"] > 50
    bytes_of = {(tmp_path / f"{n}.mxq").read_bytes() for n in ("plain", "first", "second")}
    assert len(bytes_of) == 1


def test_another_device_preset_or_method_reuses_them(
    ocr_cls: Path, ocr_calibration: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "cache"
    percentile = CalibrationConfig(mode=1)  # keeps histograms too
    build(ocr_cls, ocr_calibration, tmp_path / "a.mxq", kept, calibration_config=percentile)
    for number, more in enumerate(
        (
            {"target_device": "aries-rb", "inference_scheme": "all"},
            {"calibration_config": CalibrationConfig(mode=2)},
            {"calibration_config": CalibrationConfig(method=1)},
        )
    ):
        plain = tmp_path / f"plain{number}.mxq"
        reused = tmp_path / f"reused{number}.mxq"
        build(ocr_cls, ocr_calibration, plain, None, **more)
        report = build(ocr_cls, ocr_calibration, reused, kept, **more)
        assert report["reuse"]["statistics"]["observed"] == 0, more
        assert plain.read_bytes() == reused.read_bytes(), more


def test_only_what_lacks_a_histogram_is_observed_again(
    ocr_cls: Path, ocr_calibration: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "cache"
    build(ocr_cls, ocr_calibration, tmp_path / "max.mxq", kept)
    report = build(
        ocr_cls, ocr_calibration, tmp_path / "p.mxq", kept, config_preset="classification"
    )
    assert report["reuse"]["statistics"]["observed"] > 0
    again = build(
        ocr_cls, ocr_calibration, tmp_path / "p2.mxq", kept, config_preset="classification"
    )
    assert again["reuse"]["statistics"]["observed"] == 0
    assert (tmp_path / "p.mxq").read_bytes() == (tmp_path / "p2.mxq").read_bytes()


@pytest.mark.parametrize("damage", ["truncated", "altered", "empty", "other", "folder"])
def test_a_damaged_entry_is_a_miss(
    damage: str, ocr_cls: Path, ocr_calibration: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "cache"
    build(ocr_cls, ocr_calibration, tmp_path / "a.mxq", kept)
    (entry,) = kept.glob("*.statistics.json")
    data = entry.read_bytes()
    if damage == "truncated":
        entry.write_bytes(data[: len(data) // 2])
    elif damage == "altered":
        at = data.index(b'"range": [') + 10
        entry.write_bytes(data[:at] + b"7" + data[at:])
    elif damage == "empty":
        entry.write_bytes(b"")
    elif damage == "other":
        entry.write_bytes(b'{"check": 1, "statistics": []}')
    else:
        entry.unlink()
        entry.mkdir()
    report = build(ocr_cls, ocr_calibration, tmp_path / "b.mxq", kept)
    assert report["reuse"]["statistics"]["reused"] == 0
    assert (tmp_path / "a.mxq").read_bytes() == (tmp_path / "b.mxq").read_bytes()


def test_other_data_is_another_entry(ocr_cls: Path, ocr_calibration: Path, tmp_path: Path) -> None:
    kept = tmp_path / "cache"
    build(ocr_cls, ocr_calibration, tmp_path / "a.mxq", kept)
    fewer = tmp_path / "fewer"
    fewer.mkdir()
    for path in sorted(ocr_calibration.iterdir())[1:]:
        (fewer / path.name).write_bytes(path.read_bytes())
    report = build(ocr_cls, fewer, tmp_path / "b.mxq", kept)
    assert report["reuse"]["statistics"]["reused"] == 0
    assert len(list(kept.glob("*.statistics.json"))) == 2


def test_old_entries_are_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_ENTRIES", 3)
    statistics = observers.Statistics(
        observers.CalibrationSettings(), {}, samples=1, digest="0" * 64
    )
    for number in range(5):
        observers.StatisticsCache(tmp_path, model=str(number), data="d", runtime="r").keep(
            statistics
        )
    assert len(list(tmp_path.iterdir())) == 3


def test_a_folder_that_cannot_be_written_only_costs_the_cache(
    ocr_cls: Path, ocr_calibration: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    report = build(ocr_cls, ocr_calibration, tmp_path / "a.mxq", tmp_path / "file" / "cache")
    assert report["reuse"]["statistics"]["reused"] == 0
