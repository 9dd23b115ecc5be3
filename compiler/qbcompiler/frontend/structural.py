"""Operators that steer or pass on rather than compute: resolved while the model is interpreted.

Constants, aliases, shapes, sequences of known length, optionals, and calls of functions leave no
layer behind. Control flow is in :mod:`qbcompiler.frontend.control`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper

from ..errors import UnsupportedOperatorError
from ..ir import Array, TensorType, Value
from .attention import attention
from .builder import GraphBuilder
from .control import if_, loop, scan
from .dtypes import dtype_of
from .evaluate import FOLD_BYTES
from .op import Entity, Op, TensorSequence, attribute_value, constant
from .scope import Scope

if TYPE_CHECKING:
    from .lower import Interpreter

__all__ = [
    "HANDLERS",
    "Handler",
    "call",
    "derived",
    "observed_types",
    "sparse_constant",
]

Handler = Callable[["Interpreter", Op, Scope, GraphBuilder], Sequence[Entity | None] | None]
"""Returns what each output stands for, or None to treat the operator as any other."""


def call(
    interpreter: Interpreter, op: Op, function: onnx.FunctionProto, builder: GraphBuilder
) -> list[Entity | None]:
    """Interpret the body of a model-local function in place of its call."""
    attrs: dict[str, Any] = {}
    for default in function.attribute_proto:
        is_set, value = attribute_value(default)
        if is_set:
            attrs[default.name] = value
    attrs.update(op.attrs)
    opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in function.opset_import}
    inner = Scope(opsets, prefix=f"{op.name}/", attrs=attrs)
    for index, name in enumerate(function.input):
        inner.names[name] = op.inputs[index] if index < len(op.inputs) else None
    interpreter.run(function, inner, builder)
    return [inner.find(name) for name in function.output]


def sparse_constant(sparse: onnx.SparseTensorProto) -> Callable[[], Entity]:
    """Return what makes a sparse initializer a dense constant."""
    return lambda: constant(_dense(sparse), sparse.values.name)


def _dense(sparse: onnx.SparseTensorProto) -> Array:
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    dense: Array = np.zeros(tuple(sparse.dims), dtype=values.dtype)
    if indices.ndim == 2:
        dense[tuple(indices.T)] = values
    else:
        dense.reshape(-1)[indices] = values
    return dense


def _constant(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    for key, value in op.attrs.items():
        if key == "value":
            return [constant(value)]
        if key == "sparse_value":
            return [constant(_dense(value))]
        if key in ("value_float", "value_floats"):
            return [constant(np.asarray(value, dtype=np.float32))]
        if key in ("value_int", "value_ints"):
            return [constant(np.asarray(value, dtype=np.int64))]
        if key in ("value_string", "value_strings"):
            return [constant(np.asarray(value, dtype=object))]
    return None


def _identity(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    return [op.inputs[0]] if op.inputs else None


def _dropout(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    """Dropout passes its input on, unless a constant says that it is training."""
    x = op.value(0)
    training = op.const(2)
    if x is None or (op.value(2) is not None and training is None):
        return None
    if training is not None and bool(training):
        ratio = op.const(1)
        if ratio is None or float(ratio) != 0.0:
            return None
    if len(op.outputs) < 2 or not op.outputs[1]:
        return [x]
    if min(x.shape, default=0) < 0 or x.type.size > FOLD_BYTES:
        return None
    dtype = np.bool_ if op.version >= 10 else x.type.dtype.numpy
    return [x, constant(np.ones(x.shape, dtype=dtype))]


def _shape(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    x = op.value(0)
    if x is None:
        return None
    dims = x.shape[slice(op.attrs.get("start", 0), op.attrs.get("end"))]
    if any(d < 0 for d in dims):
        return None
    return [constant(np.asarray(dims, dtype=np.int64))]


def _size(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    x = op.value(0)
    if x is None or min(x.shape, default=0) < 0:
        return None
    return [constant(np.asarray(x.type.size, dtype=np.int64))]


def _cast(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    x = op.value(0)
    if x is not None and dtype_of(int(op.attrs.get("to", 0))) is x.type.dtype:
        return [x]
    return None


def _extremum(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    """A comparison with an infinity that never wins passes the rest on."""
    values = [e for e in op.inputs if isinstance(e, Value)]
    if len(values) != len(op.inputs):
        return None
    idle = -np.inf if op.op_type == "Max" else np.inf
    kept = [v for v in values if not _all_equal(v, idle)]
    if len(kept) == len(values) or len(kept) != 1:
        return None
    shapes = [v.shape for v in values]
    if any(not v.type.is_static for v in values) or np.broadcast_shapes(*shapes) != kept[0].shape:
        return None
    return [kept[0]]


def _all_equal(value: Value, number: float) -> bool:
    data = value.data
    if data is None or not value.type.dtype.is_float or data.size == 0:
        return False
    return bool(np.all(data == number))


# -- sequences and optionals ------------------------------------------------------------------


def _sequence(op: Op, index: int = 0) -> tuple[Value, ...] | None:
    entity = op.inputs[index] if index < len(op.inputs) else None
    return entity.items if isinstance(entity, TensorSequence) else None


def _position(op: Op, index: int, length: int, *, end: bool = False) -> int:
    """Return a constant position within a sequence, counted from its start."""
    if index >= len(op.inputs) or op.inputs[index] is None:
        return length if end else length - 1
    data = op.const(index)
    if data is None:
        raise UnsupportedOperatorError(
            f"{op.label} takes a position that depends on the data",
            details={"layer": op.name, "operator": op.op_type},
            hint="cut the model before it, or make the position constant",
        )
    position = int(data)
    return position + length if position < 0 else position


def _sequence_construct(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    return [TensorSequence(tuple(e for e in op.inputs if isinstance(e, Value)))]


def _sequence_empty(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    return [TensorSequence(())]


def _sequence_at(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    items = _sequence(op)
    if items is None:
        return None
    position = _position(op, 1, len(items))
    if not 0 <= position < len(items):
        raise UnsupportedOperatorError(
            f"{op.label} reads position {position} of a sequence of {len(items)}",
            details={"layer": op.name, "operator": op.op_type},
        )
    return [items[position]]


def _sequence_insert(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    items = _sequence(op)
    item = op.value(1)
    if items is None or item is None:
        return None
    position = _position(op, 2, len(items), end=True)
    return [TensorSequence((*items[:position], item, *items[position:]))]


def _sequence_erase(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    items = _sequence(op)
    if items is None:
        return None
    position = _position(op, 1, len(items))
    return [TensorSequence((*items[:position], *items[position + 1 :]))]


def _sequence_length(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    items = _sequence(op)
    return None if items is None else [constant(np.asarray(len(items), dtype=np.int64))]


def derived(
    interpreter: Interpreter,
    op: Op,
    builder: GraphBuilder,
    op_type: str,
    inputs: Sequence[Entity | None],
    outputs: int = 1,
    **attrs: Any,
) -> list[Value]:
    """Process an operator that stands in for a part of ``op``."""
    name = f"{op.name}/{op_type}"
    step = Op(
        name,
        op_type,
        "",
        max(op.version, 21),
        dict(attrs),
        list(inputs),
        [f"{name}:{i}" for i in range(outputs)],
        op.source,
    )
    results = interpreter.process(step, Scope({"": step.version}), builder)
    return [r for r in results if isinstance(r, Value)]


def _concat_from_sequence(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    items = _sequence(op)
    if not items:
        return None
    axis = int(op.attrs["axis"])
    parts: list[Value] = list(items)
    if op.attrs.get("new_axis", 0):
        axes = constant(np.asarray([axis], dtype=np.int64))
        parts = [derived(interpreter, op, builder, "Unsqueeze", [p, axes])[0] for p in parts]
    return list(derived(interpreter, op, builder, "Concat", parts, axis=axis))


def _split_to_sequence(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    x, sizes = op.value(0), op.const(1)
    if x is None or not x.type.is_static or (op.value(1) is not None and sizes is None):
        raise UnsupportedOperatorError(
            f"{op.label} makes a sequence whose length depends on the data",
            details={"layer": op.name, "operator": op.op_type},
            hint="cut the model before it, or make the sizes constant",
        )
    axis = int(op.attrs.get("axis", 0))
    axis += x.type.rank if axis < 0 else 0
    length = x.shape[axis]
    keep = True
    if sizes is None:
        lengths = [1] * length
        keep = bool(op.attrs.get("keepdims", 1))
    elif sizes.ndim == 0:
        step = int(sizes)
        lengths = [min(step, length - i) for i in range(0, length, step)]
    else:
        lengths = [int(s) for s in sizes]
    split = constant(np.asarray(lengths, dtype=np.int64))
    parts = derived(interpreter, op, builder, "Split", [x, split], len(lengths), axis=axis)
    if not keep:
        axes = constant(np.asarray([axis], dtype=np.int64))
        parts = [derived(interpreter, op, builder, "Squeeze", [p, axes])[0] for p in parts]
    return [TensorSequence(tuple(parts))]


def _optional(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    if op.inputs and op.inputs[0] is not None:
        return [op.inputs[0]]
    return [TensorSequence(None)]


def _optional_has_element(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    entity = op.inputs[0] if op.inputs else None
    empty = entity is None or (isinstance(entity, TensorSequence) and entity.items is None)
    return [constant(np.asarray(not empty))]


def observed_types(op: Op, known: Sequence[TensorType | None]) -> list[TensorType | None]:
    """Return the output types that running the operator once shows, or ``known``.

    For operators that ONNX's inference does not cover: ONNX Runtime runs the operator on zeros.
    """
    from ..ops.onnx_layer import OnnxAttrs, encode_attributes, format_type
    from ..runtime.probe import probe_operator

    if any(not isinstance(e, Value) for e in op.inputs if e is not None):
        return list(known)
    if any(hasattr(v, "node") for v in op.attrs.values()):
        return list(known)
    values = [e if isinstance(e, Value) else None for e in op.inputs]
    if any(min(v.shape, default=0) < 0 for v in values if v is not None):
        return list(known)
    attrs = OnnxAttrs(
        op.op_type,
        op.domain,
        op.version,
        encode_attributes(op.attrs),
        tuple(format_type(t) for t in known),
    )
    found = probe_operator(attrs, values, [bool(n) for n in op.outputs])
    return [k or f for k, f in zip(known, found, strict=True)]


HANDLERS: dict[str, Handler] = {
    "Attention": attention,
    "Cast": _cast,
    "ConcatFromSequence": _concat_from_sequence,
    "Constant": _constant,
    "Dropout": _dropout,
    "Identity": _identity,
    "If": if_,
    "Loop": loop,
    "Max": _extremum,
    "Min": _extremum,
    "Optional": _optional,
    "OptionalGetElement": _identity,
    "OptionalHasElement": _optional_has_element,
    "Scan": scan,
    "SequenceAt": _sequence_at,
    "SequenceConstruct": _sequence_construct,
    "SequenceEmpty": _sequence_empty,
    "SequenceErase": _sequence_erase,
    "SequenceInsert": _sequence_insert,
    "SequenceLength": _sequence_length,
    "Shape": _shape,
    "Size": _size,
    "SplitToSequence": _split_to_sequence,
}
