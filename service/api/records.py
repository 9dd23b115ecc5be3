"""How a job's packages were made: provenance, bundle, building again, and why the cache missed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from ..bundle import make_bundle
from ..db import JobView
from ..domain import Artifact, CacheMode, ServiceError, State, checklist, differences, statement
from .body import StrictRoute
from .context import Builder, Context, Ctx, Principal, Reader
from .fields import JobId
from .jobs import ACCEPTED, find_job, request_again, submit
from .problems import problems
from .schemas import CacheExplanation, DifferenceOut, KeyOut, NearestOut
from .version import service_version

__all__ = ["key_router", "router", "succeeded_job"]

router = APIRouter(prefix="/v1/jobs", tags=["records"], route_class=StrictRoute)
key_router = APIRouter(prefix="/v1/keys", tags=["records"], route_class=StrictRoute)

_NEAR = 200
"""Earlier builds that are looked at for the nearest."""

_JSON: dict[str, Any] = {"content": {"application/json": {"schema": {"type": "object"}}}}


@router.get(
    "/{job_id}/provenance",
    response_model=None,
    response_class=Response,
    responses={200: {"description": "The statement, or the envelope.", **_JSON},
               **problems(404, 409, 422)},
    summary="Show a job's provenance",
    operation_id="job_provenance",
)  # fmt: skip
def job_provenance(
    request: Request,
    context: Ctx,
    principal: Reader,
    job_id: JobId,
    format: Annotated[
        Literal["statement", "dsse"],
        Query(
            description="`statement`: the in-toto statement as it is. `dsse`: in an envelope that "
            "is signed with the server's key."
        ),
    ] = "statement",
) -> Response:
    """An in-toto Statement with a SLSA v1 provenance predicate over the MXQ and MBLT."""
    view, artifacts = succeeded_job(context, principal, job_id)
    found = _statement(request, context, view, artifacts)
    if format == "statement":
        return _json(found, "application/json")
    if context.statements is None:
        raise ServiceError(
            "CONFLICT",
            "this server has no key to sign with",
            hint="ask for format=statement, or have its operator set QB_PROVENANCE_KEY_FILE",
        )
    return _json(context.statements.envelope(found), "application/json")


@router.get(
    "/{job_id}/bundle",
    response_model=None,
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "A tar of a folder `bundle`.",
            "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}},
        },
        **problems(404, 409, 422),
    },
    summary="Download a job's bundle",
    operation_id="job_bundle",
)
def job_bundle(
    request: Request, context: Ctx, principal: Reader, job_id: JobId
) -> StreamingResponse:
    """One archive with all that is needed to build again, and a `rebuild.sh` that does it.

    The same job gives the same bytes.
    """
    view, artifacts = succeeded_job(context, principal, job_id)
    found = _statement(request, context, view, artifacts)
    bundle = make_bundle(
        view.build,
        artifacts,
        checklist(view.job, view.build, artifacts),
        found,
        None if context.statements is None else context.statements.envelope(found),
        context.store,
    )
    return StreamingResponse(
        bundle.chunks(),
        media_type="application/x-tar",
        headers={
            "Content-Length": str(bundle.size),
            "Content-Disposition": f'attachment; filename="{view.job.id}.tar"',
            "ETag": f'"{bundle.etag}"',
        },
    )


@router.get(
    "/{job_id}/checklist",
    response_model=None,
    response_class=Response,
    responses={200: {"description": "The checklist.", **_JSON}, **problems(404, 409, 422)},
    summary="Show what is needed to build again",
    operation_id="job_checklist",
)
def job_checklist(context: Ctx, principal: Reader, job_id: JobId) -> Response:
    """Source model and revision, calibration, configuration, device, scheme, engine; results."""
    view, artifacts = succeeded_job(context, principal, job_id)
    return _json(checklist(view.job, view.build, artifacts), "application/json")


@router.post(
    "/{job_id}/reproduce",
    status_code=202,
    response_model=None,
    responses={202: ACCEPTED, **problems(404, 409, 422)},
    summary="Build again and compare",
    operation_id="reproduce_job",
)
def reproduce_job(context: Ctx, principal: Builder, job_id: JobId) -> Response:
    """Build again from the record of a job that succeeded.

    The new job's `summary.refresh` says whether every byte agrees, and which packages differ. A
    record of an engine version that this server no longer has cannot be built again here.
    """
    view, _ = succeeded_job(context, principal, job_id)
    spec = view.build.spec
    engine = context.engines.get(spec.engine)
    if engine is None or engine.version != spec.engine_version:
        now = "is gone" if engine is None else f"is now {engine.version}"
        raise ServiceError(
            "CONFLICT",
            f"the record was made by {spec.engine} {spec.engine_version}, which {now}",
            hint="the bundle's rebuild.sh builds with a compiler of your choice",
        )
    body = request_again(view.job).model_copy(update={"cache": CacheMode.REFRESH})
    return submit(context, principal, body, None, retry_of=view.job.id, compare=view.build.id)


@router.get(
    "/{job_id}/cache-explain",
    response_model=CacheExplanation,
    responses=problems(404, 422),
    summary="Say why the cache did not answer",
    operation_id="explain_cache",
)
def explain_cache(context: Ctx, principal: Reader, job_id: JobId) -> CacheExplanation:
    """Which parts of the build key differ from the nearest earlier build of the project."""
    view = find_job(context, principal, job_id)
    build = view.build
    best: tuple[int, Any, list[dict[str, Any]]] | None = None
    for other in context.builds.before(build, limit=_NEAR):
        found = differences(build.spec, other.spec)
        if best is None or len(found) < best[0]:
            best = (len(found), other, found)
    nearest = None
    if best is not None:
        nearest = NearestOut(
            build_id=best[1].id,
            build_key=best[1].key,
            state=best[1].state,
            created_at=best[1].created_at,
        )
    return CacheExplanation(
        cache=view.job.cache,
        cache_mode=view.job.cache_mode,
        build_key=build.key,
        nearest=nearest,
        differences=[DifferenceOut(**d) for d in (best[2] if best is not None else [])],
    )


@key_router.get(
    "",
    response_model=list[KeyOut],
    responses=problems(),
    summary="List the keys of signed statements",
    operation_id="list_keys",
)
def list_keys(context: Ctx, principal: Reader) -> list[KeyOut]:
    """The public keys that this server signs provenance with."""
    signer = context.statements
    return [] if signer is None else [KeyOut(keyid=signer.key_id, pem=signer.public_pem())]


def succeeded_job(
    context: Context, principal: Principal, job_id: str
) -> tuple[JobView, Sequence[Artifact]]:
    """Return a job of the caller's project that succeeded, and what its build made.

    Raises:
        ServiceError: ``NOT_FOUND``, ``JOB_NOT_FINISHED``, ``CONFLICT``.
    """
    view = find_job(context, principal, job_id)
    if view.job.state is not State.SUCCEEDED:
        raise ServiceError(
            "JOB_NOT_FINISHED" if not view.job.is_terminal else "CONFLICT",
            f"the job is {view.job.state.value}; only one that succeeded has a record",
        )
    return view, context.artifacts.of_builds([view.build.id])[view.build.id]


def _statement(
    request: Request, context: Context, view: JobView, artifacts: Sequence[Artifact]
) -> dict[str, Any]:
    # never the request's own address: a bundle's bytes must not depend on who asks
    builder = context.settings.public_url or "urn:qb-compile-server"
    return statement(view.job, view.build, artifacts, builder=builder, version=service_version())


def _json(document: Any, media_type: str) -> Response:
    text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)
    return Response(text + "\n", media_type=media_type)
