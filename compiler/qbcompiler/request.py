"""The parts of a request that are checked first: paths, data, what a parse has settled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import ArgumentError, CalibrationDataError, CalibrationMissingError
from .options import CompileOptions, Plan, StrPath
from .paths import check_outputs
from .provenance import sidecar_path

__all__ = ["as_parsed", "check_calibration", "mblt_of_compile", "request_output"]


def request_output(
    options: CompileOptions,
    plan: Plan,
    others: Mapping[str, StrPath | None],
    sources: list[StrPath],
) -> Path:
    """Return the output's path once every path of the request has been checked."""
    path = options.get("save_path")
    if path is None:
        if len(plan.config.save_paths) > 1:
            raise ArgumentError("the configuration's savePaths names more than one output")
        if not plan.config.save_paths:
            raise ArgumentError("no output is given", hint="give --output (save_path=)")
        path = plan.config.save_paths[0]
    outputs = {
        "the output": path,
        "the provenance file": sidecar_path(path),
        **others,
        "the report": options.get("report_path"),
        "the trace": options.get("trace_path"),
        "the validation samples": options.get("validation_save_path"),
        "the NPU body": options.get("body_save_path"),
        "the saved configuration": options.get("config_save_path"),
    }
    configuration = options.get("compile_config")
    if isinstance(configuration, (str, os.PathLike)):
        sources = [*sources, configuration]
    check_outputs(outputs, sources)
    return Path(path)


def mblt_of_compile(options: CompileOptions) -> StrPath | None:
    """Return where a compile keeps its MBLT, None for nowhere.

    Raises:
        ArgumentError: the arguments that say so contradict each other.
    """
    path = options.get("mblt_save_path")
    kind = options.get("save_subgraph_type")
    other = options.get("output_subgraph_path")
    if kind not in (None, 0, 2):
        raise ArgumentError(
            f"save_subgraph_type must be 2 (keep the MBLT) or 0, got {kind!r}",
            details={"expected": [0, 2], "got": kind},
        )
    if kind == 2 and other is None and path is None:
        raise ArgumentError("save_subgraph_type=2 needs output_subgraph_path")
    if other is not None and path is not None and Path(other) != Path(path):
        raise ArgumentError("output_subgraph_path and mblt_save_path name two files")
    return path if path is not None else (other if kind == 2 else None)


def check_calibration(plan: Plan) -> None:
    """Refuse a request without calibration data, or with data that do not exist.

    Raises:
        CalibrationMissingError: there are none.
        CalibrationDataError: a path does not exist.
    """
    if not plan.config.use_random_calib and not plan.calibration_paths:
        raise CalibrationMissingError(
            "No calibration dataset is provided",
            hint="give --calib-data-path, or --use-random-calib for a trial build",
        )
    if plan.config.use_random_calib:
        if plan.calibration_paths:
            plan.reporter.warning(
                "random calibration is asked for: the calibration data is not used"
            )
        return
    for path in plan.calibration_paths:
        if not Path(path).exists():
            raise CalibrationDataError(
                f"calibration data {os.fspath(path)!r} does not exist",
                details={"path": os.fspath(path)},
            )


def as_parsed(plan: Plan, parsed: Mapping[str, Any], cpu_offload: bool) -> Plan:
    """Fill in what the parse settled, so that the MXQ is the one that compile would make.

    Raises:
        ArgumentError: the request contradicts the parse.
    """
    shapes = {n: list(s) for n, s in dict(parsed.get("input_shapes") or {}).items()}
    wanted = plan.config.input_shape_dict
    if wanted and wanted != shapes:
        raise ArgumentError(
            "the input shapes are not those that the MBLT was parsed with",
            details={"expected": shapes, "got": wanted},
            hint="leave them out, or parse the model again",
        )
    return plan.with_config(
        input_shape_dict=shapes,
        cpu_offload=plan.config.cpu_offload or cpu_offload,
    )
