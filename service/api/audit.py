"""The audit log, for admins."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field, StringConstraints

from ..db import Action, AuditFilter
from .body import StrictRoute
from .context import Admin, Ctx
from .fields import Cursor, Limit, Time, in_range
from .problems import problems
from .schemas import Out, PageOut

__all__ = ["router"]

router = APIRouter(prefix="/v1/audit", tags=["audit"], route_class=StrictRoute)

_Id = Annotated[str, StringConstraints(pattern=r"^[a-z]{3}_[0-9a-z]{26}$")]


class ActorOut(Out):
    """Who acted."""

    kind: str = Field(
        description="`token`; `local`: whoever reaches a server without tokens; `command`: someone "
        "at the server's command line.",
        examples=["token"],
    )
    id: str | None = Field(
        description="The token's id.", examples=["tok_01k2v7b0m8x9qj4t5w6y7z8a9b"]
    )
    name: str | None = Field(description="The token's name, or the user's.", examples=["alice"])
    role: str | None = Field(examples=["builder"])
    address: str | None = Field(description="Where the call came from.", examples=["192.0.2.7"])
    request_id: str | None


class AuditOut(Out):
    """One deed."""

    id: str = Field(examples=["aud_01k2v7b0m8x9qj4t5w6y7z8a9b"])
    at: datetime
    actor: ActorOut
    action: Action = Field(examples=["job.submit"])
    subject: str | None = Field(
        description="The id of what it was done to.", examples=["job_01k2v7b0m8x9qj4t5w6y7z8a9b"]
    )
    details: dict[str, Any] = Field(examples=[{"cache": "miss"}])


@router.get(
    "",
    response_model=PageOut[AuditOut],
    responses=problems(422),
    summary="List the audit log",
    operation_id="list_audit",
)
def list_audit(
    context: Ctx,
    principal: Admin,
    limit: Limit = 50,
    cursor: Cursor = None,
    action: Annotated[list[Action], Query(description="Only these actions.")] = [],  # noqa: B006
    actor_id: Annotated[_Id | None, Query(description="Only by this token.")] = None,
    subject: Annotated[_Id | None, Query(description="Only what was done to this.")] = None,
    created_after: Annotated[Time | None, Query(description="Only after this time.")] = None,
    created_before: Annotated[Time | None, Query(description="Only before this time.")] = None,
) -> PageOut[AuditOut]:
    """Who did what in the project, and when, newest first.

    Everything that changes what the server holds is recorded, and calls that a token's role did not
    allow; reading and downloading are not.
    """
    only = AuditFilter(action, actor_id, subject, in_range(created_after), in_range(created_before))
    page = context.audit.page(principal.project, only, limit=limit, cursor=cursor)
    items = [
        AuditOut(
            id=e.id,
            at=e.at,
            actor=ActorOut(
                kind=e.actor.kind,
                id=e.actor.id,
                name=e.actor.name,
                role=e.actor.role,
                address=e.actor.address,
                request_id=e.actor.request_id,
            ),
            action=e.action,
            subject=e.subject,
            details=e.details,
        )
        for e in page.items
    ]
    return PageOut(items=items, next_cursor=page.next_cursor)
