"""Observers: what calibration gathers of activations, and the ranges that follow.

statistics = collect(graph, dataset, CalibrationSettings.from_config(config))
low, high = statistics.range("conv1_output", bits=8)
"""

from .base import Observer
from .cache import StatisticsCache, collect_cached
from .clips import CLIPS, Grid
from .collect import collect
from .extremes import Extremes
from .needed import needed_values
from .registry import OBSERVERS
from .settings import CalibrationSettings
from .spans import LogHistogram, Span
from .statistics import Statistics, TensorStatistics

__all__ = [
    "CLIPS",
    "OBSERVERS",
    "CalibrationSettings",
    "Extremes",
    "Grid",
    "LogHistogram",
    "Observer",
    "Span",
    "Statistics",
    "StatisticsCache",
    "TensorStatistics",
    "collect",
    "collect_cached",
    "needed_values",
]
