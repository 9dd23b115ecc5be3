"""Better scales and rounding of weights, layer by layer on calibration samples.

The integer graph is run once, each layer on all samples before the next. When a layer's turn comes
its inputs are what its predecessors, already treated, give. From these integers its Gram matrix is
summed, its scales are searched, its weights rounded anew, and only then is it run. Errors are those
around their mean: the mean of what rounding takes away goes into the bias.

A method never makes a channel worse by its own measure: where rounding with feedback has more error
than rounding to nearest, or would not leave its accumulator room, the channel stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ..ir import Array, Graph, IntGraph, IntLayer, QuantParams
from ..ops import Registry
from ..ops.common import span_of
from ..ops.weights import ACC_LIMIT, WIDE_ACC_LIMIT, LinearParts, quantize_linear
from .gram import WeightView, gram_of, view_of
from .sweep import Samples, Sweep, fitting
from .weight_rounding import (
    FACTORS,
    best_factor,
    damped,
    decompose,
    round_with_feedback,
    squared_error,
)

if TYPE_CHECKING:
    from ..config import CompileConfig

__all__ = ["WeightChange", "WeightMethods", "improve_weights"]

Float64 = NDArray[np.float64]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class WeightMethods:
    """What is done to weights.

    Attributes:
        search_scales: search the scale of each output channel.
        feedback: round with feedback (GPTQ).
        by_size: round the columns with the largest input first.
        block_size: columns rounded together; changes the speed alone.
        damping: share of the mean diagonal that is added to the diagonal.
        samples: calibration samples used, at most.
    """

    search_scales: bool = False
    feedback: bool = False
    by_size: bool = False
    block_size: int = 256
    damping: float = 0.01
    samples: int = 64

    @classmethod
    def from_config(cls, config: CompileConfig) -> Self | None:
        """Read the settings; None where weights are to stay as they are."""
        search, hessian = config.search_weight_scale, config.hessian_quant
        if not search.apply and not hessian.apply:
            return None
        a = hessian.attributes
        return cls(search.apply, hessian.apply, a.act_order, a.block_size, a.perc_damp)


@dataclass(frozen=True)
class WeightChange:
    """What was done to one layer.

    Attributes:
        layer, op: the layer.
        reason: why nothing was done; empty otherwise.
        scale_factor: mean over the channels of the scale, as part of what the largest weight gives.
        changed: share of the weights whose integer differs from rounding to nearest.
        gain_db: how much less error the weights make in the layer's output, on the samples.
    """

    layer: str
    op: str
    reason: str = ""
    scale_factor: float = 1.0
    changed: float = 0.0
    gain_db: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON data."""
        row: dict[str, Any] = {"layer": self.layer, "operator": self.op}
        if self.reason:
            return {**row, "reason": self.reason}
        return {
            **row,
            "scale_factor": round(self.scale_factor, 4),
            "changed": round(self.changed, 6),
            "gain_db": round(self.gain_db, 2),
        }


