"""``report.json``: what a build tells a person."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..ir import IntGraph
from ..package import CalibrationRecord
from ..package.json_io import dump_json
from ..paths import write_bytes
from ..quantization.summary import layer_summaries
from ..quantization.validate import Accuracy
from .advice import advice
from .bits import bits_of_layers
from .html import report_html

__all__ = ["REPORT_VERSION", "build_report", "warnings_of", "write_report"]

REPORT_VERSION = 1
"""Version of the report's form; raised when a key changes its meaning."""

_WORST = 10
_MEASURED = ("sqnr_db", "own_sqnr_db", "saturated", "clips", "seen", "used")
_BARELY = 0.25


def warnings_of(
    calibration: CalibrationRecord, accuracy: Accuracy | None, others: Sequence[str] = ()
) -> list[str]:
    """Return a build's warnings: random calibration, saturation, then ``others``."""
    found = []
    if calibration.random:
        found.append("calibrated with random numbers: this build is not for release")
    if accuracy is None:
        found.append("accuracy was not measured: there was no validation sample")
    else:
        clipped = [a for a in accuracy.layers if a.clips]
        for layer in sorted(clipped, key=lambda a: -a.at_limits / a.elements)[:_WORST]:
            share = 100.0 * layer.at_limits / layer.elements
            found.append(
                f"layer {layer.name!r} ({layer.op}): {share:.1f}% of its output is at the limit of"
                " its range"
            )
    found += others
    return found


def build_report(
    *,
    device: str,
    schemes: Sequence[str],
    preset: str | None,
    int_graph: IntGraph,
    ranges: Mapping[str, tuple[float, float]],
    calibration: CalibrationRecord,
    accuracy: Accuracy | None,
    config: Mapping[str, Any],
    support: Sequence[Mapping[str, Any]] = (),
    phases: Mapping[str, float] | None = None,
    warnings: Sequence[str] = (),
    reuse: Mapping[str, Any] | None = None,
    estimate: Mapping[str, Any] | None = None,
    auto_bits: Mapping[str, Any] | None = None,
    refined: Mapping[str, Any] | None = None,
    transforms: Mapping[str, Any] | None = None,
    shapes: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the report as JSON data.

    Args:
        device, schemes, preset, config: what was built, resolved.
        int_graph: the integer graph.
        ranges: observed ``(low, high)`` by value name.
        calibration: what it was calibrated with.
        accuracy: against the float model, or None where nothing was compared.
        support: the partition's table, one object a layer.
        phases: seconds that each phase took, by name.
        warnings: further warnings (settings without effect …).
        estimate: cycles and memory by scheme, with what is assumed of the device.
        reuse: what was taken from earlier builds, such as calibration statistics.
        auto_bits: how ``bit.auto`` chose the layers with 16 bits.
        refined: what was done to weights and biases with the samples.
        transforms: what was done to the float model before calibration.
        shapes: histograms of the worst layers, of :func:`~qbcompiler.report.histograms.histograms`.
    """
    errors = {a.name: a.as_dict() for a in accuracy.layers} if accuracy is not None else {}
    bits = bits_of_layers(int_graph, config, auto_bits)
    layers = []
    for summary in layer_summaries(int_graph):
        for port in (*summary["inputs"], *summary["outputs"]):
            if port["name"] in ranges:
                low, high = ranges[port["name"]]
                port["range"] = [float(low), float(high)]
        found = errors.get(summary["name"], {})
        layers.append(
            {
                **summary,
                "bits": bits[summary["name"]],
                **{key: found.get(key) for key in _MEASURED},
            }
        )
    measured = [x for x in layers if x["sqnr_db"] is not None]
    report: dict[str, Any] = {
        "version": REPORT_VERSION,
        "device": device,
        "schemes": list(schemes),
        "preset": preset,
        "calibration": calibration.as_dict(),
        "accuracy": accuracy.summary() if accuracy is not None else None,
        "warnings": warnings_of(calibration, accuracy, warnings),
        "reuse": dict(reuse or {}),
        "estimate": None if estimate is None else dict(estimate),
        "auto_bits": None if auto_bits is None else dict(auto_bits),
        "refined": dict(refined or {}),
        "transforms": dict(transforms or {}),
        "phases": {k: round(float(v), 3) for k, v in (phases or {}).items()},
        "worst_layers": {
            "accumulated": _worst(measured, "sqnr_db"),
            "own": _worst([x for x in measured if x["own_sqnr_db"] is not None], "own_sqnr_db"),
        },
        "coverage": _coverage(int_graph, ranges, layers),
        "histograms": [dict(row) for row in shapes],
        "layers": layers,
        "support": [dict(row) for row in support],
        "config": dict(config),
    }
    report["advice"] = advice(report)
    return report


def _coverage(
    graph: IntGraph,
    ranges: Mapping[str, tuple[float, float]],
    layers: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return how well the calibrated ranges fit what the validation samples hold."""
    used = sorted(x["used"] for x in layers if x["used"] is not None)
    return {
        "inputs": {n: [float(v) for v in ranges[n]] for n in graph.inputs if n in ranges},
        "median_used": used[len(used) // 2] if used else None,
        "barely_used": sum(share < _BARELY for share in used),
        "at_limits": sum(bool(x["clips"]) for x in layers),
        "measured": len(used),
    }


def _worst(layers: Sequence[Mapping[str, Any]], key: str) -> list[dict[str, Any]]:
    ordered = sorted(layers, key=lambda x: (x[key], x["name"]))[:_WORST]
    return [{"name": x["name"], "op": x["op"], key: x[key]} for x in ordered]


def write_report(path: str | os.PathLike[str], report: Mapping[str, Any]) -> Path:
    """Write a report; the file appears under its name only when it is complete.

    A path that ends in ``.html`` gets a page for people, any other JSON.

    Raises:
        OutputWriteError: it cannot be written.
    """
    html = Path(path).suffix.lower() in (".html", ".htm")
    write_bytes(path, report_html(report).encode() if html else dump_json(report))
    return Path(path)
