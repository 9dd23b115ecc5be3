"""Alive, ready, measured."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fastapi import APIRouter, Response

from ..db import current_revision, head_revision
from .body import StrictRoute
from .context import Context, Ctx
from .metrics import CONTENT_TYPE_LATEST
from .problems import problems
from .schemas import CheckOut, Health, Readiness
from .version import service_version

__all__ = ["router"]

_log = logging.getLogger(__name__)

router = APIRouter(tags=["health"], route_class=StrictRoute)


@router.get(
    "/healthz",
    response_model=Health,
    responses=problems(),
    summary="Is the process alive?",
    operation_id="healthz",
)
async def healthz() -> Health:
    """Answer while the process lives; looks at nothing else."""
    return Health(version=service_version())


@router.get(
    "/readyz",
    response_model=Readiness,
    responses={
        **problems(),
        503: {"model": Readiness, "description": "Something is missing; it says what."},
    },
    summary="Is everything that it needs there?",
    operation_id="readyz",
)
def readyz(response: Response, context: Ctx) -> Readiness:
    """Reach each dependency: database and its schema, object store, broker."""
    checks = [
        _check("database", context.db.check),
        _check("schema", lambda: _schema(context)),
        _check("object_store", context.store.check),
    ]
    if context.broker is not None:
        checks.append(_check("broker", context.broker.check))
    ready = all(check.ok for check in checks)
    if not ready:
        response.status_code = 503
    return Readiness(ready=ready, checks=checks)


@router.get(
    "/metrics",
    response_model=None,
    response_class=Response,
    responses={
        200: {
            "description": "Metrics.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **problems(),
    },
    summary="Metrics for Prometheus",
    operation_id="metrics",
)
def metrics(context: Ctx) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(context.metrics.render(), media_type=CONTENT_TYPE_LATEST)


def _schema(context: Context) -> None:
    found, wanted = current_revision(context.db), head_revision()
    if found != wanted:
        raise RuntimeError(f"the schema is at {found}, this program needs {wanted}")


def _check(name: str, probe: Callable[[], None]) -> CheckOut:
    started = time.perf_counter()
    detail = None
    try:
        probe()
    except Exception as exc:
        # the cause may name hosts and users: it goes to the log, its kind to the caller
        _log.warning("%s is not ready: %s", name, exc)
        detail = f"cannot be used: {type(exc).__name__}"
    return CheckOut(
        name=name,
        ok=detail is None,
        detail=detail,
        seconds=round(time.perf_counter() - started, 4),
    )
