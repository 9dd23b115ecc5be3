"""The float engine: runs an IR graph in ONNX Runtime through its own ONNX export.

A layer that ONNX Runtime lacks is run in ONNX's reference implementation instead.
It is the reference that calibration, validation and CPU layers share. Constants are handed to
the session by reference, so that a graph's weights are in memory once and may exceed 2 GB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import onnxruntime as ort

from ..errors import RUN_HINT, ArgumentError, InternalError, ModelLoadError, ResourceLimitError
from ..frontend.export import Reduction, export_graph
from ..frontend.reference import ReferenceEngine
from ..ir import Array, DType, Graph, Node
from ..ops import Registry
from .known_gaps import known_gap
from .segments import SegmentedEngine, cut_segments

__all__ = ["FloatEngine", "Optimization", "Reduction", "float_engine_version"]

Optimization = Literal["none", "basic", "extended", "all"]

_LEVELS: dict[str, Any] = {
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def float_engine_version() -> str:
    """Return the version of what computes in floating point: another may round otherwise."""
    return f"onnxruntime {ort.__version__}"


class FloatEngine:
    """Executes a float graph; any value of it can be asked for.

    Args:
        graph: a verified graph; not changed, and not to be changed while the engine lives.
        outputs: value names that :meth:`run` returns; None for the graph's outputs. Inputs and
            constants may be named too.
        reductions: values whose minimum and maximum are computed inside the graph and returned
            as ``reduction.min_name`` and ``reduction.max_name`` (``NAME::min``, ``NAME::max``):
            names, or :class:`Reduction` for one number for each index along an axis. True means
            every numeric value of ``outputs``, which are then not returned themselves.
        threads: threads of one operator.
        optimization: ONNX Runtime's graph optimization level.
        registry: operators; the built-in ones by default.
        declare_outputs: whether ONNX Runtime is told the outputs' types, to check them.

    Raises:
        InternalError: a name is not a value, or neither ONNX Runtime nor ONNX's reference
            implementation takes a layer.
        ResourceLimitError: memory does not suffice.
    """

    def __init__(
        self,
        graph: Graph,
        outputs: Sequence[str] | None = None,
        *,
        reductions: bool | Sequence[str | Reduction] = (),
        threads: int = 1,
        optimization: Optimization = "all",
        registry: Registry | None = None,
        declare_outputs: bool = True,
    ) -> None:
        names = list(dict.fromkeys(graph.outputs if outputs is None else outputs))
        if reductions is True:
            reduced = [Reduction(n) for n in names if _is_numeric(graph, n)]
            names = []
        else:
            reduced = [Reduction(r) if isinstance(r, str) else r for r in (reductions or ())]
        self.reductions: tuple[Reduction, ...] = tuple(reduced)
        self._inputs = {n: graph.values[n].type for n in graph.inputs}
        self._passed = [n for n in names if n in self._inputs]
        self._constants = {
            n: v.data
            for n in names
            if (v := graph.values.get(n)) is not None and v.data is not None
        }
        computed = [n for n in names if n not in self._inputs and n not in self._constants]
        self._order = names + [n for r in reduced for n in (r.min_name, r.max_name)]
        self._engine: _Session | _Reduced | None = None
        if computed or reduced:
            settings = _Settings(threads, optimization, registry, declare_outputs)
            self._engine = _make_engine(graph, computed, reduced, settings)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The keys of what :meth:`run` returns, in order."""
        return tuple(self._order)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Execute the graph once; safe to call from several threads.

        Args:
            inputs: every graph input by name, in exactly its element type and shape.

        Raises:
            ArgumentError: an input is missing, unknown, or of another type or shape.
            ResourceLimitError: memory does not suffice.
            ModelLoadError: a layer fails on these inputs.
        """
        self._check(inputs)
        found: dict[str, Array] = {n: inputs[n] for n in self._passed}
        found.update(self._constants)
        if self._engine is not None:
            found.update(self._engine.run(inputs))
        return {n: _plain(found[n]) for n in self._order}

    def _check(self, inputs: Mapping[str, Array]) -> None:
        for name in inputs:
            if name not in self._inputs:
                raise ArgumentError(
                    f"the model has no input {name!r}",
                    details={"got": sorted(inputs), "expected": list(self._inputs)},
                    hint=f"its inputs are {', '.join(self._inputs)}",
                )
        for name, type_ in self._inputs.items():
            if name not in inputs:
                raise ArgumentError(
                    f"input {name!r} is missing",
                    details={"got": sorted(inputs), "expected": list(self._inputs)},
                )
            array = inputs[name]
            if not _fits(array.shape, type_.shape) or DType.of(array.dtype) is not type_.dtype:
                got = f"{array.dtype}[{','.join(map(str, array.shape))}]"
                raise ArgumentError(
                    f"input {name!r} must be {type_}, got {got}",
                    details={"expected": str(type_), "got": got},
                )


def _fits(shape: Sequence[int], declared: Sequence[int]) -> bool:
    """Whether a shape is the declared one, whose -1 stands for any size."""
    return len(shape) == len(declared) and all(
        d in (-1, s) for s, d in zip(shape, declared, strict=True)
    )


def _is_numeric(graph: Graph, name: str) -> bool:
    if name not in graph.values:
        raise InternalError(f"the graph has no value {name!r}")
    return graph.values[name].type.dtype not in (DType.BOOL, DType.STRING)


def _plain(value: Any) -> Array:
    # ONNX Runtime returns Python scalars' arrays for rank 0; asarray keeps arrays as they are
    return np.asarray(value)


@dataclass(frozen=True)
class _Settings:
    threads: int
    optimization: Optimization
    registry: Registry | None
    declare_outputs: bool = True


def _make_engine(
    graph: Graph, outputs: Sequence[str], reductions: Sequence[Reduction], settings: _Settings
) -> _Session | _Reduced:
    """Return one ONNX Runtime session, or segments where it refuses some layer."""
    avoided = {n.name for n in graph.nodes if _has_extended(graph, n) or known_gap(n, graph)}
    if not avoided:
        try:
            return _Session(graph, outputs, reductions, settings)
        except InternalError as exc:
            refused = _refused_layers(graph, settings)
            if not refused:
                raise exc
    else:
        rest = graph.subgraph("rest", [n for n in graph.nodes if n.name not in avoided], [])
        refused = avoided | _refused_layers(rest, settings)
    wanted = list(dict.fromkeys([*outputs, *(r.value for r in reductions)]))
    segments = cut_segments(graph, wanted, lambda n: n.name in refused)
    engines: list[Any] = [
        ReferenceEngine(s.graph, s.outputs, settings.registry)
        if s.refused
        else _Session(s.graph, s.outputs, (), settings)
        for s in segments
    ]
    return _Reduced(SegmentedEngine(segments, engines, wanted), outputs, reductions)


class _Session:
    """One ONNX Runtime session; constants stay in the graph's memory."""

    def __init__(
        self,
        graph: Graph,
        outputs: Sequence[str],
        reductions: Sequence[Reduction],
        settings: _Settings,
    ) -> None:
        model = export_graph(
            graph,
            outputs,
            reductions=reductions,
            detach=True,
            registry=settings.registry,
            declare_outputs=settings.declare_outputs,
        )
        options = ort.SessionOptions()
        options.intra_op_num_threads = max(1, settings.threads)
        options.inter_op_num_threads = 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = _LEVELS[settings.optimization]
        options.log_severity_level = 4
        if reductions:
            # each tensor is reduced as soon as it is made, and freed: half the peak memory of the
            # default order, which keeps all of them until the end
            options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
            options.enable_mem_pattern = False
        # waiting threads must not burn the cores that other jobs run on
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if model.detached:
            options.add_external_initializers(
                list(model.detached),
                [ort.OrtValue.ortvalue_from_numpy(a) for a in model.detached.values()],
            )
        try:
            self._session: Any = ort.InferenceSession(
                model.proto.SerializeToString(deterministic=True),
                options,
                providers=["CPUExecutionProvider"],
            )
        except Exception as exc:
            raise _error("ONNX Runtime refuses the graph", exc) from exc
        self._kept = model.detached  # the session reads this memory
        self._fed = [i.name for i in self._session.get_inputs()]
        self._fetched = [o.name for o in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Execute once."""
        try:
            values = self._session.run(self._fetched, {n: inputs[n] for n in self._fed})
        except Exception as exc:
            failure = _error("the model cannot be computed", exc)
            if isinstance(failure, ResourceLimitError):
                raise failure from exc
            raise ModelLoadError(failure.message, details=failure.details, hint=RUN_HINT) from exc
        return dict(zip(self._fetched, values, strict=True))


class _Reduced:
    """Segments, with the reductions done in NumPy."""

    def __init__(
        self, engine: SegmentedEngine, outputs: Sequence[str], reductions: Sequence[Reduction]
    ) -> None:
        self._engine = engine
        self._outputs = list(outputs)
        self._reductions = list(reductions)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Execute once."""
        values = self._engine.run(inputs)
        found = {n: values[n] for n in self._outputs}
        for reduction in self._reductions:
            data: Any = values[reduction.value]
            axes = None
            if reduction.axis is not None:
                kept = reduction.axis % data.ndim
                axes = tuple(i for i in range(data.ndim) if i != kept)
            found[reduction.min_name] = data.min(axis=axes)
            found[reduction.max_name] = data.max(axis=axes)
        return found


def _has_extended(graph: Graph, node: Node) -> bool:
    return any(graph.values[n].type.dtype.is_extended for n in (*node.inputs, *node.outputs) if n)


def _refused_layers(graph: Graph, settings: _Settings) -> set[str]:
    """Return the layers that ONNX Runtime does not take even alone."""
    refused = set()
    alone = replace(settings, optimization="none", threads=1)
    for node in graph.nodes:
        outputs = [o for o in node.outputs if o]
        try:
            _Session(graph.subgraph("alone", [node], outputs), outputs, (), alone)
        except InternalError:
            refused.add(node.name)
    return refused


def _error(what: str, exc: Exception) -> InternalError | ResourceLimitError:
    text = " ".join(str(exc).split())
    if isinstance(exc, MemoryError) or "bad_alloc" in text or "Failed to allocate" in text:
        return ResourceLimitError(
            f"{what}: out of memory", details={"reason": text, "resource": "memory"}
        )
    return InternalError(f"{what}: {text}", details={"reason": text})
