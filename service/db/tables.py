"""The tables. Records leave the stores as ``service.domain`` entities, never as these rows."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from .types import JSON_TYPE, UtcDateTime

__all__ = [
    "ArtifactRow",
    "AttemptRow",
    "AuditRow",
    "Base",
    "BuildRow",
    "CalibrationRow",
    "EventRow",
    "HoldRow",
    "IdempotencyRow",
    "JobLabelRow",
    "JobRow",
    "LinkRow",
    "MatrixRow",
    "ModelRow",
    "OutboxRow",
    "ProjectRow",
    "TokenRow",
    "UploadPartRow",
    "UploadRow",
    "WebhookAttemptRow",
    "WebhookRow",
]

_Id = String(40)
_Digest = String(64)
_State = String(16)
# SQLite numbers rows by itself only for INTEGER PRIMARY KEY
_Serial = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """The base of all tables; constraint names are fixed, so that migrations can name them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: UtcDateTime(), dict[str, Any]: JSON_TYPE, list[Any]: JSON_TYPE}  # noqa: RUF012


class ProjectRow(Base):
    """Projects; every resource belongs to one."""

    __tablename__ = "projects"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    created_at: Mapped[datetime]
    webhook_generation: Mapped[int] = mapped_column(server_default="0")
    webhook_rotated_at: Mapped[datetime | None]
    # None: the server's own setting; 0: for good
    retention_days: Mapped[int | None]


class TokenRow(Base):
    """Bearer tokens, by the digest of their text."""

    __tablename__ = "tokens"
    __table_args__ = (UniqueConstraint("digest", name="uq_tokens_digest"),)

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    name: Mapped[str] = mapped_column(String(255))
    role: Mapped[str] = mapped_column(String(16))
    digest: Mapped[str] = mapped_column(_Digest)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class ModelRow(Base):
    """Uploaded models."""

    __tablename__ = "models"
    __table_args__ = (
        Index("ix_models_page", "project", "created_at", "id"),
        Index("ix_models_digest", "project", "digest"),
    )

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    name: Mapped[str] = mapped_column(String(255))
    format: Mapped[str] = mapped_column(String(16))
    digest: Mapped[str] = mapped_column(_Digest)
    size: Mapped[int] = mapped_column(BigInteger)
    files: Mapped[list[Any]]
    inputs: Mapped[list[Any]]
    outputs: Mapped[list[Any]]
    facts: Mapped[dict[str, Any]]
    source_revision: Mapped[str | None] = mapped_column(String(255))
    labels: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]


class CalibrationRow(Base):
    """Uploaded calibration sets."""

    __tablename__ = "calibrations"
    __table_args__ = (
        Index("ix_calibrations_page", "project", "created_at", "id"),
        Index("ix_calibrations_digest", "project", "digest"),
    )

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    name: Mapped[str] = mapped_column(String(255))
    digest: Mapped[str] = mapped_column(_Digest)
    archive: Mapped[dict[str, Any]]
    entry: Mapped[str] = mapped_column(String(1024))
    sample_count: Mapped[int]
    total_bytes: Mapped[int] = mapped_column(BigInteger)
    shapes: Mapped[list[Any]]
    labels: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]


class BuildRow(Base):
    """Builds: the work that jobs share."""

    __tablename__ = "builds"
    __table_args__ = (
        # one build answers for a key; those that answer for none have NULL, which never collides
        UniqueConstraint("project", "cache_key", name="uq_builds_project_cache_key"),
        Index("ix_builds_key", "project", "key"),
        Index("ix_builds_claim", "state", "queue", "priority", "queued_at"),
        Index("ix_builds_lease", "state", "lease_until"),
    )

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    kind: Mapped[str] = mapped_column(String(16))
    key: Mapped[str] = mapped_column(_Digest)
    cache_key: Mapped[str | None] = mapped_column(_Digest)
    state: Mapped[str] = mapped_column(_State)
    spec: Mapped[dict[str, Any]]
    engine: Mapped[str] = mapped_column(String(64))
    queue: Mapped[str] = mapped_column(String(128))
    priority: Mapped[int]
    phase: Mapped[str | None] = mapped_column(String(16))
    progress_current: Mapped[int | None] = mapped_column(BigInteger)
    progress_total: Mapped[int | None] = mapped_column(BigInteger)
    fencing: Mapped[int]
    losses: Mapped[int]
    worker: Mapped[str | None] = mapped_column(String(255))
    lease_until: Mapped[datetime | None]
    run_limit_s: Mapped[int]
    memory_limit_mb: Mapped[int | None]
    cancel_requested: Mapped[bool] = mapped_column(Boolean)
    created_at: Mapped[datetime]
    queued_at: Mapped[datetime]
    announced_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    failure: Mapped[dict[str, Any] | None]
    summary: Mapped[dict[str, Any] | None]
    event_seq: Mapped[int] = mapped_column(BigInteger)
    log_bytes: Mapped[int] = mapped_column(BigInteger)
    progress_events: Mapped[int]
    refresh_of: Mapped[str | None] = mapped_column(_Id)
    traceparent: Mapped[str | None] = mapped_column(String(64))


