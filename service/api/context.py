"""What every route needs: the stores, and who is asking."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Annotated, Protocol

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool

from ..attestation import StatementSigner
from ..db import (
    Actor,
    ArtifactStore,
    AuditStore,
    BuildStore,
    CalibrationStore,
    Database,
    JobStore,
    MatrixStore,
    ModelStore,
    ObjectHolds,
    TokenStore,
    UploadStore,
    WebhookStore,
    acting,
)
from ..domain import DEFAULT_PROJECT, Role, ServiceError, WebhookSigner
from ..engines import Engine
from ..settings import Settings
from ..storage import ObjectStore, Staging
from .hooks import WebhookPump
from .limiter import RateLimiter
from .metrics import Metrics
from .pump import OutboxPump
from .signing import LinkSigner
from .sweep import UploadSweep
from .watch import Watcher

__all__ = [
    "Admin",
    "Broker",
    "Builder",
    "Context",
    "Ctx",
    "Principal",
    "Reader",
    "get_context",
]


class Broker(Protocol):
    """The broker as far as the API needs it."""

    def check(self) -> None:
        """Raise when it cannot be reached."""
        ...


@dataclass(slots=True)
class Context:
    """The application's parts."""

    settings: Settings
    db: Database
    store: ObjectStore
    holds: ObjectHolds
    jobs: JobStore
    matrices: MatrixStore
    builds: BuildStore
    models: ModelStore
    calibrations: CalibrationStore
    artifacts: ArtifactStore
    tokens: TokenStore
    audit: AuditStore
    uploads: UploadStore
    staging: Staging
    sweep: UploadSweep
    hashing: Executor
    engines: Mapping[str, Engine]
    watcher: Watcher
    pump: OutboxPump
    broker: Broker | None
    signer: LinkSigner
    webhooks: WebhookStore
    webhook_signer: WebhookSigner
    webhook_pump: WebhookPump
    statements: StatementSigner | None
    metrics: Metrics
    limiter: RateLimiter


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking."""

    project: str
    role: Role
    token_id: str | None = None


def get_context(request: Request) -> Context:
    """Return the application's parts."""
    found: Context = request.app.state.qb
    return found


Ctx = Annotated[Context, Depends(get_context)]

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="A token made with `qbserver token create`. Embedded servers on a loopback "
    "address need none.",
)


def _principal(needed: Role) -> Callable[..., object]:
    async def principal(
        request: Request,
        context: Ctx,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    ) -> Principal:
        address = None if request.client is None else request.client.host
        request_id: str = request.state.request_id
        if not context.settings.tokens_required:
            context.limiter.take("local")
            # the handler, and the threads that it asks, see what is set here
            acting.set(Actor("local", address=address, request_id=request_id))
            return Principal(DEFAULT_PROJECT, Role.ADMIN)
        token = (
            None
            if credentials is None
            else await run_in_threadpool(context.tokens.verify, credentials.credentials)
        )
        if token is None:
            raise ServiceError(
                "UNAUTHENTICATED",
                "a valid token is needed"
                if credentials is None
                else "the token is unknown, expired or revoked",
                hint="send Authorization: Bearer <token>; qbserver token create makes one",
            )
        context.limiter.take(token.id)
        acting.set(Actor("token", token.id, token.name, token.role.value, address, request_id))
        if not token.role.covers(needed):
            call = f"{request.method} {request.url.path}"
            await run_in_threadpool(context.audit.denied, token.project, needed.value, call)
            raise ServiceError(
                "FORBIDDEN",
                f"the token's role is {token.role.value}; this call needs {needed.value}",
                hint="use a token with that role",
            )
        return Principal(token.project, token.role, token.id)

    return principal


Reader = Annotated[Principal, Depends(_principal(Role.READER))]
Builder = Annotated[Principal, Depends(_principal(Role.BUILDER))]
Admin = Annotated[Principal, Depends(_principal(Role.ADMIN))]
