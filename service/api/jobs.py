"""Jobs: submit, list, show, cancel, retry."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import StringConstraints, ValidationError
from starlette.concurrency import run_in_threadpool

from .. import tracing
from ..db import JobFilter, JobView, NewJob, Submission
from ..domain import (
    CacheAnswer,
    CacheMode,
    FieldError,
    IdKind,
    Job,
    JobKind,
    ServiceError,
    State,
    build_key,
    canonical_digest,
    id_pattern,
)
from .body import StrictRoute
from .context import Builder, Context, Ctx, Principal, Reader
from .fields import Cursor, JobId, LabelFilter, Limit, Time, in_range, label_filter
from .problems import problems
from .quotas import check_room
from .resolve import Resolved, resolve_job
from .schemas import JobDetail, JobIn, JobOut, PageOut, ValidationOut
from .views import job_detail, job_out

__all__ = ["ACCEPTED", "find_job", "mend_answer", "new_job", "request_again", "router", "submit"]

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=StrictRoute)

_log = logging.getLogger(__name__)

_RETRYABLE = (State.FAILED, State.CANCELLED, State.TIMED_OUT)

ACCEPTED: dict[str, Any] = {
    "description": "The job is made; `cache` says how it is answered.",
    "model": JobOut,
    "headers": {
        "Location": {"description": "The job.", "schema": {"type": "string"}},
        "Retry-After": {
            "description": "Seconds until it is worth asking how the job stands.",
            "schema": {"type": "integer"},
        },
    },
}


@router.post(
    "",
    status_code=202,
    response_model=None,
    responses={
        200: {"model": ValidationOut, "description": "With `validate_only`: what would happen."},
        202: ACCEPTED,
        **problems(400, 404, 413, 422),
    },
    summary="Submit a job",
    operation_id="create_job",
)
async def create_job(
    context: Ctx,
    principal: Builder,
    body: JobIn,
    idempotency_key: Annotated[
        Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,255}$")] | None,
        Header(
            description="A key of your choice. The same key and body answer with the same job; "
            "the same key with another body is refused."
        ),
    ] = None,
) -> Response:
    """Submit a compile, parse or quantize job.

    Everything that can be refused is refused now: an unknown device, scheme, preset or
    configuration key, missing calibration data. An identical request is answered from a finished
    build (`cache: hit`), or shares a running one (`joined`).
    """
    return await run_in_threadpool(submit, context, principal, body, idempotency_key)


def submit(
    context: Context,
    principal: Principal,
    body: JobIn,
    idempotency_key: str | None,
    retry_of: str | None = None,
    compare: str | None = None,
) -> Response:
    """Submit a checked request.

    Args:
        context, principal: the parts, and who asks.
        body: the request.
        idempotency_key: of the caller, or None.
        retry_of: the job that this one repeats.
        compare: the build whose bytes the new one is compared with; by default the one that
            would have answered.
    """
    request = body.model_dump(mode="json", exclude_unset=True)
    digest = canonical_digest(request)
    if idempotency_key is not None and not body.validate_only:
        replayed = context.jobs.replay(principal.project, idempotency_key, digest)
        if replayed is not None:
            return _accepted(context, replayed)
    resolved = resolve_job(context, principal.project, body)
    if body.validate_only:
        return _json(200, _validation(context, principal.project, resolved))
    check_room(context, principal.project)
    if body.cache is CacheMode.ON:
        mend_answer(context, principal.project, resolved)
    submission = context.jobs.submit(
        replace(
            new_job(context, principal.project, body, resolved),
            retry_of=retry_of,
            compare_with=compare,
            idempotency_key=idempotency_key,
            request_digest=digest,
        )
    )
    context.pump.kick()
    _log.info(
        "job %s: build %s, cache %s",
        submission.job.id,
        submission.build.id,
        submission.job.cache.value,
        extra={"job_id": submission.job.id, "build_id": submission.build.id},
    )
    context.metrics.submitted.labels(body.type.value, submission.job.cache.value).inc()
    return _accepted(context, submission)


def new_job(context: Context, project: str, body: JobIn, resolved: Resolved) -> NewJob:
    """Return a request, understood, as the store takes it."""
    return NewJob(
        project=project,
        spec=resolved.spec,
        request=body.model_dump(mode="json", exclude_unset=True),
        queue=resolved.queue,
        priority=body.priority,
        queue_limit_s=resolved.limits.queue_s,
        run_limit_s=resolved.limits.run_s,
        memory_limit_mb=resolved.memory_limit_mb,
        max_active=context.settings.max_active_jobs,
        cache_mode=body.cache,
        name=body.name,
        labels=body.labels,
        source_revision=body.source_revision,
        model_id=body.model_id,
        mblt_id=body.mblt_id,
        calibration_id=body.calibration_id,
        webhook_url=body.webhook_url,
        idempotency_hours=context.settings.idempotency_hours,
        traceparent=tracing.traceparent(),
    )


def mend_answer(context: Context, project: str, resolved: Resolved) -> None:
    """Keep a finished build from answering when a file of its is gone from the object store."""
    answer, build = context.jobs.find_answer(project, resolved.spec)
    if build is None or answer is not CacheAnswer.HIT:
        return
    made = context.artifacts.of_builds([build.id])[build.id]
    if any(context.store.size(artifact.sha256) is None for artifact in made):
        _log.error("build %s: a file is missing from the object store", build.id)
        context.jobs.forget_answer(build.id)


def _validation(context: Context, project: str, resolved: Resolved) -> ValidationOut:
    answer, build = context.jobs.find_answer(project, resolved.spec)
    return ValidationOut(
        build_key=build_key(resolved.spec),
        cache=answer,
        build_id=None if build is None else build.id,
        target_device=resolved.spec.target_device,
        inference_scheme=resolved.spec.inference_scheme,
        engine=resolved.engine.name,
        engine_version=resolved.engine.version,
        limits=resolved.limits,
        resolved_config=dict(resolved.spec.resolved_config),
        notes=list(resolved.notes),
        warnings=list(resolved.warnings),
    )


def _accepted(context: Context, submission: Submission) -> Response:
    view = context.jobs.get(submission.job.project, submission.job.id)
    assert view is not None
    response = _json(202, job_out(view, _artifacts(context, view)))
    response.headers["Location"] = f"/v1/jobs/{view.job.id}"
    response.headers["Retry-After"] = "0" if view.job.is_terminal else "1"
    if submission.replayed:
        response.headers["Idempotency-Replayed"] = "true"
    return response


def _json(status: int, body: JobOut | ValidationOut) -> Response:
    return Response(body.model_dump_json(), status_code=status, media_type="application/json")


def _artifacts(context: Context, view: JobView) -> Any:
    if view.job.state is not State.SUCCEEDED:
        return []
    return context.artifacts.of_builds([view.build.id])[view.build.id]


@router.get(
    "",
    response_model=PageOut[JobOut],
    responses=problems(422),
    summary="List jobs",
    operation_id="list_jobs",
)
def list_jobs(
    context: Ctx,
    principal: Reader,
    limit: Limit = 50,
    cursor: Cursor = None,
    state: Annotated[list[State], Query(description="Only in these states.")] = [],  # noqa: B006
    type: Annotated[list[JobKind], Query(description="Only of these types.")] = [],  # noqa: B006
    target_device: Annotated[
        Annotated[str, StringConstraints(max_length=64, pattern=r"^[^\x00-\x1f]*$")] | None,
        Query(description="Only for this device."),
    ] = None,
    model_id: Annotated[
        Annotated[str, StringConstraints(pattern=id_pattern(IdKind.MODEL, IdKind.ARTIFACT))] | None,
        Query(description="Only of this model or MBLT."),
    ] = None,
    created_after: Annotated[Time | None, Query(description="Only made after this time.")] = None,
    created_before: Annotated[Time | None, Query(description="Only made before this time.")] = None,
    label: LabelFilter = [],  # noqa: B006 (FastAPI copies it)
) -> PageOut[JobOut]:
    """List the project's jobs, newest first."""
    page = context.jobs.page(
        principal.project,
        JobFilter(
            states=state,
            kinds=type,
            target_device=target_device,
            model_id=model_id,
            labels=label_filter(label),
            created_after=in_range(created_after),
            created_before=in_range(created_before),
        ),
        limit=limit,
        cursor=cursor,
    )
    artifacts = context.artifacts.of_builds(sorted({v.build.id for v in page.items}))
    return PageOut(
        items=[job_out(v, artifacts[v.build.id]) for v in page.items],
        next_cursor=page.next_cursor,
    )


