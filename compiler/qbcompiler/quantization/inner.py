"""Tensors between a layer and a function that alone reads it.

An accelerator applies an elementwise function to what a convolution has accumulated before it
writes anything to memory; the tensor in between exists only inside a pipeline. With 8 bits it would
be rounded twice, on a grid that also has to cover what the function cuts off or presses together.
16 bits there cost neither multiply-adds of 16 bits nor memory traffic: what a layer with weights
reads keeps its 8 bits.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir import Graph
from ..ops import Registry, default_registry

__all__ = ["inner_values"]

_LINEAR = (
    "Convolution",
    "DepthwiseConvolution",
    "GroupConvolution",
    "Convolution3d",
    "TransposeConvolution",
    "MatMul",
)


def inner_values(
    graph: Graph, classes: Mapping[str, str], registry: Registry | None = None
) -> list[str]:
    """Return the inner tensors, in graph order.

    Such a tensor is made by a convolution, a matrix product or an elementwise function of one
    tensor, is read by one elementwise function of one tensor alone, is no output of the graph, and
    shares its grid with no tensor that is not inner.

    Args:
        graph: the NPU body.
        classes: the class of each float value, whose members share a grid.
        registry: operators; the built-in ones by default.
    """
    specs = registry or default_registry()
    found = {n for n in classes if _is_inner(graph, n, specs)}
    outside = {root for name, root in classes.items() if name not in found}
    return [n for n, root in classes.items() if n in found and root not in outside]


def _is_inner(graph: Graph, name: str, specs: Registry) -> bool:
    maker, reader = graph.producer(name), graph.sole_consumer(name)
    if maker is None or reader is None:
        return False
    if maker.op not in _LINEAR and not specs[maker.op].is_pointwise(maker.attrs):
        return False
    if not specs[reader.op].is_pointwise(reader.attrs) or reader.inputs[0] != name:
        return False
    # a constant may spread its elements over a larger output
    return graph.values[reader.outputs[0]].shape == graph.values[name].shape
