"""Composed layer and root-mean-square normalization to one layer each.

Read backwards from the division: what is divided, by the root of which mean, plus which epsilon;
then whether that mean is a variance or a mean square of what is divided.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..ir import Array, Graph, Node
from ..ops.normalization import NormAttrs
from ..ops.shapes import TransposeAttrs
from .base import Editor, Rewrite, scalar_of
from .products import only_inside

__all__ = ["FuseLayerNorm", "FuseRmsNorm"]


_CHANNELS = -1
"""Stands for dimension 1 alone: normalization of each pixel of an image."""


@dataclass(slots=True)
class _Norm:
    """A normalization as far as it is understood.

    Attributes:
        x: what is divided.
        mean: the value under the root, without epsilon.
        epsilon: what is added to it.
        nodes: the layers, in execution order.
        scale: a scale that is multiplied into the inverse root.
        source: what is normalized.
        axis: the first normalized dimension, to the last; :data:`_CHANNELS` for dimension 1 alone.
        gamma, beta: scale and shift.
    """

    x: str
    mean: str
    epsilon: float
    nodes: list[Node]
    scale: Node | None = None
    source: str = ""
    axis: int = 0
    gamma: Array | None = None
    beta: Array | None = None
    after: list[Node] = field(default_factory=list)

    @property
    def every(self) -> list[Node]:
        """All layers, in execution order, each once."""
        return list({n.name: n for n in [*self.nodes, *self.after]}.values())


class _FuseNorm(Rewrite[_Norm]):
    """What both share: division by the root of a mean square, then scale and shift."""

    anchors = ("Div", "Multiply")
    op = ""

    def match(self, graph: Graph, node: Node) -> _Norm | None:
        for found in _divisions(graph, node):
            if self._complete(graph, found) and self._extend(graph, found):
                return found
        return None

    def check(self, graph: Graph, match: _Norm) -> str | None:
        if not only_inside(graph, match.every):
            return "something else reads an intermediate result"
        return None

    def rewrite(self, match: _Norm, editor: Editor) -> None:
        value = editor.graph.values[match.source]
        dtype, rank = value.type.dtype.numpy, value.type.rank
        last = match.every[-1]
        tail = _normalized(value.shape, match.axis)
        gamma = np.ones(tail) if match.gamma is None else match.gamma
        inputs = [match.source, editor.const(gamma.astype(dtype), f"{last.name}/scale").name]
        if match.beta is not None:
            inputs.append(editor.const(match.beta.astype(dtype), f"{last.name}/bias").name)
        if match.axis != _CHANNELS:
            editor.replace(match.every, self.op, NormAttrs(match.axis, match.epsilon), inputs)
            return
        # the device stores channels last: there, the transposes move nothing
        there, back = (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))
        source = tuple(dict.fromkeys(s for n in match.every for s in n.source))
        inputs[0] = editor.emit(
            "Transpose",
            TransposeAttrs(there),
            [match.source],
            name=f"{last.name}/channels_last",
            at=last,
            source=source,
        ).name
        attrs = NormAttrs(rank - 1, match.epsilon)
        y = editor.emit(self.op, attrs, inputs, name=f"{last.name}/norm", at=last, source=source)
        editor.replace(match.every, "Transpose", TransposeAttrs(back), [y])

    def _complete(self, graph: Graph, found: _Norm) -> bool:
        """Find what is normalized, along which dimensions; False where it is something else."""
        raise TypeError(f"{self.name} does not say what it normalizes")

    def _extend(self, graph: Graph, found: _Norm) -> bool:
        """Take in a scale and a shift that vary along normalized dimensions only."""
        shape = graph.values[found.source].shape
        node = graph.sole_consumer(found.nodes[-1].outputs[0])
        if found.scale is not None:
            found.gamma = _inner(graph, found.scale.inputs[1], shape, found.axis)
            if found.gamma is None:
                return False
        elif node is not None and node.op == "MultiplyConstant" and _same(graph, node):
            found.gamma = _inner(graph, node.inputs[1], shape, found.axis)
            if found.gamma is None:
                return True
            found.after.append(node)
            node = graph.sole_consumer(node.outputs[0])
        if self.op == "LayerNormalization" and node is not None and node.op == "AddingConstant":
            beta = _inner(graph, node.inputs[1], shape, found.axis)
            if beta is not None and _same(graph, node):
                found.beta = beta
                found.after.append(node)
        return True


class FuseLayerNorm(_FuseNorm):
    """``(x - mean) / sqrt(var + eps) * gamma + beta``; Ba et al. (2016).

    The variance may be the mean of squared differences or, as JAX writes it, the mean of squares
    less the squared mean, clamped at zero.
    """

    name = "fuse_layer_norm"
    op = "LayerNormalization"
    needs = ("LayerNormalization", "Transpose")
    requires = ("keep_reduced_dims", "sum_to_mean")

    def _complete(self, graph: Graph, found: _Norm) -> bool:
        centred = graph.producer(found.x)
        if centred is None or centred.op != "Sub":
            return False
        x, mean = centred.inputs
        axis = _mean_axis(graph, mean, x, keep=True)
        if axis is None:
            return False
        under = _variance(graph, found.mean, centred, axis)
        mean_node = graph.producer(mean)
        if under is None or mean_node is None:
            return False
        found.nodes = [mean_node, centred, *under, *found.nodes]
        found.axis, found.source = axis, x
        return True


class FuseRmsNorm(_FuseNorm):
    """``x / sqrt(mean(x^2) + eps) * gamma``; Zhang and Sennrich (2019)."""

    name = "fuse_rms_norm"
    op = "RmsNormalization"
    needs = ("RmsNormalization", "Transpose")
    requires = ("fuse_layer_norm",)

    def _complete(self, graph: Graph, found: _Norm) -> bool:
        under = _mean_of_square(graph, found.mean)
        if under is None or under[0] != found.x:
            return False
        nodes = under[1]
        axis = _mean_axis(graph, found.mean, nodes[0].outputs[0], keep=True)
        if axis is None:
            return False
        found.nodes = [*nodes, *found.nodes]
        found.axis, found.source = axis, found.x
        return True


# -- the division -----------------------------------------------------------------------------


def _divisions(graph: Graph, node: Node) -> list[_Norm]:
    """Return the ways to read a layer as ``x / sqrt(mean + epsilon)``, perhaps scaled."""
    if node.op == "Div":
        root = _root(graph, node.inputs[1], 0.5)
        return [] if root is None else [_Norm(node.inputs[0], root[0], root[1], [*root[2], node])]
    found = []
    for x, other in (node.inputs, node.inputs[::-1]):
        scale = graph.producer(other)
        if scale is not None and scale.op == "MultiplyConstant":
            root = _root(graph, scale.inputs[0], -0.5)
            if root is not None:
                found.append(_Norm(x, root[0], root[1], [*root[2], scale, node], scale))
            continue
        root = _root(graph, other, -0.5)
        if root is not None:
            found.append(_Norm(x, root[0], root[1], [*root[2], node]))
    return found


def _root(graph: Graph, name: str, power: float) -> tuple[str, float, list[Node]] | None:
    """Return ``v, eps, nodes`` with ``name = (v + eps) ** power``, power 1/2 or -1/2."""
    node = graph.producer(name)
    if node is None:
        return None
    if (node.op == "Sqrt" and power == 0.5) or (node.op == "Rsqrt" and power == -0.5):
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
    name, nodes = node.inputs[0], [node, *nodes]
    reshape = graph.producer(name)
    if reshape is not None and reshape.op in ("Reshape", "Unsqueeze"):
        # dimensions that the mean has dropped come back
        name, nodes = reshape.inputs[0], [reshape, *nodes]
    return name, epsilon, nodes


# -- what is under the root -------------------------------------------------------------------


def _variance(graph: Graph, name: str, centred: Node, axis: int) -> list[Node] | None:
    """Return the layers that make ``name`` the variance of what ``centred`` centres."""
    x = centred.inputs[0]
    under = _mean_of_square(graph, name)
    if under is not None:
        square, nodes = under
        other = graph.producer(square)
        # some exporters write the difference twice
        twin = other is not None and other.op == "Sub" and other.inputs == centred.inputs
        if square != centred.outputs[0] and not twin:
            return None
        if _mean_axis(graph, name, nodes[0].outputs[0]) != axis:
            return None
        extra = [] if square == centred.outputs[0] or other is None else [other]
        return [*extra, *nodes]
    clip = graph.producer(name)
    tail: list[Node] = []
    if clip is not None and clip.op in ("Clip", "Relu"):
        low = getattr(clip.attrs, "min", 0.0)
        if low != 0.0 or getattr(clip.attrs, "max", None) is not None:
            return None
        tail, name = [clip], clip.inputs[0]
    return _difference(graph, name, x, axis, tail)


def _difference(graph: Graph, name: str, x: str, axis: int, tail: list[Node]) -> list[Node] | None:
    """Return the layers of ``mean(x^2) - mean(x)^2``."""
    node = graph.producer(name)
    if node is None or node.op != "Sub":
        return None
    under = _mean_of_square(graph, node.inputs[0])
    square = graph.producer(node.inputs[1])
    if under is None or under[0] != x or square is None:
        return None
    if _mean_axis(graph, node.inputs[0], under[1][0].outputs[0]) != axis:
        return None
    if not _is_square(square) or _mean_axis(graph, square.inputs[0], x) != axis:
        return None
    mean = graph.producer(square.inputs[0])
    assert mean is not None
    return [*under[1], mean, square, node, *tail]


def _is_square(node: Node) -> bool:
    if node.op == "Multiply":
        return node.inputs[0] == node.inputs[1]
    return node.op == "Pow" and getattr(node.attrs, "exponent", None) == 2.0


def _mean_of_square(graph: Graph, name: str) -> tuple[str, list[Node]] | None:
    """Return ``x, nodes`` where ``name`` is the mean of ``x * x``."""
    mean = graph.producer(name)
    if mean is None or mean.op not in ("ReduceMean", "GlobalAveragePooling"):
        return None
    square = graph.producer(mean.inputs[0])
    if square is None or not _is_square(square):
        return None
    return square.inputs[0], [square, mean]


def _mean_axis(graph: Graph, name: str, x: str, *, keep: bool | None = None) -> int | None:
    """Return the dimension from which on, to the last, ``name`` is the mean of ``x``.

    :data:`_CHANNELS` where it is the mean over dimension 1 alone.
    """
    node = graph.producer(name)
    if node is None or node.inputs[0] != x:
        return None
    rank = graph.values[x].type.rank
    if node.op == "GlobalAveragePooling":
        return 2
    keeps = bool(getattr(node.attrs, "keepdims", True))
    if node.op != "ReduceMean" or (keep is not None and keeps != keep):
        return None
    axes = tuple(getattr(node.attrs, "axes", ()))
    if axes == (1,) and rank > 2:
        return _CHANNELS
    return axes[0] if axes and axes == tuple(range(axes[0], rank)) else None


# -- scale and shift --------------------------------------------------------------------------


def _same(graph: Graph, node: Node) -> bool:
    return graph.values[node.outputs[0]].shape == graph.values[node.inputs[0]].shape


def _normalized(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[1:2] if axis == _CHANNELS else shape[axis:]


def _inner(graph: Graph, name: str, shape: tuple[int, ...], axis: int) -> Array | None:
    """Return a constant that broadcasts over the normalized dimensions and no others."""
    data = graph.values[name].data
    if data is None:
        return None
    if axis == _CHANNELS:
        rank = len(shape)
        if data.size == 1:
            return data.reshape(1)
        full = (1,) * (rank - data.ndim) + data.shape
        # one number for each channel
        return data.reshape(-1) if full == (1, shape[1], *(1,) * (rank - 2)) else None
    extra = data.ndim - (len(shape) - axis)
    if extra > 0:
        if any(d != 1 for d in data.shape[:extra]):
            return None
        data = data.reshape(data.shape[extra:])
    return data
