"""``compare``: each row is what that build alone gives, on one pass over the samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qbcompiler import compare_settings, mxq_compile, settings_of
from qbcompiler.cli import main
from qbcompiler.compare import Setting
from qbcompiler.errors import ArgumentError, CalibrationMissingError
from qbcompiler.quantization.observers import cache

from .test_cli import network


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    onnx.save(network(), folder / "m.onnx")
    (folder / "cal").mkdir()
    rng = np.random.default_rng(3)
    for i in range(6):
        np.save(folder / "cal" / f"{i}.npy", rng.normal(0, 1, (1, 3, 16, 16)).astype(np.float32))
    (folder / "zero.yaml").write_text("calibration: {method: 2, mode: 2}\n")
    (folder / "clipped.yaml").write_text("calibration: {mode: 1}\n")
    (folder / "broken.yaml").write_text("calibration: {method: 7}\n")
    return folder


def test_rows_are_those_of_single_builds(data: Path, tmp_path: Path) -> None:
    settings = settings_of(
        ["regulus-rb", "aries-rb"], ["default", "classification"], [data / "zero.yaml"]
    )
    rows = compare_settings(data / "m.onnx", settings, calib_data_path=data / "cal")
    assert [(r["setting"], r["target_device"]) for r in rows] == [
        (name, device)
        for device in ("regulus-rb", "aries-rb")
        for name in ("default", "classification", "zero.yaml")
    ]
    for index, (setting, row) in enumerate(zip(settings, rows, strict=True)):
        result = mxq_compile(
            data / "m.onnx",
            calib_data_path=data / "cal",
            save_path=tmp_path / f"{index}.mxq",
            target_device=setting.target_device,
            config_preset=setting.config_preset,
            compile_config=setting.compile_config,
        )
        (output,) = result.summary["accuracy"]["outputs"]
        assert row["sqnr_db"] == output["sqnr_db"]
        assert row["cosine"] == output["cosine"]
        assert row["size"] == (tmp_path / f"{index}.mxq").stat().st_size
        assert row["error"] is None and row["wide_share"] == 0.0 and row["latency_ms"] > 0
    assert rows[0]["sqnr_db"] != rows[2]["sqnr_db"]


def test_the_samples_are_observed_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    original = cache.collect_cached.__kwdefaults__["collect"]

    def counted(*args: Any, **options: Any) -> Any:
        passes.append(len(options["values"]))
        return original(*args, **options)

    monkeypatch.setitem(cache.collect_cached.__kwdefaults__, "collect", counted)
    devices = ["regulus-rb", "aries-rb"]
    settings = settings_of(devices, ["default"], [data / "clipped.yaml", data / "zero.yaml"])
    rows = compare_settings(data / "m.onnx", settings, calib_data_path=data / "cal")
    assert len(passes) == 1
    assert sum(row["observed"] > 0 for row in rows) == 1
    # balanced channels are another model to observe, once for all who balance them
    passes.clear()
    compare_settings(
        data / "m.onnx",
        settings_of(devices, ["classification", "default"]),
        calib_data_path=data / "cal",
    )
    assert len(passes) <= 3


def test_what_cannot_be_built_says_why_and_stops_nobody(data: Path) -> None:
    settings = [
        *settings_of(["regulus-rb"], ["default", "no_such_preset"], [data / "broken.yaml"]),
        Setting("lost", "no-such-device"),
    ]
    rows = compare_settings(data / "m.onnx", settings, calib_data_path=data / "cal")
    assert [None if r["error"] is None else r["error"]["code"] for r in rows] == [
        None,
        "CONFIG_ERROR",
        "CONFIG_ERROR",
        "DEVICE_SCHEME_ERROR",
    ]
    assert rows[1]["sqnr_db"] is None and "no_such_preset" in rows[1]["error"]["message"]


def test_wide_layers_are_counted(data: Path) -> None:
    every = {"bit": {"layerOverrides": {"weight16Bits": ["*"]}}}
    settings = [
        Setting("narrow", "aries-rb"),
        Setting("wide", "aries-rb", compile_config=every),
    ]
    rows = compare_settings(data / "m.onnx", settings, calib_data_path=data / "cal")
    assert [row["wide_share"] for row in rows] == [0.0, 1.0]


def test_nothing_to_compare_and_settings_given_twice_are_refused(data: Path) -> None:
    with pytest.raises(ArgumentError, match="no setting"):
        compare_settings(data / "m.onnx", [])
    with pytest.raises(ArgumentError, match="config_preset belongs to the settings"):
        compare_settings(data / "m.onnx", settings_of(["aries-rb"]), config_preset="classification")


def test_lacking_calibration_is_each_rows_error(data: Path) -> None:
    (row,) = compare_settings(data / "m.onnx", settings_of(["aries-rb"]))
    assert row["error"]["code"] == CalibrationMissingError.code


def test_the_command(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "--model", str(data / "m.onnx"), "--calib-data-path", str(data / "cal")]
    command += ["--target-device", "aries-rb", "--config-preset", "default", "-q"]
    command += ["--compile-config", str(data / "broken.yaml")]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "SQNR dB" in text and "fails" in text and "[CONFIG_ERROR]" in text
    assert main([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["settings"]
    assert [row["setting"] for row in rows] == ["default", "broken.yaml"]
