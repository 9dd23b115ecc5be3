"""Models, calibration sets, artifacts and links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from ..domain import (
    ACTIVE,
    Artifact,
    Calibration,
    FileRef,
    IdKind,
    Link,
    Model,
    ModelFormat,
    ServiceError,
    manifest_digest,
    new_id,
)
from .audit import Action, audit
from .engine import Database
from .mapping import to_artifact, to_calibration, to_link, to_model
from .paging import Page, cut_page, keyset
from .tables import ArtifactRow, BuildRow, CalibrationRow, JobRow, LinkRow, ModelRow

__all__ = ["ArtifactStore", "CalibrationStore", "ModelStore", "NewCalibration", "NewModel"]


@dataclass(frozen=True, slots=True)
class NewModel:
    """A model whose files are in the object store."""

    project: str
    name: str
    format: ModelFormat
    files: tuple[FileRef, ...]
    inputs: Sequence[dict[str, Any]]
    outputs: Sequence[dict[str, Any]]
    facts: dict[str, Any]
    source_revision: str | None = None
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewCalibration:
    """A calibration set whose archive is in the object store."""

    project: str
    name: str
    digest: str
    archive: FileRef
    entry: str
    sample_count: int
    total_bytes: int
    shapes: Sequence[dict[str, Any]]
    labels: dict[str, str] = field(default_factory=dict)


class ModelStore:
    """Uploaded models. Each method is one transaction."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def add(self, new: NewModel) -> Model:
        """Record a model."""
        with self._db.write() as session:
            row = ModelRow(
                id=new_id(IdKind.MODEL),
                project=new.project,
                name=new.name,
                format=new.format.value,
                digest=manifest_digest(new.files),
                size=sum(f.size for f in new.files),
                files=[f.to_json() for f in new.files],
                inputs=list(new.inputs),
                outputs=list(new.outputs),
                facts=new.facts,
                source_revision=new.source_revision,
                labels=new.labels,
                created_at=self._db.now(session),
            )
            session.add(row)
            session.flush()
            audit(
                session, row.created_at, row.project, Action.MODEL_CREATE, row.id,
                name=row.name, digest=row.digest,
            )  # fmt: skip
            return to_model(row)

    def get(self, project: str, model_id: str) -> Model | None:
        """Return a model of the project, or None."""
        with self._db.read() as session:
            row = session.execute(
                select(ModelRow).where(
                    ModelRow.id == model_id,
                    ModelRow.project == project,
                    ModelRow.deleted_at.is_(None),
                )
            ).scalar_one_or_none()
            return None if row is None else to_model(row)

    def page(
        self,
        project: str,
        *,
        limit: int,
        cursor: str | None,
        name: str | None = None,
        digest: str | None = None,
        labels: dict[str, str] | None = None,
    ) -> Page[Model]:
        """Return models, newest first."""
        where = [ModelRow.project == project, ModelRow.deleted_at.is_(None)]
        if name is not None:
            where.append(ModelRow.name == name)
        if digest is not None:
            where.append(ModelRow.digest == digest)
        for key, value in (labels or {}).items():
            where.append(ModelRow.labels[key].as_string() == value)
        statement = (
            select(ModelRow)
            .where(*where, *keyset(ModelRow.created_at, ModelRow.id, cursor))
            .order_by(ModelRow.created_at.desc(), ModelRow.id.desc())
            .limit(limit + 1)
        )
        with self._db.read() as session:
            rows = [to_model(row) for row in session.execute(statement).scalars()]
        return cut_page(rows, limit, lambda m: (m.created_at, m.id))

    def delete(self, project: str, model_id: str) -> None:
        """Delete a model; the record of what was built from it stays.

        Raises:
            ServiceError: ``NOT_FOUND``; ``CONFLICT`` while a job that has not ended uses it.
        """
        with self._db.write() as session:
            _delete(session, self._db.now(session), ModelRow, project, model_id, "model")


