"""What quantizing costs and keeps, beside ONNX Runtime's static quantization and NNCF.

    python -m benchmarks.quantization [--models ppocrv4_cls,digits_cnn] [--samples 32] [--only nncf]

Every tool gets the same model (its inputs bound to one shape, converted to operator set 13 where it
is older, since quantizing per channel needs that), the same calibration samples and the same
held-out samples, and is compared with the float model by the same code. ONNX Runtime quantizes to
QDQ, int8, per channel, with its three ways of choosing ranges; NNCF, with its defaults, takes part
where it is installed. This compiler makes a package with the preset that fits the model, changed as
the name in the table says. A tool that fails is reported with what it said. A last table sets the
preset, and ``bit.auto`` on it, beside the best peer. Progress goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import version_converter

from benchmarks.quantization_models import MODELS, Outputs, Sample, Task
from qbcompiler import mxq_compile
from qbcompiler.package import read_mxq
from qbcompiler.quantization import Difference
from qbcompiler.runtime.pipeline import Pipeline

__all__ = ["Figures", "main", "measure"]

Run = Callable[[Sample], Outputs]
Build = Callable[[Task, Path, Sequence[Sample]], tuple[Run, float]]
_OPSET = 13
_DEVICE = "aries-rb"
_PRESET = "qbcompiler preset"
_AUTO = "qbcompiler bit.auto"

OURS: Mapping[str, tuple[bool, Mapping[str, Any]]] = {
    _PRESET: (True, {}),
    "qbcompiler without preset": (False, {}),
    "qbcompiler method 0": (True, {"calibration": {"method": 0}}),
    "qbcompiler histogram": (True, {"calibration": {"mode": 2}}),
    "qbcompiler 16 bits": (
        True,
        {"bit": {"layerOverrides": {"activation16Bits": ["*"], "weight16Bits": ["*"]}}},
    ),
    _AUTO: (True, {"bit": {"auto": {"apply": True, "targetSqnr": 34.0, "budget": 0.15}}}),
}
"""By the name in the table: whether the model's preset is used, and the settings over it."""

THEIRS = ("MinMax", "Percentile", "Entropy")


@dataclass(frozen=True)
class Figures:
    """One tool on one model.

    Attributes:
        tool: its name.
        seconds: calibration and quantization.
        sqnr_db, cosine: of the outputs, over all held-out samples.
        agreement: share of samples that come to the same as with the float model.
        correct: share of samples with the true class; None where there are no labels.
        failure: why there are no figures.
    """

    tool: str
    seconds: float = 0.0
    sqnr_db: float = 0.0
    cosine: float = 0.0
    agreement: float | None = None
    correct: float | None = None
    failure: str = ""


def _bound_model(task: Task, folder: Path) -> Path:
    """Write the model with fixed input shape in a recent enough operator set."""
    model = onnx.load(task.model)
    for value in model.graph.input:
        if value.name in task.shapes:
            dims = value.type.tensor_type.shape.dim
            for dim, size in zip(dims, task.shapes[value.name], strict=True):
                dim.ClearField("dim_param")
                dim.dim_value = size
    for value in model.graph.output:  # what they say of dynamic sizes is no longer so
        value.type.tensor_type.ClearField("shape")
    if max(o.version for o in model.opset_import if not o.domain) < _OPSET:
        model = version_converter.convert_version(model, _OPSET)
    path = folder / "model.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def _session(path: Path) -> Run:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(sample: Sample) -> Outputs:
        return [np.asarray(y) for y in session.run(None, dict(sample))]

    return run


def _timed(make: Callable[[], None], path: Path) -> tuple[Run, float]:
    start = time.perf_counter()
    make()
    return _session(path), time.perf_counter() - start


def _onnxruntime(method: str) -> Build:
    def build(task: Task, folder: Path, samples: Sequence[Sample]) -> tuple[Run, float]:
        from onnxruntime.quantization import (
            CalibrationDataReader,
            CalibrationMethod,
            QuantFormat,
            quantize_static,
        )

        class Reader(CalibrationDataReader):  # type: ignore[misc]
            def __init__(self) -> None:
                self._samples: Iterator[Sample] = iter(samples)

            def get_next(self) -> dict[str, Any] | None:
                sample = next(self._samples, None)
                return None if sample is None else dict(sample)

        out = folder / f"{method}.onnx"

        def make() -> None:
            quantize_static(
                str(folder / "model.onnx"),
                str(out),
                Reader(),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                calibrate_method=CalibrationMethod[method],
            )

        return _timed(make, out)

    return build


def _nncf(task: Task, folder: Path, samples: Sequence[Sample]) -> tuple[Run, float]:
    import nncf  # optional, see requirements.in

    out = folder / "nncf.onnx"

    def make() -> None:
        model = onnx.load(folder / "model.onnx")
        data = nncf.Dataset(list(samples), dict)
        onnx.save(nncf.quantize(model, data, subset_size=len(samples)), out)

    return _timed(make, out)


