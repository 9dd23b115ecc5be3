"""Matrices: one model on several devices, schemes, presets and configurations, compared."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, HTTPException, Response
from pydantic import Field, StringConstraints
from starlette.concurrency import run_in_threadpool

from ..db import JobView, Matrix
from ..domain import (
    Artifact,
    ArtifactKind,
    CacheAnswer,
    CacheMode,
    ServiceError,
    State,
    canonical_digest,
)
from .body import StrictRoute
from .context import Builder, Context, Ctx, Principal, Reader
from .fields import Cursor, Limit, MatrixId
from .jobs import mend_answer, new_job
from .problems import problems
from .quotas import check_room
from .resolve import Resolved, refuse, resolve_job
from .schemas import ErrorOut, JobIn, Out, PageOut, TimingsOut
from .views import error_out, timings_out

__all__ = ["router"]

router = APIRouter(tags=["matrices"], route_class=StrictRoute)

_AXES = {
    "target_devices": "target_device",
    "inference_schemes": "inference_scheme",
    "config_presets": "config_preset",
    "compile_configs": "compile_config",
}
_Device = Annotated[str, StringConstraints(min_length=1, max_length=64)]
_Scheme = Annotated[str, StringConstraints(min_length=1, max_length=16)]
_MOST = 64


class MatrixIn(JobIn):
    """A job, with lists in place of single values: one job for each combination."""

    model_config = JobIn.model_config | {
        "json_schema_extra": {
            "examples": [
                {
                    "type": "compile",
                    "model_id": "mdl_01k2v7b0m8x9qj4t5w6y7z8a9b",
                    "calibration_id": "cal_01k2v7b0m8x9qj4t5w6y7z8a9b",
                    "target_devices": ["regulus-rb", "aries-rb"],
                    "config_presets": ["classification", "detection"],
                }
            ]
        }
    }

    target_devices: list[_Device] | None = Field(
        default=None, min_length=1, max_length=_MOST, description="In place of `target_device`."
    )
    inference_schemes: list[_Scheme] | None = Field(
        default=None, min_length=1, max_length=_MOST, description="In place of `inference_scheme`."
    )
    config_presets: list[_Device | None] | None = Field(
        default=None,
        min_length=1,
        max_length=_MOST,
        description="In place of `config_preset`; null is no preset.",
    )
    compile_configs: list[dict[str, Any] | None] | None = Field(
        default=None, min_length=1, max_length=_MOST, description="In place of `compile_config`."
    )
    skip_unsupported: bool = Field(
        default=False,
        description="Leave out schemes that a device does not have, instead of refusing them.",
    )


class CellOut(Out):
    """What one combination asked for."""

    target_device: str | None
    inference_scheme: str | None
    config_preset: str | None
    compile_config: dict[str, Any] | None


class SkippedOut(CellOut):
    """A combination that was left out."""

    reason: str = Field(examples=["aries-rb has no scheme 'turbo'"])


class FiguresOut(Out):
    """What a build came to; null where it says nothing of it."""

    sqnr_db: float | None = Field(
        description="Signal to quantization noise of the worst output.", examples=[34.2]
    )
    top1_agreement: float | None = Field(
        description="Share of validation samples whose largest output is the float model's, of the "
        "worst output.",
        examples=[0.99],
    )
    latency_ms: float | None = Field(
        description="Estimate for one inference, of the first scheme.", examples=[2.41]
    )
    package_bytes: int | None = Field(description="Size of the MXQ.", examples=[26_214_400])
    run_s: float | None = Field(description="How long the build took.", examples=[155.2])


class RowOut(CellOut):
    """One combination's job, and how it came out."""

    job_id: str
    build_id: str
    state: State
    cache: CacheAnswer
    timings: TimingsOut
    mxq_id: str | None = Field(
        description="The package's artifact id.", examples=["art_01k2v7b0m8x9qj4t5w6y7z8a9b"]
    )
    figures: FiguresOut | None = Field(description="Null until the job has succeeded.")
    error: ErrorOut | None


class MatrixSummary(Out):
    """A matrix."""

    id: str = Field(examples=["mtx_01k2v7b0m8x9qj4t5w6y7z8a9b"])
    name: str | None
    created_at: datetime


class MatrixOut(MatrixSummary):
    """A matrix, compared."""

    finished: bool = Field(description="Whether every job has ended.", examples=[True])
    counts: dict[State, int] = Field(examples=[{"succeeded": 1}])
    rows: list[RowOut] = Field(description="In the request's order: devices, schemes, presets …")
    best: dict[str, list[str]] = Field(
        description="For each figure the jobs that are best at it: the largest `sqnr_db` and "
        "`top1_agreement`, the smallest of the others.",
        examples=[{"sqnr_db": ["job_01k2v7b0m8x9qj4t5w6y7z8a9b"]}],
    )
    skipped: list[SkippedOut]


