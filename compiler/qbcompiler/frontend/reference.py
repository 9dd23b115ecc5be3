"""Runs a graph in ONNX's reference implementation: slow, but it has every standard operator."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import RUN_HINT, ModelLoadError
from ..ir import Array, Graph
from ..ops import Registry
from .export import export_graph

__all__ = ["ReferenceEngine"]


class ReferenceEngine:
    """Executes a graph node by node in Python.

    Args:
        graph: a verified graph.
        outputs: value names that :meth:`run` returns.
        registry: operators; the built-in ones by default.

    Raises:
        ModelLoadError: the reference implementation lacks an operator of the graph.
    """

    def __init__(
        self, graph: Graph, outputs: Sequence[str], registry: Registry | None = None
    ) -> None:
        from onnx.reference import ReferenceEvaluator

        self._outputs = list(outputs)
        model = export_graph(graph, outputs, registry=registry)
        try:
            self._evaluator: Any = ReferenceEvaluator(model.proto)
        except Exception as exc:
            raise ModelLoadError(
                f"neither ONNX Runtime nor ONNX's reference runs the model: {exc}", hint=RUN_HINT
            ) from exc
        self._types = {n: graph.values[n].type.dtype.numpy for n in outputs}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Execute the graph once.

        Raises:
            ModelLoadError: an operator fails.
        """
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                found = self._evaluator.run(self._outputs, dict(inputs))
        except Exception as exc:
            text = " ".join(str(exc).split())
            raise ModelLoadError(
                f"the model cannot be computed: {text}", details={"reason": text}, hint=RUN_HINT
            ) from exc
        return {
            name: np.asarray(value, dtype=self._types[name])
            for name, value in zip(self._outputs, found, strict=True)
        }
