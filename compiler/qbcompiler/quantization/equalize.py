"""Balance the channels of a tensor between the layers that make and read it.

A tensor has one grid, as wide as its widest channel needs, and its narrow channels get few steps.
Between two linear layers with nothing but positively homogeneous functions (``f(a x) = a f(x)`` for
``a > 0``) in between, each channel may be divided by a positive factor in the first layer's weights
and multiplied by it in the second's: the function stays the same. After M. Nagel et al., "Data-Free
Quantization Through Weight Equalization and Bias Correction" (ICCV 2019), section 4.1, with two
differences. The first layer's weights have a scale for each output channel, which takes the factor
up, so that what is balanced is the tensor's own range, as observed on samples, against the second
layer's weights (as in G. Xiao et al., "SmoothQuant", ICML 2023). And where every reader is
depthwise, its scales take the factor up too: all channels then get the same range.

Tensors do not share a factor, and each keeps its values but for its own; one set of observations
serves all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir import Array, Graph, Node
from .copies import is_copy

__all__ = [
    "Equalization",
    "Link",
    "Refused",
    "equalize",
    "find_links",
    "is_linear",
    "is_norm",
    "round_factors",
    "unscalable",
]

Float64 = NDArray[np.float64]
Peaks = Mapping[str, Float64]

_CONV = ("Convolution", "DepthwiseConvolution", "GroupConvolution", "Convolution3d")
_TRANSPOSED = "TransposeConvolution"
_NORMS = ("LayerNormalization", "RmsNormalization")
_MAKERS = (*_CONV, _TRANSPOSED, "MatMul", "Batchnorm")
_READERS = (*_CONV, _TRANSPOSED, "MatMul")
_PASSING = ("Relu", "LeakyRelu", "PRelu", "Pooling", "Dropout", "Identity")

_STEPS = 8  # factors are powers of 2^(1/8): the last bits of an observation do not count
_REACH = 64.0  # how far a factor may be from the tensor's mean factor
_DEAD = 1e-6  # a channel with less of the widest channel's range stays as it is


@dataclass(frozen=True)
class Link:
    """A tensor whose channels may be scaled.

    Attributes:
        made: what the maker makes.
        read: what the readers read; ``made``, or it behind functions that let factors pass.
        maker: the layer that makes it.
        readers: the layers that read it.
        axis: the channels' axis.
        smoothing: which part of a channel's range moves into the readers' weights, 0 to 1, where
            they are not depthwise.
    """

    made: str
    read: str
    maker: Node
    readers: tuple[Node, ...]
    axis: int
    smoothing: float = 0.5

    @property
    def free(self) -> bool:
        """Whether the readers' scales take any factor up."""
        return all(n.op == "DepthwiseConvolution" for n in self.readers)


@dataclass(frozen=True)
class Refused:
    """A linear layer's output that stays as it is, and why."""

    layer: str
    reason: str


