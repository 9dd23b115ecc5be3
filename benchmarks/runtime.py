"""Speed of the integer runtime, beside ONNX Runtime on the QDQ export of the same package.

    python -m benchmarks.runtime [--runs N] [--model FILE] [--json FILE]

Without ``--model`` (an ``.mxq``) a network of ResNet-50's shape with random weights is compiled
first, 224 pixels. Both run the same input on one and on two threads, in turns, so that what else
the machine does meets both alike; figures are medians, and the runs that warm up do not count.
The outputs of 1, 2 and 4 threads are compared bit by bit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from qbcompiler.package import read_mxq
from qbcompiler.runtime import IntegerEngine

from . import models
from .calibration import write_samples
from .parse import ROOT, machine

Inputs = dict[str, NDArray[Any]]


def compiled(folder: Path) -> Path:
    """Write the package of a network of ResNet-50's shape; return its path."""
    model, package = folder / "resnet50.onnx", folder / "resnet50.mxq"
    models.resnet50(model)
    _qbcompiler(
        *("compile", "--model", model, "--output", package, "--target-device", "aries-rb"),
        *("--calib-data-path", write_samples(folder, 4)),
    )
    return package


def _qbcompiler(*arguments: object) -> None:
    command = [sys.executable, "-m", "qbcompiler", *map(str, arguments)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def session(path: Path, threads: int) -> Callable[[Inputs], Any]:
    """Return ONNX Runtime's run of a model."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    made = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda inputs: made.run(None, inputs)


def seconds(function: Callable[[Inputs], Any], inputs: Inputs) -> float:
    """Return how long one run takes."""
    start = time.perf_counter()
    function(inputs)
    return time.perf_counter() - start


def measure(package: Path, runs: int, folder: Path) -> dict[str, Any]:
    """Measure one package; return the figures as JSON data."""
    exported = folder / "qdq.onnx"
    _qbcompiler("export", "--mxq", package, "--output", exported)
    rng = np.random.default_rng(0)
    rows = []
    with read_mxq(package) as opened:
        body = opened.body
        inputs: Inputs = {
            name: rng.normal(size=body.values[name].type.shape).astype(np.float32)
            for name in body.inputs
        }
        outputs = [IntegerEngine(body, n).run(inputs, integers=True) for n in (1, 2, 4)]
        for threads in (1, 2):
            ours, theirs = IntegerEngine(body, threads), session(exported, threads)
            seconds(ours.run, inputs), seconds(theirs, inputs)
            times = [(seconds(ours.run, inputs), seconds(theirs, inputs)) for _ in range(runs)]
            one, other = (statistics.median(t[i] for t in times) for i in range(2))
            rows.append({"threads": threads, "qbcompiler": one, "onnxruntime": other})
    equal = all(
        np.array_equal(outputs[0][name], found[name]) for found in outputs for name in found
    )
    return {"rows": rows, "bit_equal": equal}


def render(found: dict[str, Any]) -> str:
    """Return the table for people."""
    lines = [f"{'threads':>7}{'qbcompiler ms':>15}{'ORT QDQ ms':>12}{'ratio':>7}"]
    lines += [
        f"{r['threads']:>7}{r['qbcompiler'] * 1e3:>15.0f}{r['onnxruntime'] * 1e3:>12.0f}"
        f"{r['qbcompiler'] / r['onnxruntime']:>7.2f}"
        for r in found["rows"]
    ]
    said = "the same bits" if found["bit_equal"] else "DIFFERENT BITS"
    return "\n".join([*lines, f"1, 2 and 4 threads give {said}"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code, 1 where threads change the outputs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runtime", description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="runs of each (default: 7)")
    parser.add_argument("--model", type=Path, help="an .mxq without CPU parts")
    parser.add_argument("--json", type=Path, help="write the figures")
    args = parser.parse_args(argv)
    about = machine()
    print(json.dumps(about))
    with tempfile.TemporaryDirectory(prefix="runtime-benchmark-") as name:
        folder = Path(name)
        found = measure(args.model or compiled(folder), args.runs, folder)
    print(render(found))
    if args.json:
        args.json.write_text(json.dumps({"machine": about, **found}, indent=1))
    return 0 if found["bit_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