class CalibrationStore:
    """Uploaded calibration sets. Each method is one transaction."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def add(self, new: NewCalibration) -> Calibration:
        """Record a calibration set."""
        with self._db.write() as session:
            row = CalibrationRow(
                id=new_id(IdKind.CALIBRATION),
                project=new.project,
                name=new.name,
                digest=new.digest,
                archive=new.archive.to_json(),
                entry=new.entry,
                sample_count=new.sample_count,
                total_bytes=new.total_bytes,
                shapes=list(new.shapes),
                labels=new.labels,
                created_at=self._db.now(session),
            )
            session.add(row)
            session.flush()
            audit(
                session, row.created_at, row.project, Action.CALIBRATION_CREATE, row.id,
                name=row.name, digest=row.digest,
            )  # fmt: skip
            return to_calibration(row)

    def get(self, project: str, calibration_id: str) -> Calibration | None:
        """Return a calibration set of the project, or None."""
        with self._db.read() as session:
            row = session.execute(
                select(CalibrationRow).where(
                    CalibrationRow.id == calibration_id,
                    CalibrationRow.project == project,
                    CalibrationRow.deleted_at.is_(None),
                )
            ).scalar_one_or_none()
            return None if row is None else to_calibration(row)

    def page(
        self,
        project: str,
        *,
        limit: int,
        cursor: str | None,
        name: str | None = None,
        digest: str | None = None,
        labels: dict[str, str] | None = None,
    ) -> Page[Calibration]:
        """Return calibration sets, newest first."""
        where = [CalibrationRow.project == project, CalibrationRow.deleted_at.is_(None)]
        if name is not None:
            where.append(CalibrationRow.name == name)
        if digest is not None:
            where.append(CalibrationRow.digest == digest)
        for key, value in (labels or {}).items():
            where.append(CalibrationRow.labels[key].as_string() == value)
        statement = (
            select(CalibrationRow)
            .where(*where, *keyset(CalibrationRow.created_at, CalibrationRow.id, cursor))
            .order_by(CalibrationRow.created_at.desc(), CalibrationRow.id.desc())
            .limit(limit + 1)
        )
        with self._db.read() as session:
            rows = [to_calibration(row) for row in session.execute(statement).scalars()]
        return cut_page(rows, limit, lambda c: (c.created_at, c.id))

    def delete(self, project: str, calibration_id: str) -> None:
        """Delete a calibration set.

        Raises:
            ServiceError: ``NOT_FOUND``; ``CONFLICT`` while a job that has not ended uses it.
        """
        with self._db.write() as session:
            now = self._db.now(session)
            _delete(session, now, CalibrationRow, project, calibration_id, "calibration set")


class ArtifactStore:
    """Result files and their links. Each method is one transaction."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def get(self, project: str, artifact_id: str) -> Artifact | None:
        """Return an artifact of the project, or None."""
        with self._db.read() as session:
            row = session.execute(
                select(ArtifactRow).where(
                    ArtifactRow.id == artifact_id, ArtifactRow.project == project
                )
            ).scalar_one_or_none()
            return None if row is None else to_artifact(row)

    def of_builds(self, build_ids: Sequence[str]) -> dict[str, list[Artifact]]:
        """Return the artifacts of each build, in a fixed order."""
        found: dict[str, list[Artifact]] = {build_id: [] for build_id in build_ids}
        if not build_ids:
            return found
        with self._db.read() as session:
            rows = session.execute(
                select(ArtifactRow)
                .where(ArtifactRow.build_id.in_(build_ids))
                .order_by(ArtifactRow.kind, ArtifactRow.name)
            ).scalars()
            for row in rows:
                found[row.build_id].append(to_artifact(row))
        return found

    def made_by(self, artifact: Artifact) -> tuple[str | None, dict[str, Any]]:
        """Return the id of a job that has the artifact, and the build's spec."""
        with self._db.read() as session:
            job_id = session.execute(
                select(JobRow.id)
                .where(JobRow.build_id == artifact.build_id, JobRow.project == artifact.project)
                .order_by(JobRow.created_at)
                .limit(1)
            ).scalar_one_or_none()
            build = session.get_one(BuildRow, artifact.build_id)
            return job_id, build.spec

    def add_link(self, project: str, artifact_id: str, expires_in_s: int) -> Link | None:
        """Make a link to an artifact of the project; None when there is none."""
        with self._db.write() as session:
            found = session.execute(
                select(ArtifactRow.id).where(
                    ArtifactRow.id == artifact_id, ArtifactRow.project == project
                )
            ).scalar_one_or_none()
            if found is None:
                return None
            now = self._db.now(session)
            # whole seconds: the signature covers them as a number
            expires = (now + timedelta(seconds=expires_in_s)).replace(microsecond=0)
            row = LinkRow(
                id=new_id(IdKind.LINK),
                project=project,
                artifact_id=artifact_id,
                created_at=now,
                expires_at=expires,
            )
            session.add(row)
            session.flush()
            audit(
                session, now, project, Action.LINK_CREATE, row.id,
                artifact_id=artifact_id, expires_at=expires.isoformat(),
            )  # fmt: skip
            return to_link(row)

    def links_of(self, project: str, artifact_id: str) -> list[Link]:
        """Return the links to an artifact, newest first."""
        with self._db.read() as session:
            rows = session.execute(
                select(LinkRow)
                .where(LinkRow.artifact_id == artifact_id, LinkRow.project == project)
                .order_by(LinkRow.created_at.desc(), LinkRow.id.desc())
                .limit(1000)
            ).scalars()
            return [to_link(row) for row in rows]

    def open_link(self, link_id: str) -> tuple[Link, Artifact, datetime] | None:
        """Return a link, its artifact and the time now, whether or not it is still valid."""
        with self._db.read() as session:
            row = session.execute(
                select(LinkRow, ArtifactRow)
                .join(ArtifactRow, ArtifactRow.id == LinkRow.artifact_id)
                .where(LinkRow.id == link_id)
            ).one_or_none()
            if row is None:
                return None
            return to_link(row[0]), to_artifact(row[1]), self._db.now(session)

    def revoke_link(self, project: str, artifact_id: str, link_id: str) -> bool:
        """Revoke a link for good; False when there is none."""
        with self._db.write() as session:
            now = self._db.now(session)
            found = session.execute(
                update(LinkRow)
                .where(
                    LinkRow.id == link_id,
                    LinkRow.artifact_id == artifact_id,
                    LinkRow.project == project,
                )
                .values(revoked_at=func.coalesce(LinkRow.revoked_at, now))
                .returning(LinkRow.id)
                .execution_options(synchronize_session=False)
            ).scalar_one_or_none()
            if found is not None:
                audit(session, now, project, Action.LINK_REVOKE, link_id, artifact_id=artifact_id)
            return found is not None