@dataclass
class Equalization:
    """What was done.

    Attributes:
        constants: new data of weights, biases and scales by value name.
        factors: of each tensor that was changed, by what its channels were divided.
        links: these tensors.
        refused: outputs of linear layers that stay as they are.
    """

    constants: dict[str, Array] = field(default_factory=dict)
    factors: dict[str, Float64] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def data(self, graph: Graph, name: str) -> Array:
        """Return the present data of a constant."""
        if name in self.constants:
            return self.constants[name]
        found = graph.values[name].data
        assert found is not None
        return found

    def scale(self, graph: Graph, name: str, by: Float64) -> None:
        """Multiply a constant."""
        old = self.data(graph, name)
        self.constants[name] = (old.astype(np.float64) * by).astype(old.dtype)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON data."""
        rows = [
            {
                "tensor": link.made,
                "layer": link.maker.name,
                "readers": [n.name for n in link.readers],
                "smallest_factor": round(float(self.factors[link.made].min()), 6),
                "largest_factor": round(float(self.factors[link.made].max()), 6),
            }
            for link in self.links
        ]
        return {
            "applied": rows,
            "refused": [{"layer": r.layer, "reason": r.reason} for r in self.refused],
        }


def is_linear(node: Node) -> bool:
    """Whether cross-layer equalization takes the layer for a maker: weights, or a copy."""
    return node.op in _MAKERS or is_copy(node)


def is_norm(node: Node) -> bool:
    """Whether the layer normalizes, with a scale for each channel."""
    return node.op in _NORMS


def find_links(
    graph: Graph,
    shared: Callable[[str], bool],
    makers: Callable[[Node], bool] = is_linear,
) -> tuple[list[Link], list[Refused]]:
    """Return the tensors whose channels may be scaled, and why other linear layers' may not.

    Args:
        graph: the NPU body, in topological order.
        shared: whether a constant has more than one use in the whole model.
        makers: of which layers the outputs are to be scaled.
    """
    links: list[Link] = []
    refused: list[Refused] = []
    for node in graph.nodes:
        if not makers(node):
            continue
        found = _link(graph, node, shared)
        if isinstance(found, Link):
            links.append(found)
        elif found:
            refused.append(Refused(node.name, found))
    return links, refused


def equalize(graph: Graph, links: Sequence[Link], peaks: Peaks) -> Equalization:
    """Return the constants that balance the channels of ``links``.

    Args:
        graph: the NPU body.
        links: of :func:`find_links`.
        peaks: for each link's ``read`` the largest magnitude of each channel.
    """
    done = Equalization()

    def data(name: str) -> Array:
        return done.data(graph, name)

    def multiply(name: str, by: Float64) -> None:
        done.scale(graph, name, by)

    for link in links:
        factors = _factors(link, peaks[link.read], [_reach(n, data) for n in link.readers])
        if (factors == 1.0).all():
            done.refused.append(Refused(link.maker.name, "its channels are balanced already"))
            continue
        inverse, maker = 1.0 / factors, link.maker
        multiply(maker.inputs[1], _shares(maker, data(maker.inputs[1]), inverse))
        if len(maker.inputs) > 2 and maker.inputs[2]:
            multiply(maker.inputs[2], inverse)
        for reader in link.readers:
            multiply(reader.inputs[1], _spread(reader, data(reader.inputs[1]), factors))
        done.factors[link.made] = factors
        done.links.append(link)
    return done


def _link(graph: Graph, node: Node, shared: Callable[[str], bool]) -> Link | str:
    """Return the link behind a linear layer, or why there is none; "" where nobody reads it."""
    reason = unscalable(graph, node, node.inputs[1:3], shared)
    if reason:
        return reason
    if is_norm(node) and graph.values[node.inputs[1]].type.rank != 1:
        return "it normalizes more than channels"
    made = node.outputs[0]
    axis = _channel_axis(node, graph)
    name = made
    while True:
        if name in graph.outputs:
            return "it makes an output of the model"
        readers = graph.consumers(name)
        if len(readers) == 1 and _lets_pass(readers[0], name, axis, graph):
            name = readers[0].outputs[0]
            continue
        break
    if not readers:
        return ""
    for reader in readers:
        if reader.op not in _READERS or reader.inputs[0] != name or reader.inputs.count(name) > 1:
            return f"{reader.name!r} ({reader.op}) does not let a factor pass"
        if _reading_axis(reader, graph) != axis:
            return f"{reader.name!r} ({reader.op}) sums along another axis"
        reason = unscalable(graph, reader, reader.inputs[1:2], shared)
        if reason:
            return f"the weights of {reader.name!r} cannot be scaled: {reason}"
    return Link(made, name, node, tuple(readers), axis)


def unscalable(
    graph: Graph, node: Node, names: Sequence[str], shared: Callable[[str], bool]
) -> str:
    """Return why constants of a layer, its weights first, may not change; "" if they may."""
    for index, name in enumerate(names, 1):
        if not name:
            continue
        data = graph.values[name].data
        if data is None:
            return "it multiplies two activations" if index == 1 else "its bias is not constant"
        if shared(name):
            return "another layer has the same weights"
        if not np.isfinite(data).all():
            return "its weights are not finite"
    if node.op == "MatMul" and graph.values[node.inputs[1]].type.rank != 2:
        return "its weights are a batch of matrices"
    return ""


def _channel_axis(node: Node, graph: Graph) -> int:
    rank = graph.values[node.outputs[0]].type.rank
    if is_copy(node):
        sizes = graph.values[node.inputs[1]].shape
        return next((i for i, size in enumerate(sizes) if size > 1), -1)
    return rank - 1 if node.op == "MatMul" or is_norm(node) else 1


def _reading_axis(node: Node, graph: Graph) -> int:
    rank = graph.values[node.inputs[0]].type.rank
    return rank - 1 if node.op == "MatMul" else 1


def _lets_pass(node: Node, name: str, axis: int, graph: Graph) -> bool:
    if node.op not in _PASSING or node.inputs[0] != name or node.inputs.count(name) > 1:
        return False
    if node.op == "Pooling":
        return axis == 1  # windows go over the other axes
    if node.op == "PRelu":
        return graph.values[node.outputs[0]].shape == graph.values[name].shape
    return True


def _reach(node: Node, data: Callable[[str], Array]) -> Float64:
    """Return the largest weight of each input channel, as part of its output channel's largest."""
    weight = np.abs(data(node.inputs[1]).astype(np.float64))
    if node.op == "MatMul":
        peaks = weight.max(axis=0, keepdims=True, initial=0.0)
        relative: Float64 = _over(weight, peaks).max(axis=1, initial=0.0)
        return relative
    groups = int(getattr(node.attrs, "groups", 1))
    if node.op == _TRANSPOSED:
        parts = weight.reshape(groups, -1, *weight.shape[1:]).max(
            axis=tuple(range(3, weight.ndim + 1)), initial=0.0
        )
        parts = parts.transpose(0, 2, 1)  # groups, outputs, inputs
    else:
        flat = weight.reshape(groups, -1, weight.shape[1], int(np.prod(weight.shape[2:])))
        parts = flat.max(axis=3, initial=0.0)
    shares = _over(parts, parts.max(axis=2, keepdims=True, initial=0.0))
    found: Float64 = shares.max(axis=1, initial=0.0).reshape(-1)
    return found


