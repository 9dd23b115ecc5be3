"""Every operator that ONNX defines, and what the front end does with it first."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from .structural import HANDLERS

__all__ = ["OnnxOperator", "newest_opset", "onnx_operators"]


@dataclass(frozen=True, slots=True)
class OnnxOperator:
    """An operator in its newest version.

    Attributes:
        domain: "" for ai.onnx.
        name: its type.
        since: opset that brought the newest version.
        deprecated: whether that version takes the operator away; older opsets have it.
        resolved: whether the front end has a rule to do away with it while it reads the model.
    """

    domain: str
    name: str
    since: int
    deprecated: bool
    resolved: bool


def newest_opset() -> int:
    """Return the newest opset of ai.onnx that the installed ``onnx`` package knows."""
    return int(onnx.defs.onnx_opset_version())


def onnx_operators() -> list[OnnxOperator]:
    """Return all operators of all domains of ONNX, by domain and name."""
    newest: dict[tuple[str, str], onnx.defs.OpSchema] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        key = (schema.domain, schema.name)
        if key not in newest or schema.since_version > newest[key].since_version:
            newest[key] = schema
    return [
        OnnxOperator(domain, name, s.since_version, s.deprecated, not domain and name in HANDLERS)
        for (domain, name), s in sorted(newest.items())
    ]
