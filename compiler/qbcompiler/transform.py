"""Rewrites of the float model that keep its function and make it easier to quantize.

They come after the partition and before calibration: first tensors get the copies that they need,
then constants change. Ranges, grids and weights are made of the transformed model; what a build
compares itself with stays the original.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from .options import Plan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .calibration import Dataset
    from .ir import Array, Graph, Node
    from .partition import PartitionedGraph
    from .quantization import Equalization, Link

__all__ = ["Transformed", "transform"]

T = TypeVar("T")

SAMPLES = 32
"""Samples on which the channels' ranges are observed, at most."""


@dataclass(frozen=True)
class Transformed:
    """A model ready for calibration.

    Attributes:
        graph: the partition, with the constants that the transforms gave.
        reference: the partition whose whole graph is the original and whose body is transformed:
            what the integers are compared with.
        digest: of the changed constants; empty where nothing changed. Part of what names kept
            statistics.
        report: what was done, by transform.
    """

    graph: PartitionedGraph
    reference: PartitionedGraph
    digest: str
    report: dict[str, Any]


def transform(plan: Plan, graph: PartitionedGraph, dataset: Dataset) -> Transformed:
    """Apply the transforms that the configuration asks for.

    Args:
        plan: the request.
        graph: the partitioned float graph, with a body; not changed.
        dataset: the calibration samples, inputs of the whole model.
    """
    from .quantization import equalize, find_links, is_copy, is_linear, is_norm

    graph, report = _with_copies(plan, graph)
    switches = plan.config.equivalent_transformation
    balance, norms = switches.cross_layer_equalization.apply, switches.norm_conv.apply
    wanted = _balanced_outputs(plan)

    def makers(node: Node) -> bool:
        if is_copy(node):
            return balance or norms or bool(wanted)
        if is_norm(node):
            return norms or wanted.of(node)
        return is_linear(node) and (balance or wanted.of(node))

    body, whole = graph.body, graph.graph
    assert body is not None
    blocks = _Blocks(plan, body, _shared(whole))
    if not (balance or norms or wanted or blocks):
        return Transformed(graph, graph, "", report)
    links, refused = find_links(body, _shared(whole), makers)
    links += blocks.links
    peaks = _peaks(plan, whole, [(x.read, x.axis) for x in links] + blocks.observed, dataset)
    done = equalize(body, links, peaks)
    taken = {link.maker.name for link in done.links}
    done.refused[:0] = [r for r in refused if r.layer not in taken]
    rows = blocks.apply(peaks, done)
    plan.reporter.info(
        f"cross-layer equalization: {len(done.links)} tensors balanced,"
        f" {len(done.refused)} left as they are"
    )
    new_body = body.with_constants(done.constants)
    changed = replace(graph, graph=whole.with_constants(done.constants)).with_body(new_body)
    return Transformed(
        changed,
        graph.with_body(new_body),
        _digest(done.constants),
        {**report, "cross_layer_equalization": done.as_dict(), **rows},
    )


def _shared(whole: Graph) -> Callable[[str], bool]:
    return lambda name: len(whole.consumers(name)) > 1


class _Blocks:
    """The transforms inside attention and feed-forward blocks that a configuration asks for.

    Attributes:
        links: tensors to be balanced along with the others.
        observed: other tensors whose channels' ranges are needed, with the axis of the channels.
    """

    def __init__(self, plan: Plan, body: Graph, shared: Callable[[str], bool]) -> None:
        from .quantization import attention

        switches = plan.config.equivalent_transformation
        self._body = body
        self._plan = plan
        self._names = [
            name
            for name, switch in (
                ("qk", switches.qk),
                ("ud", switches.ud),
                ("vo", switches.vo),
                ("spinR2", switches.spin_r2),
                ("qkRotation", switches.qk_rotation),
            )
            if switch.apply
        ]
        self._attentions = attention.find_attention(body, shared) if self._names else []
        self.links: list[Link] = []
        self.observed: list[tuple[str, int]] = []
        if "vo" in self._names:
            self._add("vo", attention.find_value_links(self._attentions))
        if "ud" in self._names:
            factor = switches.ud.smoothing_factor
            self._add("ud", attention.find_up_links(body, shared, factor))
        if "qk" in self._names:
            nodes = [n for a in self._attentions for n in (a.query, a.key) if n is not None]
            self.observed = [(n.outputs[0], 2) for n in nodes]

    def __bool__(self) -> bool:
        return bool(self._names)

    def apply(self, peaks: Mapping[str, NDArray[np.float64]], done: Equalization) -> dict[str, Any]:
        """Change the constants that no link changes; return a report by transform."""
        from .quantization import attention

        report: dict[str, Any] = {}
        if "qk" in self._names:
            rows = attention.balance_scores(self._body, self._attentions, peaks, done)
            report["qk"] = self._checked("qk", rows)
        for name, rotate in (
            ("spinR2", attention.rotate_values),
            ("qkRotation", attention.rotate_scores),
        ):
            if name in self._names:
                turned = rotate(self._body, self._attentions, done)
                report[name] = self._checked(name, turned)
        return report

    def _add(self, name: str, links: list[Link]) -> None:
        self.links += self._checked(name, links)

    def _checked(self, name: str, found: list[T]) -> list[T]:
        if not found:
            self._plan.reporter.warning(
                f"equivalentTransformation.{name}: the model has nothing that it could change"
            )
        return found


