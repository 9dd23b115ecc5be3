"""Attributes of a source node, checked against the operator's schema before anything reads them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import onnx
from onnx import AttributeProto

from ..errors import ModelLoadError

__all__ = ["check_attributes"]

# numbers are taken for each other, as some exporters write them
_LIKE: Mapping[int, int] = {
    AttributeProto.INT: AttributeProto.FLOAT,
    AttributeProto.INTS: AttributeProto.FLOATS,
}


def check_attributes(
    node: onnx.NodeProto, given: Collection[str], domain: str, version: int, label: str
) -> None:
    """Check that a node has the attributes that its operator must have, each of the right type.

    Attributes that the operator does not know are let through. Operators that onnx does not know
    need only attributes that have a type.

    Args:
        node: the node.
        given: names of its attributes that have a value; one that refers to an attribute that
            the call of a function leaves out has none.
        domain, version: of its operator.
        label: how messages name it.

    Raises:
        ModelLoadError: names the node and the attribute.
    """
    known = _schema(node.op_type, domain, version)
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            continue
        found = attribute.type
        expected = known[attribute.name][0] if attribute.name in known else found
        if found == AttributeProto.UNDEFINED or _LIKE.get(found, found) != _LIKE.get(
            expected, expected
        ):
            raise ModelLoadError(
                f"{label}: attribute {attribute.name!r} is {_name(found)}"
                + (f", not {_name(expected)}" if expected != found else ""),
                details={"attribute": attribute.name, "expected": _name(expected)},
                hint="export the model again; onnx.checker.check_model says more",
            )
    for name, (_, required) in known.items():
        if required and name not in given:
            raise ModelLoadError(
                f"{label} lacks the attribute {name!r}",
                details={"attribute": name},
                hint="export the model again; onnx.checker.check_model says more",
            )


def _name(kind: int) -> str:
    if kind == AttributeProto.UNDEFINED:
        return "of no type"
    names: Mapping[int, str] = {v: k for k, v in AttributeProto.AttributeType.items()}
    return names.get(kind, f"type {kind}")


@lru_cache(maxsize=4096)
def _schema(op_type: str, domain: str, version: int) -> Mapping[str, tuple[int, bool]]:
    """Return type and whether it is required, by attribute name; {} for an unknown operator."""
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except (onnx.defs.SchemaError, TypeError):
        return {}
    return {n: (_number(a.type), bool(a.required)) for n, a in schema.attributes.items()}


def _number(kind: Any) -> int:
    return int(kind.value)
