"""Uploads in parts, and what is made of them, as JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ..domain import IdKind, UploadState, id_pattern
from .fields import Labels, Name, Revision
from .schemas import Out

__all__ = [
    "CalibrationFromUpload",
    "ModelFromUpload",
    "PartOut",
    "PartTarget",
    "PartsIn",
    "PartsOut",
    "UploadIn",
    "UploadOut",
]

_Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
_UploadId = Annotated[
    str,
    StringConstraints(pattern=id_pattern(IdKind.UPLOAD)),
    Field(examples=["upl_01k2v7b0m8x9qj4t5w6y7z8a9b"]),
]


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class UploadIn(_In):
    """A file that is to be sent."""

    size: int = Field(ge=1, le=1 << 50, description="Bytes.", examples=[3_221_225_472])
    sha256: _Sha256 = Field(description="SHA-256 of the file, lower-case hex.")
    name: Name | None = Field(default=None, description="For people; its file name, say.")


class PartOut(Out):
    """A part that is held whole."""

    number: int = Field(description="From 1.", examples=[1])
    size: int = Field(description="Bytes.", examples=[33_554_432])


class UploadOut(Out):
    """A large file on its way, or arrived."""

    id: str = Field(examples=["upl_01k2v7b0m8x9qj4t5w6y7z8a9b"])
    name: str | None
    size: int = Field(description="Bytes.", examples=[102_442_450])
    sha256: str
    state: UploadState = Field(
        description="`failed`: the bytes were not those announced.", examples=["open"]
    )
    part_size: int = Field(description="Bytes of every part but the last.", examples=[33_554_432])
    part_count: int = Field(examples=[4])
    already_present: bool = Field(
        description="The project had these bytes; nothing was to be sent.", examples=[False]
    )
    parts: list[PartOut] | None = Field(
        description="The parts held, while it is open. Lists leave them out."
    )
    created_at: datetime
    expires_at: datetime = Field(
        description="Then it is forgotten, with the parts that are held. What was made of it stays."
    )
    finished_at: datetime | None


class PartsIn(_In):
    """Parts that are to be sent next."""

    numbers: list[Annotated[int, Field(ge=1, le=10_000)]] = Field(
        min_length=1, max_length=1000, examples=[[1, 2, 3, 4]]
    )


class PartTarget(Out):
    """Where a part goes, by PUT."""

    number: int = Field(examples=[1])
    offset: int = Field(description="Where it begins in the file.", examples=[0])
    size: int = Field(description="Exactly these many bytes.", examples=[33_554_432])
    url: str = Field(
        description="Absolute, or a path of this server.",
        examples=["/v1/uploads/upl_01k2v7b0m8x9qj4t5w6y7z8a9b/parts/1"],
    )
    signed: bool = Field(
        description="The URL itself gives leave; send no token with it.", examples=[False]
    )
    expires_in: int | None = Field(description="Seconds.", examples=[900])


class PartsOut(Out):
    """Where parts go."""

    items: list[PartTarget]


class ModelFromUpload(_In):
    """A model made of completed uploads."""

    upload_id: _UploadId = Field(description="The model: an ONNX file, or an MBLT.")
    external_data: dict[Name, _UploadId] = Field(
        default_factory=dict,
        max_length=1000,
        description="Uploads of the files with weights that the ONNX file names, by the location "
        "that it names.",
        examples=[{}],
    )
    name: Name | None = Field(default=None, description="By default that of the upload.")
    source_revision: Revision | None = None
    labels: Labels = Field(default_factory=dict)


class CalibrationFromUpload(_In):
    """A calibration set made of a completed upload."""

    upload_id: _UploadId = Field(
        description="An archive (.zip, .tar, .tar.gz, .tar.zst) of a calibration folder."
    )
    name: Name | None = Field(default=None, description="By default that of the upload.")
    list: str = Field(
        default="",
        max_length=4096,
        description="Path of a .txt or .json list in the archive that says which files are "
        "samples. By default all of them are.",
    )
    labels: Labels = Field(default_factory=dict)
