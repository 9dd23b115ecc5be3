"""Calibration sets: upload, list, show, delete."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import StringConstraints
from starlette.concurrency import run_in_threadpool

from ..db import NewCalibration
from ..domain import Calibration, FieldError, FileRef, ServiceError
from ..intake import (
    ArchiveError,
    ArchiveLimits,
    archive_kind,
    is_sample,
    pack_calibration,
    unpack,
)
from ..storage import Spool, inside
from .body import StrictRoute, check_length
from .context import Builder, Context, Ctx, Reader
from .fields import (
    CalibrationId,
    Cursor,
    LabelFilter,
    Limit,
    Name,
    check_labels,
    check_name,
    label_filter,
)
from .from_upload import held_file, held_upload, is_json, json_content, read_json
from .multipart import PartBegin, PartData, PartEnd, read_multipart
from .problems import problems
from .quotas import ROOM
from .schemas import CalibrationOut, PageOut
from .scratch import request_scratch
from .upload_schemas import CalibrationFromUpload
from .views import calibration_out

__all__ = ["router"]

router = APIRouter(prefix="/v1/calibrations", tags=["calibrations"], route_class=StrictRoute)

_MAX_FIELD = 64 << 10
# boundaries, part headers and fields
_MAX_OVERHEAD = 64 << 20
_BATCH = 4 << 20
_TEXT_FIELDS = ("name", "list", "labels")

_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            **json_content(CalibrationFromUpload),
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "description": "One archive (.zip, .tar, .tar.gz, .tar.zst) of a "
                            "calibration folder, or any number of single samples.",
                        },
                        "name": {"type": "string", "maxLength": 255},
                        "list": {
                            "type": "string",
                            "description": "Path of a .txt or .json list in the upload that says "
                            "which files are samples. By default all of them are.",
                        },
                        "labels": {
                            "type": "string",
                            "description": "A JSON object of strings.",
                            "examples": ['{"team": "vision"}'],
                        },
                    },
                }
            },
        },
    }
}


@router.post(
    "",
    status_code=201,
    response_model=CalibrationOut,
    responses=problems(400, 404, 409, 413, 415, 422, 507),
    openapi_extra=_FORM,
    summary="Upload calibration data",
    operation_id="create_calibration",
    dependencies=[ROOM],
)
async def create_calibration(
    request: Request, response: Response, context: Ctx, principal: Builder
) -> CalibrationOut:
    """Upload an archive of a calibration folder, or single samples, as `multipart/form-data`.

    Every sample's header is checked: its kind, type, shape, and that it is whole. A large archive
    comes better as an upload, whose id then is sent as JSON.
    """
    settings = context.settings
    named = None
    if is_json(request):
        named = await read_json(request, CalibrationFromUpload, settings.max_json_depth)
    else:
        limit = settings.max_calibration_bytes + _MAX_OVERHEAD
        check_length(request, limit, "the calibration data")
    async with AsyncExitStack() as stack:
        folder = await stack.enter_async_context(request_scratch(context, "the calibration data"))
        if named is not None:
            upload = await run_in_threadpool(
                _take_upload, context, principal.project, folder, named
            )
        else:
            upload = await _read_form(request, context, stack, folder)
        found = await run_in_threadpool(_finish, context, principal.project, folder, upload)
    response.headers["Location"] = f"/v1/calibrations/{found.id}"
    return calibration_out(found)


@router.get(
    "",
    response_model=PageOut[CalibrationOut],
    responses=problems(422),
    summary="List calibration sets",
    operation_id="list_calibrations",
)
def list_calibrations(
    context: Ctx,
    principal: Reader,
    limit: Limit = 50,
    cursor: Cursor = None,
    name: Annotated[Name | None, Query(description="Only with this name.")] = None,
    digest: Annotated[
        Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")] | None,
        Query(description="Only with this digest."),
    ] = None,
    label: LabelFilter = [],  # noqa: B006 (FastAPI copies it)
) -> PageOut[CalibrationOut]:
    """List the project's calibration sets, newest first."""
    page = context.calibrations.page(
        principal.project,
        limit=limit,
        cursor=cursor,
        name=name,
        digest=digest,
        labels=label_filter(label),
    )
    return PageOut(items=[calibration_out(c) for c in page.items], next_cursor=page.next_cursor)


