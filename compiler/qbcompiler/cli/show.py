"""Commands that only tell: devices, presets, dump-config, validate, check."""

from __future__ import annotations

import os
import platform
from argparse import Namespace
from collections.abc import Mapping, Sequence
from importlib import metadata, util
from typing import Any

from .._version import __version__
from ..config import dump_default_config, list_presets, render_config
from ..devices import list_devices, load_device
from ..errors import UnsupportedOperatorError
from ..options import check_backend
from ..paths import check_input, check_outputs, file_entry
from ..progress import JsonlReporter, Reporter
from .info import print_json

__all__ = [
    "run_check",
    "run_devices",
    "run_dump_config",
    "run_presets",
    "run_validate",
]

_PACKAGES = ("numpy", "onnx", "onnxruntime", "pydantic", "pillow")
_OPTIONAL = {"torch": "reading .pt calibration samples"}


def run_devices(args: Namespace, reporter: Reporter) -> int:
    """List the target devices."""
    devices = list_devices()
    if _machine(args, reporter, {"devices": [d.as_dict() for d in devices]}):
        return 0
    for device in devices:
        lacks = device.unsupported_operators
        schemes = ", ".join(device.schemes)
        if len(device.schemes) > 1:
            schemes += ", all"
        print(f"{device.name}: {device.description}")
        print(f"  cores      {device.cores} in {device.clusters} cluster(s)")
        print(f"  schemes    {schemes}")
        print(f"  interface  {'integers' if device.integer_io else 'real numbers'}")
        print(_wrapped("  lacks      ", ", ".join(sorted(lacks)) if lacks else "no operator"))
        print()
    print("Figures that are not public are assumptions: `devices --json` gives the reasoning.")
    return 0


def run_presets(args: Namespace, reporter: Reporter) -> int:
    """List the presets."""
    presets = list_presets()
    if _machine(args, reporter, {"presets": presets}):
        return 0
    for preset in presets:
        extends = f" (extends {preset['extends']})" if preset["extends"] else ""
        print(f"{preset['name']}{extends}")
        print(_wrapped("  ", preset["description"]))
    print("\n`dump-config --preset NAME --output FILE.yaml` writes one out in full.")
    return 0


def run_dump_config(args: Namespace, reporter: Reporter) -> int:
    """Write a configuration template."""
    check_outputs({"the output": args.output}, [])
    config = dump_default_config(args.output, args.preset)
    entry = file_entry("config", args.output)
    if isinstance(reporter, JsonlReporter):
        reporter.result([entry], {"preset": args.preset})
    else:
        print(f"{args.output}: {len(render_config(config).splitlines())} lines of configuration")
    return 0


def run_validate(args: Namespace, reporter: Reporter) -> int:
    """Parse a model and say what the device supports."""
    from ..frontend import load_model, parse
    from ..partition import partition, support_table
    from ..report.text import table

    check_backend(args.backend)
    device = None if args.target_device is None else load_device(args.target_device)
    check_input(args.model, "model")
    kept: list[dict[str, str]] = []

    def explain(step: str, layer: str, reason: str) -> None:
        kept.append({"pass": step, "layer": layer, "reason": reason})

    with reporter.phase("parse"):
        graph = parse(
            load_model(args.model),
            input_shapes=dict(args.input_shape or ()),
            progress=reporter.step("parse"),
            explain=explain,
        )
    reporter.close()
    rows = support_table(graph, device)
    lacking = [row for row in rows if row.reason is not None]
    summary = {
        "target_device": None if device is None else device.name,
        "inputs": [_port(graph, n) for n in graph.inputs],
        "outputs": [_port(graph, n) for n in graph.outputs],
        "layers": [row.to_dict() for row in rows],
        "unsupported_layers": len(lacking),
        "not_fused": kept,
    }
    if isinstance(reporter, JsonlReporter):
        reporter.result([], summary)
    elif args.json:
        print_json(summary)
    else:
        body = [[r.name, r.op, r.place, r.device, r.reason or ""] for r in rows]
        head = ["layer", "operator", "place", "runs on", "why not on the NPU"]
        print("\n".join(table(head, body)))
        print(f"\n{len(rows)} layers, {len(lacking)} not supported by the NPU")
        print("".join(f"{line}\n" for line in _not_fused(kept)), end="")
    if device is not None:
        try:
            partition(graph, device, cpu_offload=bool(args.cpu_offload))
        except UnsupportedOperatorError as exc:
            if isinstance(reporter, JsonlReporter):
                exc.details.pop("layers", None)  # the result message has them
            raise
    return 0


def run_check(args: Namespace, reporter: Reporter) -> int:
    """Check the environment and, where one is given, a package."""
    data: dict[str, Any] = {
        "qbcompiler": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": {"machine": platform.machine(), "cores": _cores()},
        "memory_bytes": _memory(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "optional": {
            name: {"available": util.find_spec(name) is not None, "for": purpose}
            for name, purpose in _OPTIONAL.items()
        },
        "gpu": False,
    }
    if args.mxq:
        from .files import check_package

        check_input(args.mxq, "MXQ")
        data["package"] = check_package(args.mxq)
    if _machine(args, reporter, data):
        return 0
    print(f"qbcompiler   {__version__}")
    print(f"python       {data['python']} on {data['platform']}")
    print(f"cpu          {data['cpu']['cores']} core(s), {data['cpu']['machine']}")
    if data["memory_bytes"]:
        print(f"memory       {data['memory_bytes'] / 2**30:.1f} GiB")
    for name, version in data["packages"].items():
        print(f"{name:<13}{version or 'MISSING'}")
    for name, found in data["optional"].items():
        print(f"{name:<13}{'available' if found['available'] else 'not installed'}, {found['for']}")
    print("gpu          not used: the CPU compiles")
    for line in data.get("package", {}).get("checks", ()):
        print(f"package      {line}")
    return 0


# -- helpers ------------------------------------------------------------------------------


def _machine(args: Namespace, reporter: Reporter, data: Mapping[str, Any]) -> bool:
    """Deliver ``data`` to a program, if one reads; return whether one does."""
    if isinstance(reporter, JsonlReporter):
        reporter.result([], data)
        return True
    if args.json:
        print_json(data)
        return True
    return False


def _wrapped(lead: str, text: str) -> str:
    import textwrap

    return textwrap.fill(text, width=79, initial_indent=lead, subsequent_indent=" " * len(lead))


def _not_fused(kept: Sequence[Mapping[str, str]], shown: int = 3) -> list[str]:
    """Return lines on the rewrites that did not apply, those of one reason together."""
    from ..report.text import wrapped

    layers: dict[tuple[str, str], list[str]] = {}
    for row in kept:
        layers.setdefault((row["pass"], row["reason"]), []).append(row["layer"])
    lines = ["", "Not fused:"] if layers else []
    for (step, reason), names in layers.items():
        more = f" and {len(names) - shown} more" if len(names) > shown else ""
        lines += wrapped(f"  {step}: ", f"{reason} ({', '.join(names[:shown])}{more})")
    return lines


def _port(graph: Any, name: str) -> dict[str, Any]:
    type_ = graph.values[name].type
    return {"name": name, "dtype": type_.dtype.value, "shape": list(type_.shape)}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
