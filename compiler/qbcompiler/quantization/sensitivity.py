"""What the rounding of each tensor and of each layer's weights does to the model's outputs.

One thing at a time is rounded, everything else stays in floating point: the float tensor is
replaced by its rounded self and the rest of the network runs on it. Near the accuracy that people
ask for errors are small, so what single roundings do to the outputs adds up in power; and the
figures do not depend on which other layers are rounded, as they would if they were taken from a
network that is all integers already.

Every engine has one thread, several tensors are measured at once, and sums are taken in the order
of the samples: nothing depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import InternalError
from ..ir import Array, DType, Graph, IntGraph, IntLayer, Node, TensorType
from ..ops import Quantized, QuantRule, RealForm, Registry, default_registry
from ..runtime.float_engine import FloatEngine
from ..runtime.integer_engine import to_integers, to_real

__all__ = ["Noise", "Sensitivity", "measure_sensitivity", "rounded_values", "weighted_layers"]

Noise = NDArray[np.float64]
"""[outputs] power of the error over power of the signal."""

Sample = Mapping[str, Array]
Progress = Callable[[int, int], None]
_GROUP_BYTES = 512 << 20


@dataclass(frozen=True)
class Sensitivity:
    """Errors that single roundings leave at the outputs, relative to the outputs' power.

    Attributes:
        outputs: the graph's float outputs.
        activations: by value.
        weights: by layer.
    """

    outputs: tuple[str, ...]
    activations: Mapping[str, Noise]
    weights: Mapping[str, Noise]


def rounded_values(
    graph: Graph, classes: Mapping[str, str], registry: Registry | None = None
) -> list[str]:
    """Return the values that are rounded to a grid of their own making, in graph order.

    Not the outputs of layers that only move or clamp what is on the same grid already.

    Args:
        graph: the float body.
        classes: the grid class of each value, as the plan has it.
        registry: operators; the built-in ones by default.
    """
    specs = registry or default_registry()
    found = []
    for name in classes:
        maker = graph.producer(name)
        if maker is not None and maker.inputs and maker.inputs[0] in classes:
            rule = specs[maker.op].rule_of(maker, graph)
            same = classes[maker.inputs[0]] == classes[name]
            if same and rule in (QuantRule.MOVE, QuantRule.CLAMP):
                continue
        found.append(name)
    return found


def weighted_layers(int_graph: IntGraph, registry: Registry | None = None) -> list[str]:
    """Return the layers whose integer weights have a float form, in order."""
    specs = registry or default_registry()
    return [x.name for x in int_graph.layers if _weights_of(x, int_graph, specs) is not None]


def measure_sensitivity(
    graph: Graph,
    int_graph: IntGraph,
    samples: Sequence[Sample],
    *,
    activations: Sequence[str],
    weights: Sequence[str],
    threads: int = 1,
    progress: Progress | None = None,
    registry: Registry | None = None,
) -> Sensitivity:
    """Measure what single roundings do to the outputs.

    Args:
        graph: the float body.
        int_graph: its integer form, whose grids and weights are the ones measured.
        samples: inputs of the body.
        activations: values to round, see :func:`rounded_values`.
        weights: layers whose weights to round, see :func:`weighted_layers`.
        threads: tensors measured at once.
        progress: told after each tensor.
        registry: operators; the built-in ones by default.
    """
    specs = registry or default_registry()
    outputs = tuple(n for n in graph.outputs if graph.values[n].type.dtype.is_float)
    layers = {x.name: x for x in int_graph.layers}
    heavy = {layers[n].outputs[0]: layers[n] for n in weights}
    wanted = set(activations)
    points = [
        _Point(n, _after(graph, n), n in wanted, heavy.get(n))
        for n in graph.values
        if n in wanted or n in heavy
    ]
    found_a: dict[str, Noise] = {}
    found_w: dict[str, Noise] = {}
    done = 0
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for group in _groups(graph, points, len(samples)):
            names = dict.fromkeys(outputs)
            for point in group:
                names.update(dict.fromkeys(point.reads(graph)))
            engine = FloatEngine(graph, list(names), threads=1, registry=registry)
            real = list(pool.map(engine.run, samples))
            del engine
            signal = sum((_power([r[n] for n in outputs]) for r in real), np.zeros(len(outputs)))
            work = _Work(graph, int_graph, outputs, real, specs, registry)
            for point, (own, weight) in zip(group, pool.map(work, group), strict=True):
                # the last bits of a float sum are noise: they must not decide
                if own is not None:
                    found_a[point.name] = _settled(own, signal)
                if weight is not None and point.layer is not None:
                    found_w[point.layer.name] = _settled(weight, signal)
                done += 1
                if progress is not None:
                    progress(done, len(points))
    return Sensitivity(outputs, found_a, found_w)


@dataclass(frozen=True)
class _Point:
    """A tensor in whose place another is put.

    Attributes:
        name: of the tensor.
        after: the layers that depend on it.
        rounds: whether its own rounding is measured.
        layer: the layer that makes it, where that layer's weights are measured.
    """

    name: str
    after: Sequence[Node]
    rounds: bool
    layer: IntLayer | None

    def reads(self, graph: Graph) -> list[str]:
        """Return the float tensors that measuring it takes."""
        made = {o for node in self.after for o in node.outputs}
        read = [n for node in self.after for n in node.inputs if n and n not in made]
        if self.layer is not None:
            read += [n for n in self.layer.inputs if n]
        return [n for n in dict.fromkeys([self.name, *read]) if not graph.values[n].is_const]


class _Work:
    """Measures one point on all samples. Called from several threads."""

    def __init__(
        self,
        graph: Graph,
        int_graph: IntGraph,
        outputs: Sequence[str],
        real: Sequence[Sample],
        specs: Registry,
        registry: Registry | None,
    ) -> None:
        self._graph, self._int_graph = graph, int_graph
        self._outputs, self._real = outputs, real
        self._specs, self._registry = specs, registry

    def __call__(self, point: _Point) -> tuple[Noise | None, Noise | None]:
        made = {o for node in point.after for o in node.outputs}
        reached = [n for n in self._outputs if n in made]
        engine = None
        if reached:
            rest = self._graph.subgraph("rest", point.after, reached)
            engine = FloatEngine(rest, threads=1, registry=self._registry)
            fed = list(rest.inputs)
        value = self._int_graph.values[point.name]
        alone = self._alone(point.layer)

        def noise(real: Sample, put: Array) -> Noise:
            got = {point.name: put}
            if engine is not None:
                feed = {n: real[n] for n in fed}
                feed[point.name] = put.astype(real[point.name].dtype, copy=False)
                got.update(engine.run(feed))
            return _power(
                [np.subtract(got[n], real[n]) if n in got else None for n in self._outputs]
            )

        own = weight = None
        for real in self._real:
            if point.rounds:
                rounded = to_real(to_integers(real[point.name], value), value)
                step = noise(real, rounded)
                own = step if own is None else own + step
            if alone is not None:
                assert point.layer is not None
                feed = {n: real[n] for n in point.layer.inputs if n}
                step = noise(real, alone.run(feed)[point.name])
                weight = step if weight is None else weight + step
        return own, weight

    def _alone(self, layer: IntLayer | None) -> FloatEngine | None:
        """Return the layer in floating point, with the weights as its integers have them."""
        form = None if layer is None else _weights_of(layer, self._int_graph, self._specs)
        if layer is None or form is None:
            return None
        graph = Graph("alone")
        names = []
        for index, item in enumerate(form.inputs):
            if isinstance(item, str):
                if item and item not in graph.values:
                    graph.add_input(item, self._graph.values[item].type)
                names.append(item)
                continue
            if isinstance(item, Quantized):
                shape = [1] * item.data.ndim
                shape[item.axis] = -1
                data = item.data.astype(np.float32) * item.scales.reshape(shape)
            else:
                data = np.asarray(item)
            names.append(graph.fresh(f"{layer.name}.constant{index}"))
            graph.add_value(names[-1], TensorType(DType.of(data.dtype), data.shape), data)
        for name in filter(None, layer.outputs):
            graph.add_value(name, self._graph.values[name].type)
        graph.add_node(Node(layer.name, form.op, names, list(layer.outputs), form.attrs))
        graph.outputs = [layer.outputs[0]]
        return FloatEngine(graph, threads=1, registry=self._registry)


def _weights_of(layer: IntLayer, graph: IntGraph, specs: Registry) -> RealForm | None:
    """Return the float form of a layer with a matrix of integer weights, else None."""
    if "weight" not in layer.tensors or len([o for o in layer.outputs if o]) != 1:
        return None
    params = {n: graph.values[n].quant for n in (*layer.inputs, *layer.outputs) if n}
    try:
        form = specs[layer.op].real_form(layer, params)
    except (KeyError, TypeError, ValueError) as exc:
        raise InternalError(f"layer {layer.name!r} has no float form: {exc}") from exc
    if not isinstance(form, RealForm):
        return None
    kinds = [isinstance(item, (str, np.ndarray, Quantized)) for item in form.inputs]
    if not all(kinds) or not any(isinstance(item, Quantized) for item in form.inputs):
        return None
    return replace(form, rounding=None)


def _after(graph: Graph, name: str) -> list[Node]:
    """Return the layers that depend on a value, in order."""
    touched, found = {name}, []
    for node in graph.nodes:
        if any(n in touched for n in node.inputs):
            touched.update(filter(None, node.outputs))
            found.append(node)
    return found


def _power(arrays: Sequence[Array | None]) -> Noise:
    found = np.zeros(len(arrays))
    for index, array in enumerate(arrays):
        if array is not None:
            flat = np.asarray(array, dtype=np.float64).reshape(-1)
            found[index] = float(np.einsum("i,i->", flat, flat))  # no BLAS: one order of summation
    return found


def _settled(noise: Noise, signal: Noise) -> Noise:
    ratio = noise / np.maximum(signal, np.finfo(np.float64).tiny)
    ratio = np.where(np.isfinite(ratio), ratio, np.finfo(np.float32).max)
    mantissa, exponent = np.frexp(ratio)
    settled: Noise = np.ldexp(np.rint(np.ldexp(mantissa, 12)), exponent - 12)
    return settled


def _groups(graph: Graph, points: Sequence[_Point], samples: int) -> Iterator[list[_Point]]:
    """Yield runs of points whose tensors, for all samples, together stay within a bound."""
    group: list[_Point] = []
    known: set[str] = set()
    size = 0
    for point in points:
        fresh = [n for n in point.reads(graph) if n not in known]
        need = samples * sum(graph.values[n].type.nbytes for n in fresh)
        if group and size + need > _GROUP_BYTES:
            yield group
            group, known, size = [], set(), 0
            fresh = point.reads(graph)
            need = samples * sum(graph.values[n].type.nbytes for n in fresh)
        group.append(point)
        known.update(fresh)
        size += need
    if group:
        yield group
