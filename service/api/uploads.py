"""Large files: announced by size and digest, sent in parts, checked, and then used by their id."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from starlette.concurrency import run_in_threadpool

from ..domain import IdKind, ServiceError, Upload, UploadState, id_pattern
from ..storage import Heartbeat, StorageError
from .body import StrictRoute, check_length
from .context import Builder, Context, Ctx, Reader
from .fields import Cursor, Limit
from .from_upload import no_upload
from .problems import problems
from .quotas import ROOM
from .schemas import PageOut
from .scratch import request_scratch
from .upload_schemas import PartOut, PartsIn, PartsOut, PartTarget, UploadIn, UploadOut

__all__ = ["router"]

_log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/uploads", tags=["uploads"], route_class=StrictRoute)

# what is written in one visit to a thread
_BATCH = 4 << 20
# an archive is longer than its samples
_ARCHIVE_OVERHEAD = 64 << 20

UploadId = Annotated[str, Path(pattern=id_pattern(IdKind.UPLOAD), description="An upload's id.")]
PartNumber = Annotated[int, Path(ge=1, le=10_000, description="A part's number, from 1.")]


@router.post(
    "",
    status_code=201,
    response_model=UploadOut,
    responses={
        200: {"model": UploadOut, "description": "The bytes, or the open upload, are there."},
        **problems(400, 413, 422, 507),
    },
    summary="Announce a large file",
    operation_id="create_upload",
    dependencies=[ROOM],
)
def create_upload(
    response: Response, context: Ctx, principal: Builder, body: UploadIn
) -> UploadOut:
    """Say size and SHA-256 of a file before sending it.

    Where the project has these bytes already, `already_present` is true, the upload is complete,
    and nothing is to be sent. Where they are on their way, the open upload is answered: send the
    parts that it lacks.
    """
    settings = context.settings
    limit = max(settings.max_model_bytes, settings.max_calibration_bytes + _ARCHIVE_OVERHEAD)
    if body.size > limit:
        raise ServiceError(
            "PAYLOAD_TOO_LARGE",
            f"the file is larger than {limit} bytes",
            hint="GET /v1/limits lists every bound",
            details={"limit": limit},
        )
    # what is found now must be there when the upload is used
    context.holds.hold(body.sha256)
    present = (
        context.uploads.knows(principal.project, body.sha256, body.size)
        and context.store.size(body.sha256) == body.size
    )
    upload, new = context.uploads.announce(
        principal.project,
        name=body.name,
        size=body.size,
        sha256=body.sha256,
        present=present,
        part_bytes=settings.upload_part_bytes,
        expires_s=settings.upload_hours * 3600,
        most_open=settings.max_open_uploads,
    )
    if upload.state is UploadState.OPEN and upload.staging is None:
        upload = _stage(context, upload)
    response.status_code = 201 if new else 200
    response.headers["Location"] = f"/v1/uploads/{upload.id}"
    return _shown(context, upload)


@router.get(
    "",
    response_model=PageOut[UploadOut],
    responses=problems(422),
    summary="List uploads",
    operation_id="list_uploads",
)
def list_uploads(
    context: Ctx, principal: Reader, limit: Limit = 50, cursor: Cursor = None
) -> PageOut[UploadOut]:
    """List the project's uploads that have not expired, newest first, without their parts."""
    page = context.uploads.page(principal.project, limit=limit, cursor=cursor)
    return PageOut(items=[_out(u, None) for u in page.items], next_cursor=page.next_cursor)


@router.get(
    "/{upload_id}",
    response_model=UploadOut,
    responses=problems(404, 422),
    summary="Show an upload",
    operation_id="get_upload",
)
def get_upload(context: Ctx, principal: Reader, upload_id: UploadId) -> UploadOut:
    """Show an upload with the parts that are held: a client that died goes on with the others."""
    return _shown(context, _find(context, principal.project, upload_id))


