"""Models: upload, list, show, delete."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import StringConstraints
from starlette.concurrency import run_in_threadpool

from ..db import NewModel
from ..domain import FieldError, FileRef, Model, ServiceError
from ..intake import ModelFacts, NotAModel, read_model
from ..storage import Spool
from .body import StrictRoute, check_length
from .context import Builder, Context, Ctx, Reader
from .fields import (
    Cursor,
    LabelFilter,
    Limit,
    ModelId,
    Name,
    check_labels,
    check_name,
    check_revision,
    file_name,
    label_filter,
)
from .from_upload import HeldFile, held_file, held_upload, is_json, json_content, read_json
from .multipart import PartBegin, PartData, PartEnd, read_multipart
from .problems import problems
from .quotas import ROOM
from .schemas import ModelOut, PageOut
from .scratch import request_scratch
from .upload_schemas import ModelFromUpload
from .views import model_out

__all__ = ["router"]

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=StrictRoute)

_MAX_FIELD = 64 << 10
# boundaries, part headers and fields
_MAX_OVERHEAD = 1 << 20
_MAX_EXTERNAL = 1000
# what is hashed and written in one visit to a thread
_BATCH = 4 << 20

_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            **json_content(ModelFromUpload),
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {
                            "type": "string",
                            "format": "binary",
                            "description": "The model: an ONNX file, or an MBLT.",
                        },
                        "external_data": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "description": "Files with weights that the ONNX file names; each "
                            "part's filename is the location that it names.",
                        },
                        "name": {"type": "string", "maxLength": 255},
                        "backend": {"type": "string", "enum": ["onnx"], "default": "onnx"},
                        "source_revision": {"type": "string", "maxLength": 255},
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

_RAW: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post(
    "",
    status_code=201,
    response_model=ModelOut,
    responses=problems(400, 404, 409, 413, 415, 422, 507),
    openapi_extra=_FORM,
    summary="Upload a model",
    operation_id="create_model",
    dependencies=[ROOM],
)
async def create_model(
    request: Request, response: Response, context: Ctx, principal: Builder
) -> ModelOut:
    """Upload an ONNX model (or an MBLT) as `multipart/form-data`.

    It is written to the store while it arrives; its inputs and outputs are read from it. Large
    files come better as uploads, whose ids then are sent as JSON.
    """
    named = None
    if is_json(request):
        named = await read_json(request, ModelFromUpload, context.settings.max_json_depth)
    else:
        check_length(request, context.settings.max_model_bytes + _MAX_OVERHEAD, "the model")
    async with AsyncExitStack() as stack:
        form = _Form(await stack.enter_async_context(request_scratch(context, "the model")))
        if named is not None:
            await run_in_threadpool(_take_uploads, context, principal.project, form, named)
        else:
            await _read_form(request, context, stack, form)
        model = await run_in_threadpool(_finish, context, principal.project, form)
    response.headers["Location"] = f"/v1/models/{model.id}"
    return model_out(model)


@router.put(
    "",
    status_code=201,
    response_model=ModelOut,
    responses=problems(400, 413, 415, 422, 507),
    openapi_extra=_RAW,
    summary="Upload a model as the body",
    operation_id="put_model",
    dependencies=[ROOM],
)
async def put_model(
    request: Request,
    response: Response,
    context: Ctx,
    principal: Builder,
    name: Annotated[Name, Query(description="Its file name.", examples=["resnet50.onnx"])],
    source_revision: Annotated[
        str, Query(max_length=255, description="Revision of its source.")
    ] = "",
    labels: Annotated[
        str, Query(max_length=4096, description="Labels, a JSON object of strings.")
    ] = "",
) -> ModelOut:
    """Upload a model with `curl -T model.onnx 'http://…/v1/models?name=model.onnx'`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.startswith("multipart/"):
        raise ServiceError(
            "UNSUPPORTED_MEDIA_TYPE",
            "PUT takes the bare file as its body",
            hint="use POST for multipart/form-data",
        )
    check_length(request, context.settings.max_model_bytes, "the model")
    async with AsyncExitStack() as stack:
        form = _Form(await stack.enter_async_context(request_scratch(context, "the model")))
        form.name = name
        form.revision = check_revision(source_revision)
        form.labels = check_labels(labels, context.settings.max_labels)
        form.main = spool = stack.enter_context(_spool(form, context.settings.max_model_bytes))
        form.main_name = file_name(name, "model.onnx")
        await _fill(spool, request.stream())
        model = await run_in_threadpool(_finish, context, principal.project, form)
    response.headers["Location"] = f"/v1/models/{model.id}"
    return model_out(model)


