"""Interprets a source model on known shapes and lowers it to the IR, in one forward walk.

All dimensions are bound before the walk starts. So every shape is a number when its operator is
reached: shape arithmetic folds away, a condition on a shape is a constant, and the branch it
guards can be taken there and then. Model-local functions are interpreted at their call, which
inlines them. Stale shapes that the file carries are never read.

For each operator, in order: rewrite it for the current opset, fold it when its inputs are known,
ask the registry's operators that claim it, else keep it whole as a CPU layer with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, overload

import onnx

from ..errors import ModelLoadError, ResourceLimitError, UnsupportedOperatorError
from ..ir import DType, Graph, NoAttrs, TensorType, Value
from ..ops import EXPORT_OPSET, Refusal, Registry, SourceNode
from ..ops.onnx_layer import OnnxAttrs, RawGraph, encode_attributes, format_type
from . import structural
from .attributes import check_attributes
from .builder import GraphBuilder, Names
from .control import CAPTURES, VERSIONS
from .evaluate import can_fold, evaluate
from .infer import InferenceError, export_version, infer_types, ranked_types, schema_of
from .load import SourceModel
from .op import Entity, Op, TensorSequence, attribute_value, constant, constant_of
from .scope import Scope, captures, live_order, reads
from .upgrade import CannotUpgradeError, upgrade

__all__ = ["Interpreter", "lower_model"]

Progress = Callable[[int, int], None]

_SCALAR = TensorType(DType.FLOAT32, ())

MAX_DEPTH = 64
"""Nesting of functions and sub-graphs beyond this is refused."""

MAX_NODES = 2_000_000
"""Source nodes beyond this, counted each time that a function or a loop body is entered."""


def lower_model(
    model: SourceModel,
    input_types: dict[str, TensorType],
    registry: Registry,
    progress: Progress | None = None,
) -> Graph:
    """Lower ``model`` to the IR.

    Args:
        model: the source model.
        input_types: type of every graph input, all dimensions known.
        registry: operators that may claim a source operator.
        progress: called with the number of nodes done and their total.

    Raises:
        ModelLoadError: the model is invalid.
        UnsupportedOperatorError: an operator's output cannot be described.
    """
    proto = model.proto.graph
    reserved = chain(
        (n for node in proto.node for n in node.output if n),
        (i.name for i in proto.input),
        (t.name for t in proto.initializer),
    )
    layers = (node.name for node in proto.node if node.name)
    builder = GraphBuilder(proto.name or "graph", registry, Names(reserved), Names(layers))
    scope = Scope(model.opsets)
    constants = _bind_initializers(model, scope)
    for info in proto.input:
        if info.name in constants:
            continue
        if info.name in scope.names:
            raise ModelLoadError(f"input {info.name!r} is declared twice")
        name = builder.values.own(info.name)
        scope.names[info.name] = builder.add_input(name, input_types[info.name])
    interpreter = Interpreter(model, registry)
    interpreter.run(proto, scope, builder, progress)
    _finish(proto, scope, builder, interpreter)
    return builder.graph


def _bind_initializers(model: SourceModel, scope: Scope) -> set[str]:
    """Enter the initializers into ``scope``, to be read on first use; return their names."""
    names: set[str] = set()
    for tensor in model.proto.graph.initializer:
        if tensor.name in names:
            raise ModelLoadError(f"weight {tensor.name!r} is defined twice")
        names.add(tensor.name)
        scope.lazy[tensor.name] = _initializer(model, tensor)
    for sparse in model.proto.graph.sparse_initializer:
        names.add(sparse.values.name)
        scope.lazy[sparse.values.name] = structural.sparse_constant(sparse)
    return names


def _initializer(model: SourceModel, tensor: onnx.TensorProto) -> Callable[[], Entity]:
    array = model.tensors.get(tensor.name)
    if array is None:
        return lambda: constant_of(tensor)
    try:
        return lambda: constant(array, tensor.name)
    except ValueError as exc:
        raise ModelLoadError(f"weight {tensor.name!r}: {exc}") from exc


def _finish(
    proto: onnx.GraphProto, scope: Scope, builder: GraphBuilder, interpreter: Interpreter
) -> None:
    """Make the graph's outputs appear under exactly their names, in their order."""
    graph = builder.graph
    names = [o.name for o in proto.output]
    for name in dict.fromkeys(names):
        entity = scope.find(name)
        if not isinstance(entity, Value):
            raise UnsupportedOperatorError(
                f"output {name!r} is a sequence, not a tensor",
                details={"layer": name},
                hint="cut the model before the operator that makes the sequence",
            )
        value = builder.local(entity)
        if value.name == name:
            continue
        maker = graph.producer(value.name)
        if maker is not None and value.name not in names:
            builder.rename(value, name)
        elif value.data is not None and name not in graph.values:
            graph.add_value(name, value.type, value.data)
        else:
            interpreter.identity(value, name, builder)
    graph.outputs = names
    graph.prune()


