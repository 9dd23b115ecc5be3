"""Types of parameters and fields that several routes share, and the checks of form fields."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated

from fastapi import Path, Query
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from ..domain import FieldError, IdKind, ServiceError, id_pattern
from .body import parse_json

__all__ = [
    "ArtifactId",
    "CalibrationId",
    "Cursor",
    "DeliveryId",
    "JobId",
    "LabelFilter",
    "Labels",
    "Limit",
    "LinkId",
    "MatrixId",
    "ModelId",
    "Name",
    "Revision",
    "Time",
    "check_labels",
    "check_name",
    "check_revision",
    "file_name",
    "in_range",
    "label_filter",
]

_PLAIN = r"^[^\x00-\x1f\x7f]*$"
_LABEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$"


def _unicode(value: str) -> str:
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise ValueError("must be Unicode text")
    return value


Name = Annotated[
    str,
    StringConstraints(min_length=1, max_length=255, pattern=_PLAIN),
    AfterValidator(_unicode),
]
Revision = Annotated[
    str,
    StringConstraints(min_length=1, max_length=255, pattern=_PLAIN),
    AfterValidator(_unicode),
]
Labels = Annotated[
    dict[
        Annotated[str, StringConstraints(pattern=_LABEL_NAME)],
        Annotated[str, StringConstraints(max_length=255, pattern=_PLAIN), AfterValidator(_unicode)],
    ],
    Field(max_length=1000),
]


def _rfc3339(value: object) -> object:
    # Pydantic takes a bare number for seconds since 1970
    if isinstance(value, str) and "T" not in value.upper():
        raise ValueError("must be an RFC 3339 time, like 2026-01-02T03:04:05Z")
    return value


Time = Annotated[AwareDatetime, BeforeValidator(_rfc3339)]

ModelId = Annotated[str, Path(pattern=id_pattern(IdKind.MODEL), description="A model's id.")]
CalibrationId = Annotated[
    str, Path(pattern=id_pattern(IdKind.CALIBRATION), description="A calibration set's id.")
]
JobId = Annotated[str, Path(pattern=id_pattern(IdKind.JOB), description="A job's id.")]
ArtifactId = Annotated[
    str, Path(pattern=id_pattern(IdKind.ARTIFACT), description="An artifact's id.")
]
DeliveryId = Annotated[
    str, Path(pattern=id_pattern(IdKind.WEBHOOK), description="A webhook delivery's id.")
]
MatrixId = Annotated[str, Path(pattern=id_pattern(IdKind.MATRIX), description="A matrix's id.")]
LinkId = Annotated[str, Path(pattern=id_pattern(IdKind.LINK), description="A link's id.")]
Limit = Annotated[int, Query(ge=1, le=200, description="Most items of the page.")]
Cursor = Annotated[
    str | None,
    Query(max_length=500, description="`next_cursor` of the page before; leave it out at first."),
]
LabelFilter = Annotated[
    list[Annotated[str, StringConstraints(max_length=320, pattern=_PLAIN)]],
    Query(description="Only what has this label, `name=value`; repeat it for more."),
]

_NAME = TypeAdapter(Name)
_REVISION = TypeAdapter(Revision)
_LABELS = TypeAdapter(Labels)


def in_range(value: datetime | None) -> datetime | None:
    """Keep a time inside what every database can hold once it is in UTC.

    Raises:
        ServiceError: it is not.
    """
    if value is None or 1 < value.year < 9999:
        return value
    raise ServiceError(
        "ARGUMENT_ERROR", "created_after and created_before: the year must be from 2 to 9998"
    )


def label_filter(given: list[str]) -> dict[str, str]:
    """Return the labels that a list's query asks for.

    Raises:
        ServiceError: one is not ``name=value``.
    """
    found: dict[str, str] = {}
    for item in given:
        name, sign, value = item.partition("=")
        if not sign or not name or not _is_label_name(name):
            raise ServiceError(
                "ARGUMENT_ERROR",
                f"parameter label: {item[:100]!r} is not name=value",
                errors=[FieldError(None, "must be name=value", parameter="label")],
            )
        found[name] = value
    return found


def _is_label_name(name: str) -> bool:
    try:
        _LABELS.validate_python({name: ""})
    except ValidationError:
        return False
    return True


def check_name(value: str, field: str = "name") -> str:
    """Return a form field that is a name."""
    return _checked(_NAME, value, field, "1 to 255 characters, none of them a control character")


def check_revision(value: str) -> str | None:
    """Return the form field ``source_revision``."""
    if not value:
        return None
    return _checked(
        _REVISION, value, "source_revision", "at most 255 characters, no control character"
    )


def check_labels(value: str, most: int) -> dict[str, str]:
    """Return the form field ``labels``, a JSON object of strings."""
    if not value:
        return {}
    try:
        found = _LABELS.validate_python(parse_json(value.encode("utf-8", "surrogatepass"), 2))
    except (ValidationError, json.JSONDecodeError) as exc:
        raise _wrong("labels", 'a JSON object of strings, like {"team": "vision"}') from exc
    if len(found) > most:
        raise _wrong("labels", f"at most {most} labels")
    return found


def file_name(filename: str | None, default: str) -> str:
    """Return the last part of a file name that a client gave."""
    plain = (filename or "").replace("\\", "/")
    name = PurePosixPath(plain).name.strip()
    return check_name(name, "file") if name and name not in (".", "..") else default


def _checked(adapter: TypeAdapter[str], value: str, field: str, expected: str) -> str:
    try:
        return adapter.validate_python(value)
    except ValidationError as exc:
        raise _wrong(field, expected) from exc


def _wrong(field: str, expected: str) -> ServiceError:
    return ServiceError(
        "ARGUMENT_ERROR",
        f"form field {field}: must be {expected}",
        errors=[FieldError(None, f"must be {expected}", parameter=field)],
    )