@router.get(
    "",
    response_model=PageOut[ModelOut],
    responses=problems(422),
    summary="List models",
    operation_id="list_models",
)
def list_models(
    context: Ctx,
    principal: Reader,
    limit: Limit = 50,
    cursor: Cursor = None,
    name: Annotated[Name | None, Query(description="Only with this name.")] = None,
    digest: Annotated[
        Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")] | None,
        Query(description="Only with this SHA-256."),
    ] = None,
    label: LabelFilter = [],  # noqa: B006 (FastAPI copies it)
) -> PageOut[ModelOut]:
    """List the project's models, newest first."""
    page = context.models.page(
        principal.project,
        limit=limit,
        cursor=cursor,
        name=name,
        digest=digest,
        labels=label_filter(label),
    )
    return PageOut(items=[model_out(m) for m in page.items], next_cursor=page.next_cursor)


@router.get(
    "/{model_id}",
    response_model=ModelOut,
    responses=problems(404, 422),
    summary="Show a model",
    operation_id="get_model",
)
def get_model(context: Ctx, principal: Reader, model_id: ModelId) -> ModelOut:
    """Show a model."""
    model = context.models.get(principal.project, model_id)
    if model is None:
        raise ServiceError("NOT_FOUND", f"there is no model {model_id!r}")
    return model_out(model)


@router.delete(
    "/{model_id}",
    status_code=204,
    responses=problems(404, 409, 422),
    summary="Delete a model",
    operation_id="delete_model",
)
def delete_model(context: Ctx, principal: Builder, model_id: ModelId) -> None:
    """Delete a model. Refused while a job that has not ended uses it; what was built stays."""
    context.models.delete(principal.project, model_id)


