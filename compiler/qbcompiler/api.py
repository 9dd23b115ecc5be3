"""The compiler as functions. Only here (and in the command line) are stages put in order.

source model --parse--> MBLT --quantize--> MXQ; compile is parse and quantize in one process, and
gives the same bytes as the two apart.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from .body import extract_body as get_body_subgraph
from .body import write_body
from .config import dump_default_config, list_presets, write_config
from .errors import ArgumentError
from .options import CompileOptions, ParseOptions, Plan, StrPath, make_plan
from .paths import check_input, check_outputs, file_entry
from .progress import CallbackReporter, ProgressCallback
from .provenance import read_sidecar, write_sidecar
from .request import as_parsed, check_calibration, mblt_of_compile, request_output

if TYPE_CHECKING:
    from .calibration import Dataset
    from .codegen import Estimate
    from .package import MbltMeta
    from .partition import PartitionedGraph
    from .quantization import Accuracy

__all__ = [
    "BuildResult",
    "dump_default_config",
    "get_body_subgraph",
    "list_presets",
    "mblt_compile",
    "mblt_compile_with_callback",
    "mxq_compile",
    "mxq_compile_from_mblt",
    "mxq_compile_from_source",
    "mxq_compile_with_callback",
    "read_provenance",
]

VALIDATION_SAMPLES = 8
"""Calibration samples on which a build compares its integers with the float model."""

LAYER_SAMPLES = 1
"""Of these, samples on which every layer is compared."""


@dataclass(frozen=True)
class BuildResult:
    """What a build wrote and found out.

    Attributes:
        path: the MBLT or MXQ.
        files: each file written: ``kind``, ``path``, ``sha256``, ``size``.
        summary: accuracy, seconds by phase, target device, scheme, preset, warnings.
    """

    path: Path
    files: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)


# -- public calls -------------------------------------------------------------------------


def mxq_compile(model: Any, **options: Unpack[CompileOptions]) -> BuildResult:
    """Compile a source model, or an MBLT, to an MXQ.

    Args:
        model: a path, the bytes of an ONNX file, or an ``onnx.ModelProto``; the path of an
            ``.mblt`` goes to :func:`mxq_compile_from_mblt`.
        options: see :class:`~qbcompiler.options.CompileOptions`; ``save_path`` and
            ``target_device`` are needed.

    Raises:
        QbCompilerError: one of the classes of :mod:`qbcompiler.errors`.
    """
    if isinstance(model, (str, os.PathLike)) and Path(model).suffix.lower() == ".mblt":
        return mxq_compile_from_mblt(model, **options)
    return mxq_compile_from_source(model, **options)


def mxq_compile_from_source(model: Any, **options: Unpack[CompileOptions]) -> BuildResult:
    """Compile a source model to an MXQ; see :func:`mxq_compile`."""
    plan = make_plan(options, device=None)
    device = plan.target
    mblt_path = mblt_of_compile(options)
    sources = [model] if isinstance(model, (str, os.PathLike)) else []
    output = request_output(options, plan, {"the kept MBLT": mblt_path}, sources)
    check_calibration(plan)
    if sources:
        check_input(model, "model")

    reporter = plan.reporter
    reporter.status("started", message=f"Compiling {_label(model)} for {device.name}")
    if options.get("server"):
        return _remote(plan, "compile", model, output, {"mblt": mblt_path})
    _save_config(plan)
    with reporter.phase("parse"):
        graph, meta = _parse(plan, model)
        from .package import mblt_manifest, write_mblt

        files = []
        if mblt_path is None:
            manifest = mblt_manifest(graph, meta)
        else:
            written = write_mblt(mblt_path, graph, meta)
            files.append(file_entry("mblt", mblt_path, written.sha256, written.size))
            manifest = _manifest_of(mblt_path)
        files += _body(plan, graph, meta)
    return _quantize(plan, "compile", graph, manifest, output, files, _label(model))


def estimate_cost(model: Any, **options: Unpack[CompileOptions]) -> Estimate:
    """Estimate cycles and memory of a source model on a device; needs no calibration data.

    Args:
        model: as for :func:`mxq_compile`.
        options: as for :func:`mxq_compile`; outputs and calibration are not looked at.

    Raises:
        QbCompilerError: one of the classes of :mod:`qbcompiler.errors`.
    """
    from .codegen import compile_programs
    from .report import write_trace

    plan = make_plan(options, device=None)
    device, reporter = plan.target, plan.reporter
    trace = options.get("trace_path")
    if trace is not None:
        sources = [model] if isinstance(model, (str, os.PathLike)) else []
        check_outputs({"the trace": trace}, sources)
    if isinstance(model, (str, os.PathLike)):
        check_input(model, "model")
    reporter.status("started", message=f"Estimating {_label(model)} on {device.name}")
    with reporter.phase("parse"):
        graph, _ = _parse(plan, model)
    if graph.body is None:
        raise ArgumentError("the model has no layer to run on the NPU")
    with reporter.phase("codegen"):
        compiled = compile_programs(graph.body, device, plan.schemes)
    files = []
    if trace is not None:
        files.append(file_entry("trace", write_trace(trace, compiled)))
    reporter.status("finished")
    reporter.result(files, {"estimate": compiled.cost.as_dict()})
    return compiled.cost


def mxq_compile_from_mblt(mblt: StrPath, **options: Unpack[CompileOptions]) -> BuildResult:
    """Quantize an MBLT to an MXQ.

    Args:
        mblt: path of the MBLT.
        options: as for :func:`mxq_compile`; the target device defaults to the MBLT's own, and
            what the parse settled (input shapes, channels, offloading) need not be repeated.

    Raises:
        QbCompilerError: one of the classes of :mod:`qbcompiler.errors`.
    """
    from .package import read_mblt, retarget_manifest
    from .partition import partition

    check_input(mblt, "MBLT")
    with read_mblt(mblt) as opened:
        plan = make_plan(options, device=opened.target_device)
        device = plan.target
        output = request_output(options, plan, {}, [mblt])
        plan = as_parsed(plan, opened.meta.parse_options, opened.cpu_offload)
        check_calibration(plan)
        reporter = plan.reporter
        reporter.status("started", message=f"Quantizing {Path(mblt).name} for {device.name}")
        if options.get("server"):
            return _remote(plan, "quantize", mblt, output, {})
        _save_config(plan)
        with reporter.phase("parse", "Reading the MBLT"):
            manifest: Mapping[str, Any] = opened.manifest
            opened.verify()
            offload = plan.config.cpu_offload
            if opened.target_device == device.name and opened.cpu_offload == offload:
                graph = opened.partitioned
            else:
                graph = partition(opened.graph, device, cpu_offload=offload)
                manifest = retarget_manifest(manifest, graph)
            files = _body(plan, graph, opened.meta)
        return _quantize(plan, "quantize", graph, manifest, output, files, Path(mblt).name)


def mblt_compile(
    model: Any,
    mblt_save_path: StrPath | None = None,
    target_device: str | None = None,
    *,
    save_path: StrPath | None = None,
    **options: Unpack[ParseOptions],
) -> BuildResult:
    """Parse a source model to an MBLT.

    Args:
        model: a path, the bytes of an ONNX file, or an ``onnx.ModelProto``.
        mblt_save_path: the output.
        target_device: the target; without one, any device.
        save_path: the output too.
        options: see :class:`~qbcompiler.options.ParseOptions`.

    Raises:
        QbCompilerError: one of the classes of :mod:`qbcompiler.errors`.
    """
    from .package import write_mblt

    path = mblt_save_path if mblt_save_path is not None else save_path
    request = cast(CompileOptions, {**options, "save_path": path, "target_device": target_device})
    plan = make_plan(request, device=None)
    sources = [model] if isinstance(model, (str, os.PathLike)) else []
    output = request_output(request, plan, {}, sources)
    if sources:
        check_input(model, "model")
    reporter = plan.reporter
    reporter.status("started", message=f"Parsing {_label(model)}")
    if options.get("server"):
        return _remote(plan, "parse", model, output, {})
    with reporter.phase("parse"):
        graph, meta = _parse(plan, model)
    with reporter.phase("store"):
        written = write_mblt(output, graph, meta)
        files = [file_entry("mblt", output, written.sha256, written.size)]
        files.append(_provenance(plan, "parse", output, files[0], _label(model)))
        files += _body(plan, graph, meta)
    body = sum(1 for row in graph.support if row.place == "body")
    summary = {
        "target_device": graph.device,
        "cpu_offload": graph.cpu_offload,
        "layers": len(graph.support),
        "body_layers": body,
        "unsupported_layers": len(graph.unsupported),
        **_common_summary(plan),
    }
    return _finish(plan, output, files, summary)


def mxq_compile_with_callback(
    model: Any, callback: ProgressCallback, **options: Unpack[CompileOptions]
) -> BuildResult:
    """Compile as :func:`mxq_compile` does; ``callback`` is called with each message."""
    options["reporter"] = CallbackReporter(callback)
    return mxq_compile(model, **options)


def mblt_compile_with_callback(
    model: Any,
    callback: ProgressCallback,
    mblt_save_path: StrPath | None = None,
    target_device: str | None = None,
    **options: Unpack[ParseOptions],
) -> BuildResult:
    """Parse as :func:`mblt_compile` does; ``callback`` is called with each message."""
    options["reporter"] = CallbackReporter(callback)
    return mblt_compile(model, mblt_save_path, target_device, **options)


def read_provenance(path: StrPath) -> dict[str, Any]:
    """Return how an MBLT or MXQ was made.

    ``compiler``, ``source`` (SHA-256, producer, opset), ``parse_options`` and, for an MXQ, device,
    schemes, preset, configuration and calibration come from the file; ``caller`` is what
    ``OUTPUT.provenance.json`` beside it says, or None where that is missing or of other bytes.

    Raises:
        ArgumentError: the file cannot be opened.
        FormatError: it is neither an MBLT nor an MXQ, or is damaged.
    """
    from .report import info

    data = info(path)
    keys = ["kind", "format", "compiler", "source", "parse_options", "device", "cpu_offload"]
    if data["kind"] == "mxq":
        keys += ["schemes", "preset", "engine", "config", "calibration"]
    return {**{key: data[key] for key in keys}, "caller": read_sidecar(path)}


# -- stages -------------------------------------------------------------------------------


def _parse(plan: Plan, model: Any) -> tuple[PartitionedGraph, MbltMeta]:
    from .frontend import load_model, parse
    from .package import MbltMeta
    from .partition import partition
    from .reuse import parsed

    config = plan.config
    folder = plan.options.get("external_data_dir")
    source = load_model(model, external_data_dir=None if folder is None else Path(folder))
    meta = MbltMeta(
        source_sha256=source.sha256,
        producer=source.producer,
        opset=source.opsets,
        parse_options={
            "input_shapes": {n: list(s) for n, s in sorted(config.input_shape_dict.items())},
        },
    )
    graph = parsed(
        plan,
        meta,
        config.image_channels or None,
        lambda: parse(
            source,
            input_shapes=config.input_shape_dict,
            image_channels=config.image_channels or None,
            progress=plan.reporter.step("parse"),
        ),
        lambda graph: partition(graph, plan.device, cpu_offload=config.cpu_offload),
    )
    return graph, meta


def _quantize(
    plan: Plan,
    command: str,
    graph: PartitionedGraph,
    manifest: Mapping[str, Any],
    output: Path,
    files: list[dict[str, Any]],
    model: str | None,
) -> BuildResult:
    from .auto_bits import choose_bits
    from .calibration import specs_of_graph
    from .codegen import compile_programs
    from .package import CalibrationRecord, MxqContents, write_mxq
    from .quantization import layer_summaries, quantize
    from .refine import refine
    from .report import build_report, lanes_of, write_report, write_trace
    from .reuse import observe
    from .transform import transform

    config, reporter, device = plan.config, plan.reporter, plan.target
    body = graph.body
    if body is None:
        raise ArgumentError("the model has no layer to run on the NPU")
    with reporter.phase("calibrate"):
        specs = specs_of_graph(graph.graph, config.image_channels or None)
        dataset = _open_dataset(plan, specs)
        transformed = transform(plan, graph, dataset)
        floats = transformed.graph
        assert floats.body is not None
        statistics = observe(plan, floats, manifest, dataset, transformed.digest)
        record = CalibrationRecord(
            digest=dataset.digest(),
            samples=len(dataset),
            shapes={s.name: s.shape for s in dataset.inputs},
            random=dataset.is_random,
        )
        for warning in dataset.warnings:
            reporter.warning(warning)
    with reporter.phase("quantize"):
        plan, chosen_bits = choose_bits(plan, floats, statistics, dataset)
        config = plan.config
        if chosen_bits is not None:
            _save_config(plan)
        int_graph = quantize(floats.body, statistics, config, device)
        refined = refine(plan, floats, int_graph, dataset)
    with reporter.phase("codegen"):
        compiled = compile_programs(floats.body, device, plan.schemes, integers=int_graph)
    with reporter.phase("verify"):
        accuracy = _validate(plan, transformed.reference, int_graph, dataset)
        samples_path = plan.options.get("validation_save_path")
        if samples_path is not None:
            files.append(file_entry("validation", samples_path))
    with reporter.phase("store"):
        portable = config.resolved(portable=True)
        written = write_mxq(
            output,
            MxqContents(
                mblt=manifest,
                device=device.name,
                schemes=plan.schemes,
                config=portable,
                preset=plan.preset,
                calibration=record,
                layers=layer_summaries(int_graph),
                accuracy=accuracy.summary(),
                body=int_graph,
                head=graph.head,
                tail=graph.tail,
                programs=compiled.programs,
                integer_io=device.integer_io,
                estimate=compiled.cost.summary(),
            ),
        )
        entry = file_entry("mxq", output, written.sha256, written.size)
        files = [entry, *files, _provenance(plan, command, output, entry, model)]
    summary = {
        "target_device": device.name,
        "inference_scheme": config.inference_scheme,
        "schemes": list(plan.schemes),
        "preset": plan.preset,
        "calibration": record.as_dict(),
        "accuracy": accuracy.summary(),
        "estimate": compiled.cost.summary(),
        **({"reuse": plan.reuse} if plan.reuse else {}),
        **_common_summary(plan),
    }
    report_path = plan.options.get("report_path")
    if report_path is not None:
        report = build_report(
            device=device.name,
            schemes=plan.schemes,
            preset=plan.preset,
            int_graph=int_graph,
            ranges=statistics.ranges,
            calibration=record,
            accuracy=accuracy,
            config=portable,
            support=[row.to_dict() for row in graph.support],
            phases=reporter.seconds,
            warnings=reporter.warnings,
            reuse=plan.reuse,
            estimate={
                **compiled.cost.as_dict(),
                "timelines": {
                    name: lanes_of(timing.spans, compiled.programs[name].layers)
                    for name, timing in compiled.timings.items()
                },
            },
            auto_bits=chosen_bits,
            refined=refined,
            transforms=transformed.report,
            shapes=_histograms(transformed.reference, int_graph, accuracy, dataset),
        )
        write_report(report_path, report)
        files.append(file_entry("report", report_path))
    trace_path = plan.options.get("trace_path")
    if trace_path is not None:
        files.append(file_entry("trace", write_trace(trace_path, compiled)))
    config_path = plan.options.get("config_save_path")
    if config_path is not None:
        files.append(file_entry("config", config_path))
    return _finish(plan, output, files, summary)


def _remote(
    plan: Plan, command: str, model: Any, output: Path, more: Mapping[str, StrPath | None]
) -> BuildResult:
    """Have the build made by a server; write the files that it would have written here."""
    from .client import remote_build

    kind = "mblt" if command == "parse" else "mxq"
    options = plan.options
    if options.get("trace_path") is not None:
        raise ArgumentError(
            "a server writes no trace",
            hint="compile --estimate-only --trace-path FILE makes it here",
        )
    _save_config(plan)
    paths = {
        kind: output,
        **more,
        "report": options.get("report_path"),
        "validation": options.get("validation_save_path"),
        "body": options.get("body_save_path"),
    }
    wanted = {kind: path for kind, path in paths.items() if path is not None}
    files, summary = remote_build(plan, command, model, wanted)
    files = [_as_page(f) if f["kind"] == "report" else f for f in files]
    identity = read_provenance(output)["compiler"]
    files.append(_provenance(plan, command, output, files[0], _label(model), identity))
    config_path = options.get("config_save_path")
    if config_path is not None:
        files.append(file_entry("config", config_path))
    return _finish(plan, output, files, summary)


def _as_page(entry: dict[str, Any]) -> dict[str, Any]:
    """Turn a server's report, which is JSON, into the page that its path asks for."""
    path = Path(entry["path"])
    if path.suffix.lower() not in (".html", ".htm"):
        return entry
    from .report import write_report

    write_report(path, json.loads(path.read_text("utf-8")))
    return file_entry("report", path)


