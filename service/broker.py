"""Waking workers: one Celery message with the build's id.

The service sends by name and imports no task. Celery itself is imported when a sender is made.
"""

from __future__ import annotations

import threading
from typing import Any

from . import tracing
from .db import Message
from .settings import Settings

__all__ = ["TASK_RUN_BUILD", "CelerySender", "broker_options"]

TASK_RUN_BUILD = "qb.run_build"
"""Name of the worker's task; its one argument is the build's id."""

_CONNECT_SECONDS = 3


def broker_options() -> dict[str, Any]:
    """Return the Celery settings that service and workers must agree on."""
    return {
        "task_ignore_result": True,
        "task_acks_late": False,
        "task_serializer": "json",
        "accept_content": ["json"],
        "broker_connection_retry_on_startup": True,
        "broker_transport_options": {
            # ten steps, so that each priority is a list of its own
            "priority_steps": list(range(10)),
            "queue_order_strategy": "priority",
            "socket_connect_timeout": _CONNECT_SECONDS,
            "socket_timeout": 30,
        },
    }


class CelerySender:
    """Sends messages; safe from several threads."""

    def __init__(self, settings: Settings) -> None:
        from celery import Celery

        self._app = Celery("qb-service", broker=settings.effective_broker_url, set_as_current=False)
        self._app.conf.update(broker_options())
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        """Send one message.

        Raises:
            Exception: the broker cannot be reached.
        """
        with (
            tracing.span(
                f"publish {TASK_RUN_BUILD}",
                kind="producer",
                parent=message.traceparent,
                messaging__system="celery",
                messaging__destination__name=message.queue,
                qb__build_id=message.build_id,
            ),
            self._lock,
        ):
            self._app.send_task(
                TASK_RUN_BUILD,
                args=[message.build_id],
                queue=message.queue,
                # Redis serves the lowest number first
                priority=9 - message.priority,
                ignore_result=True,
                # the outbox tries again; a caller must not wait for a broker that is down
                retry=False,
            )

    def check(self) -> None:
        """Raise when the broker cannot be reached."""
        with self._lock, self._app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=_CONNECT_SECONDS)

    def close(self) -> None:
        """Close the connections."""
        self._app.close()
