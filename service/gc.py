"""Collecting what nobody needs any more: old jobs and their builds, and objects that nothing names.

Any number of collectors may run beside services and workers, and beside each other: each build and
each object is removed in a transaction of its own that looks again under its lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import delete, exists, func, or_, select
from sqlalchemy.orm import Session

from .db import Database
from .db.holds import HOLD_SECONDS, hold_digest, is_held, lock_digest
from .db.tables import (
    ArtifactRow,
    AuditRow,
    BuildRow,
    CalibrationRow,
    HoldRow,
    IdempotencyRow,
    JobRow,
    LinkRow,
    MatrixRow,
    ModelRow,
    ProjectRow,
    UploadRow,
)
from .db.transitions import affected, lock_build, retrying
from .domain import ACTIVE, TERMINAL, BuildSpec
from .storage import ObjectStore

__all__ = ["Collector", "GcReport", "Retention"]

_log = logging.getLogger(__name__)

_BATCH = 500
_ACTIVE = [s.value for s in ACTIVE]
_TERMINAL = [s.value for s in TERMINAL]
_HOLD = timedelta(seconds=HOLD_SECONDS)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept, in days; None for good.

    Args:
        job_days: ended jobs with their builds and results, in projects that say nothing else.
        audit_days: entries of the audit log.
    """

    job_days: int | None = None
    audit_days: int | None = None


@dataclass(slots=True)
class GcReport:
    """What one run removed, or would remove."""

    jobs: int = 0
    builds: int = 0
    artifacts: int = 0
    inputs: int = 0
    """Models and calibration sets that were deleted a day ago or before."""
    audit_entries: int = 0
    objects: int = 0
    object_bytes: int = 0
    missing: list[str] = field(default_factory=list)
    """Digests that rows name and the store does not have."""


class _NotForReal(Exception):  # noqa: N818 (it ends a rehearsal)
    pass


