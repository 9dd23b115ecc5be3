"""Take the mean error of each output channel out of the biases.

Rounding weights and activations moves the mean of a layer's output; later layers see that as a
shift, which matters more than noise of the same size. After M. Nagel et al., "Data-Free
Quantization Through Weight Equalization and Bias Correction" (ICCV 2019), section 4.2, in its form
with data: the means of the float and the integer graph's outputs on calibration samples are
compared, channel by channel, and a share of the difference goes into the bias. A round goes from
the first layer to the last and runs each on all samples before the next, so that a layer is
measured with what its corrected predecessors give; correcting all layers at once would count the
same shift many times over.

Sums are float64 in the order of the samples, so nothing depends on threads; a correction is rounded
to 12 significant bits, as scales are, to keep last-bit noise of float out of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from ..ir import Array, Graph, IntGraph, IntLayer, QuantParams
from ..ops import Registry, default_registry
from ..ops.common import span_of
from ..ops.fixedpoint import SCALE_BITS
from ..ops.weights import ACC_LIMIT, WIDE_ACC_LIMIT
from ..runtime.float_engine import FloatEngine
from ..runtime.integer_engine import to_real
from .plan import gives_way
from .sweep import Sample, Samples, Sweep, fitting

if TYPE_CHECKING:
    from ..config import CompileConfig

__all__ = ["BiasCorrection", "correct_biases"]

Float64 = NDArray[np.float64]
Progress = Callable[[int, int], None]

_GROUP_BYTES = 256 << 20


@dataclass(frozen=True)
class BiasCorrection:
    """How biases are corrected.

    Attributes:
        samples: calibration samples used, at most.
        iterations: rounds.
        rate: share of the measured error that a round corrects.
    """

    samples: int = 256
    iterations: int = 5
    rate: float = 0.05

    @classmethod
    def from_config(cls, config: CompileConfig) -> Self | None:
        """Read the settings; None where biases are not to be corrected."""
        section = config.layer_bias_correction
        if not section.apply:
            return None
        a = section.attributes
        return cls(a.num_samples, a.iterations, a.correction_rate)


def correct_biases(
    graph: Graph,
    int_graph: IntGraph,
    samples: Samples,
    settings: BiasCorrection,
    *,
    threads: int = 1,
    progress: Progress | None = None,
    registry: Registry | None = None,
) -> int:
    """Correct the biases of convolutions and matrix products in place.

    Args:
        graph: the float body.
        int_graph: the integer body; the ``bias`` tensors of its layers are replaced.
        samples: the body's inputs by name; those used are spread evenly over them. No more than
            whose tensors fit into 512 MB at a time.
        settings: rounds, samples and rate.
        threads: threads of the integer engine; the result does not depend on it.
        progress: told after each layer of each round.
        registry: operators; the built-in ones by default.

    Returns:
        How many biases have changed.
    """
    specs = registry or default_registry()
    layers = [layer for layer in int_graph.layers if _has_bias(layer)]
    count = fitting(int_graph, min(settings.samples, len(samples)))
    if not layers or not count or settings.rate <= 0:
        return 0
    used = [i * len(samples) // count for i in range(count)]
    first = [layer.tensors["bias"] for layer in layers]
    axes = {layer.outputs[0]: 1 if specs[layer.op].channel_first else -1 for layer in layers}
    expected = _float_means(graph, int_graph, axes, [samples[i] for i in used], registry)
    steps = settings.iterations * len(int_graph.layers)
    for round_ in range(settings.iterations):
        sweep = Sweep(int_graph, [samples[i] for i in used], threads, registry)
        for index, layer in enumerate(int_graph.layers):
            made = sweep.run(index)
            name = layer.outputs[0]
            if name in axes:
                got = _Means(axes)
                for outputs in made:
                    got.add(name, to_real(outputs[name], int_graph.values[name]))
                error = expected.mean(name) - got.mean(name)
                if _move(layer, int_graph, settings.rate * error):
                    made = sweep.run(index)
            sweep.keep(index, made)
            if progress is not None:
                progress(round_ * len(int_graph.layers) + index + 1, steps)
    return sum(
        int(np.count_nonzero(layer.tensors["bias"] != old))
        for layer, old in zip(layers, first, strict=True)
    )


def _float_means(
    graph: Graph,
    int_graph: IntGraph,
    axes: Mapping[str, int],
    samples: Sequence[Sample],
    registry: Registry | None,
) -> _Means:
    """Return the channels' means in the float model."""
    clipped = {n for n in axes if gives_way(graph, n, registry)}
    found = _Means(axes)
    for group in _groups(graph, list(axes)):
        engine = FloatEngine(graph, group, threads=1, registry=registry)
        for sample in samples:
            for name, real in engine.run(sample).items():
                quant = int_graph.values[name].quant
                assert quant is not None
                # what the grid cuts off, the clamp that reads it would
                found.add(name, _within(real, quant) if name in clipped else real)
    return found