class AttemptRow(Base):
    """Each worker's try at a build."""

    __tablename__ = "attempts"
    __table_args__ = (UniqueConstraint("build_id", "number", name="uq_attempts_build_id_number"),)

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    build_id: Mapped[str] = mapped_column(ForeignKey("builds.id", ondelete="CASCADE"))
    number: Mapped[int]
    worker: Mapped[str] = mapped_column(String(255))
    state: Mapped[str] = mapped_column(_State)
    started_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    cpu_seconds: Mapped[float | None] = mapped_column(Float)
    peak_memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    failure: Mapped[dict[str, Any] | None]


class JobRow(Base):
    """Jobs: requests."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_page", "project", "created_at", "id"),
        Index("ix_jobs_state", "project", "state", "created_at", "id"),
        Index("ix_jobs_build", "build_id", "state"),
        Index("ix_jobs_waiting", "state", "queue_deadline"),
        Index("ix_jobs_kind", "project", "kind", "created_at", "id"),
        Index("ix_jobs_device", "project", "target_device", "created_at", "id"),
        Index("ix_jobs_source", "source_id", "created_at", "id"),
        Index("ix_jobs_calibration", "calibration_id"),
        Index("ix_jobs_matrix", "matrix_id", "matrix_index"),
    )

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    kind: Mapped[str] = mapped_column(String(16))
    build_id: Mapped[str] = mapped_column(ForeignKey("builds.id"))
    state: Mapped[str] = mapped_column(_State)
    cache: Mapped[str] = mapped_column(String(16))
    cache_mode: Mapped[str] = mapped_column(String(16))
    request: Mapped[dict[str, Any]]
    name: Mapped[str | None] = mapped_column(String(255))
    labels: Mapped[dict[str, Any]]
    source_revision: Mapped[str | None] = mapped_column(String(255))
    model_id: Mapped[str | None] = mapped_column(_Id)
    mblt_id: Mapped[str | None] = mapped_column(_Id)
    # whichever of the two there is
    source_id: Mapped[str | None] = mapped_column(_Id)
    calibration_id: Mapped[str | None] = mapped_column(_Id)
    target_device: Mapped[str | None] = mapped_column(String(64))
    priority: Mapped[int]
    queue_limit_s: Mapped[int]
    queue_deadline: Mapped[datetime]
    failure: Mapped[dict[str, Any] | None]
    retry_of: Mapped[str | None] = mapped_column(_Id)
    webhook_url: Mapped[str | None] = mapped_column(String(2048))
    matrix_id: Mapped[str | None] = mapped_column(_Id)
    matrix_index: Mapped[int | None]
    event_floor: Mapped[int] = mapped_column(BigInteger)
    event_end: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    queued_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class JobLabelRow(Base):
    """Labels of jobs once more, in the order in which a list by label reads them."""

    __tablename__ = "job_labels"
    __table_args__ = (
        Index("ix_job_labels_page", "project", "name", "value", "created_at", "job_id"),
    )

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    value: Mapped[str] = mapped_column(String(255))
    project: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime]


class EventRow(Base):
    """A build's stream: states, phases, progress and log text, numbered in commit order."""

    __tablename__ = "events"
    __table_args__ = (Index("ix_events_type", "build_id", "type", "seq"),)

    build_id: Mapped[str] = mapped_column(
        ForeignKey("builds.id", ondelete="CASCADE"), primary_key=True
    )
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    job_id: Mapped[str | None] = mapped_column(_Id)
    type: Mapped[str] = mapped_column(String(16))
    attempt: Mapped[int]
    at: Mapped[datetime]
    data: Mapped[dict[str, Any]]


class ArtifactRow(Base):
    """Files that finished builds made."""

    __tablename__ = "artifacts"
    __table_args__ = (
        UniqueConstraint("build_id", "kind", "name", name="uq_artifacts_build_id_kind_name"),
        Index("ix_artifacts_sha256", "sha256"),
    )

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    build_id: Mapped[str] = mapped_column(ForeignKey("builds.id"))
    kind: Mapped[str] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(String(255))
    sha256: Mapped[str] = mapped_column(_Digest)
    size: Mapped[int] = mapped_column(BigInteger)
    media_type: Mapped[str] = mapped_column(String(127))
    created_at: Mapped[datetime]


