"""Threads that deliver webhooks."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from .. import webhooks
from ..db import WebhookStore
from ..domain import Network, WebhookDelivery, WebhookSigner

__all__ = ["WebhookPump"]

_log = logging.getLogger(__name__)

_IDLE_SECONDS = 0.5
_GONE = 410


class WebhookPump:
    """Looks for messages that are due, and delivers them.

    Jobs end in other processes, so it looks at the database now and then. Several services share
    the work; a message that one of them held when it died is delivered by another.

    Args:
        store: the messages.
        signer: signs them.
        allowed: networks that messages may go to although they are not public.
        seconds: for one try.
        concurrency: tries at a time.
        resolve: finds a host's addresses.
    """

    def __init__(
        self,
        store: WebhookStore,
        signer: WebhookSigner,
        *,
        allowed: tuple[Network, ...],
        seconds: float,
        concurrency: int,
        resolve: webhooks.Resolver = webhooks.system_resolver,
    ) -> None:
        self._store = store
        self._signer = signer
        self._allowed = allowed
        self._seconds = seconds
        self._concurrency = concurrency
        self._resolve = resolve
        self._stopping = threading.Event()
        self._room = threading.Semaphore(concurrency)
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, after the tries that are under way."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self._seconds + 5)

    def _run(self) -> None:
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="webhook") as pool:
            while not self._stopping.is_set():
                started = 0
                try:
                    started = self._start_some(pool)
                except Exception as exc:
                    _log.warning("cannot look for webhooks to deliver: %s", type(exc).__name__)
                if not started:
                    self._stopping.wait(_IDLE_SECONDS)

    def _start_some(self, pool: ThreadPoolExecutor) -> int:
        # no more than can start now: a message that waits here would use up its lease
        room = 0
        while room < self._concurrency and self._room.acquire(blocking=False):
            room += 1
        found: list[WebhookDelivery] = []
        try:
            if room:
                found = self._store.claim(room)
        finally:
            for _ in range(room - len(found)):
                self._room.release()
        for delivery in found:
            pool.submit(self._deliver, delivery).add_done_callback(self._done)
        return len(found)

    def _done(self, future: Future[None]) -> None:
        self._room.release()
        error = future.exception()
        if error is not None:
            # its lease runs out, and it is tried again
            _log.warning("a webhook's try is not recorded: %s", type(error).__name__)

    def _deliver(self, delivery: WebhookDelivery) -> None:
        body = delivery.body.encode()
        secret = self._store.secret(delivery.project)
        headers = self._signer.headers(
            delivery.project, secret.generations, delivery.id, int(time.time()), body
        )
        answer = webhooks.post(
            delivery.url,
            {**headers, "User-Agent": "qb-compile-server"},
            body,
            allowed=self._allowed,
            seconds=self._seconds,
            resolve=self._resolve,
        )
        self._store.record(
            delivery,
            status=answer.status,
            error=answer.error,
            seconds=answer.seconds,
            delivered=answer.delivered,
            gone=answer.status == _GONE,
            retry_after_s=answer.retry_after_s,
        )
        _log.info(
            "webhook %s of %s, try %d: %s",
            delivery.id,
            delivery.job_id,
            delivery.tries,
            answer.status or answer.error,
        )
