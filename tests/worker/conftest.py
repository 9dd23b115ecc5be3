"""The house that builds are done in."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.db import BuildStore, Database, JobStore, run_migrations
from service.settings import EngineSettings, Settings
from service.storage import LocalStore
from worker.build import Builder

from .house import MODEL, STAND_IN, House, Make


@pytest.fixture
def house(any_database_url: str, tmp_path: Path) -> Iterator[Make]:
    opened: list[Database] = []

    def make(behaviour: str) -> House:
        settings = Settings(
            data_dir=tmp_path / "data",
            database_url=any_database_url,
            heartbeat_seconds=0.1,
            lease_seconds=2.0,
            engines={
                "stand-in": EngineSettings(
                    command=[sys.executable, str(STAND_IN), behaviour], version="1"
                )
            },
        )
        run_migrations(any_database_url)
        db = Database(any_database_url)
        opened.append(db)
        store = LocalStore(tmp_path / "objects")
        upload = tmp_path / "upload"
        upload.write_bytes(MODEL)
        store.put_file(upload, hashlib.sha256(MODEL).hexdigest())
        builds = BuildStore(db, settings.lease_policy())
        return House(
            settings, db, builds, JobStore(db), store, Builder(settings, builds, store, "test:1")
        )

    yield make
    for db in opened:
        db.close()
