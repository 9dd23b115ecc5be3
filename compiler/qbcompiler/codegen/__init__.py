"""The device back end: what a model costs on a device, by a stated model of the device.

``compile_programs`` cuts layers into tiles that fit on-chip memory, places every buffer, writes
each core's instructions and times them, for each inference scheme. Figures that are not public are
assumptions of the device file, so every time here is an estimate.
"""

from .estimate import (
    Compiled,
    Estimate,
    LayerEstimate,
    SchemeEstimate,
    compile_programs,
    estimate,
)
from .generate import generate_all
from .memory import Buffer, MemoryPlan, place
from .work import Work, list_work

__all__ = [
    "Buffer",
    "Compiled",
    "Estimate",
    "LayerEstimate",
    "MemoryPlan",
    "SchemeEstimate",
    "Work",
    "compile_programs",
    "estimate",
    "generate_all",
    "list_work",
    "place",
]