def _open_dataset(plan: Plan, specs: Any) -> Dataset:
    from .calibration import RandomSpec, open_dataset

    source: Any = plan.calibration_paths
    if plan.config.use_random_calib:
        source = RandomSpec()
    return open_dataset(source, specs, plan.config.preprocessing)


def _validate(plan: Plan, graph: PartitionedGraph, int_graph: Any, dataset: Dataset) -> Accuracy:
    """Compare on calibration samples spread evenly over the set."""
    from .calibration import Subset
    from .quantization import validate
    from .report import SampleWriter

    count = min(VALIDATION_SAMPLES, len(dataset))
    chosen = [i * len(dataset) // count for i in range(count)]
    path = plan.options.get("validation_save_path")
    with contextlib.ExitStack() as stack:
        keep = None
        if path is not None:
            keep = stack.enter_context(SampleWriter(path)).add
        return validate(
            graph,
            int_graph,
            Subset(dataset, chosen),
            layer_samples=LAYER_SAMPLES,
            threads=plan.threads,
            progress=lambda done, total: plan.reporter.progress("verify", done, total or count),
            keep=keep,
        )


def _histograms(
    graph: PartitionedGraph, int_graph: Any, accuracy: Accuracy, dataset: Dataset
) -> list[dict[str, Any]]:
    """Return the histograms of the worst layers on the first validation sample."""
    from .report import histograms
    from .runtime.pipeline import BodyInputs

    assert graph.body is not None
    inputs = BodyInputs(graph.head, graph.body.inputs, dataset)
    return histograms(graph.body, int_graph, accuracy, inputs[0])


# -- results ------------------------------------------------------------------------------


def _save_config(plan: Plan) -> None:
    path = plan.options.get("config_save_path")
    if path is not None:
        write_config(path, plan.config)


def _body(plan: Plan, graph: PartitionedGraph, meta: MbltMeta) -> list[dict[str, Any]]:
    """Keep the NPU body where that is asked for; a model without one has none to keep."""
    path = plan.options.get("body_save_path")
    if path is None or graph.body is None:
        return []
    return [write_body(path, graph, meta, plan.device)]


def _manifest_of(mblt: StrPath) -> dict[str, Any]:
    from .package import read_mblt

    with read_mblt(mblt) as opened:
        return opened.manifest


def _provenance(
    plan: Plan,
    command: str,
    output: Path,
    entry: Mapping[str, Any],
    model: str | None,
    compiler: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    from .package import compiler_identity

    configuration = plan.options.get("compile_config")
    path = write_sidecar(
        output,
        sha256=entry["sha256"],
        size=entry["size"],
        command=command,
        model=model,
        calibration=[Path(p).name for p in plan.calibration_paths] if command != "parse" else [],
        source_revision=plan.options.get("source_revision"),
        labels=plan.options.get("labels"),
        config_preset=plan.preset,
        compile_config=(
            Path(configuration).name if isinstance(configuration, (str, os.PathLike)) else None
        ),
        compiler=compiler_identity() if compiler is None else compiler,
    )
    return file_entry("provenance", path)


def _common_summary(plan: Plan) -> dict[str, Any]:
    return {
        "phase_seconds": {k: round(v, 3) for k, v in plan.reporter.seconds.items()},
        "warnings": list(plan.reporter.warnings),
    }


def _finish(
    plan: Plan, output: Path, files: list[dict[str, Any]], summary: dict[str, Any]
) -> BuildResult:
    plan.reporter.status("finished")
    plan.reporter.result(files, summary)
    return BuildResult(output, files, summary)


def _label(model: Any) -> str | None:
    return Path(model).name if isinstance(model, (str, os.PathLike)) else None
