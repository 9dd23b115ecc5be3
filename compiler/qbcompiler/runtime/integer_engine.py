"""The exact integer engine: runs an integer graph, bit for bit the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..errors import ArgumentError, InternalError, ResourceLimitError
from ..ir import Array, DType, IntGraph, IntLayer, IntValue
from ..ops import Registry, default_registry
from ..ops.fixedpoint import dequantize, quantize
from .kernels import ExactKernels

__all__ = ["IntegerEngine", "Visit", "to_integers", "to_real"]

Visit = Callable[[IntLayer, Mapping[str, Array]], None]
"""Called after each layer with its integer outputs by name."""


def to_integers(x: Array, value: IntValue) -> Array:
    """Return ``x`` as the integers of ``value``: floats are quantized, integers pass.

    Raises:
        ArgumentError: the shape differs, or the element type is neither.
    """
    if tuple(x.shape) != value.type.shape:
        raise ArgumentError(
            f"{value.name!r} must have shape {list(value.type.shape)}, got {list(x.shape)}",
            details={"expected": list(value.type.shape), "got": list(x.shape)},
        )
    if x.dtype == value.type.dtype.numpy:
        return x
    if value.quant is not None and x.dtype.kind == "f":
        return quantize(x, value.quant)
    expected = value.type.dtype.value if value.quant is None else f"a float or {value.type.dtype}"
    raise ArgumentError(
        f"{value.name!r} must be {expected}, got {x.dtype}",
        details={"expected": value.type.dtype.value, "got": str(x.dtype)},
    )


def to_real(q: Array, value: IntValue) -> Array:
    """Return the real values of integers; tensors without a grid pass as they are."""
    return q if value.quant is None else dequantize(q, value.quant)


class IntegerEngine:
    """Executes an integer graph.

    The result depends on the graph and the inputs alone: not on ``threads``, the machine or the
    version of a library. Calls may come from several threads.

    Args:
        graph: a checked integer graph; its arrays are not changed.
        threads: threads for one layer.
        registry: operators; the built-in ones by default.
    """

    def __init__(
        self, graph: IntGraph, threads: int = 1, *, registry: Registry | None = None
    ) -> None:
        self.graph = graph
        self._specs = registry or default_registry()
        self._kernels = [ExactKernels(threads) for _ in graph.layers]
        self._last_use = {n: i for i, layer in enumerate(graph.layers) for n in layer.inputs if n}

    def run(
        self,
        inputs: Mapping[str, Array],
        *,
        outputs: Sequence[str] | None = None,
        integers: bool = False,
        visit: Visit | None = None,
    ) -> dict[str, Array]:
        """Execute the graph once.

        Args:
            inputs: every graph input by name: floats (quantized on entry) or integers of the
                input's own type, in logical shape.
            outputs: names of the values to return, any of the graph; its outputs by default.
            integers: return integers instead of real (float32) values.
            visit: called after each layer with its integer outputs.

        Raises:
            ArgumentError: an input is missing, unknown, or of a wrong shape or type, or an
                output is not a value of the graph.
            InternalError: a layer fails.
            ResourceLimitError: memory does not suffice.
        """
        graph = self.graph
        wanted = list(graph.outputs if outputs is None else outputs)
        for name in wanted:
            if name not in graph.values:
                raise ArgumentError(f"the graph has no value {name!r}")
        live = self._enter(inputs)
        keep = set(wanted)
        for index, layer in enumerate(graph.layers):
            made = self._layer(index, layer, live)
            if visit is not None:
                visit(layer, made)
            live.update(made)
            for name in (*layer.inputs, *made):
                if name and name not in keep and self._last_use.get(name, -1) <= index:
                    live.pop(name, None)
        if integers:
            return {n: live[n] for n in wanted}
        return {n: to_real(live[n], graph.values[n]) for n in wanted}

    def run_layer(self, index: int, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Execute one layer alone on integer inputs; used to find a layer's own error."""
        return self._layer(index, self.graph.layers[index], inputs)

    def _enter(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        graph = self.graph
        for name in inputs:
            if name not in graph.inputs:
                raise ArgumentError(
                    f"the model has no input {name[:200]!r}",
                    details={"expected": list(graph.inputs), "got": sorted(inputs)},
                )
        for name in graph.inputs:
            if name not in inputs:
                raise ArgumentError(
                    f"input {name!r} is missing",
                    details={"expected": list(graph.inputs), "got": sorted(inputs)},
                )
        return {n: to_integers(np.asarray(inputs[n]), graph.values[n]) for n in graph.inputs}

    def _layer(self, index: int, layer: IntLayer, live: Mapping[str, Array]) -> dict[str, Array]:
        values = self.graph.values
        params = {n: values[n].quant for n in (*layer.inputs, *layer.outputs) if n}
        arrays = [live[n] if n else None for n in layer.inputs]
        where = {"layer": layer.name, "operator": layer.op}
        try:
            results = self._specs[layer.op].run(layer, arrays, params, self._kernels[index])
        except Exception as exc:
            if _out_of_memory(exc):
                raise ResourceLimitError(
                    f"layer {layer.name!r} ({layer.op}): out of memory",
                    details={**where, "resource": "memory"},
                ) from exc
            raise InternalError(
                f"layer {layer.name!r} ({layer.op}) failed: {exc}", details=where
            ) from exc
        made: dict[str, Array] = {}
        for name, result in zip(layer.outputs, results, strict=False):
            if not name:
                continue
            type_ = values[name].type
            if result.shape != type_.shape or DType.of(result.dtype) is not type_.dtype:
                raise InternalError(
                    f"layer {layer.name!r} ({layer.op}) made {result.dtype}{list(result.shape)}"
                    f" for {name!r}, which is {type_}",
                    details=where,
                )
            made[name] = result
        if len(made) != sum(1 for n in layer.outputs if n):
            raise InternalError(
                f"layer {layer.name!r} ({layer.op}) made too few outputs", details=where
            )
        return made


def _out_of_memory(exc: Exception) -> bool:
    # ONNX Runtime reports C++'s bad_alloc and its own arena in words only.
    return isinstance(exc, MemoryError) or any(
        words in str(exc) for words in ("bad_alloc", "Failed to allocate memory")
    )
