"""Composed layer and root-mean-square normalization to one layer each."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..ir import Array, Graph, Node
from ..ops.normalization import NormAttrs
from .base import Editor, Rewrite, scalar_of
from .products import only_inside

__all__ = ["FuseLayerNorm", "FuseRmsNorm"]


@dataclass(slots=True)
class _Norm:
    """``x / root`` before it is known what ``x`` is, and what follows."""

    x: str
    variance: str
    epsilon: float
    nodes: list[Node]
    axis: int = 0
    gamma: Array | None = None
    beta: Array | None = None
    source: str = ""
    after: list[Node] = field(default_factory=list)


class _FuseNorm(Rewrite[_Norm]):
    """What both share: division by the root of a mean square, then scale and shift."""

    anchors = ("Div", "Multiply")
    op = ""

    def match(self, graph: Graph, node: Node) -> _Norm | None:
        for found in _divisions(graph, node):
            if self._complete(graph, found):
                self._extend(graph, found)
                return found
        return None

    def check(self, graph: Graph, match: _Norm) -> str | None:
        if not only_inside(graph, [*match.nodes, *match.after]):
            return "something else reads an intermediate result"
        return None

    def rewrite(self, match: _Norm, editor: Editor) -> None:
        value = editor.graph.values[match.source]
        dtype = value.type.dtype.numpy
        last = (*match.nodes, *match.after)[-1]
        gamma = np.ones(value.shape[match.axis :]) if match.gamma is None else match.gamma
        inputs = [match.source, editor.const(gamma.astype(dtype), f"{last.name}/scale").name]
        if match.beta is not None:
            inputs.append(editor.const(match.beta.astype(dtype), f"{last.name}/bias").name)
        attrs = NormAttrs(match.axis, match.epsilon)
        editor.replace([*match.nodes, *match.after], self.op, attrs, inputs)

    def _complete(self, graph: Graph, found: _Norm) -> bool:
        """Find the mean square under the root, and what is normalized."""
        raise TypeError(f"{self.name} does not say what it normalizes")

    def _extend(self, graph: Graph, found: _Norm) -> None:
        """Take in a scale and a shift that follow and vary along normalized axes only."""
        shape = graph.values[found.source].shape
        node = graph.sole_consumer(found.nodes[-1].outputs[0])
        if node is not None and node.op == "MultiplyConstant":
            gamma = _inner(graph, node, shape, found.axis)
            if gamma is None:
                return
            found.gamma = gamma
            found.after.append(node)
            node = graph.sole_consumer(node.outputs[0])
        if self.op == "LayerNormalization" and node is not None and node.op == "AddingConstant":
            beta = _inner(graph, node, shape, found.axis)
            if beta is not None:
                found.beta = beta
                found.after.append(node)


class FuseLayerNorm(_FuseNorm):
    """``(x - mean) / sqrt(mean((x - mean)^2) + eps) * gamma + beta``; Ba et al. (2016)."""

    name = "fuse_layer_norm"
    op = "LayerNormalization"
    needs = ("LayerNormalization",)

    def _complete(self, graph: Graph, found: _Norm) -> bool:
        centred = graph.producer(found.x)
        if centred is None or centred.op != "Sub":
            return False
        x, mean = centred.inputs
        axis = _mean_axis(graph, mean, x)
        under = _mean_of_square(graph, found.variance)
        if axis is None or under is None:
            return False
        square, nodes = under
        other = graph.producer(square)
        # some exporters write the difference twice
        twin = other is not None and other.op == "Sub" and other.inputs == centred.inputs
        if square != found.x and not twin:
            return False
        if _mean_axis(graph, found.variance, nodes[0].outputs[0]) != axis:
            return False
        mean_node = graph.producer(mean)
        assert mean_node is not None
        extra = [] if square == found.x or other is None else [other]
        found.nodes = [mean_node, centred, *extra, *nodes, *found.nodes]
        found.axis, found.source = axis, x
        return True


class FuseRmsNorm(_FuseNorm):
    """``x / sqrt(mean(x^2) + eps) * gamma``; Zhang and Sennrich (2019)."""

    name = "fuse_rms_norm"
    op = "RmsNormalization"
    needs = ("RmsNormalization",)
    requires = ("fuse_layer_norm",)

    def _complete(self, graph: Graph, found: _Norm) -> bool:
        under = _mean_of_square(graph, found.variance)
        if under is None or under[0] != found.x:
            return False
        nodes = under[1]
        axis = _mean_axis(graph, found.variance, nodes[0].outputs[0])
        if axis is None:
            return False
        found.nodes = [*nodes, *found.nodes]
        found.axis, found.source = axis, found.x
        return True


def _divisions(graph: Graph, node: Node) -> list[_Norm]:
    """Return the ways to read a layer as ``x / sqrt(variance + epsilon)``."""
    found = []
    if node.op == "Div":
        root = _root(graph, node.inputs[1], 0.5)
        if root is not None:
            found.append(_Norm(node.inputs[0], root[0], root[1], [*root[2], node]))
        return found
    for x, other in (node.inputs, node.inputs[::-1]):
        root = _root(graph, other, -0.5)
        if root is not None:
            found.append(_Norm(x, root[0], root[1], [*root[2], node]))
    return found


def _root(graph: Graph, name: str, power: float) -> tuple[str, float, list[Node]] | None:
    """Return ``v, eps, nodes`` with ``name = (v + eps) ** power``, power 1/2 or -1/2."""
    node = graph.producer(name)
    if node is None:
        return None
    if node.op == "Sqrt" and power == 0.5:
        return _shifted(graph, node.inputs[0], [node])
    if node.op == "Rsqrt" and power == -0.5:
        return _shifted(graph, node.inputs[0], [node])
    if node.op == "Pow" and getattr(node.attrs, "exponent", None) == power:
        return _shifted(graph, node.inputs[0], [node])
    if power == -0.5 and node.op == "DivConstant" and getattr(node.attrs, "reverse", False):
        inner = graph.producer(node.inputs[0])
        if inner is not None and inner.op == "Sqrt" and scalar_of(graph, node.inputs[1]) == 1.0:
            return _shifted(graph, inner.inputs[0], [inner, node])
    return None


def _shifted(graph: Graph, name: str, nodes: list[Node]) -> tuple[str, float, list[Node]] | None:
    node = graph.producer(name)
    if node is None or node.op != "AddingConstant":
        return None
    epsilon = scalar_of(graph, node.inputs[1])
    if epsilon is None or epsilon < 0:
        return None
    return node.inputs[0], epsilon, [node, *nodes]


def _mean_of_square(graph: Graph, name: str) -> tuple[str, list[Node]] | None:
    """Return ``x, nodes`` where ``name`` is the mean of ``x * x``."""
    mean = graph.producer(name)
    square = None if mean is None else graph.producer(mean.inputs[0])
    if mean is None or square is None:
        return None
    if square.op == "Multiply" and square.inputs[0] == square.inputs[1]:
        return square.inputs[0], [square, mean]
    if square.op == "Pow" and getattr(square.attrs, "exponent", None) == 2.0:
        return square.inputs[0], [square, mean]
    return None


def _mean_axis(graph: Graph, name: str, x: str) -> int | None:
    """Return the axis from which on ``name`` is the mean of ``x``, dimensions kept."""
    node = graph.producer(name)
    if node is None or node.inputs[0] != x:
        return None
    rank = graph.values[x].type.rank
    if node.op == "GlobalAveragePooling":
        return 2
    if node.op != "ReduceMean" or not getattr(node.attrs, "keepdims", True):
        return None
    axes = tuple(getattr(node.attrs, "axes", ()))
    return axes[0] if axes and axes == tuple(range(axes[0], rank)) else None


def _inner(graph: Graph, node: Node, shape: tuple[int, ...], axis: int) -> Array | None:
    """Return a constant that broadcasts over the normalized dimensions and no others."""
    data = graph.values[node.inputs[1]].data
    if data is None or graph.values[node.outputs[0]].shape != shape:
        return None
    extra = data.ndim - (len(shape) - axis)
    if extra > 0:
        if any(d != 1 for d in data.shape[:extra]):
            return None
        data = data.reshape(data.shape[extra:])
    return data