class _Means:
    """Sums of each channel of several tensors."""

    def __init__(self, axes: Mapping[str, int]) -> None:
        self._axes = axes
        self._sums: dict[str, Float64] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, real: Array) -> None:
        """Count a tensor."""
        rows = np.moveaxis(real, self._axes[name], 0)
        flat = rows.reshape(rows.shape[0], -1).astype(np.float64)
        total = flat.sum(axis=1)
        self._sums[name] = self._sums.get(name, np.zeros(len(total))) + total
        self._counts[name] = self._counts.get(name, 0) + flat.shape[1]

    def mean(self, name: str) -> Float64:
        """Return the mean of each channel."""
        return self._sums[name] / self._counts[name]


def _has_bias(layer: IntLayer) -> bool:
    return {"weight", "bias", "multiplier", "weight_scale"} <= set(layer.tensors)


def _within(real: Array, quant: QuantParams) -> Array:
    low, high = quant.qmin - quant.zero_point, quant.qmax - quant.zero_point
    result: Array = np.clip(real, np.float32(low * quant.scale), np.float32(high * quant.scale))
    return result


def _move(layer: IntLayer, graph: IntGraph, shift: Float64) -> bool:
    """Add real numbers to a layer's biases, as far as there is room; return whether one changed."""
    source = graph.values[layer.inputs[0]].quant
    assert source is not None
    bias = layer.tensors["bias"]
    step = layer.tensors["weight_scale"].astype(np.float64) * source.scale
    mantissa, exponent = np.frexp(shift / step)
    rounded = np.ldexp(np.rint(np.ldexp(mantissa, SCALE_BITS)), exponent - SCALE_BITS)
    limit = WIDE_ACC_LIMIT if bias.dtype == np.int64 else ACC_LIMIT
    room = limit - _reach(layer) * span_of(source)
    wanted = np.clip(bias.astype(np.float64) + np.rint(rounded), -room, room)
    layer.tensors["bias"] = wanted.astype(bias.dtype)
    return bool((layer.tensors["bias"] != bias).any())


def _reach(layer: IntLayer) -> Float64:
    """Return the sum of the weights' magnitudes for each output channel."""
    weight: Float64 = np.abs(layer.tensors["weight"].astype(np.float64))
    sums: Float64
    channels = layer.tensors["bias"].size
    if layer.op == "MatMul":
        sums = weight.reshape(-1, channels).sum(axis=0)
    elif layer.op == "TransposeConvolution":
        groups = channels // weight.shape[1]
        parts = weight.reshape(groups, -1, weight.shape[1], *weight.shape[2:])
        sums = parts.sum(axis=(1, *range(3, parts.ndim))).reshape(-1)
    else:
        sums = weight.reshape(channels, -1).sum(axis=1)
    return sums


def _groups(graph: Graph, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield runs of values that together stay within a bound."""
    group: list[str] = []
    size = 0
    for name in names:
        need = graph.values[name].type.nbytes
        if group and size + need > _GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(name)
        size += need
    yield group
