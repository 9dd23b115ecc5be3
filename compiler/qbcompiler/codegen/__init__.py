"""The device back end: what a model costs on a device, by a stated model of the device.

``estimate`` cuts layers into tiles that fit on-chip memory, places the tensors in external memory
and counts cycles, for each inference scheme. Figures that are not public are assumptions of the
device file, so every number here is an estimate.
"""

from .estimate import Estimate, LayerEstimate, SchemeEstimate, estimate
from .generate import generate_all
from .memory import Buffer, MemoryPlan, place
from .work import Work, list_work

__all__ = [
    "Buffer",
    "Estimate",
    "LayerEstimate",
    "MemoryPlan",
    "SchemeEstimate",
    "Work",
    "estimate",
    "generate_all",
    "list_work",
    "place",
]
