"""The stage verifier: run after each pass, it finds a broken graph where it broke."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from .graph import Graph, Node, Value
from .types import DType, TensorType

__all__ = ["Infer", "Stage", "VerifyError", "verify"]

Stage = Literal["lowered", "simplified", "final"]
Infer = Callable[[Node, Sequence[Value | None]], Sequence[TensorType]]


class VerifyError(Exception):
    """An invariant of the IR does not hold: a fault of ours, never the user's."""


def verify(graph: Graph, stage: Stage, infer: Infer | None = None) -> None:
    """Check the invariants of ``graph``; linear in its size.

    Args:
        graph: the graph; its nodes must be in topological order.
        stage: ``lowered`` after the front end, ``simplified`` between passes, ``final`` before
            the graph is written (where dead values are an error too).
        infer: the operator registry's shape rule; when given, each node's declared output
            types must be what it says.

    Raises:
        VerifyError: names the node or value and the invariant.
    """
    defined: set[str] = set()
    for name in graph.inputs:
        if name not in graph.values:
            raise VerifyError(f"input {name!r} is not a value")
        if graph.values[name].is_const:
            raise VerifyError(f"input {name!r} is a constant")
        if graph.producer(name) is not None:
            raise VerifyError(f"input {name!r} is made by a node")
        defined.add(name)
    if len(set(graph.inputs)) != len(graph.inputs):
        raise VerifyError("an input is listed twice")
    for key, value in graph.values.items():
        if key != value.name:
            raise VerifyError(f"value {value.name!r} is filed under {key!r}")
        if value.data is not None:
            if tuple(value.data.shape) != value.shape:
                raise VerifyError(f"constant {key!r}: data {value.data.shape}, type {value.type}")
            if value.type.dtype is not DType.STRING and value.data.dtype != value.type.dtype.numpy:
                raise VerifyError(f"constant {key!r}: data {value.data.dtype}, type {value.type}")
            defined.add(key)
    for node in graph.nodes:
        for ref in filter(None, node.inputs):
            if ref not in graph.values:
                raise VerifyError(f"node {node.name!r} reads {ref!r}, which is not a value")
            if ref not in defined:
                raise VerifyError(f"node {node.name!r} reads {ref!r} before it is made")
            if node not in graph.consumers(ref):
                raise VerifyError(f"node {node.name!r} is missing from the readers of {ref!r}")
        if not any(node.outputs):
            raise VerifyError(f"node {node.name!r} makes nothing")
        for out in filter(None, node.outputs):
            if out not in graph.values:
                raise VerifyError(f"node {node.name!r} makes {out!r}, which is not a value")
            if out in defined:
                raise VerifyError(f"value {out!r} is made twice")
            if graph.producer(out) is not node:
                raise VerifyError(f"the maker of {out!r} is not {node.name!r}")
            defined.add(out)
        if infer is not None:
            _check_types(graph, node, infer)
    for name in graph.outputs:
        if name not in defined:
            raise VerifyError(f"output {name!r} is not made")
    if stage == "final":
        kept = {*graph.inputs, *graph.outputs}
        for name in graph.values:
            if name not in kept and not graph.consumers(name):
                maker = graph.producer(name)
                if maker is None or all(
                    not graph.consumers(o) and o not in kept for o in maker.outputs if o
                ):
                    raise VerifyError(f"value {name!r} is dead")


def _check_types(graph: Graph, node: Node, infer: Infer) -> None:
    try:
        types = list(infer(node, graph.input_values(node)))
    except Exception as exc:
        raise VerifyError(f"node {node.name!r} ({node.op}): shape rule failed: {exc}") from exc
    for out, type_ in zip(node.outputs, types, strict=False):
        if out and graph.values[out].type != type_:
            raise VerifyError(
                f"node {node.name!r} ({node.op}): {out!r} is declared {graph.values[out].type},"
                f" the shape rule says {type_}"
            )
