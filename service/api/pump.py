"""A thread that sends the broker messages of committed transactions."""

from __future__ import annotations

import logging
import threading

from ..db import OutboxDispatcher

__all__ = ["OutboxPump"]

_log = logging.getLogger(__name__)

_IDLE_SECONDS = 5.0


class OutboxPump:
    """Runs the dispatcher when kicked, and now and then.

    What it misses when the process dies, the workers' reconciler or the next process sends.
    """

    def __init__(self, dispatcher: OutboxDispatcher) -> None:
        self._dispatcher = dispatcher
        self._kicked = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def kick(self) -> None:
        """There is a new message."""
        self._kicked.set()

    def stop(self) -> None:
        """End, after the message that is being sent."""
        self._stopping = True
        self._kicked.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stopping:
            try:
                while self._dispatcher.run_once():
                    pass
            except Exception as exc:
                _log.warning("cannot look for messages to send: %s", exc)
            self._kicked.wait(_IDLE_SECONDS)
            self._kicked.clear()
