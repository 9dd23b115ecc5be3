"""Webhooks: the log of deliveries, delivering again, and the secret that receivers check with."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field, StringConstraints

from ..db import WebhookSecret
from ..domain import DeliveryState, IdKind, ServiceError, WebhookDelivery, id_pattern
from .body import StrictRoute
from .context import Admin, Builder, Context, Ctx, Principal, Reader
from .fields import Cursor, DeliveryId, Limit
from .problems import problems
from .schemas import Out, PageOut

__all__ = ["router"]

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=StrictRoute)


class DeliveryOut(Out):
    """A message about a job's end, and how its delivery stands."""

    id: str = Field(
        description="Also the message's `webhook-id`.", examples=["msg_01k2v7b0m8x9qj4t5w6y7z8a9b"]
    )
    job_id: str
    event: str = Field(examples=["job.succeeded"])
    url: str = Field(examples=["https://ci.example/hooks/qb"])
    state: DeliveryState = Field(examples=["delivered"])
    tries: int = Field(examples=[1])
    retries_left: int = Field(examples=[0])
    next_try_at: datetime | None = Field(description="Null once it has ended.", examples=[None])
    created_at: datetime
    finished_at: datetime | None


class AttemptOut(Out):
    """One try."""

    number: int = Field(examples=[1])
    at: datetime
    seconds: float = Field(examples=[0.21])
    status: int | None = Field(
        description="The receiver's HTTP status; null without an answer.", examples=[204]
    )
    error: str | None = Field(description="Why there was no answer.")


class DeliveryDetail(DeliveryOut):
    """A delivery with its message and its tries."""

    body: str = Field(
        description="The message, exactly as it is sent.",
        examples=['{"type":"job.succeeded","timestamp":"2026-01-02T03:06:41Z","data":{}}'],
    )
    attempts: list[AttemptOut] = Field(description="The newest hundred, oldest first.")


class SecretOut(Out):
    """The secret by which receivers check messages."""

    secret: str = Field(
        description="For a library of Standard Webhooks.",
        examples=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
    )
    rotated_at: datetime | None = Field(
        description="The secret before it signs too, for 24 hours from then; null for never."
    )


@router.get(
    "/deliveries",
    response_model=PageOut[DeliveryOut],
    responses=problems(422),
    summary="List webhook deliveries",
    operation_id="list_webhook_deliveries",
)
def list_deliveries(
    context: Ctx,
    principal: Reader,
    limit: Limit = 50,
    cursor: Cursor = None,
    job_id: Annotated[
        Annotated[str, StringConstraints(pattern=id_pattern(IdKind.JOB))] | None,
        Query(description="Only about this job."),
    ] = None,
    state: Annotated[list[DeliveryState], Query(description="Only in these states.")] = [],  # noqa: B006
) -> PageOut[DeliveryOut]:
    """List the project's deliveries, newest first."""
    page = context.webhooks.page(
        principal.project, limit=limit, cursor=cursor, job_id=job_id, states=state
    )
    return PageOut(
        items=[DeliveryOut(**_fields(d)) for d in page.items], next_cursor=page.next_cursor
    )


@router.get(
    "/deliveries/{delivery_id}",
    response_model=DeliveryDetail,
    responses=problems(404, 422),
    summary="Show a webhook delivery",
    operation_id="get_webhook_delivery",
)
def get_delivery(context: Ctx, principal: Reader, delivery_id: DeliveryId) -> DeliveryDetail:
    """Show a delivery: its message, and each try with the receiver's answer."""
    return _detail(context, principal, delivery_id)


@router.post(
    "/deliveries/{delivery_id}/redeliver",
    status_code=202,
    response_model=DeliveryDetail,
    responses=problems(404, 422),
    summary="Deliver a webhook again",
    operation_id="redeliver_webhook",
)
def redeliver(context: Ctx, principal: Builder, delivery_id: DeliveryId) -> DeliveryDetail:
    """Deliver a message again, at once and under the same id, whether or not it arrived before."""
    context.webhooks.redeliver(principal.project, delivery_id)
    return _detail(context, principal, delivery_id)


@router.get(
    "/secret",
    response_model=SecretOut,
    responses=problems(),
    summary="Show the webhook secret",
    operation_id="get_webhook_secret",
)
def get_secret(context: Ctx, principal: Admin) -> SecretOut:
    """The project's secret, by which receivers check that a message is this server's."""
    return _secret(context, principal, context.webhooks.secret(principal.project))


@router.post(
    "/secret/rotate",
    response_model=SecretOut,
    responses=problems(),
    summary="Replace the webhook secret",
    operation_id="rotate_webhook_secret",
)
def rotate_secret(context: Ctx, principal: Admin) -> SecretOut:
    """Make a new secret. For 24 hours messages are signed with it and with the one before."""
    return _secret(context, principal, context.webhooks.rotate(principal.project))


def _secret(context: Context, principal: Principal, found: WebhookSecret) -> SecretOut:
    return SecretOut(
        secret=context.webhook_signer.secret(principal.project, found.generations[0]),
        rotated_at=found.rotated_at,
    )


def _detail(context: Context, principal: Principal, delivery_id: str) -> DeliveryDetail:
    found = context.webhooks.get(principal.project, delivery_id)
    if found is None:
        raise ServiceError("NOT_FOUND", f"there is no delivery {delivery_id!r}")
    delivery, tries = found
    attempts = [
        AttemptOut(number=t.number, at=t.at, seconds=t.seconds, status=t.status, error=t.error)
        for t in tries
    ]
    return DeliveryDetail(**_fields(delivery), body=delivery.body, attempts=attempts)


def _fields(d: WebhookDelivery) -> dict[str, Any]:
    return {
        "id": d.id,
        "job_id": d.job_id,
        "event": d.event,
        "url": d.url,
        "state": d.state,
        "tries": d.tries,
        "retries_left": d.retries_left,
        "next_try_at": d.next_try_at,
        "created_at": d.created_at,
        "finished_at": d.finished_at,
    }
