from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from service.db import ArtifactStore, Database, JobFilter, ObjectHolds, TokenStore
from service.db.holds import hold_digest
from service.db.tables import (
    AuditRow,
    BuildRow,
    CalibrationRow,
    HoldRow,
    JobRow,
    LinkRow,
    ModelRow,
)
from service.db.uploads import UploadStore
from service.domain import ArtifactKind, CacheMode, FileRef, StoredFile
from service.gc import Collector, GcReport, Retention
from service.storage import HeldStore, LocalStore
from worker.cli import main

from .conftest import Bench


class Yard:
    """A database and a store, with what lies in them."""

    def __init__(self, db: Database, folder: Path) -> None:
        self.db = db
        self.raw = LocalStore(folder / "objects")
        self.store = HeldStore(self.raw, ObjectHolds(db).hold)
        self.folder = folder
        self.bench = Bench(db)
        # the model that the bench records has no object
        with db.write() as session:
            session.execute(delete(ModelRow))

    def put(self, data: bytes, store: Any = None) -> str:
        digest = hashlib.sha256(data).hexdigest()
        path = self.folder / f"{digest}.{threading.get_ident()}"
        path.write_bytes(data)
        (store or self.store).put_file(path, digest)
        return digest

    def model(self, data: bytes = b"model") -> str:
        from service.db import NewModel
        from service.domain import ModelFormat

        file = FileRef("m.onnx", self.put(data), len(data))
        self.bench.model = self.bench.models.add(
            NewModel("default", "m", ModelFormat.ONNX, (file,), [], [], {})
        )
        return file.sha256

    def build(self, variant: int = 0, data: bytes = b"result", **more: Any) -> tuple[str, str]:
        """Do a job; return its id and the digest of its result."""
        job = self.bench.jobs.submit(self.bench.new(variant, **more))
        claim = self.bench.builds.claim(job.build.id, "w")
        assert claim is not None
        file = StoredFile(ArtifactKind.MBLT, "m.mblt", self.put(data), len(data))
        self.bench.builds.succeed(claim, [file], {})
        return job.job.id, file.sha256

    def age(self, days: float = 400) -> None:
        """Let everything that is there become older, holds included."""
        back = timedelta(days=days)
        with self.db.write() as session:
            for table, column in (
                (JobRow, "finished_at"), (BuildRow, "finished_at"), (ModelRow, "deleted_at"),
                (CalibrationRow, "deleted_at"), (HoldRow, "until"), (AuditRow, "at"),
            ):  # fmt: skip
                for row in session.execute(select(table)).scalars():
                    value = getattr(row, column)
                    if value is not None:
                        setattr(row, column, value - back)

    def collect(self, days: int | None = 30, **more: Any) -> GcReport:
        return Collector(self.db, self.raw, Retention(days, days)).run(**more)

    def there(self) -> set[str]:
        return set(self.raw.digests())


@pytest.fixture
def yard(db: Database, tmp_path: Path) -> Yard:
    return Yard(db, tmp_path)


def test_old_jobs_go_with_their_builds_and_their_objects_a_day_later(yard: Yard) -> None:
    source = yard.model()
    old, result = yard.build(1)
    yard.age()
    new, kept = yard.build(2, b"new")
    report = yard.collect(dry_run=True)
    assert (report.jobs, report.builds, report.artifacts) == (1, 1, 1)
    assert yard.bench.jobs.get("default", old) is not None
    report = yard.collect()
    assert (report.jobs, report.builds, report.artifacts, report.objects) == (1, 1, 1, 0)
    assert yard.bench.jobs.get("default", old) is None
    assert yard.bench.jobs.get("default", new) is not None
    # a download that began before may go on
    assert yard.there() == {source, result, kept}
    yard.age(2)
    report = yard.collect()
    assert (report.objects, report.object_bytes, report.missing) == (1, 6, [])
    assert yard.there() == {source, kept}
    # the same request builds anew
    again, _ = yard.build(1)
    assert yard.bench.jobs.get("default", again) is not None


def test_what_is_kept_for_good_stays(yard: Yard) -> None:
    yard.model()
    yard.build(1)
    yard.age()
    before = yard.there()
    assert yard.collect(None) == yard.collect(0) == GcReport()
    assert yard.there() == before


