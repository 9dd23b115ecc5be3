"""The settings of calibration that decide ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ...ir import Graph
from ..settings import matches

__all__ = ["CalibrationSettings"]

_WITH_ZERO_POINT = (2, 3)


@dataclass(frozen=True)
class CalibrationSettings:
    """How the range of a tensor is chosen.

    Attributes:
        mode: 0 max, 1 max-percentile, 2 histogram.
        percentile, topk_ratio: mode 1: the clip is the ``percentile`` quantile of the largest
            ``topk_ratio`` share of all absolute values, so that the share
            ``topk_ratio * (1 - percentile)`` of all values is clipped.
        criterion: mode 2: ``mse`` or ``kl``.
        bins: mode 2 with ``kl``: bins of the distributions that are compared.
        method: calibration method; 2 and 3 have a zero point.
        modes, methods: other modes and methods for the outputs of layers, by name or glob.
    """

    mode: int = 0
    percentile: float = 0.9999
    topk_ratio: float = 0.01
    criterion: str = "mse"
    bins: int = 2048
    method: int = 0
    modes: Mapping[str, int] = field(default_factory=dict)
    methods: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Read the settings from a ``CompileConfig`` or its ``calibration`` section."""
        section = getattr(config, "calibration", config)
        return cls(
            mode=section.mode,
            percentile=section.max_percentile.percentile,
            topk_ratio=section.max_percentile.topk_ratio,
            criterion=section.histogram.criterion,
            bins=section.histogram.bins,
            method=section.method,
            modes=dict(section.layer_overrides.mode),
            methods=dict(section.layer_overrides.method),
        )

    @property
    def clipped_share(self) -> float:
        """Mode 1: the share of all values that may be clipped."""
        return self.topk_ratio * (1.0 - self.percentile)

    def mode_of(self, graph: Graph, value: str) -> int:
        """Return the mode for a value: that of the layer that makes it."""
        return self._of(graph, value, self.mode, self.modes)

    def symmetric(self, graph: Graph, value: str) -> bool:
        """Return whether a value's grid has no zero point."""
        return self._of(graph, value, self.method, self.methods) not in _WITH_ZERO_POINT

    @staticmethod
    def _of(graph: Graph, value: str, general: int, special: Mapping[str, int]) -> int:
        node = graph.producer(value)
        if node is None:
            return general
        for pattern in sorted(special):
            if matches(node, pattern):
                general = special[pattern]
        return general

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "mode": self.mode,
            "percentile": self.percentile,
            "topk_ratio": self.topk_ratio,
            "criterion": self.criterion,
            "bins": self.bins,
            "method": self.method,
            "modes": dict(sorted(self.modes.items())),
            "methods": dict(sorted(self.methods.items())),
        }