@router.get(
    "/{calibration_id}",
    response_model=CalibrationOut,
    responses=problems(404, 422),
    summary="Show a calibration set",
    operation_id="get_calibration",
)
def get_calibration(
    context: Ctx, principal: Reader, calibration_id: CalibrationId
) -> CalibrationOut:
    """Show a calibration set."""
    found = context.calibrations.get(principal.project, calibration_id)
    if found is None:
        raise ServiceError("NOT_FOUND", f"there is no calibration set {calibration_id!r}")
    return calibration_out(found)


@router.delete(
    "/{calibration_id}",
    status_code=204,
    responses=problems(404, 409, 422),
    summary="Delete a calibration set",
    operation_id="delete_calibration",
)
def delete_calibration(context: Ctx, principal: Builder, calibration_id: CalibrationId) -> None:
    """Delete a calibration set. Refused while a job that has not ended uses it."""
    context.calibrations.delete(principal.project, calibration_id)


class _Upload:
    """What an upload said, and its files as they came."""

    def __init__(self) -> None:
        self.files: list[tuple[str, Spool]] = []
        self.texts: dict[str, str] = {}
        self.labels: dict[str, str] | None = None
        self.archive: Path | None = None


async def _read_form(
    request: Request, context: Context, stack: AsyncExitStack, folder: Path
) -> _Upload:
    upload = _Upload()
    left = context.settings.max_calibration_bytes
    spool: Spool | None = None
    text: bytearray | None = None
    part = PartBegin("", None)
    pending = bytearray()
    async for piece in read_multipart(request):
        if isinstance(piece, PartBegin):
            part = piece
            if part.name == "file":
                if len(upload.files) >= context.settings.max_archive_entries:
                    raise ServiceError(
                        "PAYLOAD_TOO_LARGE",
                        f"more than {context.settings.max_archive_entries} files",
                        hint="send an archive of fewer samples; a few hundred are enough",
                    )
                spool = Spool(folder / "parts", limit=left, what="the calibration data")
                stack.enter_context(spool)
                upload.files.append((part.filename or "", spool))
            elif part.name in _TEXT_FIELDS and part.name not in upload.texts:
                text = bytearray()
            else:
                raise _form_error(
                    part.name[:100],
                    f"is unknown, or given twice; known: file, {', '.join(_TEXT_FIELDS)}",
                )
        elif isinstance(piece, PartData):
            if spool is not None:
                pending += piece.data
                if len(pending) >= _BATCH:
                    await run_in_threadpool(spool.write, bytes(pending))
                    pending.clear()
            elif text is not None:
                text += piece.data
                if len(text) > _MAX_FIELD:
                    raise _form_error(part.name, f"is longer than {_MAX_FIELD} bytes")
        elif isinstance(piece, PartEnd):
            if spool is not None:
                if pending:
                    await run_in_threadpool(spool.write, bytes(pending))
                    pending.clear()
                left -= spool.size
                spool.finish()
                spool = None
            elif text is not None:
                upload.texts[part.name] = _utf8(part.name, text)
                text = None
    if not upload.files:
        raise _form_error("file", "is missing")
    return upload