@router.post(
    "/{upload_id}/parts",
    response_model=PartsOut,
    responses=problems(400, 404, 409, 413, 422),
    summary="Ask where parts go",
    operation_id="sign_parts",
)
def sign_parts(context: Ctx, principal: Builder, upload_id: UploadId, body: PartsIn) -> PartsOut:
    """Say where to PUT parts: URLs of the bucket, signed for a while, or of this server.

    A URL with `signed: true` wants no token; send none. Each wants exactly `size` bytes.
    """
    upload = _open_one(context, principal.project, upload_id)
    seconds = context.settings.s3_presign_seconds
    targets = []
    for number in body.numbers:
        _check_number(upload, number)
        url = context.staging.part_url(upload, number, seconds)
        targets.append(
            PartTarget(
                number=number,
                offset=(number - 1) * upload.part_size,
                size=upload.size_of(number),
                url=url or f"/v1/uploads/{upload.id}/parts/{number}",
                signed=url is not None,
                expires_in=None if url is None else seconds,
            )
        )
    return PartsOut(items=targets)


@router.put(
    "/{upload_id}/parts/{number}",
    response_model=PartOut,
    responses=problems(404, 409, 413, 422, 507),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
            },
        }
    },
    summary="Send a part",
    operation_id="put_part",
)
async def put_part(
    request: Request, context: Ctx, principal: Builder, upload_id: UploadId, number: PartNumber
) -> PartOut:
    """Send one part through the server. It is held when this is answered, also after a crash."""
    upload = await run_in_threadpool(_open_one, context, principal.project, upload_id)
    _check_number(upload, number)
    size = upload.size_of(number)
    check_length(request, size, f"part {number}")
    async with request_scratch(context, "the part") as folder:
        opened = context.staging.part_writer(upload, number, folder)
        writer = await run_in_threadpool(opened.__enter__)
        try:
            # only now: nobody else writes the part, and what it held is about to change
            if not await run_in_threadpool(context.uploads.drop_part, upload.id, number):
                raise _closed(upload)
            pending = bytearray()
            async for chunk in request.stream():
                pending += chunk
                if len(pending) >= _BATCH:
                    await run_in_threadpool(writer.write, pending)
                    pending = bytearray()
            await run_in_threadpool(writer.write, pending)
            await run_in_threadpool(writer.finish)
            mark = await run_in_threadpool(context.uploads.hold_part, upload.id, number, size)
            if mark is None:
                raise _closed(upload)
        finally:
            # closing a file does not block; a cancelled request must not skip it
            opened.__exit__(None, None, None)
    context.hashing.submit(context.staging.landed, upload, number, mark)
    return PartOut(number=number, size=size)


@router.post(
    "/{upload_id}/complete",
    response_model=UploadOut,
    responses=problems(404, 409, 422),
    summary="Complete an upload",
    operation_id="complete_upload",
)
def complete_upload(context: Ctx, principal: Builder, upload_id: UploadId) -> UploadOut:
    """Join the parts and check the digest; then models and calibration sets can be made of it.

    Ask again after a lost answer: the upload is then complete, or being checked (409, retryable).
    A digest that is not the announced one ends the upload (422, `DIGEST_MISMATCH`).
    """
    taken = context.uploads.begin_finish(principal.project, upload_id)
    if taken is None:
        raise no_upload(upload_id)
    upload, finisher = taken
    if upload.state is UploadState.FAILED:
        raise _mismatch(upload, None)
    if not finisher:
        return _shown(context, upload)
    try:
        digest = _join(context, upload, finisher)
    except BaseException:
        context.uploads.end_finish(upload.id, finisher, UploadState.OPEN)
        raise
    right = digest == upload.sha256
    state = UploadState.COMPLETE if right else UploadState.FAILED
    kept = context.settings.upload_hours * 3600
    if not context.uploads.end_finish(upload.id, finisher, state, kept):
        raise _taken_over(upload)
    try:
        context.staging.discard(upload)
    except StorageError as exc:
        # when its time is over it is tried again
        _log.warning("cannot clear upload %s away: %s", upload.id, exc)
    if not right:
        raise _mismatch(upload, digest)
    context.metrics.uploaded.labels("upload").inc(upload.size)
    return _shown(context, _find(context, principal.project, upload_id))


