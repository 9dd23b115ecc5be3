"""Reading what is uploaded: models, archives, samples. Everything here is hostile until checked."""

from pathlib import Path

from ..domain import ModelFormat
from .archives import ArchiveError, ArchiveLimits, archive_kind, unpack
from .arrays import is_sample
from .calibration_set import CalibrationFacts, pack_calibration
from .mblt_file import is_zip, read_mblt
from .onnx_file import ModelFacts, NotAModel, read_onnx

__all__ = [
    "ArchiveError",
    "ArchiveLimits",
    "CalibrationFacts",
    "ModelFacts",
    "NotAModel",
    "archive_kind",
    "is_sample",
    "pack_calibration",
    "read_model",
    "unpack",
]


def read_model(path: Path) -> tuple[ModelFormat, ModelFacts]:
    """Read what a model file says about itself.

    Raises:
        NotAModel: it is neither an ONNX model nor an MBLT.
    """
    if is_zip(path):
        return ModelFormat.MBLT, read_mblt(path)
    return ModelFormat.ONNX, read_onnx(path)
