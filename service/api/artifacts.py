"""Artifacts: what they are, their bytes, and signed links to them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Request, Response
from pydantic import StringConstraints

from ..domain import Artifact, BuildSpec, FieldError, Link, ServiceError
from .body import StrictRoute
from .content import serve_artifact
from .context import Builder, Context, Ctx, Principal, Reader
from .fields import ArtifactId, LinkId
from .problems import problems
from .schemas import ArtifactDetail, LinkIn, LinkOut, MadeByOut
from .views import artifact_fields

__all__ = ["link_router", "router"]

router = APIRouter(prefix="/v1/artifacts", tags=["artifacts"], route_class=StrictRoute)
link_router = APIRouter(prefix="/v1/links", tags=["artifacts"], route_class=StrictRoute)

_BYTES: dict[str, Any] = {
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
}
_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The whole file.",
        "headers": {
            name: {"schema": {"type": "string"}}
            for name in ("ETag", "Repr-Digest", "Content-Disposition", "Accept-Ranges")
        },
        **_BYTES,
    },
    206: {"description": "The range that was asked for.", **_BYTES},
    304: {"description": "The caller's copy is the file."},
    307: {"description": "The file is at this presigned URL (S3)."},
}


@router.get(
    "/{artifact_id}",
    response_model=ArtifactDetail,
    responses=problems(404, 422),
    summary="Show an artifact",
    operation_id="get_artifact",
)
def get_artifact(context: Ctx, principal: Reader, artifact_id: ArtifactId) -> ArtifactDetail:
    """Show an artifact: its kind, digest, size, and what made it."""
    artifact = _find(context, principal, artifact_id)
    job_id, data = context.artifacts.made_by(artifact)
    spec = BuildSpec.from_json(data)
    return ArtifactDetail(
        **artifact_fields(artifact),
        made_by=MadeByOut(
            job_id=job_id,
            type=spec.kind,
            model_sha256=spec.model.digest,
            calibration_digest=None if spec.calibration is None else spec.calibration.digest,
            target_device=spec.target_device,
            inference_scheme=spec.inference_scheme,
            config_preset=spec.config_preset,
            engine=spec.engine,
            engine_version=spec.engine_version,
        ),
    )


@router.head(
    "/{artifact_id}/content",
    response_model=None,
    response_class=Response,
    responses={**{k: v for k, v in _CONTENT.items() if k != 307}, **problems(404, 412, 416, 422)},
    summary="Ask for an artifact's headers",
    operation_id="head_artifact_content",
)
@router.get(
    "/{artifact_id}/content",
    response_model=None,
    response_class=Response,
    responses={**_CONTENT, **problems(404, 412, 416, 422)},
    summary="Download an artifact",
    operation_id="get_artifact_content",
)
def get_content(
    request: Request, context: Ctx, principal: Reader, artifact_id: ArtifactId
) -> Response:
    """The bytes. One `Range` is served; the strong `ETag` is the SHA-256."""
    artifact = _find(context, principal, artifact_id)
    return serve_artifact(request, context, artifact, private=True)


@router.post(
    "/{artifact_id}/links",
    status_code=201,
    response_model=LinkOut,
    responses=problems(400, 404, 413, 422),
    summary="Make a download link",
    operation_id="create_link",
)
def create_link(
    request: Request,
    response: Response,
    context: Ctx,
    principal: Builder,
    artifact_id: ArtifactId,
    body: Annotated[LinkIn | None, Body()] = None,
) -> LinkOut:
    """Make a link that needs no token, until it expires or is revoked."""
    body = body or LinkIn()
    most = context.settings.link_max_seconds
    if body.expires_in > most:
        raise ServiceError(
            "ARGUMENT_ERROR",
            f"/expires_in: at most {most} seconds",
            errors=[FieldError("/expires_in", f"at most {most} seconds")],
        )
    artifact = _find(context, principal, artifact_id)
    link = context.artifacts.add_link(principal.project, artifact.id, body.expires_in)
    assert link is not None
    found = _link_out(request, context, artifact, link)
    response.headers["Location"] = found.url
    return found


@router.get(
    "/{artifact_id}/links",
    response_model=list[LinkOut],
    responses=problems(404, 422),
    summary="List an artifact's links",
    operation_id="list_links",
)
def list_links(
    request: Request, context: Ctx, principal: Builder, artifact_id: ArtifactId
) -> list[LinkOut]:
    """List the links to an artifact, newest first; at most a thousand."""
    artifact = _find(context, principal, artifact_id)
    return [
        _link_out(request, context, artifact, link)
        for link in context.artifacts.links_of(principal.project, artifact.id)
    ]


@router.delete(
    "/{artifact_id}/links/{link_id}",
    status_code=204,
    responses=problems(404, 422),
    summary="Revoke a download link",
    operation_id="revoke_link",
)
def revoke_link(context: Ctx, principal: Builder, artifact_id: ArtifactId, link_id: LinkId) -> None:
    """Revoke a link, at once and for good."""
    if not context.artifacts.revoke_link(principal.project, artifact_id, link_id):
        raise ServiceError("NOT_FOUND", f"there is no link {link_id!r} to {artifact_id!r}")


@link_router.head(
    "/{link_id}/{filename}",
    response_model=None,
    response_class=Response,
    responses={**{k: v for k, v in _CONTENT.items() if k != 307}, **problems(404, 412, 416, 422)},
    summary="Ask for a link's headers",
    operation_id="head_link",
)
@link_router.get(
    "/{link_id}/{filename}",
    response_model=None,
    response_class=Response,
    responses={**_CONTENT, **problems(404, 412, 416, 422)},
    summary="Download by a link",
    operation_id="get_link",
)
def open_link(
    request: Request,
    context: Ctx,
    link_id: LinkId,
    filename: Annotated[str, Path(max_length=512, description="For the reader; not looked at.")],
    expires: Annotated[int, Query(ge=0, le=2**40, description="From the link.")],
    signature: Annotated[
        Annotated[str, StringConstraints(max_length=100)], Query(description="From the link.")
    ],
) -> Response:
    """Download by a signed link; no token is needed.

    A link that is expired, revoked or altered is answered as one that never was.
    """
    found = context.artifacts.open_link(link_id)
    if found is not None:
        link, artifact, now = found
        signed = context.signer.verify(signature, link.id, artifact.id, link.expires_at)
        if signed and expires == _seconds(link.expires_at) and _valid(link, now):
            return serve_artifact(request, context, artifact, private=True)
    raise ServiceError(
        "NOT_FOUND",
        "the link is not valid, or no longer",
        hint="ask whoever gave it to you for a new one",
    )


def _valid(link: Link, now: datetime) -> bool:
    return link.revoked_at is None and now < link.expires_at


def _seconds(time: datetime) -> int:
    return int(time.timestamp())


def _find(context: Context, principal: Principal, artifact_id: str) -> Artifact:
    artifact = context.artifacts.get(principal.project, artifact_id)
    if artifact is None:
        raise ServiceError("NOT_FOUND", f"there is no artifact {artifact_id!r}")
    return artifact


def _link_out(request: Request, context: Context, artifact: Artifact, link: Link) -> LinkOut:
    base = context.settings.public_url or str(request.base_url).rstrip("/")
    signature = context.signer.sign(link.id, artifact.id, link.expires_at)
    plain = "".join(
        c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in artifact.name
    )
    return LinkOut(
        id=link.id,
        artifact_id=artifact.id,
        url=f"{base}/v1/links/{link.id}/{plain or 'file'}"
        f"?expires={_seconds(link.expires_at)}&signature={signature}",
        created_at=link.created_at,
        expires_at=link.expires_at,
        revoked_at=link.revoked_at,
    )
