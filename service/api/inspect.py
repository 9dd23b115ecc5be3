"""What people look at in a build: its graph and its report, sent by the service itself.

The same is in the artifacts. A browser cannot always read those: with S3 they are at another
origin, and a package is no JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Response
from starlette.responses import StreamingResponse

from ..db import JobView
from ..domain import Artifact, ArtifactKind, ModelFormat, ServiceError
from ..intake.graph_section import GraphUnreadableError, read_graph
from .body import StrictRoute
from .context import Context, Ctx, Reader
from .fields import JobId
from .problems import problems
from .records import succeeded_job
from .schemas import GraphOut

__all__ = ["router"]

router = APIRouter(prefix="/v1/jobs", tags=["records"], route_class=StrictRoute)

_KEEP = {"Cache-Control": "private, max-age=3600"}


@router.get(
    "/{job_id}/report",
    response_model=None,
    response_class=Response,
    responses={
        200: {
            "description": "The report.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        **problems(404, 409, 422),
    },
    summary="Show a job's report",
    operation_id="job_report",
)
def job_report(context: Ctx, principal: Reader, job_id: JobId) -> StreamingResponse:
    """The compiler's report: accuracy, each layer's error and ranges, estimates, advice."""
    _, artifacts = succeeded_job(context, principal, job_id)
    report = _of_kind(artifacts, ArtifactKind.REPORT)
    if report is None or report.media_type != "application/json":
        raise ServiceError("NOT_FOUND", "this build made no report")
    return StreamingResponse(
        context.store.read(report.sha256),
        media_type="application/json",
        headers={"Content-Length": str(report.size), **_KEEP},
    )


@router.get(
    "/{job_id}/graph",
    response_model=GraphOut,
    responses=problems(404, 409, 422),
    summary="Show a job's graph",
    operation_id="job_graph",
)
def job_graph(response: Response, context: Ctx, principal: Reader, job_id: JobId) -> dict[str, Any]:
    """The layers of the job's MBLT, in execution order: edges, shapes, and where each runs."""
    view, artifacts = succeeded_job(context, principal, job_id)
    place = _mblt(view, artifacts)
    if place is None:
        raise ServiceError("NOT_FOUND", "this build has no MBLT, and so no graph")
    sha256, size = place
    try:
        found = read_graph(lambda start, stop: _read(context, sha256, start, stop), size)
    except GraphUnreadableError:
        raise ServiceError(
            "NOT_FOUND",
            "the MBLT's graph is not in the form of this server's compiler",
            hint="its engine may have tools of its own to look at it",
        ) from None
    response.headers.update(_KEEP)
    return found


def _read(context: Context, sha256: str, start: int, stop: int) -> Iterator[bytes]:
    return context.store.read(sha256, start, stop)


def _mblt(view: JobView, artifacts: Any) -> tuple[str, int] | None:
    """Return digest and size of the MBLT that a job made, or was made from."""
    made = _of_kind(artifacts, ArtifactKind.MBLT)
    if made is not None:
        return made.sha256, made.size
    model = view.build.spec.model
    if model.format is ModelFormat.MBLT:
        return model.files[0].sha256, model.files[0].size
    return None


def _of_kind(artifacts: Any, kind: ArtifactKind) -> Artifact | None:
    found: Artifact | None = next((a for a in artifacts if a.kind is kind), None)
    return found