@dataclass(frozen=True)
class _Outputs:
    """Of which layers ``calibration.output`` is 1."""

    general: bool
    overrides: Mapping[str, int]

    def __bool__(self) -> bool:
        return self.general or 1 in self.overrides.values()

    def of(self, node: Node) -> bool:
        from .quantization.settings import matches

        found = self.general
        for pattern in sorted(self.overrides):
            if matches(node, pattern):
                found = self.overrides[pattern] == 1
        return found


def _balanced_outputs(plan: Plan) -> _Outputs:
    calibration = plan.config.calibration
    return _Outputs(calibration.output == 1, calibration.layer_overrides.output)


def _with_copies(plan: Plan, graph: PartitionedGraph) -> tuple[PartitionedGraph, dict[str, Any]]:
    """Return the partition with copies of tensors for what multiplies them, and a report on it."""
    from .quantization import attention, find_copies, find_links, insert_copies

    streams = plan.config.bit.elementwise_activations > 8
    wanted = _balanced_outputs(plan)
    if not (streams or wanted):
        return graph, {}
    assert graph.body is not None
    links, _ = find_links(graph.body, _shared(graph.graph))
    passed = {link.read for link in links}
    up = plan.config.equivalent_transformation.ud
    if up.apply:
        found = attention.find_up_links(graph.body, _shared(graph.graph), up.smoothing_factor)
        passed |= {link.read for link in found}
    copies = find_copies(
        graph.body,
        streams=streams,
        balanced=lambda name, maker: name not in passed and wanted.of(maker),
    )
    if not copies:
        return graph, {}
    body, whole = graph.body.copy(), graph.graph.copy()
    for part in (body, whole):
        insert_copies(part, copies)
    plan.reporter.info(f"{len(copies)} tensors have copies of 8 bits for what multiplies them")
    rows = [{"tensor": c.value, "readers": list(c.readers)} for c in copies]
    return replace(graph, graph=whole).with_body(body), {"copies": rows}


def _peaks(
    plan: Plan, graph: Graph, observed: list[tuple[str, int]], dataset: Dataset
) -> dict[str, NDArray[np.float64]]:
    """Return the largest magnitude of each channel of tensors, given with their channels' axis."""
    import numpy as np

    from .runtime.float_engine import FloatEngine, Reduction

    reductions = [Reduction(name, axis) for name, axis in dict(observed).items()]
    if not reductions:
        return {}
    engine = FloatEngine(graph, [], reductions=reductions, threads=1)
    count = min(SAMPLES, len(dataset))
    found: dict[str, NDArray[np.float64]] = {}
    for index in range(count):
        made = engine.run(dataset[index * len(dataset) // count])
        for reduction in reductions:
            peak = np.maximum(np.abs(made[reduction.min_name]), np.abs(made[reduction.max_name]))
            old = found.get(reduction.value)
            peak = np.nan_to_num(peak.astype(np.float64), nan=0.0, posinf=0.0)
            found[reduction.value] = peak if old is None else np.maximum(old, peak)
        plan.reporter.progress("calibrate", index + 1, count)
    return found


def _digest(constants: Mapping[str, Array]) -> str:
    if not constants:
        return ""
    digest = hashlib.sha256()
    for name in sorted(constants):
        array = constants[name]
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
