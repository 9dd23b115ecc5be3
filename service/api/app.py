"""The application: routes, parts, and their life."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from ..attestation import statement_signer
from ..broker import CelerySender
from ..db import (
    ArtifactStore,
    AuditStore,
    BuildStore,
    CalibrationStore,
    Database,
    JobStore,
    MatrixStore,
    ModelStore,
    ObjectHolds,
    OutboxDispatcher,
    RetryPolicy,
    Sender,
    TokenStore,
    UploadStore,
    WebhookStore,
    current_revision,
    head_revision,
    read_gauges,
    run_migrations,
)
from ..domain import WebhookSigner
from ..engines import list_engines
from ..settings import Mode, Settings, SettingsError, get_settings
from ..storage import HeldStore, clean_scratch, open_staging, open_store
from ..tracing import set_up_tracing, stop_tracing
from . import (
    artifacts,
    audit,
    calibrations,
    catalogue,
    events,
    explain,
    health,
    inspect,
    jobs,
    matrices,
    models,
    page,
    problems,
    records,
    uploads,
    webhooks,
)
from .context import Broker, Context
from .description import install_description
from .hooks import WebhookPump
from .limiter import RateLimiter
from .metrics import Gauges, Metrics
from .middleware import RequestMiddleware
from .pump import OutboxPump
from .signing import LinkSigner
from .sweep import UploadSweep
from .version import service_version
from .watch import Watcher

__all__ = ["create_app"]

_log = logging.getLogger(__name__)

_DESCRIPTION = """\
Compiles ONNX models for Mobilint NPUs: upload a model and calibration data, submit a job, follow
it, download the MBLT and MXQ.