def _delete(
    session: Session,
    now: datetime,
    table: type[ModelRow] | type[CalibrationRow],
    project: str,
    identifier: str,
    what: str,
) -> None:
    found = session.execute(
        select(table.id)
        .where(table.id == identifier, table.project == project, table.deleted_at.is_(None))
        .with_for_update()
    ).scalar_one_or_none()
    if found is None:
        raise ServiceError("NOT_FOUND", f"there is no {what} {identifier!r}")
    users = session.execute(
        select(JobRow.id)
        .where(
            or_(JobRow.source_id == identifier, JobRow.calibration_id == identifier),
            JobRow.state.in_([s.value for s in ACTIVE]),
        )
        .order_by(JobRow.created_at)
        .limit(10)
    ).scalars()
    jobs = list(users)
    if jobs:
        raise ServiceError(
            "CONFLICT",
            f"the {what} is in use by {', '.join(jobs)}",
            hint="wait for the jobs to end, or cancel them",
            details={"jobs": jobs},
        )
    session.execute(
        update(table)
        .where(table.id == identifier)
        .values(deleted_at=now)
        .execution_options(synchronize_session=False)
    )
    action = Action.MODEL_DELETE if table is ModelRow else Action.CALIBRATION_DELETE
    audit(session, now, project, action, identifier)