class Interpreter:
    """Walks the graphs and functions of one model."""

    def __init__(self, model: SourceModel, registry: Registry) -> None:
        self.model = model
        self.registry = registry
        self.functions = {
            (f.domain, f.name, getattr(f, "overload", "")): f for f in model.proto.functions
        }
        self.depth = 0
        self.count = 0

    def run(
        self,
        graph: onnx.GraphProto | onnx.FunctionProto,
        scope: Scope,
        builder: GraphBuilder,
        progress: Progress | None = None,
    ) -> None:
        """Interpret the nodes of ``graph``; their results are entered into ``scope``."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ModelLoadError(f"functions or sub-graphs are nested over {MAX_DEPTH} deep")
        self.count += len(graph.node)
        if self.count > MAX_NODES:
            raise ResourceLimitError(
                f"the model unfolds to over {MAX_NODES} operators",
                hint="its functions call each other too often, or its loops are too long",
            )
        nodes = graph.node  # not a list of it, which would hold an object for each
        outputs = [o if isinstance(o, str) else o.name for o in graph.output]
        order = live_order(nodes, outputs, scope.knows, lambda i: f"node {_title(nodes[i], i)!r}")
        same = builder.values.same
        read = {same(n): None for n in outputs}
        read.update((same(name), None) for i in order for name in reads(nodes[i]))
        for done, index in enumerate(order):
            node = nodes[index]
            op = self._read(node, index, scope, builder)
            op.unread = frozenset(n for n in node.output if n not in read)
            results = self.process(op, scope, builder)
            self._bind(op, node, results, scope, builder)
            if progress is not None and done % 64 == 0:
                progress(done, len(order))
        if progress is not None:
            progress(len(order), len(order))
        self.depth -= 1

    def process(self, op: Op, scope: Scope, builder: GraphBuilder) -> Sequence[Entity | None]:
        """Return what each output of ``op`` stands for."""
        function = self.functions.get((op.domain, op.op_type, ""))
        if function is not None:
            return structural.call(self, op, function, builder)
        handler = structural.HANDLERS.get(op.op_type) if op.domain == "" else None
        if handler is not None:
            results = handler(self, op, scope, builder)
            if results is not None:
                return results
        try:
            steps = upgrade(op)
        except CannotUpgradeError as exc:
            raise UnsupportedOperatorError(
                f"{op.label} of opset {op.version} cannot be read: {exc}",
                details={"layer": op.name, "operator": op.op_type, "reason": str(exc)},
                hint="export the model with opset 13 or later",
            ) from exc
        results = []
        for position, step in enumerate(steps):
            if position > 0:
                step.inputs[step.chained] = results[0]
            results = self._lower(step, builder)
        return results

    def identity(self, value: Value, name: str, builder: GraphBuilder) -> Value:
        """Add a layer that copies ``value`` to the new name."""
        layer = f"{name}/identity"
        builder.begin(layer, ())
        if "Identity" in self.registry and min(value.shape, default=0) >= 0:
            copy = builder.emit("Identity", NoAttrs(), [value])[0]
        else:
            op = Op(layer, "Identity", "", EXPORT_OPSET, {}, [value], [name])
            copy = self.keep(op, [value.type], "", builder)[0]
        builder.rename(copy, name)
        return copy

    def keep(
        self, op: Op, types: Sequence[TensorType | None], reason: str, builder: GraphBuilder
    ) -> list[Value]:
        """Keep an operator whole as a CPU layer."""
        version = export_version(op)
        captured = op.attrs.pop(CAPTURES, {})
        for body_version in op.attrs.pop(VERSIONS, ()):
            version = max(version, body_version)
        attrs = OnnxAttrs(
            op.op_type,
            op.domain,
            version,
            encode_attributes(_raw_graphs(op)),
            tuple(format_type(t) for t in types),
            tuple(captured),
            reason,
        )
        inputs = [e if isinstance(e, Value) else None for e in op.inputs]
        builder.begin(op.name, op.source)
        return builder.add_raw(
            "Onnx", attrs, [*inputs, *captured.values()], [t or _SCALAR for t in types]
        )

    def _read(self, node: onnx.NodeProto, index: int, scope: Scope, builder: GraphBuilder) -> Op:
        domain = "" if node.domain == "ai.onnx" else node.domain
        name = builder.layers.same(scope.prefix + _title(node, index))
        label = f"node {name!r} ({node.op_type})"
        version = scope.opsets.get(domain, 1)
        attrs: dict[str, Any] = {}
        for attribute in node.attribute:
            is_set, value = attribute_value(attribute, scope.attrs)
            if is_set:
                attrs[attribute.name] = value
        if (domain, node.op_type, "") not in self.functions:
            check_attributes(node, attrs, domain, version, label)
        try:
            inputs: list[Entity | None] = [scope.find(n) if n else None for n in node.input]
        except KeyError as exc:
            raise ModelLoadError(
                f"{label} reads {exc.args[0]!r}, which nothing before it makes",
                details={"layer": name, "operator": node.op_type, "value": exc.args[0]},
            ) from exc
        while inputs and inputs[-1] is None:
            inputs.pop()
        return Op(
            name,
            node.op_type,
            domain,
            version,
            attrs,
            inputs,
            list(node.output),
            (name,),
        )

    def _bind(
        self,
        op: Op,
        node: onnx.NodeProto,
        results: Sequence[Entity | None],
        scope: Scope,
        builder: GraphBuilder,
    ) -> None:
        for name, entity in zip(node.output, results, strict=False):
            if not name:
                continue
            if isinstance(entity, Value):
                if entity.data is not None:
                    if not entity.name:
                        entity.name = self._value_name(name, scope, builder)
                elif builder.made(entity):
                    builder.rename(entity, self._value_name(name, scope, builder))
            scope.names[builder.values.same(name)] = entity

    def _value_name(self, name: str, scope: Scope, builder: GraphBuilder) -> str:
        if scope.prefix:
            return builder.values.fresh(scope.prefix + name)
        return builder.values.own(name)

    def _lower(self, op: Op, builder: GraphBuilder) -> Sequence[Entity | None]:
        for index, entity in enumerate(op.inputs):
            if isinstance(entity, TensorSequence):
                raise UnsupportedOperatorError(
                    f"{op.label} reads a sequence at input {index}",
                    details={"layer": op.name, "operator": op.op_type},
                    hint="cut the model before the operator that makes the sequence",
                )
        if can_fold(op):
            arrays = evaluate(op)
            if arrays is not None:
                return [constant(a) for a in arrays]
        reasons: list[str] = []
        values = [e if isinstance(e, Value) else None for e in op.inputs]
        if any(not v.type.is_static for v in values if v is not None):
            reasons.append("an input's shape depends on the data")
        elif any(v.type.dtype.is_extended for v in values if v is not None):
            reasons.append("an input has an element type of less than 16 bits or bfloat16")
        else:
            taken = self._claim(op, values, reasons, builder)
            if taken is not None:
                return taken
        return self._keep_whole(op, reasons, builder)

    def _claim(
        self,
        op: Op,
        values: list[Value | None],
        reasons: list[str],
        builder: GraphBuilder,
    ) -> list[Value] | None:
        specs = self.registry.claiming(op.op_type, op.domain)
        if not specs or any(hasattr(a, "node") for a in op.attrs.values()):
            return None
        node = SourceNode(
            op.name,
            op.op_type,
            op.domain,
            op.version,
            op.attrs,
            values,
            ["" if name in op.unread else name for name in op.outputs],
            _LazyTypes(op),
        )
        for spec in specs:
            builder.begin(op.name, op.source)
            try:
                result = spec.lower(node, builder)
            except ValueError as exc:
                result = Refusal(str(exc))
            if not isinstance(result, Refusal):
                if not any(v.type.dtype.is_extended for v in result):
                    return result
                result = Refusal("it makes an element type of less than 16 bits or bfloat16")
            builder.roll_back()
            if result.reason not in reasons:
                reasons.append(result.reason)
        return None

    def _keep_whole(self, op: Op, reasons: list[str], builder: GraphBuilder) -> list[Value]:
        try:
            types = infer_types(op)
        except InferenceError as exc:
            raise ModelLoadError(
                f"{op.label} is not valid: {exc}",
                details={"layer": op.name, "operator": op.op_type, "reason": str(exc)},
            ) from exc
        if any(t is None and name for t, name in zip(types, op.outputs, strict=True)):
            types = ranked_types(op, types)
        if any(t is None and name for t, name in zip(types, op.outputs, strict=True)):
            types = structural.observed_types(op, types)
        unknown = [n for t, n in zip(types, op.outputs, strict=True) if t is None and n]
        if unknown:
            raise UnsupportedOperatorError(
                f"{op.label}: the type of its output {unknown[0]!r} cannot be determined"
                + (
                    ""
                    if schema_of(op.op_type, op.version, op.domain)
                    else f"; operator domain {op.domain!r} is unknown"
                    if op.domain
                    else "; the operator is unknown"
                ),
                details={"layer": op.name, "operator": op.op_type, "domain": op.domain},
                hint="replace the operator by standard ONNX ones, or cut the model before it",
            )
        if any(t is not None and any(d < 0 for d in t.shape) for t in types):
            reasons = [*reasons, "an output's shape depends on the data"]
        return self.keep(op, types, "; ".join(reasons), builder)


def _raw_graphs(op: Op) -> dict[str, Any]:
    """Return the attributes with sub-graphs that no handler has lowered as they are."""
    attrs = dict(op.attrs)
    for key, value in attrs.items():
        if isinstance(value, onnx.GraphProto):
            outside = captures(value)
            if outside:
                raise UnsupportedOperatorError(
                    f"{op.label}: its sub-graph {key!r} reads {outside[0]!r} from outside",
                    details={"layer": op.name, "operator": op.op_type},
                )
            attrs[key] = RawGraph(value.SerializeToString(deterministic=True))
    return attrs


class _LazyTypes(Sequence[TensorType | None]):
    """Output types from ONNX's inference, run only when an operator asks."""

    def __init__(self, op: Op) -> None:
        self._op = op
        self._types: list[TensorType | None] | None = None

    def _get(self) -> list[TensorType | None]:
        if self._types is None:
            try:
                self._types = infer_types(self._op)
            except InferenceError:
                self._types = [None] * len(self._op.outputs)
        return self._types

    @overload
    def __getitem__(self, index: int) -> TensorType | None: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TensorType | None]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._get()[index]

    def __len__(self) -> int:
        return len(self._op.outputs)


def _title(node: onnx.NodeProto, index: int) -> str:
    return node.name or f"{node.op_type}_{index}"