Every error is a problem document (RFC 9457) with a stable `code`, what is wrong, what to do, and
a JSON pointer to the field. Lists are cursor pages. Times are RFC 3339, UTC.
"""

_TAGS: list[dict[str, Any]] = [
    {"name": "models", "description": "Uploaded models."},
    {"name": "calibrations", "description": "Uploaded calibration data."},
    {"name": "uploads", "description": "Large files, in parts that survive either side's end."},
    {"name": "jobs", "description": "Compile, parse and quantize jobs."},
    {"name": "matrices", "description": "Many jobs in one call, compared."},
    {"name": "records", "description": "How packages were made, and making them again."},
    {"name": "artifacts", "description": "What jobs made, and links to it."},
    {"name": "webhooks", "description": "Messages about ended jobs, and their deliveries."},
    {"name": "audit", "description": "Who did what, and when."},
    {"name": "catalogue", "description": "What can be asked for."},
    {"name": "health", "description": "For operators."},
]


def create_app(settings: Settings | None = None, *, sender: Sender | None = None) -> FastAPI:
    """Return the application.

    Args:
        settings: by default those of the environment.
        sender: sends broker messages; by default through Celery.
    """
    settings = settings or get_settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        set_up_tracing(settings, "service")
        context = await asyncio.to_thread(_open, settings, sender)
        app.state.qb = context
        context.watcher.start()
        context.pump.start()
        context.webhook_pump.start()
        context.sweep.start()
        try:
            yield
        finally:
            await context.watcher.stop()
            await asyncio.to_thread(context.webhook_pump.stop)
            await asyncio.to_thread(context.pump.stop)
            await asyncio.to_thread(context.sweep.stop)
            await asyncio.to_thread(context.hashing.shutdown, cancel_futures=True)
            await asyncio.to_thread(context.db.close)
            # here, for a server that has been told to stop ends without coming back
            await asyncio.to_thread(stop_tracing)

    app = FastAPI(
        title="qb compile server",
        version=service_version(),
        description=_DESCRIPTION,
        openapi_tags=_TAGS,
        contact={"name": "The operator of this server"},
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        servers=[{"url": "/", "description": "This server."}],
        lifespan=lifespan,
        # FastAPI's pages load their scripts from elsewhere; ours are our own
        docs_url=None,
        redoc_url=None,
        # one schema for what is sent and what is received
        separate_input_output_schemas=False,
        redirect_slashes=False,
    )
    problems.install(app)
    routes: list[APIRoute] = []
    for router in (
        models.router,
        calibrations.router,
        # before jobs: "matrix" is no job's id
        matrices.router,
        uploads.router,
        jobs.router,
        events.router,
        records.router,
        inspect.router,
        records.key_router,
        artifacts.router,
        artifacts.link_router,
        webhooks.router,
        audit.router,
        catalogue.router,
        health.router,
        page.router,
        explain.router,
    ):
        app.include_router(router)
        routes += [route for route in router.routes if isinstance(route, APIRoute)]
    app.state.routes = routes
    app.add_middleware(RequestMiddleware)
    install_description(app)
    return app


def _open(settings: Settings, sender: Sender | None) -> Context:
    settings.check_team()
    if settings.mode is Mode.EMBEDDED:
        run_migrations(settings.effective_database_url)
    clean_scratch(settings.scratch_dir)
    db = Database(settings.effective_database_url)
    try:
        return _context(settings, sender, db)
    except BaseException:
        db.close()
        raise


def _context(settings: Settings, sender: Sender | None, db: Database) -> Context:
    found, wanted = current_revision(db), head_revision()
    if found != wanted:
        raise SettingsError(
            f"the database's schema is at {found}, this program needs {wanted}: "
            "run `qbserver migrate`"
        )
    broker: Broker | None = None
    if sender is None:
        sender = broker = CelerySender(settings)
    jobs_store = JobStore(db)
    policy = settings.lease_policy()
    hooks = WebhookStore(
        db,
        RetryPolicy(
            tries=settings.webhook_tries,
            first_s=settings.webhook_retry_seconds,
            # resolving a name may take longer than a try
            lease_s=settings.webhook_timeout_seconds + 90,
        ),
    )
    webhook_signer = WebhookSigner(settings.signing_key())
    watcher = Watcher(
        jobs_store.event_numbers,
        jobs_store.build_events,
        interval=settings.poll_seconds,
        limit=settings.max_streams,
    )

    def gauges() -> Gauges:
        counts = {state.value: float(n) for state, n in jobs_store.counts().items()}
        now = read_gauges(db)
        return {
            "qb_builds_queued": ("Builds that wait, by queue.", "queue", now.queued),
            "qb_builds_running": ("Builds that run, by queue.", "queue", now.running),
            "qb_queue_oldest_seconds": (
                "How long the oldest waiting build has waited, by queue.",
                "queue",
                now.oldest_s,
            ),
            "qb_workers_busy": ("Worker processes that run a build.", "", {"": now.busy_workers}),
            "qb_outbox_messages": ("Broker messages not sent yet.", "", {"": now.outbox}),
            "qb_outbox_oldest_seconds": (
                "How long the oldest of them has waited.",
                "",
                {"": now.outbox_oldest_s},
            ),
            "qb_jobs": ("Jobs in each state.", "state", counts),
            "qb_event_streams": (
                "Open event streams and waiting calls.",
                "",
                {"": float(watcher.count)},
            ),
        }

    raw_store, upload_store, holds = open_store(settings), UploadStore(db), ObjectHolds(db)
    # an upload's own row names its object from the start
    staging = open_staging(settings, raw_store)
    return Context(
        settings=settings,
        db=db,
        store=HeldStore(raw_store, holds.hold),
        holds=holds,
        jobs=jobs_store,
        matrices=MatrixStore(db),
        builds=BuildStore(db, policy),
        models=ModelStore(db),
        calibrations=CalibrationStore(db),
        artifacts=ArtifactStore(db),
        tokens=TokenStore(db),
        audit=AuditStore(db),
        uploads=upload_store,
        staging=staging,
        sweep=UploadSweep(upload_store, staging),
        hashing=ThreadPoolExecutor(2, thread_name_prefix="hashing"),
        engines=list_engines(settings),
        watcher=watcher,
        pump=OutboxPump(OutboxDispatcher(db, sender)),
        broker=broker,
        signer=LinkSigner(settings.signing_key()),
        webhooks=hooks,
        webhook_signer=webhook_signer,
        webhook_pump=WebhookPump(
            hooks,
            webhook_signer,
            allowed=settings.webhook_allowed_networks,
            seconds=settings.webhook_timeout_seconds,
            concurrency=settings.webhook_concurrency,
        ),
        statements=statement_signer(settings),
        metrics=Metrics(gauges),
        limiter=RateLimiter(settings.rate_per_minute),
    )