@router.post(
    "/v1/jobs/matrix",
    status_code=202,
    response_model=MatrixOut,
    responses=problems(400, 404, 413, 422),
    summary="Submit a matrix of jobs",
    operation_id="create_matrix",
)
async def create_matrix(
    response: Response,
    context: Ctx,
    principal: Builder,
    body: MatrixIn,
    idempotency_key: Annotated[
        Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,255}$")] | None,
        Header(description="As for a single job."),
    ] = None,
) -> MatrixOut:
    """Submit a job for each combination of devices, schemes, presets and configurations.

    All of them are made, or none: each combination is checked first. Those on the same model and
    data take calibration statistics over from each other where their settings allow.
    """
    found, replayed = await run_in_threadpool(_submit, context, principal, body, idempotency_key)
    response.headers["Location"] = f"/v1/matrices/{found.id}"
    if replayed:
        response.headers["Idempotency-Replayed"] = "true"
    return found


@router.get("/v1/jobs/matrix", include_in_schema=False)
def no_job() -> None:
    """Keep ``GET`` of that path from being taken for a job's."""
    raise HTTPException(405, headers={"Allow": "POST"})


@router.get(
    "/v1/matrices",
    response_model=PageOut[MatrixSummary],
    responses=problems(422),
    summary="List matrices",
    operation_id="list_matrices",
)
def list_matrices(
    context: Ctx, principal: Reader, limit: Limit = 50, cursor: Cursor = None
) -> PageOut[MatrixSummary]:
    """List the project's matrices, newest first."""
    page = context.matrices.page(principal.project, limit=limit, cursor=cursor)
    return PageOut(
        items=[MatrixSummary(id=m.id, name=m.name, created_at=m.created_at) for m in page.items],
        next_cursor=page.next_cursor,
    )


@router.get(
    "/v1/matrices/{matrix_id}",
    response_model=MatrixOut,
    responses=problems(404, 422),
    summary="Compare a matrix's jobs",
    operation_id="get_matrix",
)
def get_matrix(context: Ctx, principal: Reader, matrix_id: MatrixId) -> MatrixOut:
    """Compare the jobs of a matrix: states, accuracy, estimates, sizes, and the best of each."""
    return _show(context, principal, matrix_id)


def _submit(
    context: Context, principal: Principal, body: MatrixIn, idempotency_key: str | None
) -> tuple[MatrixOut, bool]:
    if body.validate_only:
        raise refuse("/validate_only", "a matrix is checked when it is submitted")
    request = body.model_dump(mode="json", exclude_unset=True)
    cells = _cells(body, request, context.settings.max_matrix_jobs)
    jobs: list[tuple[JobIn, Resolved]] = []
    skipped: list[dict[str, Any]] = []
    for cell, places in cells:
        job = JobIn.model_validate({**_common(request), **cell})
        try:
            jobs.append((job, resolve_job(context, principal.project, job)))
        except ServiceError as exc:
            if body.skip_unsupported and exc.code == "DEVICE_SCHEME_ERROR":
                skipped.append({**_cell(cell, body), "reason": exc.detail})
                continue
            raise _in_list(exc, places) from exc
    if not jobs:
        raise refuse("/inference_schemes", "no device has any of the schemes")
    check_room(context, principal.project)
    if body.cache is CacheMode.ON:
        for _, resolved in jobs:
            mend_answer(context, principal.project, resolved)
    made, replayed = context.matrices.submit(
        principal.project,
        request,
        [new_job(context, principal.project, job, resolved) for job, resolved in jobs],
        skipped,
        name=body.name,
        idempotency_key=idempotency_key,
        # not that of a single job with the same body
        request_digest=canonical_digest({"matrix": request}),
        idempotency_hours=context.settings.idempotency_hours,
    )
    if not replayed:
        context.pump.kick()
    return _show(context, principal, made.id), replayed


def _common(request: Mapping[str, Any]) -> dict[str, Any]:
    own = {*_AXES, "skip_unsupported"}
    return {name: value for name, value in request.items() if name not in own}


def _cell(cell: Mapping[str, Any], body: JobIn) -> dict[str, Any]:
    return {name: cell.get(name, getattr(body, name)) for name in _AXES.values()}


