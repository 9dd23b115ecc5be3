"""Compare the integer graph with the float model on validation samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import CalibrationMissingError
from ..ir import Array, Graph, IntGraph, IntLayer, QuantParams
from ..ops import Registry
from ..partition import PartitionedGraph
from .metrics import Agreement, Difference, is_classifier
from .plan import gives_way

__all__ = ["Accuracy", "LayerAccuracy", "OutputAccuracy", "validate"]

Sample = Mapping[str, Array]
Progress = Callable[[int, int | None], None]
Keep = Callable[[Sample, Mapping[str, Array], Mapping[str, Array]], object]
_GROUP_BYTES = 256 << 20
_SOME = 4


@dataclass(frozen=True)
class OutputAccuracy:
    """One output of the model over all samples.

    Attributes:
        name: of the output.
        difference: sums over all samples.
        agreement: top-1 agreement, where the output looks like class scores.
    """

    name: str
    difference: Difference
    agreement: Agreement | None

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        top1 = None if self.agreement is None else round(self.agreement.share, 6)
        return {"name": self.name, **self.difference.as_dict(), "top1_agreement": top1}


@dataclass
class LayerAccuracy:
    """One layer of the integer graph on the first samples.

    Attributes:
        name, op: the layer.
        accumulated: its outputs against the float model, all error before it included.
        own: the same with exact (merely rounded) inputs: what the layer itself adds.
        at_limits: elements at the smallest or largest integer of their grid; outputs that a
            clamp reads next are not counted.
        elements: all counted elements.
        low, high: the float outputs' range.
        used: the largest share of its grid that an output used.
    """

    name: str
    op: str
    accumulated: Difference = field(default_factory=Difference)
    own: Difference = field(default_factory=Difference)
    at_limits: int = 0
    elements: int = 0
    low: float = float("inf")
    high: float = float("-inf")
    used: float = 0.0

    @property
    def clips(self) -> bool:
        """Whether more than a hundredth is at the limits, a few elements aside: one or two of a
        small tensor set its range themselves.
        """
        return self.at_limits > _SOME + 0.01 * self.elements

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON data; SQNR is None where nothing was compared."""
        return {
            "name": self.name,
            "op": self.op,
            "sqnr_db": round(self.accumulated.sqnr_db, 2) if self.accumulated.count else None,
            "own_sqnr_db": round(self.own.sqnr_db, 2) if self.own.count else None,
            "saturated": round(self.at_limits / self.elements, 6) if self.elements else None,
            "clips": self.clips,
            "seen": [self.low, self.high] if self.low <= self.high else None,
            "used": round(self.used, 4) if self.accumulated.count else None,
        }


