"""If, Loop and Scan: taken apart where the model decides at compile time, else kept whole.

A constant condition takes its branch; a loop of few, known turns is unrolled. What stays is a CPU
layer whose bodies are lowered like any graph and written back as ONNX, so that they too are free
of old opsets, functions and shape arithmetic. Types of loop-carried values are found by lowering
the body until they no longer change; a dimension that changes from turn to turn becomes -1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from ..errors import ModelLoadError, UnsupportedOperatorError
from ..ir import TensorType, Value, verify
from ..ops import EXPORT_OPSET
from ..ops.onnx_layer import RawGraph
from .builder import GraphBuilder
from .export import export_graph
from .op import Entity, Op, constant, constant_of
from .scope import Scope

if TYPE_CHECKING:
    from .lower import Interpreter

__all__ = ["CAPTURES", "VERSIONS", "if_", "loop", "scan"]

CAPTURES = ":captures"
VERSIONS = ":versions"
"""Keys, impossible for ONNX attributes, under which notes are left in ``Op.attrs``."""

MAX_UNROLLED_NODES = 20_000
MAX_TURNS = 1_000
_MAX_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class _Body:
    """A lowered sub-graph.

    Attributes:
        builder: its graph.
        results: what its outputs stand for.
    """

    builder: GraphBuilder
    results: list[Value]


def if_(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> Sequence[Entity | None] | None:
    """Take the branch of a constant condition; else keep both."""
    condition = op.const(0)
    branches = op.attrs["then_branch"], op.attrs["else_branch"]
    counts = [len(b.output) for b in branches]
    if counts != [len(op.outputs)] * 2:
        raise ModelLoadError(
            f"{op.label} has {len(op.outputs)} outputs, its branches have {counts[0]} and"
            f" {counts[1]}",
            details={"layer": op.name, "expected": len(op.outputs), "got": counts},
        )
    if condition is not None:
        graph = branches[0] if bool(condition.reshape(-1)[0]) else branches[1]
        return _inline(interpreter, graph, op.name, {}, scope, builder)
    bodies: list[_Body] = []
    possible: list[onnx.GraphProto] = []
    invalid: ModelLoadError | None = None
    depth = interpreter.depth
    for graph, side in zip(branches, ("then", "else"), strict=True):
        try:
            body = _lower_body(interpreter, op, graph, f"{op.name}/{side}", {}, scope, builder)
        except ModelLoadError as exc:
            interpreter.depth = depth
            invalid = exc
            continue
        bodies.append(body)
        possible.append(graph)
    if not possible and invalid is not None:
        raise invalid
    if len(possible) == 1:
        # a branch that is wrong for the bound shapes can only fail: the other one is taken
        return _inline(interpreter, possible[0], op.name, {}, scope, builder)
    types = [
        _merge(a.type, b.type, op)
        for a, b in zip(bodies[0].results, bodies[1].results, strict=True)
    ]
    kept = _with_bodies(op, {"then_branch": bodies[0], "else_branch": bodies[1]})
    return interpreter.keep(kept, types, "its condition depends on the data", builder)


def loop(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> Sequence[Entity | None] | None:
    """Unroll a loop of known turns; else keep it."""
    graph: onnx.GraphProto = op.attrs["body"]
    unrolled = _unroll(interpreter, op, graph, scope, builder)
    if unrolled is not None:
        return unrolled
    carried: list[TensorType] = []
    for entity in op.inputs[2:]:
        if not isinstance(entity, Value):
            raise _no_sequence(op)
        carried.append(entity.type)
    first = [_scalar_type(np.int64), _scalar_type(np.bool_)]
    names = [i.name for i in graph.input]

    def lower(types: Sequence[TensorType]) -> _Body:
        inputs = dict(zip(names, [*first, *types], strict=False))
        return _lower_body(interpreter, op, graph, f"{op.name}/body", inputs, scope, builder)

    body, carried = _stable(lower, carried, 1, op)
    scans = [_stacked(v.type, 0, -1) for v in body.results[1 + len(carried) :]]
    kept = _with_bodies(op, {"body": body})
    return interpreter.keep(kept, [*carried, *scans], "its turns depend on the data", builder)


def scan(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> Sequence[Entity | None] | None:
    """Keep a scan, its body lowered."""
    if op.version < 9:
        return None
    graph: onnx.GraphProto = op.attrs["body"]
    values = [e for e in op.inputs if isinstance(e, Value)]
    if len(values) != len(op.inputs):
        raise _no_sequence(op)
    scanned = int(op.attrs["num_scan_inputs"])
    states = len(values) - scanned
    axes = list(op.attrs.get("scan_input_axes", [0] * scanned))
    slices: list[TensorType] = []
    length = -1
    for value, axis in zip(values[states:], axes, strict=True):
        at = axis % value.type.rank
        length = value.shape[at] if length < 0 else length
        slices.append(value.type.with_shape(value.shape[:at] + value.shape[at + 1 :]))
    names = [i.name for i in graph.input]

    def lower(types: Sequence[TensorType]) -> _Body:
        inputs = dict(zip(names, [*types, *slices], strict=True))
        return _lower_body(interpreter, op, graph, f"{op.name}/body", inputs, scope, builder)

    body, carried = _stable(lower, [v.type for v in values[:states]], 0, op)
    rows = [v.type for v in body.results[states:]]
    out_axes = list(op.attrs.get("scan_output_axes", [0] * len(rows)))
    stacked = [_stacked(t, a, length) for t, a in zip(rows, out_axes, strict=True)]
    kept = _with_bodies(op, {"body": body})
    return interpreter.keep(kept, [*carried, *stacked], "it is a loop", builder)


# -- taken apart ------------------------------------------------------------------------------


def _inline(
    interpreter: Interpreter,
    graph: onnx.GraphProto,
    name: str,
    inputs: dict[str, Entity | None],
    scope: Scope,
    builder: GraphBuilder,
) -> list[Entity | None]:
    """Interpret a sub-graph in the graph around it."""
    inner = _inner_scope(graph, name, scope)
    inner.names.update(inputs)
    interpreter.run(graph, inner, builder)
    return [inner.find(o.name) for o in graph.output]


def _inner_scope(graph: onnx.GraphProto, name: str, scope: Scope) -> Scope:
    inner = Scope(scope.opsets, parent=scope, prefix=f"{name}/", attrs=scope.attrs)
    for tensor in graph.initializer:
        inner.lazy[tensor.name] = lambda t=tensor: constant_of(t)  # type: ignore[misc]
    return inner


def _unroll(
    interpreter: Interpreter,
    op: Op,
    graph: onnx.GraphProto,
    scope: Scope,
    builder: GraphBuilder,
) -> list[Entity | None] | None:
    """Return the results of a loop whose turns are known, None when they are not.

    The turns are known when the trip count and the first condition are constant, and each turn
    of the body gives a constant condition, which shows only while unrolling.
    """
    trips, condition = op.const(0), op.const(1)
    has_trips = bool(op.inputs) and op.inputs[0] is not None
    has_condition = len(op.inputs) > 1 and op.inputs[1] is not None
    if (has_trips and trips is None) or (has_condition and condition is None):
        return None
    goes_on = condition is None or bool(condition.reshape(-1)[0])
    limit = int(trips.reshape(-1)[0]) if trips is not None else MAX_TURNS + 1
    if not goes_on:
        limit = 0
    always = _keeps_condition(graph)
    if always and limit * len(graph.node) > MAX_UNROLLED_NODES:
        return None
    if not always and not _may_decide(graph):
        return None
    state: list[Entity | None] = list(op.inputs[2:])
    count = len(graph.input) - 2
    state += [None] * (count - len(state))
    rows: list[list[Value]] = [[] for _ in range(len(graph.output) - 1 - count)]
    names = [i.name for i in graph.input]
    mark = len(builder.graph)
    turn = 0
    while goes_on and turn < limit:
        if turn * len(graph.node) > MAX_UNROLLED_NODES or turn > MAX_TURNS:
            _undo(builder, mark)
            return None
        inputs: dict[str, Entity | None] = {
            names[0]: constant(np.asarray(turn, dtype=np.int64)),
            names[1]: constant(np.asarray(True)),
            **dict(zip(names[2:], state, strict=True)),
        }
        results = _inline(interpreter, graph, f"{op.name}/{turn}", inputs, scope, builder)
        decided = results[0]
        if not isinstance(decided, Value) or decided.data is None:
            _undo(builder, mark)
            return None
        goes_on = bool(decided.data.reshape(-1)[0])
        state = results[1 : 1 + count]
        for row, value in zip(rows, results[1 + count :], strict=True):
            if not isinstance(value, Value):
                raise _no_sequence(op)
            row.append(value)
        turn += 1
    if any(not row for row in rows):
        _undo(builder, mark)
        return None
    return [*state, *(_stack(interpreter, op, row, builder) for row in rows)]


def _undo(builder: GraphBuilder, mark: int) -> None:
    """Forget what an unrolling that came to nothing has added; pruning takes it."""
    for node in reversed(builder.graph.nodes[mark:]):
        builder.forget(node)


def _keeps_condition(graph: onnx.GraphProto) -> bool:
    """Whether a loop body passes its condition on unchanged, or a constant."""
    source, result = graph.input[1].name, graph.output[0].name
    makers = {o: n for n in graph.node for o in n.output}
    while result != source:
        maker = makers.get(result)
        if maker is None:
            return any(t.name == result for t in graph.initializer)
        if maker.op_type == "Constant":
            return True
        if maker.op_type != "Identity":
            return False
        result = maker.input[0]
    return True


def _may_decide(graph: onnx.GraphProto) -> bool:
    """Whether a body's condition might be constant: it does not come out of heavy operators."""
    makers = {o: n for n in graph.node for o in n.output}
    work, seen = [graph.output[0].name], set()
    heavy = ("Conv", "MatMul", "Gemm", "If", "Loop", "Scan")
    while work:
        maker = makers.get(work.pop())
        if maker is None or id(maker) in seen:
            continue
        seen.add(id(maker))
        if maker.op_type in heavy:
            return False
        work.extend(maker.input)
    return True


