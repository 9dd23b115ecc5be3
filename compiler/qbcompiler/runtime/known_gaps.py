"""Operators that ONNX Runtime takes, but does not compute as ONNX says.

Found by ONNX's back-end suite; each such layer runs in ONNX's reference implementation.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir import DType, Graph, Node
from ..ops.onnx_layer import OnnxAttrs

__all__ = ["known_gap"]

Check = Callable[[Node, Graph], bool]


def _rank(node: Node, graph: Graph, index: int) -> int:
    name = node.inputs[index] if index < len(node.inputs) else ""
    return graph.values[name].type.rank if name else 0


_GAPS: dict[str, tuple[Check, str]] = {
    "DFT": (lambda node, graph: True, "sums in float32 without a fast transform: 1e-4 off"),
    "STFT": (lambda node, graph: True, "sums in float32 without a fast transform: 1e-4 off"),
    "ConvInteger": (
        lambda node, graph: _rank(node, graph, 3) > 0,
        "refuses a weight zero point for each channel",
    ),
    "MaxUnpool": (
        lambda node, graph: _rank(node, graph, 2) > 0,
        "puts elements elsewhere when it is given the output shape",
    ),
    "ReduceMax": (
        lambda node, graph: graph.values[node.inputs[0]].type.dtype is DType.BOOL,
        "has no result for an empty set of bools",
    ),
    "ReduceMin": (
        lambda node, graph: graph.values[node.inputs[0]].type.dtype is DType.BOOL,
        "has no result for an empty set of bools",
    ),
}


def known_gap(node: Node, graph: Graph) -> str | None:
    """Return why ONNX Runtime must not run a layer, None where it may."""
    if not isinstance(node.attrs, OnnxAttrs) or node.attrs.domain:
        return None
    check, reason = _GAPS.get(node.attrs.op_type, (None, ""))
    return reason if check is not None and check(node, graph) else None
