"""``compile``, ``parse`` and ``quantize``."""

from __future__ import annotations

import os
import sys
import textwrap
from argparse import Namespace
from typing import Any, cast

from .. import api
from ..errors import ArgumentError
from ..options import CompileOptions
from ..progress import JsonlReporter, Reporter

__all__ = ["run_compile", "run_parse", "run_quantize"]


def run_compile(args: Namespace, reporter: Reporter) -> int:
    """Compile a source model to an MXQ."""
    model = _model(args)
    if args.estimate_only:
        found = api.estimate_cost(model, **_options(args, reporter))
        reporter.close()
        if not isinstance(reporter, JsonlReporter):
            from .estimate import estimate_text

            sys.stdout.write(estimate_text(found))
        return 0
    _show(api.mxq_compile(model, **_options(args, reporter)), args, reporter)
    return 0


def run_parse(args: Namespace, reporter: Reporter) -> int:
    """Parse a source model to an MBLT."""
    model = _model(args)
    options = cast(dict[str, Any], _options(args, reporter))
    _show(api.mblt_compile(model, **options), args, reporter)
    return 0


def run_quantize(args: Namespace, reporter: Reporter) -> int:
    """Quantize an MBLT to an MXQ."""
    _show(api.mxq_compile_from_mblt(args.mblt, **_options(args, reporter)), args, reporter)
    return 0


def _model(args: Namespace) -> str:
    """Return the model's path: the option's, or else the configuration file's."""
    if args.model is not None:
        return str(args.model)
    if args.compile_config is not None:
        from ..config import CompileConfig

        paths = CompileConfig.from_file(args.compile_config).model_paths
        if len(paths) > 1:
            raise ArgumentError("the configuration's modelPaths names more than one model")
        if paths:
            return paths[0]
    raise ArgumentError("no model is given", hint="give --model")


def _options(args: Namespace, reporter: Reporter) -> CompileOptions:
    """Return the API's keyword arguments; options that the command lacks stay out."""
    given = vars(args)
    same = (
        "mblt_save_path",
        "target_device",
        "backend",
        "use_random_calib",
        "inference_scheme",
        "device",
        "cpu_offload",
        "config_preset",
        "compile_config",
        "config_save_path",
        "report_path",
        "trace_path",
        "validation_save_path",
        "body_save_path",
        "cache_dir",
        "source_revision",
        "threads",
    )
    options: dict[str, Any] = {name: given[name] for name in same if name in given}
    options["save_path"] = args.output
    options["reporter"] = reporter
    if given.get("calib_data_path"):
        options["calib_data_path"] = args.calib_data_path
    if given.get("input_shape"):
        names = [name for name, _ in args.input_shape]
        for name in names:
            if names.count(name) > 1:
                raise ArgumentError(f"--input-shape gives {name!r} twice")
        options["input_shape_dict"] = dict(args.input_shape)
    if given.get("label"):
        options["labels"] = dict(args.label)
    if not given.get("local") and not given.get("estimate_only"):
        options["server"] = given.get("server") or os.environ.get("QB_SERVER") or None
        options["token"] = given.get("token")
    return cast(CompileOptions, options)


def _show(result: api.BuildResult, args: Namespace, reporter: Reporter) -> None:
    """Print what was written; under the protocol the result message has said it."""
    reporter.close()
    if isinstance(reporter, JsonlReporter) or args.quiet:
        return
    for entry in result.files:
        print(f"{entry['kind']:<11}{entry['path']}  {entry['size']:,} bytes")
        if entry["kind"] in ("mxq", "mblt"):
            print(f"{'sha-256':<11}{entry['sha256']}")
    accuracy = result.summary.get("accuracy") or {}
    for output in accuracy.get("outputs", ()):
        top1 = output.get("top1_agreement")
        text = f"SQNR {output['sqnr_db']} dB, cosine {output['cosine']}"
        if top1 is not None:
            text += f", top-1 agreement {top1:.3f}"
        _print("accuracy", f"{output['name']}: {text} ({accuracy['samples']} samples)")
    seconds = result.summary.get("phase_seconds", {})
    if seconds:
        _print("seconds", ", ".join(f"{k} {v:.2f}" for k, v in seconds.items()))


def _print(title: str, text: str) -> None:
    print(textwrap.fill(text, 79, initial_indent=f"{title:<11}", subsequent_indent=" " * 11))
