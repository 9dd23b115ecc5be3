"""Quantization: observers, the plan of integer grids, the integer graph, and its validation."""

from .apply import apply_plan, integer_refusals
from .bias_correction import BiasCorrection, correct_biases
from .metrics import Agreement, Difference
from .plan import GridPlan, Range, plan_grids
from .quantize import RangeSource, quantize
from .settings import QuantSettings
from .summary import layer_summaries
from .validate import Accuracy, LayerAccuracy, OutputAccuracy, validate

__all__ = [
    "Accuracy",
    "Agreement",
    "BiasCorrection",
    "Difference",
    "GridPlan",
    "LayerAccuracy",
    "OutputAccuracy",
    "QuantSettings",
    "Range",
    "RangeSource",
    "apply_plan",
    "correct_biases",
    "integer_refusals",
    "layer_summaries",
    "plan_grids",
    "quantize",
    "validate",
]