class LinkRow(Base):
    """Download links that need no token."""

    __tablename__ = "links"
    __table_args__ = (Index("ix_links_artifact", "artifact_id"),)

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    artifact_id: Mapped[str] = mapped_column(ForeignKey("artifacts.id", ondelete="CASCADE"))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]


class IdempotencyRow(Base):
    """Which job an Idempotency-Key made, and from which body."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (Index("ix_idempotency_keys_expires", "expires_at"),)

    project: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    request_digest: Mapped[str] = mapped_column(_Digest)
    job_id: Mapped[str] = mapped_column(_Id)
    expires_at: Mapped[datetime]


class OutboxRow(Base):
    """Broker messages that a committed transaction owes."""

    __tablename__ = "outbox"
    __table_args__ = (Index("ix_outbox_due", "not_before", "id"),)

    id: Mapped[int] = mapped_column(_Serial, primary_key=True, autoincrement=True)
    build_id: Mapped[str] = mapped_column(_Id)
    queue: Mapped[str] = mapped_column(String(128))
    priority: Mapped[int]
    created_at: Mapped[datetime]
    not_before: Mapped[datetime]
    tries: Mapped[int]
    last_error: Mapped[str | None] = mapped_column(Text)


class HoldRow(Base):
    """Objects that are not to be collected for a while, by digest."""

    __tablename__ = "object_holds"

    digest: Mapped[str] = mapped_column(_Digest, primary_key=True)
    until: Mapped[datetime]


class MatrixRow(Base):
    """Jobs that were asked for together."""

    __tablename__ = "matrices"
    __table_args__ = (Index("ix_matrices_page", "project", "created_at", "id"),)

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    name: Mapped[str | None] = mapped_column(String(255))
    request: Mapped[dict[str, Any]]
    skipped: Mapped[list[Any]]
    created_at: Mapped[datetime]


class AuditRow(Base):
    """Who did what, and when."""

    __tablename__ = "audit"
    __table_args__ = (
        Index("ix_audit_page", "project", "at", "id"),
        Index("ix_audit_subject", "subject", "at"),
    )

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    at: Mapped[datetime]
    actor_kind: Mapped[str] = mapped_column(String(16))
    actor_id: Mapped[str | None] = mapped_column(_Id)
    actor_name: Mapped[str | None] = mapped_column(String(255))
    actor_role: Mapped[str | None] = mapped_column(String(16))
    address: Mapped[str | None] = mapped_column(String(64))
    request_id: Mapped[str | None] = mapped_column(String(128))
    action: Mapped[str] = mapped_column(String(32))
    subject: Mapped[str | None] = mapped_column(_Id)
    details: Mapped[dict[str, Any]]


class WebhookRow(Base):
    """Messages about ended jobs that are owed to receivers, or were delivered."""

    __tablename__ = "webhooks"
    __table_args__ = (
        Index("ix_webhooks_due", "state", "not_before"),
        Index("ix_webhooks_page", "project", "created_at", "id"),
        Index("ix_webhooks_job", "job_id"),
    )

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    event: Mapped[str] = mapped_column(String(32))
    url: Mapped[str] = mapped_column(String(2048))
    body: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(_State)
    tries: Mapped[int]
    # since the last time that someone asked for it
    tries_this_time: Mapped[int]
    not_before: Mapped[datetime]
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class WebhookAttemptRow(Base):
    """Each try to deliver a message."""

    __tablename__ = "webhook_attempts"

    webhook_id: Mapped[str] = mapped_column(
        ForeignKey("webhooks.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[datetime]
    seconds: Mapped[float] = mapped_column(Float)
    status: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(Text)


class UploadRow(Base):
    """Files that come in parts."""

    __tablename__ = "uploads"
    __table_args__ = (
        Index("ix_uploads_page", "project", "created_at", "id"),
        Index("ix_uploads_content", "project", "sha256", "state"),
        Index("ix_uploads_expires", "expires_at"),
    )

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    name: Mapped[str | None] = mapped_column(String(255))
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(_Digest)
    part_size: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[str] = mapped_column(_State)
    staging: Mapped[str | None] = mapped_column(String(1024))
    already_present: Mapped[bool] = mapped_column(Boolean)
    # who joins the parts and checks the digest, and until when that holds
    finisher: Mapped[str | None] = mapped_column(String(64))
    finishing_until: Mapped[datetime | None]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class UploadPartRow(Base):
    """Parts that are held whole, where the object store does not keep that list itself."""

    __tablename__ = "upload_parts"

    upload_id: Mapped[str] = mapped_column(
        ForeignKey("uploads.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    size: Mapped[int] = mapped_column(BigInteger)
    # another each time that the part is written
    mark: Mapped[str] = mapped_column(String(32))
    created_at: Mapped[datetime]
