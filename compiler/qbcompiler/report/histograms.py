"""Histograms of what the layers with most error of their own hold: weights and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..ir import Array, Graph, IntGraph, QuantParams
from ..ops import Registry
from ..quantization.validate import Accuracy
from ..runtime.float_engine import FloatEngine

__all__ = ["histograms"]

_BINS = 64
_MOST = 10


def histograms(
    body: Graph,
    int_graph: IntGraph,
    accuracy: Accuracy,
    sample: Mapping[str, Array],
    *,
    count: int = _MOST,
    registry: Registry | None = None,
) -> list[dict[str, Any]]:
    """Return the histograms of the ``count`` worst layers.

    Args:
        body: the float body.
        int_graph: the integer graph.
        accuracy: says which layers are worst.
        sample: inputs of the body; the outputs are those of this sample.
        count: of layers.
        registry: operators; the built-in ones by default.

    Returns:
        For each layer ``name``, ``op``, ``activation`` and ``weight`` (None without weights):
        ``low`` and ``high`` of the outermost bins, the ``counts`` of the bins between, and for
        activations ``grid``, the least and largest number that the grid holds.
    """
    measured = [a for a in accuracy.layers if a.own.count]
    worst = sorted(measured, key=lambda a: (a.own.sqnr_db, a.name))[:count]
    layers = {x.name: x for x in int_graph.layers}
    outputs = {}
    for found in worst:
        named = [n for n in layers[found.name].outputs if n and int_graph.values[n].quant]
        outputs[found.name] = named[0]
    if not outputs:
        return []
    wanted = list(dict.fromkeys(outputs.values()))
    real = FloatEngine(body, wanted, threads=1, registry=registry).run(sample)
    rows = []
    for found in worst:
        layer, name = layers[found.name], outputs[found.name]
        quant = int_graph.values[name].quant
        assert quant is not None
        weight = layer.tensors.get("weight")
        rows.append(
            {
                "name": found.name,
                "op": found.op,
                "activation": {**_counts(real[name]), "grid": _reach(quant)},
                "weight": None if weight is None else _counts(weight),
            }
        )
    return rows


def _counts(array: Array) -> dict[str, Any]:
    flat = np.asarray(array, dtype=np.float64).reshape(-1)
    flat = flat[np.isfinite(flat)]
    low, high = (float(flat.min()), float(flat.max())) if flat.size else (0.0, 0.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts: Sequence[int] = np.histogram(flat, _BINS, (low, high))[0].tolist()
    return {"low": _short(low), "high": _short(high), "counts": counts}


def _reach(quant: QuantParams) -> list[float]:
    scale = max(quant.scales)
    return [_short((q - quant.zero_point) * scale) for q in (quant.qmin, quant.qmax)]


def _short(value: float) -> float:
    return float(f"{value:.6g}")
