"""The heartbeat of an attempt."""

from __future__ import annotations

import contextvars
import logging
import threading
import time

from service.db import BuildStore
from service.domain import Claim, HeartbeatAnswer, LeaseLost
from service.settings import Settings

from .engine import Control
from .reporter import Reporter

__all__ = ["Heart"]

_log = logging.getLogger(__name__)


class Heart:
    """Beats while an attempt runs: extends the lease, learns of a cancel and of new limits.

    While the database is away nobody else can take the build either, so the attempt goes on, as
    long as the settings are ready to wait; a lease that was given away meanwhile shows at the next
    beat that gets through.
    """

    def __init__(
        self,
        settings: Settings,
        builds: BuildStore,
        claim: Claim,
        control: Control,
        reporter: Reporter,
    ) -> None:
        self._settings = settings
        self._builds = builds
        self._claim = claim
        self._control = control
        self._reporter = reporter
        self._done = threading.Event()
        # in the attempt's own context, so that its lines carry the same ids
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._beat,), name="heart", daemon=True
        )

    def __enter__(self) -> Heart:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join(self._settings.lease_seconds)

    def _beat(self) -> None:
        patience = max(self._settings.lease_seconds, self._settings.outage_seconds)
        until = time.monotonic() + patience
        while not self._done.wait(self._settings.heartbeat_seconds):
            try:
                answer = self._builds.heartbeat(self._claim)
            except LeaseLost:
                self._abandon()
                return
            except Exception as exc:
                _log.warning("build %s: heartbeat failed: %s", self._claim.build.id, exc)
                if time.monotonic() > until:
                    self._abandon()
                    return
                continue
            until = time.monotonic() + patience
            self._learn(answer)

    def _abandon(self) -> None:
        self._reporter.lost = True
        # not the worker's own event: only this run ends
        stop = threading.Event()
        stop.set()
        self._control.stop = stop

    def _learn(self, answer: HeartbeatAnswer) -> None:
        self._control.run_limit_s = answer.run_limit_s
        self._control.memory_limit_mb = self._settings.memory_bound(
            self._claim.build.queue, answer.memory_limit_mb
        )
        if answer.cancel_requested:
            self._control.cancel.set()
