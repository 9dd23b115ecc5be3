"""What a build does to the integer graph with the calibration samples, once it is planned.

In this order: scales of weights, rounding of weights, biases. Each is measured on what the steps
before it left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .options import Plan

if TYPE_CHECKING:
    from .calibration import Dataset
    from .ir import IntGraph
    from .partition import PartitionedGraph

__all__ = ["refine"]


def refine(
    plan: Plan, graph: PartitionedGraph, int_graph: IntGraph, dataset: Dataset
) -> dict[str, Any]:
    """Improve the weights, then the biases of ``int_graph`` in place, as the configuration asks.

    Args:
        plan: the request.
        graph: the partitioned float graph, with a body.
        int_graph: the integer body.
        dataset: the calibration samples, inputs of the whole model.

    Returns:
        What the report says of it: ``weights`` (a row for each layer) and ``biases`` (how many
        have moved), each only where it was asked for.
    """
    from .quantization import (
        BiasCorrection,
        QuantSettings,
        WeightMethods,
        correct_biases,
        improve_weights,
    )
    from .runtime.pipeline import BodyInputs

    assert graph.body is not None
    for part in QuantSettings.from_config(plan.config).unmet_roles(graph.body):
        plan.reporter.warning(f"bit.transformer: no layer of the model is a transformer's {part}")
    found: dict[str, Any] = {}
    inputs = BodyInputs(graph.head, graph.body.inputs, dataset)
    weights = WeightMethods.from_config(plan.config)
    if weights is not None:
        changes = improve_weights(
            graph.body,
            int_graph,
            inputs,
            weights,
            threads=plan.threads,
            progress=plan.reporter.step("quantize"),
        )
        found["weights"] = [change.as_dict() for change in changes]
        done = sum(not change.reason for change in changes)
        plan.reporter.info(f"weights: scales and rounding of {done} layers were measured")
        for change in changes:
            if change.reason:
                plan.reporter.info(f"weights of {change.layer} stay as they are: {change.reason}")
    biases = BiasCorrection.from_config(plan.config)
    if biases is not None:
        changed = correct_biases(
            graph.body,
            int_graph,
            inputs,
            biases,
            threads=plan.threads,
            progress=plan.reporter.step("quantize"),
        )
        found["biases"] = changed
        plan.reporter.info(f"bias correction: {changed} biases have moved")
    return found
