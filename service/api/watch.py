"""Tells waiting calls and event streams that a build has news.

One task per process looks at the numbers of the watched builds, all in one query; a stream that
waits holds neither a connection nor a thread. The database is what is looked at: a change that
another process made is seen in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..domain import Event, ServiceError

__all__ = ["Feed", "Watch", "Watcher"]

_log = logging.getLogger(__name__)

_MAX_PAUSE_S = 5.0


_KEPT_EVENTS = 200


class Feed:
    """The newest events of a build, read once for all who follow it.

    Attributes:
        number: the newest event's number.
        watches: who follows.
    """

    def __init__(self) -> None:
        self.number = 0
        self.watches: set[Watch] = set()
        self._events: deque[Event] = deque()
        self._floor: int | None = None

    def after(self, seen: int) -> list[Event] | None:
        """Return the events after a number; None when they have to be read from the database."""
        if self._floor is None or seen < self._floor:
            return None
        return [event for event in self._events if event.seq > seen]

    @property
    def begun(self) -> bool:
        """Whether events are kept from some number on."""
        return self._floor is not None

    def skip_to(self, number: int) -> None:
        """Keep events from here on only."""
        self._events.clear()
        self._floor = self.number = number

    def add(self, events: Sequence[Event], number: int) -> None:
        """Keep the events that followed the newest one, which now has this number."""
        self._events.extend(events)
        self.number = number
        while len(self._events) > _KEPT_EVENTS:
            self._floor = self._events.popleft().seq


@dataclass(slots=True, eq=False)
class Watch:
    """One waiter's view of a build."""

    build_id: str
    feed: Feed
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
        events: returns up to ``limit`` events of a build after a number; likewise.
        interval: seconds between two looks.
        limit: most watches at a time.
    """

    def __init__(
        self,
        numbers: Callable[[Sequence[str]], dict[str, int]],
        events: Callable[[str, int, int], list[Event]],
        *,
        interval: float,
        limit: int,
    ) -> None:
        self._numbers = numbers
        self._events = events
        self._interval = interval
        self._limit = limit
        self._feeds: dict[str, Feed] = {}
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
        feed = self._feeds.setdefault(build_id, Feed())
        watch = Watch(build_id, feed)
        self._count += 1
        feed.watches.add(watch)
        self._wake.set()
        return watch

    def close(self, watch: Watch) -> None:
        """End a watch; ending it twice is no error."""
        if watch not in watch.feed.watches:
            return
        watch.feed.watches.discard(watch)
        self._count -= 1
        if not watch.feed.watches:
            del self._feeds[watch.build_id]

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
            if not self._feeds:
                self._wake.clear()
                await self._wake.wait()
            try:
                for build_id, number in await self._look():
                    feed = self._feeds.get(build_id)
                    for watch in () if feed is None else feed.watches:
                        watch.tell(number)
                pause = self._interval
            except Exception as exc:
                # streams stay open while the database is away
                pause = min(pause * 2, _MAX_PAUSE_S)
                _log.warning("cannot look for news: %s", type(exc).__name__)
            await asyncio.sleep(pause)

    async def _look(self) -> list[tuple[str, int]]:
        """Bring the feeds up to date; return each build with its newest number."""
        found = await asyncio.to_thread(self._numbers, list(self._feeds))
        for build_id, number in found.items():
            feed = self._feeds.get(build_id)
            if feed is None or (feed.begun and number <= feed.number):
                continue
            if not feed.begun:
                feed.skip_to(number)
                continue
            new = await asyncio.to_thread(self._events, build_id, feed.number, _KEPT_EVENTS + 1)
            if len(new) > _KEPT_EVENTS:
                feed.skip_to(number)
            else:
                feed.add(new, max([number, *(event.seq for event in new)]))
        return [(build_id, feed.number) for build_id, feed in self._feeds.items() if feed.begun]
