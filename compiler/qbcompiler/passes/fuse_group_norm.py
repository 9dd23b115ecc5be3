"""Group normalization that is written as instance normalization of reshaped channels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ir import Graph, Node
from ..ops.normalization import GroupNormAttrs, InstanceNormAttrs
from .affine import AFFINE_OPS, Affine, affine_of
from .base import Editor, Rewrite

__all__ = ["FuseGroupNorm"]


@dataclass(frozen=True, slots=True)
class _Group:
    x: str
    attrs: GroupNormAttrs
    nodes: tuple[Node, ...]
    affine: Affine


class FuseGroupNorm(Rewrite[_Group]):
    """``[N, C, …]`` to ``[N, G, …]``, normalize, back, scale and shift; Wu and He (2018)."""

    name = "fuse_group_norm"
    anchors = ("InstanceNormalization",)
    needs = ("GroupNormalization", "Reshape")

    def match(self, graph: Graph, node: Node) -> _Group | None:
        apart, back = graph.producer(node.inputs[0]), graph.sole_consumer(node.outputs[0])
        if apart is None or back is None or apart.op != "Reshape" or back.op != "Reshape":
            return None
        shape, grouped = graph.values[apart.inputs[0]].shape, graph.values[node.inputs[0]].shape
        if len(shape) < 3 or grouped[0] != shape[0] or graph.values[back.outputs[0]].shape != shape:
            return None
        groups = grouped[1]
        scale, bias = (graph.values[name].data for name in node.inputs[1:3])
        if shape[1] % groups or groups == shape[1] or scale is None or bias is None:
            return None
        assert isinstance(node.attrs, InstanceNormAttrs)
        per = shape[1] // groups
        affine = Affine(*(np.repeat(np.asarray(c, np.float64), per) for c in (scale, bias)))
        nodes = [apart, node, back]
        after = graph.sole_consumer(back.outputs[0])
        while after is not None and after.op in AFFINE_OPS:
            more = affine_of(graph, after, 1)
            if more is None:
                break
            affine, nodes = affine.then(more), [*nodes, after]
            after = graph.sole_consumer(after.outputs[0])
        attrs = GroupNormAttrs(groups, node.attrs.epsilon)
        return _Group(apart.inputs[0], attrs, tuple(nodes), affine)

    def check(self, graph: Graph, match: _Group) -> str | None:
        if graph.sole_consumer(match.nodes[0].outputs[0]) is None:
            return "something else reads the groups"
        dtype = graph.values[match.x].type.dtype.numpy
        with np.errstate(over="ignore"):
            scale_and_shift = np.stack([match.affine.k, match.affine.b]).astype(dtype)
        if not np.isfinite(scale_and_shift).all():
            return "its scale or shift is not finite"
        return None

    def rewrite(self, match: _Group, editor: Editor) -> None:
        norm = match.nodes[1]
        dtype = editor.graph.values[match.x].type.dtype.numpy
        scale = editor.const(match.affine.k.astype(dtype), f"{norm.name}/scale")
        bias = editor.const(match.affine.b.astype(dtype), f"{norm.name}/bias")
        inputs = [match.x, scale.name, bias.name]
        editor.replace(match.nodes, "GroupNormalization", match.attrs, inputs, name=norm.name)