def _take_upload(
    context: Context, project: str, folder: Path, named: CalibrationFromUpload
) -> _Upload:
    """Take the archive from a completed upload."""
    settings = context.settings
    if len(named.labels) > settings.max_labels:
        raise _form_error("labels", f"must be at most {settings.max_labels} labels")
    held = held_upload(context, project, named.upload_id, "/upload_id")
    if held.size > settings.max_calibration_bytes + _MAX_OVERHEAD:
        raise ServiceError(
            "PAYLOAD_TOO_LARGE",
            f"the calibration data is larger than {settings.max_calibration_bytes} bytes",
            hint="GET /v1/limits lists every bound",
            details={"limit": settings.max_calibration_bytes},
        )
    upload = _Upload()
    upload.archive = held_file(context, held, folder).path
    if archive_kind(upload.archive) is None:
        detail = f"upload {held.id} is not an archive"
        raise ServiceError(
            "CALIBRATION_DATA_ERROR",
            detail,
            hint="pack the samples as .zip, .tar, .tar.gz or .tar.zst",
            errors=[FieldError("/upload_id", detail)],
        )
    upload.labels = named.labels
    upload.texts = {"name": named.name or held.name or "", "list": named.list}
    return upload


def _utf8(name: str, value: bytearray) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise _form_error(name, "is not UTF-8") from None


def _form_error(field: str, detail: str) -> ServiceError:
    return ServiceError(
        "ARGUMENT_ERROR",
        f"form field {field}: {detail}",
        errors=[FieldError(None, detail, parameter=field)],
    )


def _finish(context: Context, project: str, scratch: Path, upload: _Upload) -> Calibration:
    """Unpack, check, pack again in order, store and record."""
    settings = context.settings
    labels = upload.labels
    if labels is None:
        labels = check_labels(upload.texts.get("labels", ""), settings.max_labels)
    first_name = ""
    if upload.files:
        first_name = upload.files[0][0].replace("\\", "/").rsplit("/", 1)[-1]
    given = upload.texts.get("name") or first_name or "calibration"
    name = check_name(given)
    folder = scratch / "samples"
    folder.mkdir()
    archive = upload.archive
    if archive is None and len(upload.files) == 1 and not is_sample(first_name):
        # an .npz and a .pt are ZIP files too, and are samples
        path = upload.files[0][1].path
        archive = path if archive_kind(path) is not None else None
    files = _unpack(context, archive, folder) if archive is not None else _single(upload, folder)
    facts = pack_calibration(
        folder,
        files,
        upload.texts.get("list", ""),
        scratch=scratch,
        store=context.store,
        max_pixels=settings.max_image_pixels,
    )
    context.metrics.uploaded.labels("calibration").inc(facts.archive.size)
    return context.calibrations.add(
        NewCalibration(
            project=project,
            name=name,
            digest=facts.digest,
            archive=facts.archive,
            entry=facts.entry,
            sample_count=facts.sample_count,
            total_bytes=facts.total_bytes,
            shapes=facts.shapes,
            labels=labels,
        )
    )


def _unpack(context: Context, archive: Path, folder: Path) -> list[FileRef]:
    settings = context.settings
    limits = ArchiveLimits(
        entries=settings.max_archive_entries,
        unpacked_bytes=settings.max_unpacked_bytes,
        ratio=settings.max_unpack_ratio,
    )
    try:
        return unpack(archive, folder, limits)
    except ArchiveError as exc:
        raise ServiceError(
            "PAYLOAD_TOO_LARGE" if exc.too_large else "CALIBRATION_DATA_ERROR",
            str(exc),
            hint=exc.hint,
            errors=[FieldError(None, str(exc), parameter="file")],
        ) from exc


def _single(upload: _Upload, folder: Path) -> list[FileRef]:
    files: list[FileRef] = []
    seen: set[str] = set()
    for filename, spool in upload.files:
        name = filename.replace("\\", "/")
        try:
            target = inside(folder, name)
        except ValueError:
            raise _form_error("file", f"has the unsafe filename {name[:100]!r}") from None
        relative = target.relative_to(folder).as_posix()
        check_name(relative, "file")
        if relative.casefold() in seen:
            raise _form_error("file", f"has {relative[:100]!r} twice")
        seen.add(relative.casefold())
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            spool.path.rename(target)
        except OSError:
            raise _form_error("file", f"cannot be named {relative[:100]!r}") from None
        files.append(FileRef(relative, spool.sha256, spool.size))
    return files
