from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from service.api.watch import Feed, Watcher
from service.db import Database, run_migrations
from service.domain import Event, EventType, ServiceError

from .conftest import Bench


def event(seq: int) -> Event:
    return Event("b", seq, None, EventType.LOG, 1, datetime.now(UTC), {"text": str(seq)})


def test_a_feed_says_what_it_has_and_when_to_ask_the_database() -> None:
    feed = Feed()
    assert feed.after(0) is None
    feed.skip_to(10)
    assert feed.after(9) is None
    assert feed.after(10) == []
    feed.add([event(11), event(12)], 12)
    assert [e.seq for e in feed.after(10) or []] == [11, 12]
    assert [e.seq for e in feed.after(11) or []] == [12]
    feed.add([event(n) for n in range(13, 240)], 239)
    assert feed.after(12) is None
    assert [e.seq for e in feed.after(200) or []] == list(range(201, 240))


class Table:
    """Stands for the database."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.looks = 0
        self.reads = 0
        self.broken = False

    def numbers(self, build_ids: Sequence[str]) -> dict[str, int]:
        self.looks += 1
        if self.broken:
            raise ConnectionError
        return {b: len(self.events) for b in build_ids}

    def read(self, build_id: str, after: int, limit: int) -> list[Event]:
        self.reads += 1
        return [e for e in self.events if e.seq > after][:limit]


def watcher(table: Table, limit: int = 100) -> Watcher:
    return Watcher(table.numbers, table.read, interval=0.01, limit=limit)


def test_many_followers_cost_one_read() -> None:
    async def run() -> None:
        table = Table()
        watch = watcher(table)
        watch.start()
        followers = [watch.open("b") for _ in range(50)]
        await asyncio.sleep(0.05)
        for n in range(1, 6):
            table.events.append(event(n))
            assert all(await asyncio.gather(*(f.changed(n - 1, 5) for f in followers)))
        assert [e.seq for e in followers[0].feed.after(0) or []] == [1, 2, 3, 4, 5]
        assert table.reads <= 5
        for follower in followers:
            watch.close(follower)
            watch.close(follower)
        assert watch.count == 0
        await asyncio.sleep(0.05)
        looks = table.looks
        await asyncio.sleep(0.1)
        assert table.looks <= looks + 1, "nobody follows, nobody looks"
        await watch.stop()

    asyncio.run(run())


def test_a_flood_sends_followers_to_the_database() -> None:
    async def run() -> None:
        table = Table()
        watch = watcher(table)
        watch.start()
        with watch.watch("b") as one:
            await asyncio.sleep(0.05)
            table.events = [event(n) for n in range(1, 1001)]
            assert await one.changed(0, 5)
            assert one.number == 1000
            assert one.feed.after(0) is None
            assert one.feed.after(1000) == []
        await watch.stop()

    asyncio.run(run())


def test_time_is_up_and_the_database_comes_back() -> None:
    async def run() -> None:
        table = Table()
        watch = watcher(table)
        watch.start()
        with watch.watch("b") as one:
            started = time.monotonic()
            assert not await one.changed(0, 0.1)
            assert time.monotonic() - started >= 0.1
            table.broken = True
            await asyncio.sleep(0.1)
            table.broken = False
            table.events = [event(1)]
            assert await one.changed(0, 10)
        await watch.stop()

    asyncio.run(run())


def test_there_is_a_most() -> None:
    async def run() -> None:
        watch = watcher(Table(), limit=1)
        with watch.watch("b"), pytest.raises(ServiceError) as caught:
            watch.open("c")
        assert caught.value.code == "RATE_LIMITED"
        watch.close(watch.open("c"))

    asyncio.run(run())


def test_a_forked_process_opens_connections_of_its_own(any_database_url: str) -> None:
    run_migrations(any_database_url)
    db = Database(any_database_url)
    bench = Bench(db)
    job = bench.jobs.submit(bench.new()).job
    with db.read() as session:
        mine = session.connection().connection.dbapi_connection
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with db.read() as session:
                other = session.connection().connection.dbapi_connection
            claim = bench.builds.claim(job.build_id, "child")
            os.write(write, b"1" if other is not mine and claim is not None else b"0")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    assert os.read(read, 1) == b"1"
    os.close(read)
    # the parent's connection still works
    build = bench.builds.get(job.build_id)
    assert build is not None and build.worker == "child"
    db.close()


def test_a_memory_database_is_for_trying_things(tmp_path: Path) -> None:
    db = Database("sqlite://")
    db.check()
    db.close()