def _over(values: Float64, whole: Float64) -> Float64:
    found: Float64 = np.divide(values, whole, out=np.zeros_like(values), where=whole > 0)
    return found


def _factors(link: Link, peaks: Float64, reaches: Sequence[Float64]) -> Float64:
    """Return powers of ``2^(1/8)`` with a geometric mean near 1."""
    wanted = peaks.astype(np.float64)
    reach = np.max(np.stack(list(reaches)), axis=0)
    live = (wanted > _DEAD * wanted.max(initial=0.0)) & (reach > 0)
    if not live.any():
        return np.ones(len(wanted))
    exponent = np.zeros(len(wanted))
    exponent[live] = np.log2(wanted[live])
    if is_copy(link.maker) and link.free:
        exponent[live] /= 2  # other samples may need more of a channel than these
    elif not link.free:
        part = link.smoothing
        exponent[live] = part * exponent[live] - (1 - part) * np.log2(reach[live])
    return round_factors(exponent, live)


def round_factors(exponent: Float64, live: NDArray[np.bool_]) -> Float64:
    """Return powers of ``2^(1/8)`` with a geometric mean near 1, and 1 for what is not live."""
    if not live.any():
        return np.ones(len(live))
    exponent = exponent.copy()
    exponent[live] -= np.rint(_STEPS * exponent[live].mean()) / _STEPS
    limit = np.log2(_REACH)
    rounded = np.rint(_STEPS * np.clip(exponent, -limit, limit)) / _STEPS
    found: Float64 = np.where(live, np.exp2(rounded), 1.0)
    return found


def _shares(node: Node, weight: Array, inverse: Float64) -> Float64:
    """Return what each weight of a maker is multiplied with."""
    if node.op == "Batchnorm" or is_norm(node):
        return inverse
    if is_copy(node):
        return inverse.reshape(weight.shape)
    if node.op == "MatMul":
        return inverse.reshape(1, -1)
    rest = [1] * (weight.ndim - 2)
    if node.op == _TRANSPOSED:
        # [C, O/groups, K…]: the first axis goes over groups, then over a group's inputs
        by_group = inverse.reshape(-1, weight.shape[1])
        full: Float64 = np.repeat(by_group, weight.shape[0] // len(by_group), axis=0)
        return full.reshape(*weight.shape[:2], *rest)
    return inverse.reshape(-1, 1, *rest)


def _spread(node: Node, weight: Array, factors: Float64) -> Float64:
    """Return what each weight of a reader is multiplied with."""
    if node.op == "MatMul":
        return factors.reshape(-1, 1)
    if node.op == _TRANSPOSED:
        return factors.reshape(-1, *[1] * (weight.ndim - 1))
    groups = int(getattr(node.attrs, "groups", 1))
    by_group = factors.reshape(groups, weight.shape[1])
    outputs = weight.shape[0] // groups
    full: Float64 = np.repeat(by_group, outputs, axis=0)
    return full.reshape(weight.shape[0], weight.shape[1], *[1] * (weight.ndim - 2))