def _qbcompiler(preset: bool, settings: Mapping[str, Any]) -> Build:
    def build(task: Task, folder: Path, samples: Sequence[Sample]) -> tuple[Run, float]:
        data = folder / "samples"
        if not data.exists():
            data.mkdir()
            for index, sample in enumerate(samples):
                np.savez(data / f"{index:04}.npz", **sample)
        path = folder / "package.mxq"
        result = mxq_compile(
            task.model,
            calib_data_path=data,
            target_device=_DEVICE,
            save_path=path,
            input_shape_dict=task.shapes,
            cpu_offload=True,
            config_preset=task.preset if preset else None,
            compile_config=dict(settings),
        )
        seconds = result.summary["phase_seconds"]
        with read_mxq(path) as opened:
            names = list(opened.outputs)
            pipeline = Pipeline(
                opened.body, head=opened.head, tail=opened.tail, outputs=names, threads=2
            )

        def run(sample: Sample) -> Outputs:
            found = pipeline.run(sample)
            return [found[name] for name in names]

        return run, seconds["calibrate"] + seconds["quantize"]

    return build


def tools() -> dict[str, Build]:
    """Return what quantizes, by name: this compiler's settings, then its peers."""
    found = {name: _qbcompiler(*settings) for name, settings in OURS.items()}
    found |= {f"onnxruntime {method}": _onnxruntime(method) for method in THEIRS}
    if importlib.util.find_spec("nncf") is not None:
        found["nncf"] = _nncf
    return found


def measure(task: Task, tool: str, build: Build, folder: Path, samples: int) -> Figures:
    """Quantize with one tool and compare it with the float model on the held-out samples."""
    reference = _session(folder / "model.onnx")
    start = time.perf_counter()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # peers tell their progress there
            run, seconds = build(task, folder, task.calibration[:samples])
        difference = Difference()
        expected, got = [], []
        for sample in task.held_out:
            expected.append(reference(sample))
            got.append(run(sample))
            for e, g in zip(expected[-1], got[-1], strict=True):
                difference.add(e, g)
        right = None
        if task.labels is not None:
            chosen = np.array([int(np.argmax(g[0])) for g in got])
            right = float((chosen == task.labels).mean())
        agreement = None if task.agreement is None else task.agreement(expected, got)
    except Exception as exc:  # a peer may fail in any way: that is a result too
        text = " ".join(str(exc).split())[:120]
        return Figures(tool, time.perf_counter() - start, failure=f"{type(exc).__name__}: {text}")
    return Figures(tool, seconds, difference.sqnr_db, difference.cosine, agreement, right)


def _row(model: str, figures: Figures) -> str:
    if figures.failure:
        cells = ["fails", "", "", "", figures.failure]
    else:
        shares = ["" if v is None else f"{v:.3f}" for v in (figures.agreement, figures.correct)]
        cells = [
            f"{figures.sqnr_db:.1f}",
            f"{figures.cosine:.4f}",
            *shares,
            f"{figures.seconds:.1f}",
        ]
    return f"| {model} | {figures.tool} | {' | '.join(cells)} |"


def _verdict(model: str, metric: str, every: Sequence[Figures]) -> str | None:
    """Return the preset's figures beside the best peer's; None where one of them is missing."""
    known = {f.tool: f for f in every if not f.failure}
    peers = [f for f in known.values() if not f.tool.startswith("qbcompiler")]
    if _PRESET not in known or not peers:
        return None
    ours, best = known[_PRESET], max(peers, key=lambda f: f.sqnr_db)
    auto = known.get(_AUTO)
    cells = [
        model,
        f"{ours.sqnr_db:.1f}",
        f"{best.sqnr_db:.1f} ({best.tool})",
        f"{ours.sqnr_db - best.sqnr_db:+.1f}",
        metric,
        *("" if f.agreement is None else f"{f.agreement:.3f}" for f in (ours, best)),
        "" if auto is None else f"{auto.sqnr_db:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table, a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated names")
    parser.add_argument("--samples", type=int, default=32, help="calibration samples, at most")
    parser.add_argument(
        "--only", default="", help="only tools whose name contains one of these, comma-separated"
    )
    arguments = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    print("| model | tool | SQNR dB | cosine | agreement | right class | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    verdicts = []
    for name in arguments.models.split(","):
        task = MODELS[name]()
        found = []
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            _bound_model(task, folder)
            for tool, build in tools().items():
                if any(part in tool for part in arguments.only.split(",")):
                    figures = measure(task, tool, build, folder, arguments.samples)
                    print(_row("" if found else name, figures), flush=True)
                    found.append(figures)
        verdicts.append(_verdict(name, task.metric, found))
    print(
        "\n| model | preset dB | best peer dB | difference | metric | ours | peer | bit.auto dB |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for verdict in filter(None, verdicts):
        print(verdict)


if __name__ == "__main__":
    main()
