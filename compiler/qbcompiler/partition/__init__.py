"""Support check and the cut into CPU head, NPU body and CPU tail."""

from .partition import PartitionedGraph, partition, support_table
from .support import DeviceRules, LayerSupport, Place

__all__ = [
    "DeviceRules",
    "LayerSupport",
    "PartitionedGraph",
    "Place",
    "partition",
    "support_table",
]
