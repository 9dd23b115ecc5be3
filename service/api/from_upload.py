"""Models and calibration sets made of completed uploads instead of a form's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from ..domain import FieldError, FileRef, ServiceError, Upload, UploadState
from ..storage import ObjectMissing, ObjectStore, fetch_file
from .body import parse_json
from .context import Context
from .problems import body_types

__all__ = [
    "HeldFile",
    "held_file",
    "held_upload",
    "is_json",
    "json_content",
    "no_upload",
    "read_json",
]

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file that the object store has already."""

    sha256: str
    size: int
    path: Path

    def store(self, store: ObjectStore) -> str:
        """Return its digest; there is nothing to store."""
        return self.sha256


def is_json(request: Request) -> bool:
    """Say whether a request's body is JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json"


async def read_json(request: Request, model: type[M], max_depth: int) -> M:
    """Return a JSON body of a route that takes forms too, as strictly as other routes read it.

    Raises:
        ServiceError, RequestValidationError: it is not what the schema says.
    """
    data = await request.body()
    try:
        parsed = parse_json(data, max_depth)
    except ValueError as exc:
        raise ServiceError(
            "BAD_REQUEST",
            f"the body is not JSON: {exc}"[:300],
            hint="send a JSON object with Content-Type: application/json",
        ) from exc
    try:
        return model.model_validate(parsed)
    except ValidationError as exc:
        findings = [{**e, "loc": ("body", *e["loc"])} for e in exc.errors(include_url=False)]
        request.scope[body_types] = model
        raise RequestValidationError(findings) from exc


def json_content(model: type[BaseModel]) -> dict[str, Any]:
    """Return the description of a JSON body."""
    schema = model.model_json_schema()
    return {"application/json": {"schema": schema}}


def no_upload(upload_id: str, pointer: str | None = None) -> ServiceError:
    """Return the error for an upload that is not there; ``pointer`` is where a body names it."""
    detail = f"there is no upload {upload_id!r}, or its time is over"
    return ServiceError(
        "NOT_FOUND",
        detail,
        hint="announce the file again: POST /v1/uploads",
        errors=[] if pointer is None else [FieldError(pointer, detail)],
    )


def held_upload(context: Context, project: str, upload_id: str, pointer: str) -> Upload:
    """Return a completed upload of the project whose bytes are there.

    Raises:
        ServiceError: ``NOT_FOUND``, ``CONFLICT``.
    """
    upload = context.uploads.get(project, upload_id)
    if upload is None:
        raise no_upload(upload_id, pointer)
    if upload.state is not UploadState.COMPLETE:
        detail = f"upload {upload_id} is {upload.state.value}, not complete"
        raise ServiceError(
            "CONFLICT",
            detail,
            hint="POST /v1/uploads/{id}/complete when its parts are sent",
            errors=[FieldError(pointer, detail)],
            retryable=False,
        )
    # until it is recorded as what it becomes
    context.holds.hold(upload.sha256)
    if context.store.size(upload.sha256) != upload.size:
        raise ObjectMissing(upload.sha256)
    return upload


def held_file(context: Context, upload: Upload, folder: Path, *, needed: bool = True) -> HeldFile:
    """Return an upload's file; brought to a folder where the store keeps it elsewhere.

    Args:
        context: the application's parts.
        upload: complete.
        folder: scratch folder.
        needed: whether anybody will read it.
    """
    path = context.store.local_path(upload.sha256)
    if path is None:
        path = folder / f"{upload.id}.file"
        if needed:
            fetch_file(context.store, FileRef(path.name, upload.sha256, upload.size), path)
    return HeldFile(upload.sha256, upload.size, path)