def _stack(interpreter: Interpreter, op: Op, row: Sequence[Value], builder: GraphBuilder) -> Value:
    from .structural import derived

    axes = constant(np.asarray([0], dtype=np.int64))
    parts = [derived(interpreter, op, builder, "Unsqueeze", [v, axes])[0] for v in row]
    return derived(interpreter, op, builder, "Concat", parts, axis=0)[0]


# -- kept whole -------------------------------------------------------------------------------


def _lower_body(
    interpreter: Interpreter,
    op: Op,
    graph: onnx.GraphProto,
    name: str,
    inputs: dict[str, TensorType],
    scope: Scope,
    outer: GraphBuilder,
) -> _Body:
    """Lower a sub-graph to a graph of its own, with formal inputs of the given types."""
    builder = GraphBuilder(name, interpreter.registry, outer.values, outer.layers)
    inner = _inner_scope(graph, name, scope)
    for info in graph.input:
        if info.name not in inputs:
            raise ModelLoadError(f"{op.label}: its body takes {info.name!r}, which it is not given")
        inner.names[info.name] = builder.add_input(
            builder.values.fresh(f"{name}/{info.name}"), inputs[info.name]
        )
    interpreter.run(graph, inner, builder)
    results: list[Value] = []
    for output in graph.output:
        entity = inner.find(output.name)
        if not isinstance(entity, Value):
            raise _no_sequence(op)
        value = builder.local(entity)
        taken = any(value is r for r in results)
        if taken or builder.graph.producer(value.name) is None:
            # a body must make its results itself, each once
            fresh = builder.values.fresh(f"{name}/{output.name}")
            value = interpreter.identity(value, fresh, builder)
        results.append(value)
    builder.graph.outputs = [v.name for v in results]
    builder.graph.prune()
    return _Body(builder, results)


