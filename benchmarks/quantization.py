"""What quantizing costs and keeps, beside ONNX Runtime's static quantization (and NNCF).

    python -m benchmarks.quantization [--models ppocrv4_cls,digits_cnn] [--samples 32]

Every tool gets the same model (its input bound to one shape, converted to operator set 13 where it
is older, since quantizing per channel needs that), the same calibration samples and the same
held-out samples, and is compared with the float model by the same code. ONNX Runtime quantizes to
QDQ, int8, per channel, with its three ways of choosing ranges; NNCF takes part where it is
installed. A tool that fails is reported with what it said. Progress goes to standard error.
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
from numpy.typing import NDArray
from onnx import version_converter

from benchmarks.quantization_models import MODELS, Task
from qbcompiler.calibration import open_dataset, specs_of_graph
from qbcompiler.config import CompileConfig
from qbcompiler.devices import load_device
from qbcompiler.frontend import load_model, parse
from qbcompiler.partition import partition
from qbcompiler.quantization import BiasCorrection, Difference, correct_biases, quantize
from qbcompiler.quantization.observers import CalibrationSettings, collect, needed_values
from qbcompiler.runtime.pipeline import BodyInputs, Pipeline

__all__ = ["Figures", "main", "measure"]

Floats = NDArray[Any]
Run = Callable[[Floats], list[Floats]]
_OPSET = 13
_DEVICE = "aries-rb"

OURS: Mapping[str, Mapping[str, Any]] = {
    "qbcompiler, default": {},
    "qbcompiler, classification": {"calibration": {"mode": 1}},
    "qbcompiler, method 2": {"calibration": {"method": 2}},
    "qbcompiler, method 2, histogram": {"calibration": {"method": 2, "mode": 2}},
    "qbcompiler, method 3": {"calibration": {"method": 3}},
    "qbcompiler, method 2, biases": {
        "calibration": {"method": 2},
        "layerBiasCorrection": {"apply": True},
    },
    "qbcompiler, 16 bits": {
        "calibration": {"method": 2},
        "bit": {"layerOverrides": {"activation16Bits": ["*"], "weight16Bits": ["*"]}},
    },
}
"""Configurations by the name that the table has for them."""

THEIRS = ("MinMax", "Percentile", "Entropy")


@dataclass(frozen=True)
class Figures:
    """One tool on one model.

    Attributes:
        tool: its name.
        seconds: calibration and quantization.
        sqnr_db, cosine: of the outputs, over all held-out samples.
        top1: share of samples with the float model's class; None where there are no classes.
        correct: share of samples with the true class; None where there are no labels.
        failure: why there are no figures.
    """

    tool: str
    seconds: float = 0.0
    sqnr_db: float = 0.0
    cosine: float = 0.0
    top1: float | None = None
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
    name = session.get_inputs()[0].name

    def run(sample: Floats) -> list[Floats]:
        return [np.asarray(y) for y in session.run(None, {name: sample})]

    return run


def _onnxruntime(method: str) -> Callable[[Task, Path, Sequence[Floats]], Run]:
    def build(task: Task, folder: Path, samples: Sequence[Floats]) -> Run:
        from onnxruntime.quantization import (
            CalibrationDataReader,
            CalibrationMethod,
            QuantFormat,
            quantize_static,
        )

        class Reader(CalibrationDataReader):  # type: ignore[misc]
            def __init__(self) -> None:
                self._samples: Iterator[Floats] = iter(samples)

            def get_next(self) -> dict[str, Floats] | None:
                sample = next(self._samples, None)
                return None if sample is None else {task.input: sample}

        out = folder / f"{method}.onnx"
        quantize_static(
            str(folder / "model.onnx"),
            str(out),
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            calibrate_method=CalibrationMethod[method],
        )
        return _session(out)

    return build


def _nncf(task: Task, folder: Path, samples: Sequence[Floats]) -> Run:
    import nncf  # optional, see requirements.in

    model = onnx.load(folder / "model.onnx")
    data = nncf.Dataset(list(samples), lambda sample: {task.input: sample})
    out = folder / "nncf.onnx"
    onnx.save(nncf.quantize(model, data, subset_size=len(samples)), out)
    return _session(out)


def _qbcompiler(settings: Mapping[str, Any]) -> Callable[[Task, Path, Sequence[Floats]], Run]:
    def build(task: Task, folder: Path, samples: Sequence[Floats]) -> Run:
        config = CompileConfig.from_data(dict(settings))
        graph = parse(load_model(task.model), input_shapes=dict(task.shapes), image_channels=None)
        parts = partition(graph, load_device(_DEVICE))
        data = folder / "samples"
        if not data.exists():
            data.mkdir()
            for index, sample in enumerate(samples):
                np.save(data / f"{index:04}.npy", sample)
        dataset = open_dataset(data, specs_of_graph(graph), config.preprocessing)
        body = parts.body
        assert body is not None
        statistics = collect(
            parts.graph,
            dataset,
            CalibrationSettings.from_config(config),
            values=needed_values(body),
        )
        int_graph = quantize(body, statistics, config)
        correction = BiasCorrection.from_config(config)
        if correction is not None:
            inputs = BodyInputs(parts.head, body.inputs, dataset)
            correct_biases(body, int_graph, inputs, correction, threads=2)
        pipeline = Pipeline(
            int_graph,
            head=parts.head,
            tail=parts.tail,
            outputs=graph.outputs,
            threads=2,
        )

        def run(sample: Floats) -> list[Floats]:
            found = pipeline.run({task.input: sample})
            return [found[name] for name in graph.outputs]

        return run

    return build


def tools() -> dict[str, Callable[[Task, Path, Sequence[Floats]], Run]]:
    """Return what quantizes, by name: this compiler's settings, then its peers."""
    found = {name: _qbcompiler(settings) for name, settings in OURS.items()}
    found |= {f"onnxruntime, {method}": _onnxruntime(method) for method in THEIRS}
    if importlib.util.find_spec("nncf") is not None:
        found["nncf"] = _nncf
    return found