def test_each_project_keeps_jobs_as_long_as_it_says(yard: Yard) -> None:
    yard.model()
    yard.build(1)
    yard.age(40)
    tokens = TokenStore(yard.db)
    assert tokens.set_retention("default", 0)
    assert yard.collect(30).jobs == 0
    tokens.set_retention("default", 50)
    assert yard.collect(30).jobs == 0
    tokens.set_retention("default", None)
    assert yard.collect(50).jobs == 0
    assert yard.collect(30).jobs == 1
    assert not tokens.set_retention("nobody", 1)


def test_links_newer_jobs_and_comparisons_hold_a_build(yard: Yard) -> None:
    yard.model()
    linked, result = yard.build(1)
    shared, _ = yard.build(2)
    compared, _ = yard.build(3)
    artifacts = ArtifactStore(yard.db)
    view = yard.bench.jobs.get("default", linked)
    assert view is not None
    (artifact,) = artifacts.of_builds([view.build.id])[view.build.id]
    link = artifacts.add_link("default", artifact.id, 3600)
    yard.age()
    assert link is not None
    hit = yard.bench.jobs.submit(yard.bench.new(2))
    running = yard.bench.jobs.submit(yard.bench.new(3, cache=CacheMode.REFRESH))
    report = yard.collect()
    # a job may go while the build stays for another one
    assert (report.jobs, report.builds) == (1, 0)
    assert yard.bench.jobs.get("default", shared) is None
    assert yard.bench.jobs.get("default", hit.job.id) is not None
    yard.age(2)
    assert result in yard.there() and yard.collect().objects == 0
    yard.bench.jobs.cancel("default", running.job.id)
    artifacts.revoke_link("default", artifact.id, link.id)
    report = yard.collect()
    assert report.builds == 2
    assert yard.bench.jobs.get("default", compared) is None
    with yard.db.read() as session:
        assert session.execute(select(LinkRow)).first() is None


def test_a_deleted_model_stays_while_a_build_needs_it(yard: Yard) -> None:
    unused = yard.model(b"other")
    yard.bench.models.delete("default", yard.bench.model.id)
    source = yard.model()
    yard.build(1)
    yard.bench.models.delete("default", yard.bench.model.id)
    assert yard.collect(None).objects == 0
    yard.age()
    report = yard.collect(None)
    assert (report.inputs, report.objects) == (2, 1)
    assert source in yard.there() and unused not in yard.there()
    yard.collect()
    yard.age(2)
    yard.collect()
    assert yard.there() == set()


def test_uploads_hold_their_objects(yard: Yard) -> None:
    digest = yard.put(b"whole")
    yard.age()
    uploads = UploadStore(yard.db)
    announce = {"part_bytes": 16 << 20, "expires_s": 100, "most_open": 9}
    uploads.announce(
        "default",
        name="a",
        size=5,
        sha256=digest,
        present=True,
        **announce,  # type: ignore[arg-type]
    )
    uploads.announce(
        "default",
        name="b",
        size=5,
        sha256="b" * 64,
        present=False,
        **announce,  # type: ignore[arg-type]
    )
    report = yard.collect()
    # one that is still to come is not missing
    assert (report.objects, report.missing) == (0, [])
    assert yard.there() == {digest}


def test_missing_objects_are_told(yard: Yard) -> None:
    source = yard.model()
    _, result = yard.build(1)
    yard.raw.delete(result)
    assert yard.collect(None).missing == [result]
    yard.raw.delete(source)
    assert yard.collect(None, dry_run=True).missing == sorted([result, source])


def test_a_hold_waits_for_the_removal_and_the_object_is_stored_anew(yard: Yard) -> None:
    """The one moment that matters: stored again just while the collector removes it."""
    digest = yard.put(b"twice")
    yard.age()
    order: list[str] = []
    stored = threading.Event()

    def publish() -> None:
        yard.put(b"twice")
        order.append("stored")
        stored.set()

    class Slow(LocalStore):
        def delete(self, sha256: str) -> bool:
            thread.start()
            # long enough for the publisher to look for the object, if nothing held it back
            stored.wait(0.5)
            order.append("removed")
            return super().delete(sha256)

    thread = threading.Thread(target=publish)
    report = Collector(yard.db, Slow(yard.raw.root), Retention()).run()
    thread.join(30)
    assert report.objects == 1
    assert order == ["removed", "stored"]
    assert yard.there() == {digest}


