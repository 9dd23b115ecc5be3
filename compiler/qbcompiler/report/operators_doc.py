"""``docs/operators.md``, made from the code.

``python -m qbcompiler.report.operators_doc --write docs/operators.md`` writes it,
``--check docs/operators.md`` tells with its exit code whether the file is current.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..devices import Device, list_devices
from ..frontend.operator_list import OnnxOperator, newest_opset, onnx_operators
from ..ops import OpSpec, QuantRule, Registry, default_registry
from ..passes.pipeline import PIPELINE
from ..paths import write_bytes
from .limits import reasons

__all__ = ["main", "render"]

_KEPT = "Onnx"
"""The IR layer of operators that are kept whole."""

_TAKEN_APART = {"Attention": ("MatMul", "Softmax", "HeaderView", "HeaderViewRevert")}
"""Layers of operators that the front end reads as the plain operators they stand for."""

_COMMON = ("integer_reason",)
"""Checks that every integer form makes; the introduction says them once."""

_INTRODUCTION = """\
# Operators

Made from the code by `python -m qbcompiler.report.operators_doc --write docs/operators.md`; a test
fails where it is not current.

Any valid ONNX model parses: an operator becomes a layer that the NPU may run, is resolved while
the model is read, or is kept whole as a CPU layer (`Onnx` in `info`) with its attributes. What
decides for one layer is, in order:

1. An operator whose inputs are all known is computed at compile time and leaves no layer, whatever
   it is.
2. A layer is made where the operator has the form that the layer asks for ("made unless" below).
   Where it has not, it is kept whole, with the reason.
3. The NPU runs a layer that the device has (columns of the devices) and that has an integer form
   ("integer form unless"). For every layer that means, too, that it works on real numbers, that
   its data are activations and not constants, that no tensor is empty, and that no tensor has more
   dimensions than the device takes. Anything else runs on the CPU, before or after the NPU's part,
   with `cpuOffload`, and is an error without it.

Opsets from 7 on are read; an older form is rewritten as the newest says the same. `validate` and
the MBLT's support table say for each layer of a model where it runs and why.
"""


def render() -> str:
    """Return the document."""
    registry, devices = default_registry(), list_devices()
    operators = onnx_operators()
    lines = [_INTRODUCTION, f"## ONNX operators, opset {newest_opset()}", ""]
    lines += _operators([o for o in operators if not o.domain], registry, devices)
    lines += ["", "## Operators of com.microsoft that are read as layers", ""]
    lines += _microsoft(registry, devices)
    others = [o for o in operators if o.domain]
    lines += ["", "## Other domains of ONNX", "", "Kept whole as CPU layers:", ""]
    for domain in dict.fromkeys(o.domain for o in others):
        names = ", ".join(o.name for o in others if o.domain == domain and not o.deprecated)
        lines.append(f"* `{domain}`: {names}")
    lines += ["", "## Layers and their limits", "", *_layers(registry, devices)]
    lines += ["", "## Fusions and other rewrites", ""]
    lines += ["In this order, on the whole graph. A composed form becomes one layer:", ""]
    for step in PIPELINE:
        lines.append(f"* `{step.name}`: {_summary(step)}")
    return "\n".join(lines) + "\n"


def _operators(
    operators: Sequence[OnnxOperator], registry: Registry, devices: Sequence[Device]
) -> list[str]:
    rows = []
    for operator in operators:
        specs = [s for s in registry.claiming(operator.name) if s.name != _KEPT]
        specs += [registry[s] for s in _TAKEN_APART.get(operator.name, ())]
        name = f"{operator.name} (until opset {operator.since - 1})"
        rows.append(
            [
                name if operator.deprecated else operator.name,
                str(operator.since),
                _becomes(operator, specs),
                *_support(specs, devices),
            ]
        )
    head = ["ONNX operator", "version", "becomes", *(d.name for d in devices)]
    return _table(head, rows)


def _becomes(operator: OnnxOperator, specs: Sequence[OpSpec[Any]]) -> str:
    if specs:
        return ", ".join(f"[{s.name}](#{s.name.lower()})" for s in specs)
    if operator.resolved:
        return "nothing, resolved; CPU layer where it depends on data"
    if operator.deprecated:
        return "the operator that took its place"
    return "CPU layer"


def _microsoft(registry: Registry, devices: Sequence[Device]) -> list[str]:
    rows = []
    for key in registry.onnx_types():
        domain, mark, name = key.partition("::")
        if mark:
            specs = registry.claiming(name, domain)
            links = ", ".join(f"[{s.name}](#{s.name.lower()})" for s in specs)
            rows.append([name, links, *_support(specs, devices)])
    rows.append(["any other that ONNX Runtime has", "CPU layer", *("CPU" for _ in devices)])
    return _table(["operator", "becomes", *(d.name for d in devices)], rows)


def _support(specs: Sequence[OpSpec[Any]], devices: Sequence[Device]) -> list[str]:
    places = []
    for device in devices:
        npu = any(_reason(spec, device.unsupported_operators) is None for spec in specs)
        places.append("NPU" if npu else "CPU")
    return places


def _reason(spec: OpSpec[Any], unsupported: Mapping[str, str]) -> str | None:
    if spec.name in unsupported:
        return unsupported[spec.name]
    return "it has no integer form" if spec.rule is QuantRule.FLOAT else None


def _layers(registry: Registry, devices: Sequence[Device]) -> list[str]:
    lines: list[str] = []
    for spec in sorted(registry.specs, key=lambda s: s.name.lower()):
        if spec.name == _KEPT:
            continue
        sources = [f"{d}.{n}" if m else d for d, m, n in (k.partition("::") for k in spec.onnx)]
        lines += [f"### {spec.name}", "", _summary(spec), ""]
        lines.append(f"* from: {', '.join(sources) or 'rewrites below only'}")
        for what, method in (("made unless", "lower"), ("integer form unless", "unsupported")):
            if method == "unsupported" and spec.rule is QuantRule.FLOAT:
                lines.append("* integer form: none")
            elif found := reasons(spec, method, _COMMON):
                lines.append(f"* {what}: {'; '.join(found)}")
        for device in devices:
            reason = device.unsupported_operators.get(spec.name)
            if reason is not None:
                lines.append(f"* not on {device.name}: {reason}")
        lines.append("")
    return lines[:-1]


def _summary(thing: object) -> str:
    """Return the first paragraph of a docstring, as Markdown on one line."""
    text = inspect.cleandoc(type(thing).__doc__ or "").partition("\n\n")[0]
    return " ".join(text.replace("``", "`").split())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    return lines + [f"| {' | '.join(c.replace('|', chr(92) + '|') for c in r)} |" for r in rows]


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the document; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m qbcompiler.report.operators_doc")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", type=Path, metavar="FILE", help="write the document")
    action.add_argument("--check", type=Path, metavar="FILE", help="fail where it is not current")
    args = parser.parse_args(argv)
    text = render()
    if args.write:
        write_bytes(args.write, text.encode())
        return 0
    if not args.check.is_file() or args.check.read_text("utf-8") != text:
        print(
            f"{args.check} is not current: run "
            f"`python -m qbcompiler.report.operators_doc --write {args.check}`",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