def measure(task: Task, tool: str, build: Any, folder: Path, samples: int) -> Figures:
    """Quantize with one tool and compare it with the float model on the held-out samples."""
    reference = _session(folder / "model.onnx")
    start = time.perf_counter()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # peers tell their progress there
            run = build(task, folder, task.calibration[:samples])
        seconds = time.perf_counter() - start
        difference, same, right = Difference(), 0, 0
        classes = task.labels is not None
        for index, sample in enumerate(task.held_out):
            expected, got = reference(sample), run(sample)
            for e, g in zip(expected, got, strict=True):
                difference.add(e, g)
            if task.labels is not None:
                chosen = int(np.argmax(got[0]))
                same += chosen == int(np.argmax(expected[0]))
                right += chosen == int(task.labels[index])
    except Exception as exc:  # a peer may fail in any way: that is a result too
        text = " ".join(str(exc).split())[:120]
        return Figures(tool, time.perf_counter() - start, failure=f"{type(exc).__name__}: {text}")
    count = len(task.held_out)
    return Figures(
        tool,
        seconds,
        difference.sqnr_db,
        difference.cosine,
        same / count if classes else None,
        right / count if classes else None,
    )


def _row(model: str, figures: Figures) -> str:
    if figures.failure:
        cells = ["fails", "", "", "", figures.failure]
    else:
        shares = ["" if v is None else f"{v:.3f}" for v in (figures.top1, figures.correct)]
        cells = [
            f"{figures.sqnr_db:.1f}",
            f"{figures.cosine:.4f}",
            *shares,
            f"{figures.seconds:.1f}",
        ]
    return f"| {model} | {figures.tool} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table, a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated names")
    parser.add_argument("--samples", type=int, default=32, help="calibration samples, at most")
    parser.add_argument("--only", default="", help="only tools whose name contains this")
    arguments = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    print("| model | tool | SQNR dB | cosine | same class | right class | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in arguments.models.split(","):
        task = MODELS[name]()
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            _bound_model(task, folder)
            label = name
            for tool, build in tools().items():
                if arguments.only in tool:
                    figures = measure(task, tool, build, folder, arguments.samples)
                    print(_row(label, figures), flush=True)
                    label = ""


if __name__ == "__main__":
    main()