@router.get(
    "/{job_id}",
    response_model=JobDetail,
    responses=problems(404, 422),
    summary="Show a job",
    operation_id="get_job",
)
async def get_job(
    request: Request,
    context: Ctx,
    principal: Reader,
    job_id: JobId,
    wait: Annotated[
        float,
        Query(
            ge=0,
            le=600,
            description="Hold the answer for up to so many seconds, until the state changes; the "
            "server has a bound of its own. A job that has ended is answered at once.",
        ),
    ] = 0,
) -> JobDetail:
    """Show a job: state, phase, progress, place in the queue, timings, artifacts, error."""
    view = await run_in_threadpool(find_job, context, principal, job_id)
    wait = min(wait, context.settings.max_wait_seconds)
    if wait > 0 and not view.job.is_terminal:
        view = await _changed(request, context, principal, view, wait)
    artifacts = await run_in_threadpool(_artifacts, context, view)
    return job_detail(view, artifacts)


async def _changed(
    request: Request, context: Context, principal: Principal, view: JobView, wait: float
) -> JobView:
    before = view.job.state
    looked = 0
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    with context.watcher.watch(view.build.id) as watch:
        while (left := deadline - loop.time()) > 0:
            # in slices, so that a client that went away frees its place
            if not await watch.changed(max(view.build.event_seq, looked), min(left, 5.0)):
                if await request.is_disconnected():
                    break
                continue
            looked = watch.number
            view = await run_in_threadpool(find_job, context, principal, view.job.id)
            if view.job.state is not before:
                break
    return view


