"""Runs one CPU operator on zeros to learn the types of its outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import InternalError, ModelLoadError, ResourceLimitError
from ..ir import DType, Graph, Node, TensorType, Value
from ..ops import Registry
from ..ops.onnx_layer import OnnxAttrs, OnnxLayer
from .float_engine import FloatEngine

__all__ = ["probe_operator"]

PROBE_BYTES = 256 << 20
"""Inputs of more bytes are not made up for a probe."""


def probe_operator(
    attrs: OnnxAttrs, inputs: Sequence[Value | None], used: Sequence[bool]
) -> list[TensorType | None]:
    """Return the type of each output, None where the operator does not run or is not used.

    Args:
        attrs: the operator.
        inputs: its inputs; zeros are fed for those that are not constants.
        used: for each output whether it is wanted.
    """
    graph = Graph(name="probe")
    names: list[str] = []
    feed = {}
    for index, value in enumerate(inputs):
        name = "" if value is None else f"i{index}"
        names.append(name)
        if value is None:
            continue
        if value.data is not None:
            graph.add_value(name, value.type, value.data)
            continue
        if value.type.nbytes > PROBE_BYTES or value.type.dtype is DType.STRING:
            return [None] * len(used)
        graph.add_input(name, value.type)
        feed[name] = np.zeros(value.shape, value.type.dtype.numpy)
    outputs = [f"o{k}" if u else "" for k, u in enumerate(used)]
    for name in filter(None, outputs):
        graph.add_value(name, TensorType(DType.FLOAT32, ()))
    graph.add_node(Node("probe", "Onnx", names, outputs, attrs))
    graph.outputs = [n for n in outputs if n]
    try:
        engine = FloatEngine(
            graph, optimization="none", registry=Registry([OnnxLayer()]), declare_outputs=False
        )
        found = engine.run(feed)
        return [
            TensorType(DType.of(found[n].dtype), tuple(found[n].shape)) if n else None
            for n in outputs
        ]
    except (InternalError, ModelLoadError, ResourceLimitError, ValueError):
        return [None] * len(used)