def _stable(
    lower: Callable[[Sequence[TensorType]], _Body],
    types: list[TensorType],
    first: int,
    op: Op,
) -> tuple[_Body, list[TensorType]]:
    """Lower a body until its carried values come out as they went in."""
    for _ in range(_MAX_ROUNDS):
        body = lower(types)
        after = [v.type for v in body.results[first : first + len(types)]]
        merged = [_merge(a, b, op) for a, b in zip(types, after, strict=True)]
        if merged == types:
            return body, types
        types = merged
    raise UnsupportedOperatorError(
        f"{op.label}: the types of its carried values do not settle",
        details={"layer": op.name, "operator": op.op_type},
    )


def _merge(a: TensorType, b: TensorType, op: Op) -> TensorType:
    """Return a type that covers both."""
    if a.dtype is not b.dtype:
        raise ModelLoadError(
            f"{op.label}: one result is {a} on one way and {b} on the other",
            details={"layer": op.name, "operator": op.op_type},
        )
    if a.rank != b.rank:
        raise UnsupportedOperatorError(
            f"{op.label}: the rank of a result depends on the data ({a} or {b})",
            details={"layer": op.name, "operator": op.op_type},
            hint="cut the model before it, or export it with the condition fixed",
        )
    dims = tuple(x if x == y else -1 for x, y in zip(a.shape, b.shape, strict=True))
    return a.with_shape(dims)


def _stacked(type_: TensorType, axis: int, length: int) -> TensorType:
    at = axis % (type_.rank + 1)
    return type_.with_shape((*type_.shape[:at], length, *type_.shape[at:]))


def _scalar_type(dtype: Any) -> TensorType:
    return constant(np.zeros((), dtype=dtype)).type


def _with_bodies(op: Op, bodies: dict[str, _Body]) -> Op:
    """Return the operator with its bodies as ONNX and notes of what they read from outside."""
    attrs: dict[str, Any] = {k: v for k, v in op.attrs.items() if k not in bodies}
    captured: dict[str, Value] = {}
    versions: list[int] = []
    for key, body in bodies.items():
        graph = body.builder.graph
        verify_body(body)
        model = export_graph(graph, registry=body.builder.registry, prefix=f"{graph.name}/").proto
        attrs[key] = RawGraph(model.graph.SerializeToString(deterministic=True))
        captured.update(body.builder.captured)
        versions += [o.version for o in model.opset_import if o.domain == ""]
    attrs[CAPTURES] = captured
    attrs[VERSIONS] = versions
    return Op(
        op.name,
        op.op_type,
        op.domain,
        max(op.version, EXPORT_OPSET),
        attrs,
        op.inputs,
        op.outputs,
        op.source,
    )


def verify_body(body: _Body) -> None:
    """Verify a body as a graph; what it captures counts as inputs."""
    graph = body.builder.graph
    formal = list(graph.inputs)
    graph.inputs = [*formal, *(n for n in body.builder.captured if n in graph.values)]
    try:
        verify(graph, "lowered", body.builder.registry.infer)
    finally:
        graph.inputs = formal


def _no_sequence(op: Op) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"{op.label} carries a sequence, not tensors",
        details={"layer": op.name, "operator": op.op_type},
        hint="cut the model before it",
    )
