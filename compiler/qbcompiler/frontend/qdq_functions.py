"""The functions that an exported integer model carries: exact rounding, in standard ONNX.

``Requantize(x, unit, ratio, step)``: ``acc = round(x / unit)`` finds a sum of products again from
its real value, ``floor(acc * ratio + 1/2) * step`` is the real value of the output's integer.

``AffineN(x_1, scale_1, multiplier_1, …, constant, part, step)``: ``q_i = x_i / scale_i``, then
``floor((sum(q_i * multiplier_i) + constant) * part) * step``.

``Normalize(x, unit, groups, size, mean, power, epsilon, fraction)``: ``q = round(x / unit)``, in
groups of ``size``; ``d = size q - mean sum(q)`` over ``isqrt(power V + epsilon)``, ``V`` the sum of
the squares of ``q`` times ``size``, less ``mean sum(q)^2``; times ``fraction`` and rounded. What a
normalization has before its affine map, as a double.

``ToGrid(x, step)``: ``round(x / step) * step``, the nearest step, ties to even.

All in float64, where every product of these integers is exact: an integer of 8 bits (the
accumulator: 32) times a multiplier of 31, and results that matter stay below ``2^53`` steps of
``2^-shift``. Only the radicand of ``Normalize`` may have up to 60 bits; its root has 30. ONNX
Runtime puts a function's body in its place before it optimizes.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import FunctionProto, NodeProto, TensorProto, helper

from ..ops import EXPORT_OPSET

__all__ = ["DOMAIN", "affine_name", "functions"]

DOMAIN = "qbcompiler"
"""Domain of the functions."""

_REQUANTIZE = "Requantize"
_AFFINE = "Affine"
_TO_GRID = "ToGrid"
_NORMALIZE = "Normalize"


def affine_name(inputs: int) -> str:
    """Return the name of the affine function of so many activations."""
    return f"{_AFFINE}{inputs}"


def functions(names: Sequence[str]) -> list[FunctionProto]:
    """Return the functions of these names."""
    made = {_REQUANTIZE: _requantize, _TO_GRID: _to_grid, _NORMALIZE: _normalize}
    return [
        made[name]() if name in made else _affine(int(name.removeprefix(_AFFINE))) for name in names
    ]


def _function(name: str, inputs: list[str], nodes: list[NodeProto], text: str) -> FunctionProto:
    opset = helper.make_opsetid("", EXPORT_OPSET)
    made: onnx.FunctionProto = helper.make_function(DOMAIN, name, inputs, ["y"], nodes, [opset])
    made.doc_string = text
    return made


def _node(op_type: str, inputs: list[str], output: str) -> NodeProto:
    return NodeProto(op_type=op_type, input=inputs, output=[output])


def _cast(source: str, output: str, to: int) -> NodeProto:
    made: NodeProto = helper.make_node("Cast", [source], [output], to=to)
    return made


def _constant(name: str, number: float) -> NodeProto:
    tensor = helper.make_tensor(name, TensorProto.DOUBLE, [], [number])
    made: NodeProto = helper.make_node("Constant", [], [name], value=tensor)
    return made


def _finish(steps: str) -> list[NodeProto]:
    return [
        _node("Floor", [steps], "whole"),
        _cast("whole", "steps", TensorProto.FLOAT),
        _node("Mul", ["steps", "step"], "y"),
    ]


def _requantize() -> FunctionProto:
    nodes = [
        _cast("x", "wide", TensorProto.DOUBLE),
        _node("Div", ["wide", "unit"], "units"),
        _node("Round", ["units"], "acc"),
        _node("Mul", ["acc", "ratio"], "scaled"),
        _constant("half", 0.5),
        _node("Add", ["scaled", "half"], "moved"),
        *_finish("moved"),
    ]
    text = "floor(round(x / unit) * ratio + 1/2) * step, in float64"
    return _function(_REQUANTIZE, ["x", "unit", "ratio", "step"], nodes, text)


def _to_grid() -> FunctionProto:
    nodes = [
        _cast("x", "wide", TensorProto.DOUBLE),
        _node("Div", ["wide", "step"], "steps"),
        _node("Round", ["steps"], "whole"),
        _node("Mul", ["whole", "step"], "real"),
        _cast("real", "y", TensorProto.FLOAT),
    ]
    return _function(_TO_GRID, ["x", "step"], nodes, "round(x / step) * step, in float64")


def _normalize() -> FunctionProto:
    last = helper.make_tensor("last", TensorProto.INT64, [1], [-1])
    nodes = [
        _constant("half", 0.5),
        _constant("one", 1.0),
        helper.make_node("Constant", [], ["last"], value=last),
        _cast("x", "wide", TensorProto.DOUBLE),
        _node("Div", ["wide", "unit"], "units"),
        _node("Round", ["units"], "flat"),
        _node("Reshape", ["flat", "groups"], "q"),
        _node("ReduceSum", ["q", "last"], "all"),
        _node("Mul", ["all", "mean"], "total"),
        _node("Mul", ["q", "size"], "sized"),
        _node("Sub", ["sized", "total"], "d"),
        _node("Mul", ["q", "q"], "squares"),
        _node("ReduceSum", ["squares", "last"], "energy"),
        _node("Mul", ["energy", "size"], "sized_energy"),
        _node("Mul", ["total", "total"], "square"),
        _node("Sub", ["sized_energy", "square"], "variance"),
        _node("Mul", ["variance", "power"], "scaled"),
        _node("Floor", ["scaled"], "kept"),
        _node("Add", ["kept", "epsilon"], "radicand"),
        _node("Sqrt", ["radicand"], "exact_root"),
        _node("Floor", ["exact_root"], "floor_root"),
        _node("Max", ["floor_root", "one"], "root"),
        _node("Mul", ["d", "fraction"], "numerator"),
        _node("Div", ["numerator", "root"], "ratio"),
        _node("Add", ["ratio", "half"], "moved"),
        _node("Floor", ["moved"], "t"),
        _node("Shape", ["x"], "shape"),
        _node("Reshape", ["t", "shape"], "y"),
    ]
    inputs = ["x", "unit", "groups", "size", "mean", "power", "epsilon", "fraction"]
    text = "the normalized input in steps of 2^-16, as the integer runtime has it, in float64"
    return _function(_NORMALIZE, inputs, nodes, text)


def _affine(count: int) -> FunctionProto:
    inputs: list[str] = []
    nodes: list[NodeProto] = []
    total = "constant"
    for i in range(count):
        inputs += [f"x{i}", f"scale{i}", f"multiplier{i}"]
        nodes += [
            _cast(f"x{i}", f"wide{i}", TensorProto.DOUBLE),
            _node("Div", [f"wide{i}", f"scale{i}"], f"q{i}"),
            _node("Mul", [f"q{i}", f"multiplier{i}"], f"term{i}"),
            _node("Add", [f"term{i}", total], f"total{i}"),
        ]
        total = f"total{i}"
    nodes += [_node("Mul", [total, "part"], "scaled"), *_finish("scaled")]
    text = "floor((sum(x_i / scale_i * multiplier_i) + constant) * part) * step, in float64"
    return _function(affine_name(count), [*inputs, "constant", "part", "step"], nodes, text)
