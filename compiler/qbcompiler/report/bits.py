"""How many bits each layer has, and whose wish that was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..ir import IntGraph, IntLayer
from ..quantization.settings import named

__all__ = ["bits_of_layers"]


def bits_of_layers(
    graph: IntGraph, config: Mapping[str, Any], auto_bits: Mapping[str, Any] | None
) -> dict[str, dict[str, Any]]:
    """Return ``activation``, ``weight`` (None without weights) and ``why`` by layer.

    Args:
        graph: the integer graph.
        config: the resolved configuration, as an MXQ records it.
        auto_bits: the report of ``bit.auto``.
    """
    overrides = config.get("bit", {}).get("layerOverrides", {})
    chosen = {
        (row["kind"], row["name"])
        for row in (auto_bits or {}).get("sensitivity", ())
        if row["bits"] == 16
    }
    found = {}
    for layer in graph.layers:
        grids = [graph.values[n].quant for n in layer.outputs if n]
        bits = max((q.bits for q in grids if q is not None), default=None)
        array = layer.tensors.get("weight")
        weight = None
        if array is not None:
            packed = layer.attrs.get("weight_bits")
            weight = packed if isinstance(packed, int) else 8 * array.dtype.itemsize
        why = []
        if bits is not None and bits != 8:
            why.append(_activation(layer, overrides.get("activation16Bits", ()), chosen))
        if weight is not None and weight != 8:
            patterns = overrides.get(f"weight{weight}Bits", ())
            why.append(_weight(layer, weight, patterns, chosen))
        found[layer.name] = {
            "activation": bits,
            "weight": weight,
            "why": "; ".join(why) or "8 is the default",
        }
    return found


def _activation(layer: IntLayer, patterns: Sequence[str], chosen: set[tuple[str, str]]) -> str:
    if ("activation", layer.name) in chosen:
        return "bit.auto raised the output"
    pattern = _fitting(layer, patterns)
    if pattern is not None:
        return f"bit.layerOverrides.activation16Bits: {pattern}"
    return "the output shares its grid with one of 16 bits, or bit.transformer says so"


def _weight(
    layer: IntLayer, bits: int, patterns: Sequence[str], chosen: set[tuple[str, str]]
) -> str:
    if bits == 16 and ("weight", layer.name) in chosen:
        return "bit.auto raised the weights"
    pattern = _fitting(layer, patterns)
    if pattern is not None:
        return f"bit.layerOverrides.weight{bits}Bits: {pattern}"
    return "bit.transformer says so for the weights"


def _fitting(layer: IntLayer, patterns: Sequence[str]) -> str | None:
    names = (layer.name, *layer.source)
    return next((p for p in patterns if any(named(n, p) for n in names)), None)
