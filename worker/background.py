"""What keeps the queue honest: the outbox dispatcher, the reconciler and the scratch cleaner.

Each worker runs them; any number at once does no harm, for every write of theirs is conditional.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from service.broker import CelerySender
from service.db import Database, OutboxDispatcher, Reconciler
from service.settings import Settings

from .build import clean_scratch
from .metrics import WorkerMetrics

__all__ = ["Background"]

_log = logging.getLogger(__name__)

_DISPATCH_SECONDS = 0.5


class Background:
    """Two threads: one sends committed messages, one reconciles."""

    def __init__(
        self, settings: Settings, db: Database, metrics: WorkerMetrics | None = None
    ) -> None:
        self._metrics = metrics or WorkerMetrics()
        self._settings = settings
        self._reconciler = Reconciler(db, settings.lease_policy())
        self._sender = CelerySender(settings)
        self._dispatcher = OutboxDispatcher(db, self._sender)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._repeat,
                args=(self._dispatcher.run_once, _DISPATCH_SECONDS),
                name="dispatcher",
                daemon=True,
            ),
            threading.Thread(
                target=self._repeat,
                args=(self.reconcile, settings.reconcile_seconds),
                name="reconciler",
                daemon=True,
            ),
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads and close the broker connections."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=5)
        self._sender.close()

    def reconcile(self) -> None:
        """Put the queue right once, and clear away what dead workers left on this disk."""
        self._metrics.count(self._reconciler.run_once())
        clean_scratch(self._settings)

    def _repeat(self, work: Callable[[], object], seconds: float) -> None:
        while True:
            try:
                work()
            except Exception:
                # the database or the broker is away; the next round tries again
                _log.exception("background work failed")
                self._metrics.errors.inc()
            if self._stop.wait(seconds):
                return
