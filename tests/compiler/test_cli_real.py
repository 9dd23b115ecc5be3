"""The main job on a real trained model with real image data, through the command line."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from .test_cli import clean_environment

SHAPE = ["--input-shape", "x=1,3,48,192"]


def run(*args: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "qbcompiler", *map(str, args)],
        env={**clean_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def built(ocr_cls: Path, ocr_calibration: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the text-direction classifier compiled for regulus-rb."""
    folder = tmp_path_factory.mktemp("real")
    run(
        *("compile", "--model", ocr_cls, *SHAPE, "--backend", "onnx"),
        *("--calib-data-path", ocr_calibration, "--target-device", "regulus-rb"),
        *("--config-preset", "classification", "--threads", "2"),
        *("--output", folder / "model.mxq", "--report-path", folder / "report.json"),
        PYTHONHASHSEED="1",
    )
    return folder


def test_it_is_accurate_on_held_out_images(built: Path, ocr_cls: Path, ocr_data: Path) -> None:
    mblt = built / "model.mblt"
    run("parse", "--model", ocr_cls, *SHAPE, "--output", mblt)
    found = {}
    for kind, path in (("--mxq", built / "model.mxq"), ("--mblt", mblt)):
        output = built / f"out{kind}.npy"
        run("run", kind, path, "--input", ocr_data / "held_out", "--output", output)
        found[kind] = np.load(output)
    agreement = np.mean(found["--mxq"].argmax(1) == found["--mblt"].argmax(1))
    noise = np.square(found["--mxq"] - found["--mblt"]).sum()
    sqnr = 10 * np.log10(np.square(found["--mblt"]).sum() / noise)
    assert agreement >= 0.98
    assert sqnr > 20


def test_other_ways_give_the_same_bytes(
    built: Path, ocr_cls: Path, ocr_calibration: Path, tmp_path: Path
) -> None:
    """Parse and quantize apart, one thread, another hash seed, another folder, copied samples."""
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for sample in ocr_calibration.iterdir():
        (copy / sample.name).write_bytes(sample.read_bytes())
        os.utime(copy / sample.name, (0, 0))
    mblt, mxq = tmp_path / "m.mblt", tmp_path / "m.mxq"
    run("parse", "--model", ocr_cls, *SHAPE, "--output", mblt, PYTHONHASHSEED="2")
    run(
        *("quantize", "--mblt", mblt, "--output", mxq, "--calib-data-path", copy),
        *("--target-device", "regulus-rb", "--config-preset", "classification"),
        *("--threads", "1"),
        PYTHONHASHSEED="3",
    )
    assert sha256(mxq) == sha256(built / "model.mxq")


def test_the_report_tells_of_every_layer(built: Path) -> None:
    report = json.loads((built / "report.json").read_text())
    assert report["device"] == "regulus-rb" and report["preset"] == "classification"
    assert report["calibration"]["samples"] == 16
    assert len(report["layers"]) > 40
    assert all(layer["outputs"] for layer in report["layers"])
    (output,) = report["accuracy"]["outputs"]
    assert output["sqnr_db"] > 25 and output["top1_agreement"] == 1.0