def test_nothing_that_is_named_is_ever_lost(yard: Yard) -> None:
    """Publishers and downloads against two collectors to whom everything is old."""
    contents = [f"content {i}".encode() for i in range(4)]
    deadline, wrong = time.monotonic() + 40, list[str]()
    done = {"published": 0, "removed": 0, "downloads": 0}
    aging, reading, counting = threading.Lock(), threading.Lock(), threading.Lock()
    in_use: dict[str, int] = {}
    yard.model(b"source")

    def guarded(work: Callable[[random.Random], None], seed: int) -> Callable[[], None]:
        def run() -> None:
            chance = random.Random(seed)
            while min(done.values()) < 2 and time.monotonic() < deadline and not wrong:
                try:
                    work(chance)
                except Exception as exc:
                    wrong.append(f"{work.__name__}: {exc!r}")

        return run

    def use(digest: str, count: int) -> None:
        with counting:
            in_use[digest] = in_use.get(digest, 0) + count

    def publish(chance: random.Random) -> None:
        data = chance.choice(contents)
        job = yard.bench.jobs.submit(yard.bench.new(chance.randrange(4)))
        claim = yard.bench.builds.claim(job.build.id, "w")
        if claim is None:
            return
        digest = hashlib.sha256(data).hexdigest()
        use(digest, 1)
        try:
            yard.put(data)
            time.sleep(chance.random() / 50)
            file = StoredFile(ArtifactKind.MBLT, "m.mblt", digest, len(data))
            yard.bench.builds.succeed(claim, [file], {})
        finally:
            use(digest, -1)
        done["published"] += 1

    def download(chance: random.Random) -> None:
        with reading:
            page = yard.bench.jobs.page("default", JobFilter(), limit=20, cursor=None)
            made = ArtifactStore(yard.db).of_builds([v.build.id for v in page.items])
            time.sleep(chance.random() / 50)
            for artifact in [a for of_build in made.values() for a in of_build]:
                data = b"".join(yard.raw.read(artifact.sha256))
                assert hashlib.sha256(data).hexdigest() == artifact.sha256
                done["downloads"] += 1
        time.sleep(0.01)

    def collect(_: random.Random) -> None:
        with aging, yard.db.write() as session:
            session.execute(select(BuildRow.id).order_by(BuildRow.id).with_for_update())
            for table in (JobRow, BuildRow):
                session.execute(
                    update(table)
                    .where(table.finished_at.is_not(None))
                    .values(finished_at=datetime.now(UTC) - timedelta(days=99))
                )
        with reading:
            pass_a_day()
        done["removed"] += Collector(yard.db, yard.raw, Retention(1)).run().objects

    def pass_a_day() -> None:
        """End the holds of what nobody is at, for nobody is at anything for a day."""
        with yard.db.read() as session:
            held = sorted(session.execute(select(HoldRow.digest)).scalars())
        for digest in held:
            with counting, yard.db.write() as session:
                if not in_use.get(digest):
                    session.execute(delete(HoldRow).where(HoldRow.digest == digest))

    works = [publish, publish, publish, download, collect, collect]
    threads = [threading.Thread(target=guarded(w, i)) for i, w in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert wrong == []
    assert min(done.values()) > 0, done
    assert Collector(yard.db, yard.raw, Retention()).run(dry_run=True).missing == []


def test_a_hold_is_renewed(db: Database) -> None:
    with db.write() as session:
        hold_digest(session, "a" * 64, datetime(2020, 1, 1, tzinfo=UTC))
    ObjectHolds(db).hold("a" * 64)
    with db.read() as session:
        (until,) = session.execute(select(HoldRow.until)).scalars()
    assert until > datetime.now(UTC) + timedelta(hours=23)


def test_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from service.db import run_migrations

    monkeypatch.setenv("QB_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("QB_RETENTION_DAYS", "90")
    url = f"sqlite:///{tmp_path / 'qb.sqlite3'}"
    run_migrations(url)
    db = Database(url)
    yard = Yard(db, tmp_path)
    yard.model()
    _, result = yard.build(1)
    yard.age(80)
    assert main(["project", "list"]) == 0
    assert "default" in (out := capsys.readouterr().out) and "90 days (QB_RETENTION_DAYS)" in out
    assert main(["gc"]) == 0
    assert capsys.readouterr().out.startswith("removed 0 jobs")
    assert main(["project", "keep", "default", "60"]) == 0
    assert main(["project", "keep", "nobody", "60"]) == 2
    assert main(["gc", "--dry-run"]) == 0
    assert "would remove 1 jobs, 1 builds" in capsys.readouterr().out
    yard.raw.delete(result)
    assert main(["gc", "--dry-run"]) == 1
    assert result in capsys.readouterr().err
    assert main(["gc"]) == 0
    assert "removed 1 jobs, 1 builds" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["project", "keep", "default", "-1"])
    db.close()
