from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import inspect

from service.db import (
    ArtifactStore,
    Database,
    JobFilter,
    JobStore,
    ModelStore,
    NewJob,
    TokenStore,
    WebhookStore,
    current_revision,
    head_revision,
    run_migrations,
)
from service.db.migrate import alembic_config
from service.db.tables import Base
from service.domain import (
    BuildSpec,
    FileRef,
    JobKind,
    ModelFormat,
    ModelInput,
    State,
    build_key,
)

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


def _first_release(url: str) -> dict[str, str]:
    """Fill a database of the first release with a row of each kind; return ids and states."""
    run_migrations(url, "0001")
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    spec = BuildSpec(
        kind=JobKind.PARSE,
        engine="qbcompiler",
        engine_version="1",
        model=ModelInput(ModelFormat.ONNX, "d" * 64, (FileRef("m.onnx", "a" * 64, 10),)),
    )
    filled: dict[str, dict[str, object]] = {
        "tokens": {"name": "ci", "role": "builder", "digest": "t" * 64},
        "models": {
            "name": "m", "format": "onnx", "digest": "d" * 64, "size": 10, "inputs": [],
            "outputs": [], "facts": {"opset": 17}, "labels": {"a": "b"},
            "files": [{"path": "m.onnx", "sha256": "a" * 64, "size": 10}],
        },
        "builds": {
            "id": "bld", "kind": "parse", "key": build_key(spec), "cache_key": build_key(spec),
            "state": "succeeded", "spec": spec.to_json(), "engine": "qbcompiler", "queue": "q",
            "priority": 5, "fencing": 1, "losses": 0, "run_limit_s": 9, "cancel_requested": False,
            "queued_at": now, "announced_at": now, "started_at": now, "finished_at": now,
            "event_seq": 1, "log_bytes": 0, "progress_events": 0, "summary": {"x": 1.5},
        },
        "jobs": {
            "id": "job", "kind": "parse", "build_id": "bld", "state": "succeeded", "cache": "miss",
            "cache_mode": "on", "request": {"type": "parse"}, "labels": {"ci": "7"}, "priority": 5,
            "queue_limit_s": 9, "queue_deadline": now, "event_floor": 0, "event_end": 1,
            "queued_at": now, "started_at": now, "finished_at": now,
        },
        "job_labels": {"job_id": "job", "name": "ci", "value": "7"},
        "events": {"build_id": "bld", "seq": 1, "type": "state", "attempt": 1, "at": now,
                   "data": {"state": "succeeded"}},
        "artifacts": {"id": "art", "build_id": "bld", "kind": "mblt", "name": "m.mblt",
                      "sha256": "b" * 64, "size": 3, "media_type": "x/y"},
        "links": {"id": "lnk", "artifact_id": "art", "expires_at": now + timedelta(days=9999)},
        "outbox": {"build_id": "bld", "queue": "q", "priority": 5, "not_before": now, "tries": 0},
    }  # fmt: skip
    db = Database(url)
    try:
        with db.write() as session:
            for name, given in filled.items():
                names = {c["name"] for c in inspect(session.connection()).get_columns(name)}
                row = {"project": "default", "created_at": now, "id": name[:3], **given}
                if name == "outbox":
                    del row["id"]
                row = {k: v for k, v in row.items() if k in names}
                # typed as they are now; columns that came later are not named
                table = Base.metadata.tables[name]
                session.execute(table.insert().values(row))
    finally:
        db.close()
    return {"job": "job", "artifact": "art", "link": "lnk"}


def test_a_database_of_the_first_release_goes_on(any_database_url: str) -> None:
    made = _first_release(any_database_url)
    run_migrations(any_database_url)
    db = Database(any_database_url)
    try:
        jobs = JobStore(db)
        view = jobs.get("default", made["job"])
        assert view is not None
        assert (view.job.state, view.job.labels) == (State.SUCCEEDED, {"ci": "7"})
        assert view.build.summary == {"x": 1.5}
        assert view.job.finished_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        listed = jobs.page("default", JobFilter(labels={"ci": "7"}), limit=5, cursor=None)
        assert [v.job.id for v in listed.items] == [made["job"]]
        found = ArtifactStore(db).open_link(made["link"])
        assert found is not None and found[1].id == made["artifact"]
        (model,) = ModelStore(db).page("default", limit=5, cursor=None).items
        assert model.facts == {"opset": 17}
        assert WebhookStore(db).secret("default").generations == (0,)
        assert TokenStore(db).projects() == {"default": None}
        # an old build answers a new request, and its end is told
        again = jobs.submit(
            NewJob("default", view.build.spec, {}, "q", 5, 9, 9, webhook_url="https://a.example/")
        )
        assert again.build.id == view.build.id
        (told,) = WebhookStore(db).page("default", limit=5, cursor=None).items
        assert told.job_id == again.job.id
    finally:
        db.close()
    # and back: nothing of the first release is lost by it
    command.downgrade(alembic_config(any_database_url), "0001")
    run_migrations(any_database_url)
    db = Database(any_database_url)
    try:
        assert JobStore(db).get("default", made["job"]) is not None
    finally:
        db.close()


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
