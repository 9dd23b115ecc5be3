"""``x * clip(x + 3, 0, 6) / 6`` and its other written forms to HardSwish."""

from __future__ import annotations

from ..ir import Graph, NoAttrs
from ..ops.unary import HardSigmoidAttrs
from .merge_clips import bounds_of
from .products import Gate, GatedActivation, close, line_of

__all__ = ["FuseHardSwish"]


class FuseHardSwish(GatedActivation):
    """Howard et al., "Searching for MobileNetV3" (ICCV 2019), equation 3."""

    name = "fuse_hard_swish"
    needs = ("HardSwish",)
    requires = ("fuse_hard_sigmoid",)

    def gate(self, graph: Graph, name: str, x: str) -> Gate | None:
        node = graph.producer(name)
        if node is None:
            return None
        if node.op == "HardSigmoid":
            attrs = node.attrs
            assert isinstance(attrs, HardSigmoidAttrs)
            if not close(attrs.alpha, 1 / 6) or not close(attrs.beta, 0.5):
                return None
            return Gate(node.inputs[0], 1.0, "HardSwish", NoAttrs(), (node,))
        if node.op != "Clip":
            return None
        low, high = bounds_of(node)
        root, a, b, before = line_of(graph, node.inputs[0], x)
        # clip(a * x + b, 0, h) = h * clip(a / h * x + b / h, 0, 1)
        if low != 0.0 or high is None or high <= 0:
            return None
        if not close(a / high, 1 / 6) or not close(b / high, 0.5):
            return None
        return Gate(root, high, "HardSwish", NoAttrs(), (*before, node))
