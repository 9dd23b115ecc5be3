"""What a build does to the integer graph with the calibration samples, once it is planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .options import Plan

if TYPE_CHECKING:
    from .calibration import Dataset
    from .ir import IntGraph
    from .partition import PartitionedGraph

__all__ = ["refine"]


def refine(plan: Plan, graph: PartitionedGraph, int_graph: IntGraph, dataset: Dataset) -> None:
    """Correct the biases of ``int_graph`` in place, where the configuration asks for it.

    Args:
        plan: the request.
        graph: the partitioned float graph, with a body.
        int_graph: the integer body.
        dataset: the calibration samples, inputs of the whole model.
    """
    from .quantization import BiasCorrection, correct_biases
    from .runtime.pipeline import BodyInputs

    assert graph.body is not None
    settings = BiasCorrection.from_config(plan.config)
    if settings is None:
        return
    changed = correct_biases(
        graph.body,
        int_graph,
        BodyInputs(graph.head, graph.body.inputs, dataset),
        settings,
        threads=plan.threads,
        progress=plan.reporter.step("quantize"),
    )
    plan.reporter.info(f"bias correction: {changed} biases have moved")