class _Form:
    """What an upload said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.main: Spool | HeldFile | None = None
        self.main_name = "model.onnx"
        self.name: str | None = None
        self.revision: str | None = None
        self.labels: dict[str, str] = {}
        self.external: dict[str, Spool | HeldFile] = {}


def _spool(form: _Form, limit: int) -> Spool:
    return Spool(form.folder, limit=limit, what="the model")


async def _read_form(
    request: Request, context: Context, stack: AsyncExitStack, form: _Form
) -> None:
    texts: dict[str, str] = {}
    left = context.settings.max_model_bytes
    spool: Spool | None = None
    text: bytearray | None = None
    part = PartBegin("", None)
    pending = bytearray()
    async for piece in read_multipart(request):
        if isinstance(piece, PartBegin):
            part = piece
            if part.name in ("file", "external_data"):
                spool = stack.enter_context(_spool(form, left))
                _place(form, part, spool)
            elif part.name in _TEXT_FIELDS:
                text = bytearray()
                if part.name in texts:
                    raise _form_error(part.name, "is given twice")
            else:
                raise _form_error(
                    part.name[:100], f"is unknown; known: file, {', '.join(_TEXT_FIELDS)}"
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
                await run_in_threadpool(spool.write, bytes(pending))
                pending.clear()
                left -= spool.size
                spool = None
            elif text is not None:
                texts[part.name] = _utf8(part.name, text)
                text = None
    for name, value in texts.items():
        _TEXT_FIELDS[name](form, value, context)
    if form.main is None:
        raise _form_error("file", "is missing")


def _place(form: _Form, part: PartBegin, spool: Spool) -> None:
    if part.name == "file":
        if form.main is not None:
            raise _form_error("file", "is given twice; weights in other files are external_data")
        form.main = spool
        form.main_name = file_name(part.filename, "model.onnx")
        return
    form.external[_location(form, part.filename or "")] = spool


def _location(form: _Form, given: str) -> str:
    """Return the location of an external file in its plainest form."""
    location = given.replace("\\", "/")
    pure = PurePosixPath(location)
    if not pure.parts or pure.is_absolute() or ".." in pure.parts:
        raise _form_error("external_data", f"has the unsafe filename {location[:100]!r}")
    name = pure.as_posix()
    check_name(name, "external_data")
    if name in form.external or len(form.external) >= _MAX_EXTERNAL:
        raise _form_error("external_data", f"has {name[:100]!r} twice, or too many files")
    return name


def _utf8(name: str, value: bytearray) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise _form_error(name, "is not UTF-8") from None


def _set_name(form: _Form, value: str, context: Context) -> None:
    form.name = check_name(value) if value else None


def _set_backend(form: _Form, value: str, context: Context) -> None:
    if value not in ("", "onnx"):
        raise _form_error("backend", f"{value[:50]!r} is not available; onnx is")


def _set_revision(form: _Form, value: str, context: Context) -> None:
    form.revision = check_revision(value)


def _set_labels(form: _Form, value: str, context: Context) -> None:
    form.labels = check_labels(value, context.settings.max_labels)


_TEXT_FIELDS: dict[str, Callable[[_Form, str, Context], None]] = {
    "name": _set_name,
    "backend": _set_backend,
    "source_revision": _set_revision,
    "labels": _set_labels,
}


def _form_error(field: str, detail: str) -> ServiceError:
    return ServiceError(
        "ARGUMENT_ERROR",
        f"form field {field}: {detail}",
        errors=[FieldError(None, detail, parameter=field)],
    )


async def _fill(spool: Spool, chunks: AsyncIterator[bytes]) -> None:
    pending = bytearray()
    async for chunk in chunks:
        pending += chunk
        if len(pending) >= _BATCH:
            await run_in_threadpool(spool.write, bytes(pending))
            pending.clear()
    await run_in_threadpool(spool.write, bytes(pending))


def _finish(context: Context, project: str, form: _Form) -> Model:
    """Read the model, store its files and record it."""
    assert form.main is not None
    try:
        kind, facts = read_model(form.main.path)
    except NotAModel as exc:
        raise ServiceError(
            "MODEL_LOAD_ERROR",
            str(exc),
            hint=exc.hint,
            errors=[FieldError(None, str(exc), parameter="file")],
        ) from exc
    _check_external(form, facts)
    files = [_stored(context, form.main_name, form.main)]
    files += [_stored(context, name, spool) for name, spool in sorted(form.external.items())]
    context.metrics.uploaded.labels("model").inc(sum(f.size for f in files))
    return context.models.add(
        NewModel(
            project=project,
            name=form.name or form.main_name,
            format=kind,
            files=tuple(files),
            inputs=facts.inputs,
            outputs=facts.outputs,
            facts=facts.facts,
            source_revision=form.revision,
            labels=form.labels,
        )
    )


def _stored(context: Context, name: str, file: Spool | HeldFile) -> FileRef:
    size = file.size
    return FileRef(name, file.store(context.store), size)


def _take_uploads(context: Context, project: str, form: _Form, named: ModelFromUpload) -> None:
    """Take a model's files from completed uploads."""
    settings = context.settings
    if len(named.labels) > settings.max_labels:
        raise _form_error("labels", f"must be at most {settings.max_labels} labels")
    upload = held_upload(context, project, named.upload_id, "/upload_id")
    form.main_name = file_name(named.name or upload.name, "model.onnx")
    form.name, form.revision, form.labels = named.name, named.source_revision, named.labels
    form.main = held_file(context, upload, form.folder)
    total = upload.size
    for location, upload_id in named.external_data.items():
        at = f"/external_data/{location.replace('~', '~0').replace('/', '~1')}"
        upload = held_upload(context, project, upload_id, at)
        file = held_file(context, upload, form.folder, needed=False)
        form.external[_location(form, location)] = file
        total += upload.size
    if total > settings.max_model_bytes:
        raise ServiceError(
            "PAYLOAD_TOO_LARGE",
            f"the model is larger than {settings.max_model_bytes} bytes",
            hint="GET /v1/limits lists every bound",
            details={"limit": settings.max_model_bytes},
        )


def _check_external(form: _Form, facts: ModelFacts) -> None:
    wanted = {PurePosixPath(name.replace("\\", "/")).as_posix() for name in facts.external_files}
    unsafe = [n for n in wanted if n.startswith("/") or ".." in PurePosixPath(n).parts or n == "."]
    if unsafe:
        raise ServiceError(
            "MODEL_LOAD_ERROR",
            f"the model names the external file {unsafe[0][:200]!r}, outside its folder",
            hint="save the model with external data beside it",
        )
    missing = sorted(wanted - form.external.keys())
    if missing:
        raise ServiceError(
            "MODEL_LOAD_ERROR",
            f"the model keeps weights in {', '.join(missing[:5])[:400]}, which "
            f"{'is' if len(missing) == 1 else 'are'} not in the upload",
            hint="add -F 'external_data=@FILE' for each, or save the model as one file",
            details={"missing": missing[:100]},
        )
    surplus = sorted(form.external.keys() - wanted)
    if surplus:
        raise ServiceError(
            "MODEL_LOAD_ERROR",
            f"the model does not use {surplus[0][:200]!r}",
            hint="the filename of an external_data part is the location in the model",
        )
    if form.main_name in form.external:
        raise _form_error("external_data", "has the model's own name")
