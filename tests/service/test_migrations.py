from __future__ import annotations

from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import inspect

from service.db import Database, current_revision, head_revision, run_migrations
from service.db.migrate import alembic_config
from service.db.tables import Base

from .conftest import in_threads


def test_migrations_make_the_schema_that_the_code_has(any_database_url: str) -> None:
    run_migrations(any_database_url)
    # raises when autogeneration would change anything
    command.check(alembic_config(any_database_url))
    db = Database(any_database_url)
    try:
        assert current_revision(db) == head_revision() is not None
        tables = set(inspect(db.engine).get_table_names())
        assert tables == set(Base.metadata.tables) | {"alembic_version"}
    finally:
        db.close()


def test_migrating_twice_changes_nothing_and_down_leaves_nothing(any_database_url: str) -> None:
    run_migrations(any_database_url)
    run_migrations(any_database_url)
    command.downgrade(alembic_config(any_database_url), "base")
    db = Database(any_database_url)
    try:
        assert current_revision(db) is None
        assert set(inspect(db.engine).get_table_names()) <= {"alembic_version"}
    finally:
        db.close()
    run_migrations(any_database_url)


def test_processes_that_start_together_migrate_once(any_database_url: str) -> None:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        for future in [pool.submit(run_migrations, any_database_url) for _ in range(3)]:
            future.result(60)
    db = Database(any_database_url)
    try:
        assert current_revision(db) == head_revision()
    finally:
        db.close()


def test_other_databases_are_refused() -> None:
    with pytest.raises(ValueError, match="mysql"):
        Database("mysql://root@localhost/x")


def test_sqlite_runs_as_it_must(tmp_path: Path) -> None:
    db = Database(f"sqlite:///{tmp_path / 'new' / 'a.sqlite3'}")
    try:
        with db.read() as session:
            get = lambda name: session.connection().exec_driver_sql(f"PRAGMA {name}").scalar()  # noqa: E731
            assert get("journal_mode") == "wal"
            assert get("foreign_keys") == 1
            assert get("busy_timeout") == 30000
    finally:
        db.close()


def test_sqlite_writers_wait_for_each_other(tmp_path: Path) -> None:
    db = Database(f"sqlite:///{tmp_path / 'a.sqlite3'}")
    with db.write() as session:
        session.connection().exec_driver_sql("CREATE TABLE n (v INTEGER)")
        session.connection().exec_driver_sql("INSERT INTO n VALUES (0)")

    def add(_: int) -> None:
        for _ in range(20):
            # reads, then writes: with a deferred BEGIN this fails on the upgrade of the lock
            with db.write() as session:
                value = session.connection().exec_driver_sql("SELECT v FROM n").scalar_one()
                session.connection().exec_driver_sql(f"UPDATE n SET v = {value + 1}")

    assert in_threads(6, add) == [None] * 6
    with db.read() as session:
        assert session.connection().exec_driver_sql("SELECT v FROM n").scalar_one() == 120
    db.close()