def _cells(
    body: MatrixIn, request: Mapping[str, Any], most: int
) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Return each combination, and for each field the pointer to where its value stands."""
    axes: list[list[tuple[str, Any, str]]] = []
    for many, one in _AXES.items():
        values = request.get(many)
        if values is None:
            continue
        if getattr(body, one) is not None:
            raise refuse(f"/{many}", f"give {one} or {many}, not both")
        if len({canonical_digest([v]) for v in values}) != len(values):
            raise refuse(f"/{many}", "the same value twice")
        axes.append([(one, value, f"/{many}/{i}") for i, value in enumerate(values)])
    if not axes:
        raise refuse("/target_devices", "a matrix needs at least one list", hint=_HINT)
    count = 1
    for axis in axes:
        count *= len(axis)
    if count > most:
        raise refuse("", f"{count} combinations; at most {most}", hint="send several matrices")
    return [
        (
            {one: value for one, value, _ in combination},
            {f"/{one}": pointer for one, _, pointer in combination},
        )
        for combination in itertools.product(*axes)
    ]


_HINT = f"lists: {', '.join(_AXES)}; POST /v1/jobs takes a single job"


def _in_list(exc: ServiceError, places: Mapping[str, str]) -> ServiceError:
    """Say where in the lists the field that was refused stands."""
    for error in exc.errors:
        for pointer, place in places.items():
            if error.pointer is not None and (
                error.pointer == pointer or error.pointer.startswith(f"{pointer}/")
            ):
                moved = place + error.pointer.removeprefix(pointer)
                return refuse(
                    moved, error.detail, code=exc.code, hint=exc.hint, nearest=error.nearest
                )
    return exc


def _show(context: Context, principal: Principal, matrix_id: str) -> MatrixOut:
    found = context.matrices.get(principal.project, matrix_id)
    if found is None:
        raise ServiceError("NOT_FOUND", f"there is no matrix {matrix_id!r}")
    matrix, views = found
    made = context.artifacts.of_builds(sorted({v.build.id for v in views}))
    rows = [_row(view, made[view.build.id]) for view in views]
    counts: dict[State, int] = {}
    for row in rows:
        counts[row.state] = counts.get(row.state, 0) + 1
    return MatrixOut(
        **_summary(matrix),
        finished=all(v.job.is_terminal for v in views),
        counts=counts,
        rows=rows,
        best=_best(rows),
        skipped=[SkippedOut(**s) for s in matrix.skipped],
    )


def _summary(matrix: Matrix) -> dict[str, Any]:
    return {"id": matrix.id, "name": matrix.name, "created_at": matrix.created_at}


def _row(view: JobView, artifacts: Sequence[Artifact]) -> RowOut:
    job, spec = view.job, view.build.spec
    mxq = next((a for a in artifacts if a.kind is ArtifactKind.MXQ), None)
    timings = timings_out(view)
    succeeded = job.state is State.SUCCEEDED
    return RowOut(
        target_device=spec.target_device,
        inference_scheme=spec.inference_scheme,
        config_preset=spec.config_preset,
        compile_config=job.request.get("compile_config"),
        job_id=job.id,
        build_id=view.build.id,
        state=job.state,
        cache=job.cache,
        timings=timings,
        mxq_id=mxq.id if succeeded and mxq is not None else None,
        figures=_figures(view, mxq) if succeeded else None,
        error=error_out(job.failure),
    )


def _figures(view: JobView, mxq: Artifact | None) -> FiguresOut:
    # an engine of someone else's may say anything
    summary: Any = view.build.summary or {}
    accuracy = summary.get("accuracy")
    outputs = accuracy.get("outputs") if isinstance(accuracy, dict) else None
    outputs = [o for o in outputs if isinstance(o, dict)] if isinstance(outputs, list) else []

    def worst(name: str) -> float | None:
        found = [o[name] for o in outputs if _is_number(o.get(name))]
        return min(found) if found else None

    estimate = summary.get("estimate")
    schemes = estimate.get("schemes") if isinstance(estimate, dict) else None
    first = schemes[0] if isinstance(schemes, list) and schemes else None
    latency = first.get("latency_ms") if isinstance(first, dict) else None
    build = view.build
    run = (
        None
        if build.started_at is None or build.finished_at is None
        else (build.finished_at - build.started_at).total_seconds()
    )
    return FiguresOut(
        sqnr_db=worst("sqnr_db"),
        top1_agreement=worst("top1_agreement"),
        latency_ms=latency if _is_number(latency) else None,
        package_bytes=None if mxq is None else mxq.size,
        run_s=None if run is None else round(run, 3),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _best(rows: Sequence[RowOut]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in FiguresOut.model_fields:
        values = {
            row.job_id: value
            for row in rows
            if row.figures is not None and (value := getattr(row.figures, name)) is not None
        }
        if values:
            choose = max if name in ("sqnr_db", "top1_agreement") else min
            best = choose(values.values())
            found[name] = [job_id for job_id, value in values.items() if value == best]
    return found
