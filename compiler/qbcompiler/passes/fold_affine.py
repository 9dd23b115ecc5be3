"""Folds scales and shifts into the convolution or matrix product next to them.

Batch normalization, multiplication, division, addition and subtraction by constants that have
one number for each channel. Folding is Jacob et al. (CVPR 2018), section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ir import Graph, Node
from .affine import AFFINE_OPS, LINEAR_OPS, Affine, Linear, affine_of, fits, linear_of
from .base import Editor, Rewrite

__all__ = ["FoldAffineAfter", "FoldAffineBefore"]


@dataclass(frozen=True, slots=True)
class _Pair:
    linear: Linear
    affine_node: Node
    affine: Affine | None


class FoldAffineAfter(Rewrite[_Pair]):
    """``k * linear(x) + b`` to ``linear'(x)``: the usual place of batch normalization."""

    name = "fold_affine_after"
    anchors = AFFINE_OPS

    def match(self, graph: Graph, node: Node) -> _Pair | None:
        maker = graph.producer(node.inputs[0])
        linear = None if maker is None else linear_of(graph, maker)
        if linear is None:
            return None
        return _Pair(linear, node, affine_of(graph, node, linear.out_axis))

    def check(self, graph: Graph, match: _Pair) -> str | None:
        if graph.sole_consumer(match.linear.node.outputs[0]) is None:
            return "something else reads what the layer before makes"
        if match.affine is None:
            return "its constant does not have one number for each output channel"
        if not match.affine.is_finite:
            return "its constant is not finite"
        linear, k = match.linear, match.affine.k
        if not linear.bounded(k) and not fits(linear.scaled_out(k), linear.weight.dtype):
            return "the folded weights would overflow"
        return None

    def rewrite(self, match: _Pair, editor: Editor) -> None:
        linear, affine = match.linear, match.affine
        assert affine is not None
        node = linear.node
        inputs = [node.inputs[0], _weight(linear, editor, affine, out=True)]
        bias = affine.k * linear.bias64() + affine.b
        if linear.bias is not None or np.any(bias):
            inputs.append(_bias(linear, bias, editor))
        editor.replace([node, match.affine_node], node.op, node.attrs, inputs, name=node.name)


class FoldAffineBefore(Rewrite[_Pair]):
    """``linear(k * x + b)`` to ``linear'(x)``, where zero padding does not stand between."""

    name = "fold_affine_before"
    anchors = LINEAR_OPS
    requires = ("fold_affine_after",)

    def match(self, graph: Graph, node: Node) -> _Pair | None:
        linear = linear_of(graph, node)
        maker = graph.producer(node.inputs[0])
        if linear is None or maker is None or maker.op not in AFFINE_OPS:
            return None
        if node.op == "MatMul" and linear.weight.ndim != 2:
            return None
        return _Pair(linear, maker, affine_of(graph, maker, linear.in_axis))

    def check(self, graph: Graph, match: _Pair) -> str | None:
        linear, affine = match.linear, match.affine
        if graph.sole_consumer(match.affine_node.outputs[0]) is None:
            return "something else reads what the layer before makes"
        if affine is None:
            return "the constant before it does not have one number for each input channel"
        if not affine.is_finite:
            return "the constant before it is not finite"
        if np.any(affine.b):
            if linear.node.op == "TransposeConvolution":
                return "a shift before a transposed convolution does not reach its edges evenly"
            if any(getattr(linear.node.attrs, "pads", ())):
                return "it pads with zeros, which the shift before it does not reach"
        if not linear.bounded(affine.k) and not fits(
            linear.scaled_in(affine.k), linear.weight.dtype
        ):
            return "the folded weights would overflow"
        return None

    def rewrite(self, match: _Pair, editor: Editor) -> None:
        linear, affine = match.linear, match.affine
        assert affine is not None
        node = linear.node
        inputs = [match.affine_node.inputs[0], _weight(linear, editor, affine, out=False)]
        bias = linear.bias64()
        if np.any(affine.b):
            bias = bias + linear.response(affine.b)
        if linear.bias is not None or np.any(bias):
            inputs.append(_bias(linear, bias, editor))
        editor.replace([match.affine_node, node], node.op, node.attrs, inputs, name=node.name)


def _weight(linear: Linear, editor: Editor, affine: Affine, *, out: bool) -> str:
    """Return the name of the scaled weights; the old ones where nothing changes."""
    if np.all(affine.k == 1.0):
        return linear.node.inputs[1]
    weight = linear.scaled_out(affine.k) if out else linear.scaled_in(affine.k)
    return editor.const(weight, linear.node.inputs[1]).name


def _bias(linear: Linear, bias: object, editor: Editor) -> str:
    name = linear.node.inputs[2] if linear.bias is not None else f"{linear.node.name}/bias"
    return editor.const(np.asarray(bias).astype(linear.weight.dtype), name).name