@router.post(
    "/{job_id}/cancel",
    response_model=JobOut,
    responses=problems(404, 409, 422),
    summary="Cancel a job",
    operation_id="cancel_job",
)
def cancel_job(context: Ctx, principal: Builder, job_id: JobId) -> JobOut:
    """Cancel a job. The compiler is killed when no other job shares its build."""
    return job_out(context.jobs.cancel(principal.project, job_id), [])


@router.post(
    "/{job_id}/retry",
    status_code=202,
    response_model=None,
    responses={202: ACCEPTED, **problems(404, 409, 422)},
    summary="Run a job again",
    operation_id="retry_job",
)
def retry_job(context: Ctx, principal: Builder, job_id: JobId) -> Response:
    """Make a new job from the request of one that failed, was cancelled or timed out.

    The request is checked again; a failure that was remembered is not what answers it.
    """
    job = find_job(context, principal, job_id).job
    if job.state not in _RETRYABLE:
        raise ServiceError(
            "JOB_NOT_FINISHED" if not job.is_terminal else "CONFLICT",
            f"the job is {job.state.value}; only one that failed, was cancelled or timed out can "
            "be run again",
        )
    return submit(context, principal, request_again(job), None, retry_of=job.id)


def request_again(job: Job) -> JobIn:
    """Return a job's request as a new one.

    Raises:
        ServiceError: ``CONFLICT`` where this version no longer takes it.
    """
    try:
        body = JobIn.model_validate({**job.request, "validate_only": False})
    except ValidationError as exc:
        raise ServiceError(
            "CONFLICT",
            "the job's request is not one that this version of the server takes",
            hint="submit it anew",
            errors=[FieldError(None, str(exc.errors()[0]["msg"]))],
        ) from exc
    if body.cache is CacheMode.ON and job.state is State.FAILED:
        body = body.model_copy(update={"cache": CacheMode.REFRESH})
    return body


def find_job(context: Context, principal: Principal, job_id: str) -> JobView:
    """Return a job of the caller's project.

    Raises:
        ServiceError: ``NOT_FOUND``.
    """
    view = context.jobs.get(principal.project, job_id)
    if view is None:
        raise ServiceError("NOT_FOUND", f"there is no job {job_id!r}")
    return view
