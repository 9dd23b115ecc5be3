"""The two files, MBLT and MXQ: one deterministic container, read lazily and defensively.

The layout is specified in ``docs/formats.md``. The names load on first use: a look at a manifest
needs neither NumPy nor the operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .formats import MBLT_FORMAT, MXQ_FORMAT
    from .identity import ENGINE, compiler_identity
    from .mblt import Mblt, MbltMeta, mblt_manifest, read_mblt, retarget_manifest, write_mblt
    from .mxq import CalibrationRecord, Mxq, MxqContents, read_mxq, write_mxq
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

_HOMES = {
    "MBLT_FORMAT": "formats",
    "MXQ_FORMAT": "formats",
    "ENGINE": "identity",
    "compiler_identity": "identity",
    "Mblt": "mblt",
    "MbltMeta": "mblt",
    "mblt_manifest": "mblt",
    "read_mblt": "mblt",
    "retarget_manifest": "mblt",
    "write_mblt": "mblt",
    "CalibrationRecord": "mxq",
    "Mxq": "mxq",
    "MxqContents": "mxq",
    "read_mxq": "mxq",
    "write_mxq": "mxq",
    "Written": "writer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