def improve_weights(
    graph: Graph,
    int_graph: IntGraph,
    samples: Samples,
    methods: WeightMethods,
    *,
    threads: int = 1,
    progress: Progress | None = None,
    registry: Registry | None = None,
) -> list[WeightChange]:
    """Search scales of weights and round them anew, in place.

    Args:
        graph: the float body.
        int_graph: the integer body, its biases as they were quantized; weights, biases, scales and
            multipliers of its linear layers are replaced.
        samples: the body's inputs by name; those used are spread evenly over them. No more than
            whose tensors fit into 512 MB at a time.
        methods: what to do.
        threads: threads of the integer engine; the result does not depend on it.
        progress: told after each layer.
        registry: operators; the built-in ones by default.

    Returns:
        What was done to each layer with weights.
    """
    count = fitting(int_graph, min(methods.samples, len(samples)))
    if not count:
        return []
    used = [samples[i * len(samples) // count] for i in range(count)]
    sweep = Sweep(int_graph, used, threads, registry)
    changes: list[WeightChange] = []
    for index, layer in enumerate(int_graph.layers):
        if "weight" in layer.tensors:
            view = view_of(layer)
            if isinstance(view, str):
                changes.append(WeightChange(layer.name, layer.op, view))
            else:
                changes.append(_improve(graph, int_graph, layer, view, sweep, count, methods))
        sweep.keep(index, sweep.run(index))
        if progress is not None:
            progress(index + 1, len(int_graph.layers))
    return changes


@dataclass(frozen=True)
class _Rows:
    """A layer's real weights and their Gram matrices, ready to be measured."""

    view: WeightView
    real: list[Float64]
    grams: list[Float64]

    def error(self, integers: list[Float64], scales: Float64, unit: Float64) -> Float64:
        """Return each channel's squared output error in units of ``unit``."""
        size, one = self.view.by_row(scales), self.view.by_row(unit)
        total: Float64 | None = None
        for real, q, gram in zip(self.real, integers, self.grams, strict=True):
            part = squared_error((real - q * size) / one, gram)
            # blocks are cut to 20 bits of their own largest number
            part = part * np.abs(gram).max(initial=0.0)
            total = part if total is None else total + part
        assert total is not None
        return self.view.by_channel(total)

    def mean_error(self, integers: list[Float64], scales: Float64, means: list[Float64]) -> Float64:
        """Return the mean of what rounding takes away from each channel, in accumulator steps."""
        size = self.view.by_row(scales)
        lost = [
            ((real / size - q) * mean).sum(axis=2)
            for real, q, mean in zip(self.real, integers, means, strict=True)
        ]
        return self.view.by_channel(sum(lost, start=np.zeros(())))

    def nearest(self, scales: Float64, qmax: int) -> list[Float64]:
        """Return the integers of rounding to nearest."""
        size = self.view.by_row(scales)
        return [np.clip(np.rint(real / size), -qmax, qmax) for real in self.real]


def _improve(
    graph: Graph,
    int_graph: IntGraph,
    layer: IntLayer,
    view: WeightView,
    sweep: Sweep,
    count: int,
    methods: WeightMethods,
) -> WeightChange:
    source, out = int_graph.values[layer.inputs[0]].quant, int_graph.values[layer.outputs[0]].quant
    assert source is not None and out is not None
    node = graph.node(layer.name)
    weight = graph.values[node.inputs[1]].data
    bias_name = node.inputs[2] if len(node.inputs) > 2 else ""
    bias = graph.values[bias_name].data if bias_name else None
    assert weight is not None
    real_bias = None if bias is None else bias.astype(np.float64)
    bits = _bits(layer)
    qmax = (1 << (bits - 1)) - 1
    gram = gram_of(layer, view, sweep.inputs(layer.inputs[0]), source, count)
    # of a transposed convolution, each position of the window has a mean error of its own
    biased = view.kind != "transposed"
    measure = gram.centred() if biased else gram
    rows = _Rows(view, view.blocks(weight), measure.shrunk())
    first = layer.tensors["weight_scale"].astype(np.float64)
    before = rows.error(rows.nearest(first, qmax), first, first)

    steps = first
    if methods.search_scales:
        errors = [rows.error(rows.nearest(first * f, qmax), first * f, first) for f in FACTORS]
        steps = first * np.array(FACTORS)[best_factor(errors)]
    flat = np.concatenate(rows.real, axis=2).reshape(len(first), -1)
    parts = quantize_linear(flat, real_bias, source, out, bits, steps)
    scales = parts.scales.astype(np.float64)
    nearest = rows.nearest(scales, qmax)
    chosen = nearest
    if methods.feedback:
        chosen = _with_feedback(rows, scales, qmax, methods)
        worse = rows.error(chosen, scales, first) > rows.error(nearest, scales, first)
        worse |= _overflows(view, chosen, parts, source)
        chosen = [
            np.where(view.by_row(worse.astype(np.float64)) > 0, n, c)
            for n, c in zip(nearest, chosen, strict=True)
        ]
    after = rows.error(chosen, scales, first)
    shift = rows.mean_error(chosen, scales, gram.means()) if biased else np.zeros(len(scales))
    _store(layer, parts, view.weight(chosen), _moved(view, chosen, parts, source, shift))
    different = sum(
        int(np.count_nonzero(a != b))
        for a, b in zip(chosen, rows.nearest(first, qmax), strict=True)
    )
    return WeightChange(
        layer.name,
        layer.op,
        scale_factor=float((scales / first).mean()),
        changed=different / max(1, weight.size),
        gain_db=_gain(before, after, first),
    )


def _with_feedback(
    rows: _Rows, scales: Float64, qmax: int, methods: WeightMethods
) -> list[Float64]:
    size = rows.view.by_row(scales)
    return [
        round_with_feedback(
            real / size,
            decompose(damped(gram, methods.damping), by_size=methods.by_size),
            qmax,
            methods.block_size,
        )
        for real, gram in zip(rows.real, rows.grams, strict=True)
    ]


def _overflows(
    view: WeightView, integers: list[Float64], parts: LinearParts, source: QuantParams
) -> NDArray[np.bool_]:
    limit = WIDE_ACC_LIMIT if parts.bias.dtype == np.int64 else ACC_LIMIT
    total = _reach(view, integers) * span_of(source) + np.abs(parts.bias)
    result: NDArray[np.bool_] = total > limit
    return result


def _moved(
    view: WeightView,
    integers: list[Float64],
    parts: LinearParts,
    source: QuantParams,
    shift: Float64,
) -> Array:
    """Return the biases with the mean of what rounding the weights takes away, as room allows."""
    limit = WIDE_ACC_LIMIT if parts.bias.dtype == np.int64 else ACC_LIMIT
    room = limit - _reach(view, integers) * span_of(source)
    wanted = np.clip(parts.bias.astype(np.float64) + np.rint(shift), -room, room)
    moved: Array = wanted.astype(parts.bias.dtype)
    return moved


def _reach(view: WeightView, integers: list[Float64]) -> Float64:
    return view.by_channel(sum((np.abs(q).sum(axis=2) for q in integers), start=np.zeros(())))


def _store(layer: IntLayer, parts: LinearParts, weight: Float64, bias: Array) -> None:
    kind = layer.tensors["weight"].dtype
    layer.tensors.update(
        weight=np.ascontiguousarray(weight.astype(kind)),
        bias=bias,
        multiplier=parts.multiplier,
        shift=parts.shift,
        weight_scale=parts.scales,
    )


def _bits(layer: IntLayer) -> int:
    if layer.tensors["weight"].dtype == np.int16:
        return 16
    return int(layer.attrs.get("weight_bits", 8))


def _gain(before: Float64, after: Float64, unit: Float64) -> float:
    """Return how much less the channels' errors together are, in dB."""
    old, new = float((before * unit**2).sum()), float((after * unit**2).sum())
    if old <= 0.0 or new <= 0.0:
        return 0.0
    return 10.0 * math.log10(old / new)
