"""Time and peak memory of calibration, beside ONNX Runtime and NNCF; memory by samples; reuse.

    python -m benchmarks.calibration [--samples N] [--memory N …] [--only NAME …] [--json FILE]

The model has ResNet-50's shape and random weights; the samples are noise, since time and memory do
not depend on what is in them. Each figure is a whole process, from the model's file to the
quantized one: parsing, calibration, quantization, writing. One run of each after the other.

Three tables: the modes of ``calibration.mode`` beside the peers' methods with the same samples;
peak memory with few and many samples; builds on an MBLT with a cache folder, of which all but the
first should cost little (``reuse``).

NNCF (benchmarks/requirements.in) is measured where it can be imported.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np

from . import models
from .parse import ROOT, Measured, machine, measure

SHAPE = (1, 3, 224, 224)

MODES = {
    "qbcompiler max": {"mode": 0},
    "qbcompiler percentile": {"mode": 1},
    "qbcompiler histogram": {"mode": 2},
}

_ORT = """
import sys
from pathlib import Path
import numpy as np
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat
from onnxruntime.quantization import quantize_static
class Reader(CalibrationDataReader):
    def __init__(self):
        self.files = iter(sorted(Path(sys.argv[2]).glob("*.npy")))
    def get_next(self):
        file = next(self.files, None)
        return None if file is None else {NAME: np.load(file)}
import onnx
NAME = onnx.load(sys.argv[1]).graph.input[0].name
quantize_static(sys.argv[1], sys.argv[3], Reader(), quant_format=QuantFormat.QDQ,
                per_channel=True, calibrate_method=getattr(CalibrationMethod, sys.argv[4]))
"""

_NNCF = """
import sys
from pathlib import Path
import nncf, numpy as np, onnx
model = onnx.load(sys.argv[1])
name = model.graph.input[0].name
data = nncf.Dataset(sorted(Path(sys.argv[2]).glob("*.npy")), lambda f: {name: np.load(f)})
onnx.save(nncf.quantize(model, data, subset_size=1 << 20), sys.argv[3])
"""


def write_samples(folder: Path, count: int) -> Path:
    """Write samples of noise, the same for the same number; return their folder."""
    data = folder / f"samples{count}"
    data.mkdir()
    rng = np.random.default_rng(0)
    for index in range(count):
        np.save(data / f"{index:04}.npy", rng.normal(size=SHAPE).astype(np.float32))
    return data


def config(folder: Path, name: str, sections: dict[str, Any]) -> Path:
    """Write a configuration file."""
    path = folder / f"{name.replace(' ', '_')}.json"
    path.write_text(json.dumps(sections))
    return path


def build(source: list[str], data: Path, settings: Path, folder: Path, *more: str) -> list[str]:
    """Return the command of one build, after ``python``."""
    return [
        *("-m", "qbcompiler", *source, "-q", "--output", str(folder / "out.mxq")),
        *("--calib-data-path", str(data), "--compile-config", str(settings), *more),
    ]


def peers(model: Path, data: Path, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the peers' names and commands."""
    out = str(folder / "out.onnx")
    for method in ("MinMax", "Percentile", "Entropy"):
        yield f"ORT {method}", ["-c", _ORT, str(model), str(data), out, method]
    if util.find_spec("nncf"):
        yield "NNCF", ["-c", _NNCF, str(model), str(data), out]


def row(name: str, found: Measured | str) -> dict[str, Any]:
    """Return the figures of a process as JSON data."""
    if isinstance(found, str):
        return {"name": name, "failed": found}
    return {"name": name, "seconds": round(found.seconds, 2), "peak_bytes": found.peak}


def compared(model: Path, data: Path, folder: Path, only: Sequence[str]) -> list[dict[str, Any]]:
    """Measure each mode and each peer on the same samples."""
    commands = [
        (name, build(["compile", "--model", str(model), "--target-device", "aries-rb"], data,
                     config(folder, name, {"calibration": mode}), folder))
        for name, mode in MODES.items()
    ]  # fmt: skip
    commands += peers(model, data, folder)
    return [
        row(name, measure(command, ROOT))
        for name, command in commands
        if not only or any(part.lower() in name.lower() for part in only)
    ]


def by_samples(model: Path, counts: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """Measure the histogram mode, which keeps most, with different numbers of samples."""
    settings = config(folder, "memory", {"calibration": {"mode": 2}})
    source = ["compile", "--model", str(model), "--target-device", "aries-rb"]
    return [
        row(
            f"{n} samples", measure(build(source, write_samples(folder, n), settings, folder), ROOT)
        )
        for n in counts
    ]


def reused(model: Path, data: Path, folder: Path) -> list[dict[str, Any]]:
    """Measure builds of one MBLT with a cache: the first, and others that differ in a setting."""
    mblt = folder / "model.mblt"
    failed = measure(["-m", "qbcompiler", "parse", "-q", "--model", str(model),
                      "--output", str(mblt)], ROOT)  # fmt: skip
    if isinstance(failed, str):
        return [row("parse", failed)]
    rows = []
    for name, device, sections in (
        ("first build", "aries-rb", {"calibration": {"mode": 2}}),
        ("another device", "regulus-rb", {"calibration": {"mode": 2}}),
        ("16-bit activations", "aries-rb",
         {"calibration": {"mode": 2}, "bit": {"layerOverrides": {"activation16Bits": ["*"]}}}),
        ("percentile", "aries-rb", {"calibration": {"mode": 1}}),
    ):  # fmt: skip
        command = build(
            ["quantize", "--mblt", str(mblt), "--target-device", device], data,
            config(folder, name, sections), folder, "--cache-dir", str(folder / "cache"),
        )  # fmt: skip
        rows.append(row(name, measure(command, ROOT)))
    return rows


def render(title: str, rows: Sequence[dict[str, Any]]) -> str:
    """Return a table for people; times also as parts of the first row's."""
    lines = [f"{title:<34}{'seconds':>9}{'of first':>10}{'peak MB':>9}"]
    first = next((r["seconds"] for r in rows if "seconds" in r), None)
    for found in rows:
        if "failed" in found:
            lines.append(f"{found['name']:<34}{found['failed']}")
        else:
            lines.append(
                f"{found['name']:<34}{found['seconds']:>9.1f}"
                f"{found['seconds'] / first:>10.2f}{found['peak_bytes'] / 1e6:>9.0f}"
            )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration", description=__doc__)
    parser.add_argument("--samples", type=int, default=64, help="samples (default: 64)")
    parser.add_argument(
        "--memory", type=int, nargs="*", default=[16, 256], help="samples of the memory table"
    )
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of the first table")
    parser.add_argument("--json", type=Path, help="write the figures")
    args = parser.parse_args(argv)
    tables: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="calibration-benchmark-") as name:
        folder = Path(name)
        model = folder / "resnet50.onnx"
        models.resnet50(model)
        data = write_samples(folder, args.samples)
        about = machine()
        print(json.dumps(about))
        for title, rows in (
            (f"{args.samples} samples", lambda: compared(model, data, folder, args.only)),
            ("memory", lambda: by_samples(model, args.memory, folder / "memory")),
            ("reuse", lambda: reused(model, data, folder)),
        ):
            (folder / "memory").mkdir(exist_ok=True)
            tables[title] = rows()
            print(render(title, tables[title]) + "\n", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"machine": about, **tables}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
