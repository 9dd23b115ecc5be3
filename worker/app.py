"""The Celery application of a worker. The database is the truth; a message only wakes."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any

from celery import Celery, bootsteps, signals

from service.broker import TASK_RUN_BUILD, broker_options
from service.db import BuildStore, Database, ObjectHolds
from service.settings import BUILTIN_ENGINE, Settings
from service.storage import HeldStore, open_store
from service.tracing import set_up_tracing, stop_tracing

from .background import Background
from .build import Builder
from .engine import check_sandbox
from .sandbox import kernel_support

__all__ = ["create_worker_app", "queues_of", "run_worker", "worker_name"]

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1


def worker_name() -> str:
    """Return the name under which this process's attempts are recorded."""
    return f"{socket.gethostname()}:{os.getpid()}"


def queues_of(
    settings: Settings, engines: Sequence[str] = (), memory_classes: Sequence[str] = ()
) -> list[str]:
    """Return the queues that a worker serves.

    Args:
        settings: name engines and memory classes.
        engines: those to serve; by default all, the built-in one first.
        memory_classes: those to serve; by default all. Who serves the largest also takes builds
            from before there were classes.
    """
    classes = settings.classes
    found: list[str] = []
    for engine in engines or [BUILTIN_ENGINE, *sorted(settings.engines)]:
        base = settings.queue_of(engine)
        served = list(memory_classes) or classes.names
        found += [classes.queue(base, name) for name in served]
        if not classes.names or classes.names[-1] in served:
            found.append(base)
    return list(dict.fromkeys(found))


class _Pulse(bootsteps.StartStopStep):  # type: ignore[misc]
    """Turns Celery's event loop several times a second.

    With prefetching off, the loop asks for a message only when a thread is free; a thread that
    becomes free does not wake it, and its own pause is a second.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        self._timer = consumer.timer.call_repeatedly(_POLL_SECONDS, _nothing)

    def stop(self, consumer: Any) -> None:
        self._timer.cancel()


def _nothing() -> None:
    return None


def create_worker_app(settings: Settings, builder: Builder) -> Celery:
    """Return the application with its one task, which does builds with ``builder``."""
    app = Celery("qb-worker", broker=settings.effective_broker_url, set_as_current=False)
    app.conf.update(broker_options())
    app.steps["consumer"].add(_Pulse)
    app.conf.update(
        # one message for each free thread: a long build must not hold short ones back
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry=True,
        broker_connection_max_retries=None,
        task_default_queue=settings.queue_of(BUILTIN_ENGINE),
    )

    @app.task(name=TASK_RUN_BUILD, ignore_result=True, max_retries=0)  # type: ignore[untyped-decorator]
    def run_build(build_id: Any) -> None:
        if isinstance(build_id, str):
            builder.run(build_id)

    return app


def run_worker(settings: Settings, *, queues: list[str] | None = None) -> None:
    """Run a worker until it is told to stop (SIGTERM, SIGINT).

    Threads suffice, for each build is a subprocess; running builds go back to the queue when
    the worker stops.

    Raises:
        SettingsError: a sandbox is required and the kernel does not allow a whole one.
    """
    whole = not kernel_support().missing() and settings.sandbox != "off"
    _log.log(logging.INFO if whole else logging.WARNING, "sandbox %s", check_sandbox(settings))
    db = Database(settings.effective_database_url)
    builder = Builder(
        settings=settings,
        builds=BuildStore(db, settings.lease_policy()),
        store=HeldStore(open_store(settings), ObjectHolds(db).hold),
        worker=worker_name(),
    )
    app = create_worker_app(settings, builder)
    background = Background(settings, db, builder.metrics)
    stop = threading.Event()

    def ready(**_: Any) -> None:
        background.start()
        _log.info("ready: %s", ", ".join(queues or queues_of(settings)))

    def shutting_down(**_: Any) -> None:
        # before Celery waits for its threads: they end as soon as their compilers are killed
        builder.stopping.set()
        stop.set()

    set_up_tracing(settings, "worker")
    logging.captureWarnings(True)
    if settings.worker_metrics_port is not None:
        builder.metrics.serve(settings.worker_metrics_host, settings.worker_metrics_port)
    signals.worker_ready.connect(ready, weak=False)
    signals.worker_shutting_down.connect(shutting_down, weak=False)
    try:
        app.worker_main(
            argv=[
                # no banner between the log lines
                "--quiet",
                "worker",
                "--pool=threads",
                f"--concurrency={settings.worker_concurrency}",
                f"--queues={','.join(queues or queues_of(settings))}",
                f"--hostname=qb-{os.getpid()}@%h",
                f"--loglevel={settings.log_level}",
                "--without-gossip",
                "--without-mingle",
                "--without-heartbeat",
            ]
        )
    finally:
        builder.stopping.set()
        background.stop()
        db.close()
        stop_tracing()
