"""Support check and the cut into CPU head, NPU body and CPU tail."""

from .partition import Cut, PartitionedGraph, cut_inputs, partition, support_table
from .support import DeviceRules, LayerSupport, Place

__all__ = [
    "Cut",
    "DeviceRules",
    "LayerSupport",
    "PartitionedGraph",
    "Place",
    "cut_inputs",
    "partition",
    "support_table",
]