@router.delete(
    "/{upload_id}",
    status_code=204,
    responses=problems(404, 409, 422),
    summary="Give an upload up",
    operation_id="delete_upload",
)
def delete_upload(context: Ctx, principal: Builder, upload_id: UploadId) -> None:
    """Forget an upload and the parts that are held. What was made of it stays."""
    upload = context.uploads.give_up(principal.project, upload_id)
    if upload is None:
        raise no_upload(upload_id)
    context.staging.discard(upload)
    context.uploads.forget(upload.id)


def _stage(context: Context, upload: Upload) -> Upload:
    name = context.staging.begin(upload)
    if name is None:
        return upload
    first = context.uploads.stage(upload.id, name)
    if first != name:
        # another request was quicker; nobody will ever send to this one
        context.staging.discard(replace(upload, staging=name))
    return replace(upload, staging=first)


def _join(context: Context, upload: Upload, finisher: str) -> str:
    held = context.staging.held(upload)
    missing = upload.missing(held)
    if missing and not context.staging.joined(upload):
        raise ServiceError(
            "CONFLICT",
            f"{len(missing)} of {upload.part_count} parts are missing, first part {missing[0]}",
            hint="GET /v1/uploads/{id} lists the parts held; send the others",
            details={"missing": missing[:1000]},
            retryable=False,
        )

    def renew() -> None:
        if not context.uploads.renew_finish(upload.id, finisher):
            raise _taken_over(upload)

    return context.staging.finish(upload, Heartbeat(renew))


def _find(context: Context, project: str, upload_id: str) -> Upload:
    upload = context.uploads.get(project, upload_id)
    if upload is None:
        raise no_upload(upload_id)
    return upload


def _open_one(context: Context, project: str, upload_id: str) -> Upload:
    upload = _find(context, project, upload_id)
    if upload.state is not UploadState.OPEN:
        raise _closed(upload)
    return upload


def _check_number(upload: Upload, number: int) -> None:
    if number > upload.part_count:
        raise ServiceError(
            "ARGUMENT_ERROR",
            f"there is no part {number}; the upload has {upload.part_count}",
            hint="parts are counted from 1; each but the last has part_size bytes",
        )


def _closed(upload: Upload) -> ServiceError:
    return ServiceError(
        "CONFLICT",
        f"upload {upload.id} takes no more parts",
        hint="GET /v1/uploads/{id} tells its state",
        retryable=False,
    )


def _taken_over(upload: Upload) -> ServiceError:
    return ServiceError(
        "CONFLICT",
        f"the check of upload {upload.id} took too long and was given up",
        hint="complete it again",
        retryable=True,
        retry_after_s=1,
    )


def _mismatch(upload: Upload, found: str | None) -> ServiceError:
    what = "other bytes were sent" if found is None else f"the bytes sent have {found}"
    return ServiceError(
        "DIGEST_MISMATCH",
        f"upload {upload.id} was announced with SHA-256 {upload.sha256}; {what}",
        hint="announce the file again, and send it while nothing writes to it",
        details={"announced": upload.sha256, "found": found},
        retryable=False,
    )


def _shown(context: Context, upload: Upload) -> UploadOut:
    if upload.state is UploadState.OPEN:
        return _out(upload, context.staging.held(upload))
    return _out(upload, {})


def _out(upload: Upload, held: Mapping[int, int] | None) -> UploadOut:
    parts = None
    if held is not None:
        parts = [
            PartOut(number=number, size=size)
            for number, size in sorted(held.items())
            if number <= upload.part_count and size == upload.size_of(number)
        ]
    return UploadOut(
        id=upload.id,
        name=upload.name,
        size=upload.size,
        sha256=upload.sha256,
        state=upload.state,
        part_size=upload.part_size,
        part_count=upload.part_count,
        already_present=upload.already_present,
        parts=parts,
        created_at=upload.created_at,
        expires_at=upload.expires_at,
        finished_at=upload.finished_at,
    )
