"""The two files, MBLT and MXQ: one deterministic container, read lazily and defensively.

The layout is specified in ``docs/formats.md``.
"""

from .identity import ENGINE, compiler_identity
from .mblt import (
    MBLT_FORMAT,
    Mblt,
    MbltMeta,
    mblt_manifest,
    read_mblt,
    retarget_manifest,
    write_mblt,
)
from .mxq import MXQ_FORMAT, CalibrationRecord, Mxq, MxqContents, read_mxq, write_mxq
from .writer import Written

__all__ = [
    "ENGINE",
    "MBLT_FORMAT",
    "MXQ_FORMAT",
    "CalibrationRecord",
    "Mblt",
    "MbltMeta",
    "Mxq",
    "MxqContents",
    "Written",
    "compiler_identity",
    "mblt_manifest",
    "read_mblt",
    "read_mxq",
    "retarget_manifest",
    "write_mblt",
    "write_mxq",
]
