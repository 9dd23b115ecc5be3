"""Tells waiting calls and event streams that a build has news.

One task per process looks at the numbers of the watched builds, all in one query; a stream that
waits holds neither a connection nor a thread. The database is what is looked at: a change that
another process made is seen in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..domain import ServiceError

__all__ = ["Watch", "Watcher"]

_log = logging.getLogger(__name__)

_MAX_PAUSE_S = 5.0


@dataclass(slots=True, eq=False)
class Watch:
    """One waiter's view of a build."""

    build_id: str
    number: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def changed(self, after: int, timeout: float) -> bool:
        """Wait until the build's newest event is beyond ``after``; False when time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.number <= after:
                    self._changed.clear()
                    await self._changed.wait()
        return self.number > after

    def tell(self, number: int) -> None:
        """Take note of the newest number."""
        if number > self.number:
            self.number = number
            self._changed.set()


class Watcher:
    """Looks at the watched builds.

    Args:
        numbers: returns the newest event number of each build; blocks, is run in a thread.
        interval: seconds between two looks.
        limit: most watches at a time.
    """

    def __init__(
        self,
        numbers: Callable[[Sequence[str]], dict[str, int]],
        *,
        interval: float,
        limit: int,
    ) -> None:
        self._numbers = numbers
        self._interval = interval
        self._limit = limit
        self._watches: dict[str, set[Watch]] = {}
        self._count = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """How many watches are open."""
        return self._count

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run(), name="watcher")

    async def stop(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def open(self, build_id: str) -> Watch:
        """Watch a build, until :meth:`close`.

        Raises:
            ServiceError: ``RATE_LIMITED`` when too many are open already.
        """
        if self._count >= self._limit:
            raise ServiceError(
                "RATE_LIMITED",
                "too many event streams and waiting calls are open on this server",
                hint="close some, or poll without wait",
                retry_after_s=5,
            )
        watch = Watch(build_id)
        self._count += 1
        self._watches.setdefault(build_id, set()).add(watch)
        self._wake.set()
        return watch

    def close(self, watch: Watch) -> None:
        """End a watch; ending it twice is no error."""
        watches = self._watches.get(watch.build_id, set())
        if watch not in watches:
            return
        watches.discard(watch)
        self._count -= 1
        if not watches:
            del self._watches[watch.build_id]

    @contextmanager
    def watch(self, build_id: str) -> Iterator[Watch]:
        """Watch a build within a block; see :meth:`open`."""
        watch = self.open(build_id)
        try:
            yield watch
        finally:
            self.close(watch)

    async def _run(self) -> None:
        pause = self._interval
        while True:
            if not self._watches:
                self._wake.clear()
                await self._wake.wait()
            try:
                found = await asyncio.to_thread(self._numbers, list(self._watches))
                pause = self._interval
            except Exception as exc:
                # streams stay open while the database is away
                pause = min(pause * 2, _MAX_PAUSE_S)
                _log.warning("cannot look for news: %s", type(exc).__name__)
                found = {}
            for build_id, number in found.items():
                for watch in self._watches.get(build_id, ()):
                    watch.tell(number)
            await asyncio.sleep(pause)
