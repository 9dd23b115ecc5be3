"""Quantization: observers, the plan of integer grids, the integer graph, and its validation."""

from .apply import apply_plan, integer_refusals
from .bias_correction import BiasCorrection, correct_biases
from .bit_choice import (
    AutoBits,
    Choice,
    Unit,
    choose_steps,
    list_units,
    search_steps,
    wide_layers,
    wide_share,
)
from .copies import Copy, elementwise_values, find_copies, insert_copies, is_copy
from .equalize import Equalization, Link, equalize, find_links, is_linear, is_norm
from .metrics import Agreement, Difference
from .plan import GridPlan, Range, plan_grids
from .quantize import RangeSource, grid_classes, quantize
from .sensitivity import Sensitivity, measure_sensitivity, rounded_values, weighted_layers
from .settings import QuantSettings
from .summary import layer_summaries
from .sweep import Samples
from .validate import Accuracy, LayerAccuracy, OutputAccuracy, validate
from .weight_methods import WeightChange, WeightMethods, improve_weights

__all__ = [
    "Accuracy",
    "Agreement",
    "AutoBits",
    "BiasCorrection",
    "Choice",
    "Copy",
    "Difference",
    "Equalization",
    "GridPlan",
    "LayerAccuracy",
    "Link",
    "OutputAccuracy",
    "QuantSettings",
    "Range",
    "RangeSource",
    "Samples",
    "Sensitivity",
    "Unit",
    "WeightChange",
    "WeightMethods",
    "apply_plan",
    "choose_steps",
    "correct_biases",
    "elementwise_values",
    "equalize",
    "find_copies",
    "find_links",
    "grid_classes",
    "improve_weights",
    "insert_copies",
    "integer_refusals",
    "is_copy",
    "is_linear",
    "is_norm",
    "layer_summaries",
    "list_units",
    "measure_sensitivity",
    "plan_grids",
    "quantize",
    "rounded_values",
    "search_steps",
    "validate",
    "weighted_layers",
    "wide_layers",
    "wide_share",
]
