"""Reads what an ONNX file says about itself, without the onnx package and without its weights.

Only the fields that describe inputs, outputs and origin are looked at, in place, in the mapped
file; tensors are skipped over. The field numbers are those of ``onnx.proto``.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .protobuf import Budget, Buffer, Field, WireError, fields, signed, text
from .sniff import looks_like

__all__ = ["ModelFacts", "NotAModel", "read_onnx"]

MAX_FIELDS = 4_000_000
MAX_PORTS = 10_000
MAX_RANK = 64

_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    8: "string", 9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
    14: "complex64", 15: "complex128", 16: "bfloat16", 17: "float8e4m3fn", 18: "float8e4m3fnuz",
    19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4e2m1",
}  # fmt: skip
_KINDS = {4: "sequence", 5: "map", 8: "sparse_tensor", 9: "optional"}


class NotAModel(ValueError):  # noqa: N818 (a fact about the file)
    """The file is not a model that can be used; the text says why.

    Args:
        message: one line.
        hint: the way out.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model file says about itself.

    Attributes:
        inputs, outputs: each ``{"name", "dtype", "shape"}``; a dimension is a number, a symbol's
            name, or None; the shape is None where the file has none.
        facts: ``ir_version``, ``producer``, ``opset``, ``nodes`` …
        external_files: names of the files that hold the weights outside this one.
    """

    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    facts: dict[str, Any]
    external_files: tuple[str, ...] = ()


@dataclass(slots=True)
class _Graph:
    nodes: int = 0
    inputs: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    initializers: set[str] = field(default_factory=set)
    external: set[str] = field(default_factory=set)


def read_onnx(path: Path) -> ModelFacts:
    """Read an ONNX file.

    Raises:
        NotAModel: it is not an ONNX model, is cut short, or has no graph.
    """
    with path.open("rb") as file:
        head = file.read(512)
        if not head:
            raise NotAModel("the file is empty", "upload an ONNX model")
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(data)
        except WireError as exc:
            phrase = looks_like(head)
            if phrase is not None:
                raise NotAModel(f"not an ONNX model: it looks like {phrase}") from exc
            raise NotAModel(
                f"not an ONNX model, or cut short: {exc}",
                "check the file with onnx.checker.check_model, and that the upload was whole",
            ) from exc


def _read(data: mmap.mmap) -> ModelFacts:
    budget = Budget(MAX_FIELDS)
    facts: dict[str, Any] = {"ir_version": None, "producer": "", "opset": {}}
    producer = version = ""
    graph: _Graph | None = None
    for item in fields(data, 0, len(data), budget):
        if item.number == 1 and not item.is_message:
            facts["ir_version"] = item.value
        elif item.number == 2:
            producer = text(data, item)
        elif item.number == 3:
            version = text(data, item)
        elif item.number == 8:
            domain, number = _opset(data, item, budget)
            facts["opset"][domain or "ai.onnx"] = number
        elif item.number == 7:
            if not item.is_message:
                raise WireError(f"the graph at byte {item.start} is not a message")
            if graph is not None:
                raise WireError("it has two graphs")
            graph = _graph(data, item, budget)
    if graph is None:
        raise WireError("it has no graph")
    if facts["ir_version"] is None and not facts["opset"]:
        raise WireError("it names neither a format version nor an operator set")
    if not graph.nodes:
        raise NotAModel("the ONNX model's graph has no nodes", "export the model again")
    if not graph.outputs:
        raise NotAModel("the ONNX model's graph has no outputs", "export the model again")
    facts["producer"] = f"{producer} {version}".strip()
    facts["opset"] = dict(sorted(facts["opset"].items()))
    facts["nodes"] = graph.nodes
    # before format version 4 weights were inputs too
    inputs = [port for port in graph.inputs if port["name"] not in graph.initializers]
    return ModelFacts(inputs, graph.outputs, facts, tuple(sorted(graph.external)))


def _opset(data: Buffer, item: Field, budget: Budget) -> tuple[str, int]:
    domain, version = "", 0
    for part in fields(data, item.start, item.stop, budget):
        if part.number == 1:
            domain = text(data, part, limit=256)
        elif part.number == 2 and not part.is_message:
            version = signed(part.value)
    return domain, version


def _graph(data: Buffer, item: Field, budget: Budget) -> _Graph:
    graph = _Graph()
    for part in fields(data, item.start, item.stop, budget):
        if part.number == 1 and part.is_message:
            graph.nodes += 1
        elif part.number == 5 and part.is_message:
            _initializer(data, part, budget, graph)
        elif part.number in (11, 12) and part.is_message:
            ports = graph.inputs if part.number == 11 else graph.outputs
            ports.append(_port(data, part, budget))
            if len(ports) > MAX_PORTS + len(graph.initializers):
                raise WireError(f"it has more than {MAX_PORTS} inputs or outputs")
    return graph


def _initializer(data: Buffer, item: Field, budget: Budget, graph: _Graph) -> None:
    external = False
    location = None
    for part in fields(data, item.start, item.stop, budget):
        if part.number == 8:
            graph.initializers.add(text(data, part))
        elif part.number == 14 and not part.is_message:
            external = part.value == 1
        elif part.number == 13 and part.is_message:
            key = value = ""
            for entry in fields(data, part.start, part.stop, budget):
                if entry.number == 1:
                    key = text(data, entry)
                elif entry.number == 2:
                    value = text(data, entry)
            if key == "location":
                location = value
    if external:
        graph.external.add(location or "")


def _port(data: Buffer, item: Field, budget: Budget) -> dict[str, Any]:
    port: dict[str, Any] = {"name": "", "dtype": None, "shape": None}
    for part in fields(data, item.start, item.stop, budget):
        if part.number == 1:
            port["name"] = text(data, part)
        elif part.number == 2 and part.is_message:
            for kind in fields(data, part.start, part.stop, budget):
                if kind.number == 1 and kind.is_message:
                    _tensor_type(data, kind, budget, port)
                elif kind.number in _KINDS:
                    port["dtype"] = _KINDS[kind.number]
    return port


def _tensor_type(data: Buffer, item: Field, budget: Budget, port: dict[str, Any]) -> None:
    for part in fields(data, item.start, item.stop, budget):
        if part.number == 1 and not part.is_message:
            port["dtype"] = _DTYPES.get(part.value, f"type {part.value}")
        elif part.number == 2 and part.is_message:
            shape: list[int | str | None] = []
            port["shape"] = shape
            for dimension in fields(data, part.start, part.stop, budget):
                if dimension.number != 1 or not dimension.is_message:
                    continue
                if len(shape) >= MAX_RANK:
                    raise WireError(f"{port['name']!r} has more than {MAX_RANK} dimensions")
                shape.append(_dimension(data, dimension, budget))


def _dimension(data: Buffer, item: Field, budget: Budget) -> int | str | None:
    found: int | str | None = None
    for part in fields(data, item.start, item.stop, budget):
        if part.number == 1 and not part.is_message:
            found = signed(part.value)
        elif part.number == 2:
            found = text(data, part) or None
    return found