class Collector:
    """Removes what retention allows to remove.

    A build stays while a job of it is to be kept, while a link to a result of its is valid, and
    while a running build is compared with it. An object stays while a model, a calibration set, a
    build (its inputs) or an artifact names it, and for a day after the last of them went.

    Args:
        db: the database.
        store: the objects.
        retention: how long things are kept.
    """

    def __init__(self, db: Database, store: ObjectStore, retention: Retention) -> None:
        self._db = db
        self._store = store
        self._retention = retention

    def run(self, *, dry_run: bool = False) -> GcReport:
        """Collect once.

        Args:
            dry_run: only find out; objects that the builds to go would free are not counted.
        """
        report = GcReport()
        for build_id, before in self._old_builds():
            self._each(partial(self._build, build_id, before, report), report, dry_run)
        self._each(lambda session: self._rows(session, report), report, dry_run)
        self._objects(report, dry_run)
        _log.info("collected%s: %s", " (dry run)" if dry_run else "", report)
        return report

    def _each(self, work: Callable[[Session], None], report: GcReport, dry_run: bool) -> None:
        before = replace(report)

        def once() -> None:
            # what a try that was undone had counted
            for name in ("jobs", "builds", "artifacts", "inputs", "audit_entries"):
                setattr(report, name, getattr(before, name))
            with self._db.write() as session:
                work(session)
                if dry_run:
                    raise _NotForReal

        try:
            retrying(once)
        except _NotForReal:
            return

    # builds -------------------------------------------------------------------------------

    def _old_builds(self) -> Iterator[tuple[str, datetime]]:
        """Yield builds that may go, and the time before which their jobs must have ended."""
        with self._db.read() as session:
            now = self._db.now(session)
            projects = {
                str(identifier): days
                for identifier, days in session.execute(
                    select(ProjectRow.id, ProjectRow.retention_days)
                )
            }
        for project, own in projects.items():
            days = self._retention.job_days if own is None else own
            if not days:
                continue
            before = now - timedelta(days=days)
            last = ""
            while True:
                with self._db.read() as session:
                    found = list(
                        session.execute(
                            select(BuildRow.id)
                            .where(
                                BuildRow.project == project,
                                BuildRow.state.in_(_TERMINAL),
                                BuildRow.finished_at < before,
                                BuildRow.id > last,
                            )
                            .order_by(BuildRow.id)
                            .limit(_BATCH)
                        ).scalars()
                    )
                if not found:
                    break
                last = found[-1]
                yield from ((build_id, before) for build_id in found)

    def _build(self, build_id: str, before: datetime, report: GcReport, session: Session) -> None:
        # a request that this build would answer takes this lock too
        build = lock_build(session, BuildRow.id == build_id)
        now = self._db.now(session)
        if build is None or build.state not in _TERMINAL or self._is_needed(session, build_id, now):
            return
        old = list(
            session.execute(
                select(JobRow.id).where(
                    JobRow.build_id == build_id,
                    JobRow.state.in_(_TERMINAL),
                    JobRow.finished_at < before,
                )
            ).scalars()
        )
        for start in range(0, len(old), _BATCH):
            part = old[start : start + _BATCH]
            session.execute(delete(IdempotencyRow).where(IdempotencyRow.job_id.in_(part)))
            session.execute(delete(JobRow).where(JobRow.id.in_(part)))
        report.jobs += len(old)
        left = session.execute(
            select(func.count()).select_from(JobRow).where(JobRow.build_id == build_id)
        ).scalar_one()
        if left:
            return
        made = set(
            session.execute(
                select(ArtifactRow.sha256).where(ArtifactRow.build_id == build_id)
            ).scalars()
        )
        # who looked the objects up a moment ago may still be reading them
        for digest in sorted(made | set(_inputs(build.spec))):
            lock_digest(session, digest)
            hold_digest(session, digest, now)
        report.artifacts += affected(
            session, delete(ArtifactRow).where(ArtifactRow.build_id == build_id)
        )
        session.execute(delete(BuildRow).where(BuildRow.id == build_id))
        report.builds += 1

    def _is_needed(self, session: Session, build_id: str, now: datetime) -> bool:
        linked = exists().where(
            LinkRow.artifact_id == ArtifactRow.id,
            ArtifactRow.build_id == build_id,
            LinkRow.revoked_at.is_(None),
            LinkRow.expires_at > now,
        )
        compared = exists().where(BuildRow.refresh_of == build_id, BuildRow.state.in_(_ACTIVE))
        return bool(session.execute(select(or_(linked, compared))).scalar_one())

    # other rows ---------------------------------------------------------------------------

    def _rows(self, session: Session, report: GcReport) -> None:
        now = self._db.now(session)
        for table in (ModelRow, CalibrationRow):
            report.inputs += affected(session, delete(table).where(table.deleted_at < now - _HOLD))
        session.execute(
            delete(LinkRow).where(
                or_(LinkRow.expires_at < now - _HOLD, LinkRow.revoked_at < now - _HOLD)
            )
        )
        session.execute(delete(IdempotencyRow).where(IdempotencyRow.expires_at < now))
        # a matrix and its jobs come in one transaction
        session.execute(delete(MatrixRow).where(~exists().where(JobRow.matrix_id == MatrixRow.id)))
        if self._retention.audit_days:
            before = now - timedelta(days=self._retention.audit_days)
            report.audit_entries += affected(session, delete(AuditRow).where(AuditRow.at < before))

    # objects ------------------------------------------------------------------------------

    def _objects(self, report: GcReport, dry_run: bool) -> None:
        needed, announced = self._named()
        missing = set(needed)
        for digest in self._store.digests():
            missing.discard(digest)
            if digest not in needed and digest not in announced:
                self._object(digest, report, dry_run)
        report.missing = sorted(missing)
        if not dry_run:
            with self._db.write() as session:
                now = self._db.now(session)
                session.execute(delete(HoldRow).where(HoldRow.until <= now))

    def _named(self) -> tuple[set[str], set[str]]:
        """Return the digests that rows need, and those of uploads, which may be still to come.

        Models and calibration sets are read before builds, builds before artifacts: what a build
        took from a model that was deleted meanwhile is found at the one or at the other. Whatever
        is named later had a hold first.
        """
        needed: set[str] = set()
        with self._db.read() as session:
            announced = set(session.execute(select(UploadRow.sha256)).scalars())
            for files in session.execute(select(ModelRow.files)).scalars():
                needed.update(str(file["sha256"]) for file in files)
            for archive in session.execute(select(CalibrationRow.archive)).scalars():
                needed.add(str(archive["sha256"]))
            for spec in session.execute(
                select(BuildRow.spec).execution_options(yield_per=1000)
            ).scalars():
                needed.update(_inputs(spec))
            needed.update(session.execute(select(ArtifactRow.sha256)).scalars())
        return needed, announced

    def _object(self, digest: str, report: GcReport, dry_run: bool) -> None:
        with self._db.write() as session:
            # before anything is read: whoever stores this object now waits, and stores it again
            lock_digest(session, digest)
            now = self._db.now(session)
            if is_held(session, digest, now):
                return
            for table in (ArtifactRow, UploadRow):
                if session.execute(select(exists().where(table.sha256 == digest))).scalar_one():
                    return
            size = self._store.size(digest)
            if size is None or (not dry_run and not self._store.delete(digest)):
                return
            report.objects += 1
            report.object_bytes += size


def _inputs(data: dict[str, Any]) -> Iterator[str]:
    spec = BuildSpec.from_json(data)
    yield from (file.sha256 for file in spec.model.files)
    if spec.calibration is not None:
        yield spec.calibration.archive.sha256