@dataclass(frozen=True)
class Accuracy:
    """The integer graph against the float model.

    Attributes:
        samples: validation samples compared.
        outputs: each output of the model.
        layers: each layer of the body, on the first ``layer_samples`` samples.
        layer_samples: how many those are.
    """

    samples: int
    outputs: list[OutputAccuracy]
    layers: list[LayerAccuracy]
    layer_samples: int

    def summary(self) -> dict[str, Any]:
        """Return what an MXQ keeps: samples and the outputs' figures."""
        return {"samples": self.samples, "outputs": [o.as_dict() for o in self.outputs]}

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON data."""
        return {
            **self.summary(),
            "layer_samples": self.layer_samples,
            "layers": [layer.as_dict() for layer in self.layers],
        }


def validate(
    graph: Graph | PartitionedGraph,
    int_graph: IntGraph,
    samples: Iterable[Sample],
    *,
    limit: int | None = None,
    layer_samples: int = 1,
    threads: int = 1,
    progress: Progress | None = None,
    keep: Keep | None = None,
    registry: Registry | None = None,
) -> Accuracy:
    """Run both graphs on the samples and compare.

    Args:
        graph: the float model: the body alone, or a partition whose head and tail run in
            floating point around the integer body.
        int_graph: the integer body.
        samples: model inputs by name (the body's inputs when ``graph`` is the body).
        limit: stop after so many samples.
        layer_samples: samples on which each layer is compared as well (slower).
        threads: threads of both engines; the figures do not depend on it.
        progress: called with samples done and their number (None where unknown).
        keep: takes each sample's inputs, float outputs and integer outputs (as real numbers).
        registry: operators; the built-in ones by default.

    Raises:
        CalibrationMissingError: there is no sample.
    """
    from ..runtime.float_engine import FloatEngine
    from ..runtime.pipeline import Pipeline

    whole, body, head, tail = _parts(graph)
    reference = FloatEngine(whole, threads=threads, registry=registry)
    pipeline = Pipeline(
        int_graph,
        head=head,
        tail=tail,
        outputs=whole.outputs,
        threads=threads,
        registry=registry,
    )
    outputs = [
        OutputAccuracy(
            n, Difference(), Agreement() if is_classifier(whole.values[n].shape) else None
        )
        for n in whole.outputs
    ]
    layers = [LayerAccuracy(layer.name, layer.op) for layer in int_graph.layers]
    total = len(samples) if isinstance(samples, Sequence) else None
    done = 0
    for sample in samples:
        if limit is not None and done >= limit:
            break
        expected = reference.run(sample)
        kept: dict[str, Array] = {}
        got = pipeline.run(sample, visit=_keeper(kept) if done < layer_samples else None)
        if keep is not None:
            keep(sample, expected, got)
        for output in outputs:
            output.difference.add(expected[output.name], got[output.name])
            if output.agreement is not None:
                output.agreement.add(expected[output.name], got[output.name])
        if done < layer_samples:
            _compare_layers(
                body, pipeline, pipeline.before_body(sample), kept, layers, threads, registry
            )
        done += 1
        if progress is not None:
            progress(done, total if limit is None else min(limit, total or limit))
    if done == 0:
        raise CalibrationMissingError("there is no validation sample to compare on")
    return Accuracy(done, outputs, layers, min(done, layer_samples))


def _parts(
    graph: Graph | PartitionedGraph,
) -> tuple[Graph, Graph, Graph | None, Graph | None]:
    if isinstance(graph, Graph):
        return graph, graph, None, None
    return graph.graph, graph.body or graph.graph, graph.head, graph.tail


def _keeper(kept: dict[str, Array]) -> Callable[[IntLayer, Mapping[str, Array]], None]:
    def keep(layer: IntLayer, made: Mapping[str, Array]) -> None:
        kept.update(made)

    return keep


def _compare_layers(
    body: Graph,
    pipeline: Any,
    inputs: Mapping[str, Array],
    kept: Mapping[str, Array],
    layers: Sequence[LayerAccuracy],
    threads: int,
    registry: Registry | None,
) -> None:
    """Compare each layer's integers with the float values, a bounded group at a time."""
    from ..runtime.float_engine import FloatEngine
    from ..runtime.integer_engine import to_integers, to_real

    engine = pipeline.body
    values = engine.graph.values
    feed = {n: inputs[n] for n in body.inputs}
    for start, stop in _groups(engine.graph):
        group = range(start, stop)
        wanted: dict[str, None] = {}
        for i in group:
            layer = engine.graph.layers[i]
            wanted.update((n, None) for n in (*layer.inputs, *layer.outputs) if n)
        real = FloatEngine(body, list(wanted), threads=threads, registry=registry).run(feed)
        for i in group:
            layer, found = engine.graph.layers[i], layers[i]
            exact = {n: to_integers(real[n], values[n]) for n in layer.inputs if n}
            own = engine.run_layer(i, exact)
            for name in filter(None, layer.outputs):
                quant = values[name].quant
                if quant is None:
                    continue
                q, expected = kept[name], real[name]
                if gives_way(body, name, registry):
                    # What its grid cuts off, the next layer would: no error, no saturation.
                    expected = np.clip(expected, *_reach(quant, expected.ndim))
                else:
                    limit = (q == quant.qmin) | (q == quant.qmax)
                    found.at_limits += int(np.count_nonzero(limit))
                    found.elements += q.size
                found.accumulated.add(expected, to_real(q, values[name]))
                if q.size:
                    found.low = min(found.low, float(np.min(real[name])))
                    found.high = max(found.high, float(np.max(real[name])))
                    share = (int(q.max()) - int(q.min())) / (quant.qmax - quant.qmin)
                    found.used = max(found.used, share)
                found.own.add(expected, to_real(own[name], values[name]))


def _reach(quant: QuantParams, rank: int) -> tuple[Array, Array]:
    scales = quant.scale_array(rank)
    low, high = quant.qmin - quant.zero_point, quant.qmax - quant.zero_point
    return scales * np.float32(low), scales * np.float32(high)


def _groups(graph: IntGraph) -> Iterator[tuple[int, int]]:
    """Yield runs of layers whose float tensors together stay within a bound."""
    start, size = 0, 0
    for i, layer in enumerate(graph.layers):
        names = {n for n in (*layer.inputs, *layer.outputs) if n}
        need = sum(4 * graph.values[n].type.size for n in names)
        if i > start and size + need > _GROUP_BYTES:
            yield start, i
            start, size = i, 0
        size += need
    if start < len(graph.layers):
        yield start, len(graph.layers)
