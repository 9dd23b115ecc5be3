"""What an MXQ's manifest tells of each layer's quantization."""

from __future__ import annotations

from typing import Any

from ..ir import IntGraph, IntValue

__all__ = ["layer_summaries"]

_SCALES_SHOWN = 1


def layer_summaries(graph: IntGraph) -> list[dict[str, Any]]:
    """Return one object a layer, in execution order.

    Each gives name, operator, source nodes, the stored type and shape of each input and output
    with its scale and zero point (a per-channel grid gives its smallest and largest scale),
    and the bits and number of its weights.
    """
    return [
        {
            "name": layer.name,
            "op": layer.op,
            "source": list(layer.source),
            "inputs": [_port(graph.values[n]) for n in layer.inputs if n],
            "outputs": [_port(graph.values[n]) for n in layer.outputs if n],
            "weights": _weights(layer.tensors.get("weight"), layer.attrs.get("weight_bits")),
        }
        for layer in graph.layers
    ]


def _port(value: IntValue) -> dict[str, Any]:
    quant = value.quant
    port: dict[str, Any] = {
        "name": value.name,
        "dtype": value.type.dtype.value,
        "stored_shape": list(value.stored_shape),
    }
    if quant is not None:
        port["scale"] = min(quant.scales)
        if len(quant.scales) > _SCALES_SHOWN:
            port["largest_scale"] = max(quant.scales)
        port["zero_point"] = quant.zero_point
    return port


def _weights(array: Any, bits: Any) -> dict[str, Any] | None:
    if array is None:
        return None
    known = bits if isinstance(bits, int) else 8 * array.dtype.itemsize
    return {"bits": known, "count": int(array.size)}
