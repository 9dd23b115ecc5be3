"""``Attention`` of opset 23 and later as the layers it stands for.

ONNX defines the operator as a function of plain operators. It is taken apart the same way here, so
that the passes see attention as any exporter writes it: heads split and merged, two products, a
softmax. What the shapes decide (repeated heads, masks of positions) is settled at once; what a mask
decides stays a layer. The meaning is that of ONNX's operator list; the mechanism is of Vaswani et
al., "Attention Is All You Need", 2017, with shared key heads of Ainslie et al., "GQA", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ModelLoadError
from ..ir import Array, DType, Value
from .builder import GraphBuilder
from .dtypes import dtype_of, element_type
from .op import Entity, Op, constant
from .scope import Scope

if TYPE_CHECKING:
    from .lower import Interpreter

__all__ = ["attention"]

_OPSET = 21
"""The operators below mean what they mean here."""

_SOFTCAPPED, _BIASED, _PROBABILITIES = 1, 2, 3
"""What the fourth output shows, ``qk_matmul_output_mode``; 0 is the scaled product itself."""


def attention(
    interpreter: Interpreter, op: Op, scope: Scope, builder: GraphBuilder
) -> list[Entity | None] | None:
    """Take apart an ``Attention`` whose shapes are known; any other is left to be kept whole.

    Inputs: queries, keys and values of ``[N, L, H * D]`` or ``[N, H, L, D]``; a mask that
    broadcasts to ``[N, H, L, S]``; past keys and values of ``[N, H, P, D]``; the number of keys
    that are no padding, ``[N]``. Outputs: the result in the queries' layout, the present keys and
    values, the product of queries and keys.

    Raises:
        ModelLoadError: the heads of the keys do not divide those of the queries.
    """
    steps = _Steps(interpreter, op, builder)
    shapes = _Shapes.of(op)
    if shapes is None:
        return None
    dtype = shapes.dtype
    q = _heads(steps, op, 0, shapes.heads)
    k = _heads(steps, op, 1, shapes.key_heads)
    v = _heads(steps, op, 2, shapes.key_heads)
    if (past := op.value(4)) is not None:
        k = steps("Concat", "present_key", past, k, axis=2)
    if (past := op.value(5)) is not None:
        v = steps("Concat", "present_value", past, v, axis=2)
    present_key, present_value = k, v

    scale = op.attrs.get("scale", 0.0) or 1.0 / np.sqrt(q.shape[3])
    root = np.asarray(np.sqrt(scale), dtype=dtype.numpy)
    k, v = (_repeat_heads(steps, x, shapes.heads, n) for x, n in ((k, "keys"), (v, "values")))
    q = steps("Mul", "scale_queries", q, root)
    k = steps("Transpose", "transpose_keys", k, perm=[0, 1, 3, 2])
    k = steps("Mul", "scale_keys", k, root)
    scores = shown = steps("MatMul", "scores", q, k)
    mode = op.attrs.get("qk_matmul_output_mode", 0)
    if cap := op.attrs.get("softcap", 0.0):
        limit = np.asarray(cap, dtype=dtype.numpy)
        scores = steps("Tanh", "tanh", steps("Div", "capped", scores, limit))
        scores = steps("Mul", "softcap", scores, limit)
        shown = scores if mode == _SOFTCAPPED else shown

    bias = _bias(steps, op, shapes)
    attended = None if bias is None else _attended(steps, bias, dtype)
    if bias is not None:
        if mode == _BIASED:
            shown = steps("Add", "shown_scores", scores, bias)
        if attended is not None:
            # a row without a key to attend to is nothing but infinities, of which softmax makes NaN
            bias = steps("Where", "finite_bias", attended, bias, np.asarray(0, dtype.numpy))
        scores = steps("Add", "biased_scores", scores, bias)
    elif mode == _BIASED:
        shown = scores
    wide = dtype_of(op.attrs.get("softmax_precision", 0)) or dtype
    scores = steps.cast("wide_scores", scores, wide)
    probabilities = steps("Softmax", "softmax", scores, axis=-1)
    if attended is not None:
        row = steps.cast("attended_rows", attended, wide)
        probabilities = steps("Mul", "attended", probabilities, row)
    probabilities = steps.cast("probabilities", probabilities, dtype)
    shown = probabilities if mode == _PROBABILITIES else shown
    y = steps("MatMul", "mixed", probabilities, v)
    if shapes.packed:
        n, heads, length, features = y.shape
        y = steps("Transpose", "merge_heads", y, perm=[0, 2, 1, 3])
        y = steps("Reshape", "merged", y, np.asarray([n, length, heads * features]))
    results: list[Entity | None] = [y, present_key, present_value, shown]
    return results[: len(op.outputs)]


class _Steps:
    """Adds the operators that ``op`` stands for, under its name."""

    def __init__(self, interpreter: Interpreter, op: Op, builder: GraphBuilder) -> None:
        self._interpreter, self._op, self._builder = interpreter, op, builder
        self._scope = Scope({"": _OPSET})

    def __call__(self, op_type: str, part: str, *inputs: Value | Array, **attrs: Any) -> Value:
        name = f"{self._op.name}/{part}"
        values: list[Entity | None] = [
            x if isinstance(x, Value) else constant(np.asarray(x)) for x in inputs
        ]
        step = Op(name, op_type, "", _OPSET, attrs, values, [f"{name}:0"], self._op.source)
        (made,) = self._interpreter.process(step, self._scope, self._builder)
        assert isinstance(made, Value)
        return made

    def cast(self, part: str, x: Value, dtype: DType) -> Value:
        """Return ``x`` in another type, itself where it has it already."""
        return x if x.type.dtype is dtype else self("Cast", part, x, to=element_type(dtype))


@dataclass(frozen=True, slots=True)
class _Shapes:
    """What the inputs' shapes say.

    Attributes:
        dtype: the type of queries, keys and values.
        packed: whether heads and features are one dimension.
        heads, key_heads: number of heads of the queries, and of the keys and values.
        queries, keys: number of queries, and of keys with the past ones.
        past: number of past keys.
    """

    dtype: DType
    packed: bool
    heads: int
    key_heads: int
    queries: int
    keys: int
    past: int

    @classmethod
    def of(cls, op: Op) -> _Shapes | None:
        q, k, v = (op.value(i) for i in range(3))
        if q is None or k is None or v is None:
            return None
        given = [e for e in op.inputs if isinstance(e, Value)]
        if any(not x.type.is_static or x.type.dtype.is_extended for x in given):
            return None
        if not q.type.rank == k.type.rank == v.type.rank or q.type.rank not in (3, 4):
            return None
        packed = q.type.rank == 3
        heads = op.attrs.get("q_num_heads", 0) if packed else q.shape[1]
        key_heads = op.attrs.get("kv_num_heads", 0) if packed else k.shape[1]
        past = op.value(4)
        if not heads or not key_heads or (past is None) != (op.value(5) is None):
            return None
        if heads % key_heads:
            raise ModelLoadError(
                f"{op.label} shares {key_heads} heads of keys among {heads} heads of queries",
                details={"layer": op.name, "operator": op.op_type},
                hint="the queries' heads must be a multiple of the keys'; see q_num_heads and "
                "kv_num_heads",
            )
        before = 0 if past is None else past.shape[2]
        axis = 1 if packed else 2
        return cls(
            q.type.dtype, packed, heads, key_heads, q.shape[axis], before + k.shape[axis], before
        )


def _heads(steps: _Steps, op: Op, index: int, heads: int) -> Value:
    """Return an input as ``[N, H, L, D]``."""
    x = op.value(index)
    assert x is not None
    if x.type.rank == 4:
        return x
    part = ("queries", "keys", "values")[index]
    n, length, features = x.shape
    apart = np.asarray([n, length, heads, features // heads])
    return steps("Transpose", part, steps("Reshape", f"split_{part}", x, apart), perm=[0, 2, 1, 3])


def _repeat_heads(steps: _Steps, x: Value, heads: int, part: str) -> Value:
    """Return ``x`` with each of its heads repeated for the queries that share it."""
    n, own, length, features = x.shape
    if own == heads:
        return x
    x = steps("Unsqueeze", f"share_{part}", x, np.asarray([2]))
    x = steps("Expand", f"repeat_{part}", x, np.asarray([n, own, heads // own, length, features]))
    return steps("Reshape", f"shared_{part}", x, np.asarray([n, heads, length, features]))


def _bias(steps: _Steps, op: Op, shapes: _Shapes) -> Value | None:
    """Return what is added to the scores: the mask, and -inf where the positions rule a key out."""
    dtype = shapes.dtype
    zero, never = (np.asarray(x, dtype=dtype.numpy) for x in (0.0, -np.inf))
    allowed = _allowed(steps, op, shapes)
    mask = op.value(3)
    if mask is not None and (short := shapes.keys - mask.shape[-1]) > 0:
        fill = False if mask.type.dtype is DType.BOOL else -np.inf
        rest = np.full((*mask.shape[:-1], short), fill, dtype=mask.type.dtype.numpy)
        mask = steps("Concat", "padded_mask", mask, rest, axis=-1)
    if mask is not None and mask.type.dtype is DType.BOOL:
        allowed = mask if allowed is None else steps("And", "allowed", mask, allowed)
        mask = None
    if allowed is None:
        return mask
    return steps("Where", "bias", allowed, zero if mask is None else mask, never)


def _allowed(steps: _Steps, op: Op, shapes: _Shapes) -> Value | None:
    """Return which keys the positions let each query attend to; None if all."""
    filled = op.value(6)
    left, right = (op.attrs.get(f"{side}_window_size", -1) for side in ("left", "right"))
    if op.attrs.get("is_causal", 0):
        right = 0 if right < 0 else min(right, 0)
    key = constant(np.arange(shapes.keys))
    position = constant(np.arange(shapes.queries)[:, None] + shapes.past)
    rules: list[Value] = []
    if filled is not None:
        filled = steps("Reshape", "filled", filled, np.asarray([-1, 1, 1, 1]))
        position = steps("Add", "position", filled, np.arange(-shapes.queries, 0)[:, None])
    if right >= 0:
        rules.append(steps("LessOrEqual", "not_after", key, _moved(steps, position, right, "last")))
    if left >= 0:
        first = _moved(steps, position, -left, "first")
        rules.append(steps("GreaterOrEqual", "not_before", key, first))
    if filled is not None:
        rules.append(steps("Less", "not_padding", key, filled))
    if not rules:
        return None
    allowed = rules[0]
    for number, rule in enumerate(rules[1:]):
        allowed = steps("And", f"allowed_{number}", allowed, rule)
    return allowed


def _moved(steps: _Steps, position: Value, by: int, part: str) -> Value:
    return steps("Add", part, position, np.asarray(by)) if by else position


def _attended(steps: _Steps, bias: Value, dtype: DType) -> Value | None:
    """Return which rows of the scores have a key to attend to; None if all have."""
    most = steps("ReduceMax", "row_bias", bias, np.asarray([-1]), keepdims=1)
    attended = steps("Greater", "row", most, np.asarray(-np.inf, dtype=dtype.numpy))
    if attended.data is not None and bool(attended.data.all()):
        return None
    return attended
