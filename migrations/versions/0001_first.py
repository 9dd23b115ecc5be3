"""The first schema: projects, models, calibration sets, builds, jobs, artifacts, links, outbox."""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
# SQLite numbers rows by itself only for INTEGER PRIMARY KEY
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("build_id", sa.String(length=40), nullable=False),
        sa.Column("queue", sa.String(length=128), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("not_before", TIME, nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
    )
    op.create_index("ix_outbox_due", "outbox", ["not_before", "id"])

    op.create_table(
        "projects",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_projects"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=True),
        sa.Column("revoked_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name="fk_tokens_project"),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("digest", name="uq_tokens_digest"),
    )
    op.create_table(
        "builds",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("cache_key", sa.String(length=64), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("spec", JSON, nullable=False),
        sa.Column("engine", sa.String(length=64), nullable=False),
        sa.Column("queue", sa.String(length=128), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=True),
        sa.Column("progress_current", sa.BigInteger(), nullable=True),
        sa.Column("progress_total", sa.BigInteger(), nullable=True),
        sa.Column("fencing", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(length=255), nullable=True),
        sa.Column("lease_until", TIME, nullable=True),
        sa.Column("run_limit_s", sa.Integer(), nullable=False),
        sa.Column("memory_limit_mb", sa.Integer(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("queued_at", TIME, nullable=False),
        sa.Column("announced_at", TIME, nullable=False),
        sa.Column("started_at", TIME, nullable=True),
        sa.Column("finished_at", TIME, nullable=True),
        sa.Column("failure", JSON, nullable=True),
        sa.Column("summary", JSON, nullable=True),
        sa.Column("event_seq", sa.BigInteger(), nullable=False),
        sa.Column("log_bytes", sa.BigInteger(), nullable=False),
        sa.Column("progress_events", sa.Integer(), nullable=False),
        sa.Column("refresh_of", sa.String(length=40), nullable=True),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name="fk_builds_project"),
        sa.PrimaryKeyConstraint("id", name="pk_builds"),
        sa.UniqueConstraint("project", "cache_key", name="uq_builds_project_cache_key"),
    )
    op.create_index("ix_builds_claim", "builds", ["state", "queue", "priority", "queued_at"])
    op.create_index("ix_builds_key", "builds", ["project", "key"])
    op.create_index("ix_builds_lease", "builds", ["state", "lease_until"])

    op.create_table(
        "calibrations",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("archive", JSON, nullable=False),
        sa.Column("entry", sa.String(length=1024), nullable=False),
        sa.Column("sample_count", sa.Integer(), nullable=False),
        sa.Column("total_bytes", sa.BigInteger(), nullable=False),
        sa.Column("shapes", JSON, nullable=False),
        sa.Column("labels", JSON, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("deleted_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name="fk_calibrations_project"),
        sa.PrimaryKeyConstraint("id", name="pk_calibrations"),
    )
    op.create_index("ix_calibrations_digest", "calibrations", ["project", "digest"])
    op.create_index("ix_calibrations_page", "calibrations", ["project", "created_at", "id"])

    op.create_table(
        "idempotency_keys",
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("request_digest", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name="fk_idempotency_keys_project"),
        sa.PrimaryKeyConstraint("project", "key", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_expires", "idempotency_keys", ["expires_at"])

    op.create_table(
        "models",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("format", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("files", JSON, nullable=False),
        sa.Column("inputs", JSON, nullable=False),
        sa.Column("outputs", JSON, nullable=False),
        sa.Column("facts", JSON, nullable=False),
        sa.Column("source_revision", sa.String(length=255), nullable=True),
        sa.Column("labels", JSON, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("deleted_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name="fk_models_project"),
        sa.PrimaryKeyConstraint("id", name="pk_models"),
    )
    op.create_index("ix_models_digest", "models", ["project", "digest"])
    op.create_index("ix_models_page", "models", ["project", "created_at", "id"])

    op.create_table(
        "artifacts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("build_id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("media_type", sa.String(length=127), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(["build_id"], ["builds.id"], name="fk_artifacts_build_id"),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name="fk_artifacts_project"),
        sa.PrimaryKeyConstraint("id", name="pk_artifacts"),
        sa.UniqueConstraint("build_id", "kind", "name", name="uq_artifacts_build_id_kind_name"),
    )
    op.create_index("ix_artifacts_sha256", "artifacts", ["sha256"])

    op.create_table(
        "attempts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("build_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("heartbeat_at", TIME, nullable=False),
        sa.Column("finished_at", TIME, nullable=True),
        sa.Column("cpu_seconds", sa.Float(), nullable=True),
        sa.Column("peak_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("failure", JSON, nullable=True),
        sa.ForeignKeyConstraint(
            ["build_id"], ["builds.id"], name="fk_attempts_build_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sa.UniqueConstraint("build_id", "number", name="uq_attempts_build_id_number"),
    )
    op.create_table(
        "events",
        sa.Column("build_id", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=True),
        sa.Column("type", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("data", JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["build_id"], ["builds.id"], name="fk_events_build_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("build_id", "seq", name="pk_events"),
    )
    op.create_index("ix_events_type", "events", ["build_id", "type", "seq"])

    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("build_id", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("cache", sa.String(length=16), nullable=False),
        sa.Column("cache_mode", sa.String(length=16), nullable=False),
        sa.Column("request", JSON, nullable=False),
        sa.Column("name", sa.String(length=255), nullable=True),
        sa.Column("labels", JSON, nullable=False),
        sa.Column("source_revision", sa.String(length=255), nullable=True),
        sa.Column("model_id", sa.String(length=40), nullable=True),
        sa.Column("mblt_id", sa.String(length=40), nullable=True),
        sa.Column("source_id", sa.String(length=40), nullable=True),
        sa.Column("calibration_id", sa.String(length=40), nullable=True),
        sa.Column("target_device", sa.String(length=64), nullable=True),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("queue_limit_s", sa.Integer(), nullable=False),
        sa.Column("queue_deadline", TIME, nullable=False),
        sa.Column("failure", JSON, nullable=True),
        sa.Column("retry_of", sa.String(length=40), nullable=True),
        sa.Column("event_floor", sa.BigInteger(), nullable=False),
        sa.Column("event_end", sa.BigInteger(), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("queued_at", TIME, nullable=False),
        sa.Column("started_at", TIME, nullable=True),
        sa.Column("finished_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(["build_id"], ["builds.id"], name="fk_jobs_build_id"),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name="fk_jobs_project"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_build", "jobs", ["build_id", "state"])
    op.create_index("ix_jobs_calibration", "jobs", ["calibration_id"])
    op.create_index("ix_jobs_kind", "jobs", ["project", "kind", "created_at", "id"])
    op.create_index("ix_jobs_device", "jobs", ["project", "target_device", "created_at", "id"])
    op.create_index("ix_jobs_source", "jobs", ["source_id", "created_at", "id"])
    op.create_index("ix_jobs_page", "jobs", ["project", "created_at", "id"])
    op.create_index("ix_jobs_state", "jobs", ["project", "state", "created_at", "id"])
    op.create_index("ix_jobs_waiting", "jobs", ["state", "queue_deadline"])

    op.create_table(
        "job_labels",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("value", sa.String(length=255), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_job_labels_job_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "name", name="pk_job_labels"),
    )
    op.create_index(
        "ix_job_labels_page", "job_labels", ["project", "name", "value", "created_at", "job_id"]
    )
    op.create_table(
        "links",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("artifact_id", sa.String(length=40), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("revoked_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(
            ["artifact_id"], ["artifacts.id"], name="fk_links_artifact_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name="fk_links_project"),
        sa.PrimaryKeyConstraint("id", name="pk_links"),
    )
    op.create_index("ix_links_artifact", "links", ["artifact_id"])

    now = datetime.now(UTC)
    if op.get_bind().dialect.name == "sqlite":
        now = now.replace(tzinfo=None)
    op.bulk_insert(
        sa.table("projects", sa.column("id", sa.String), sa.column("created_at", TIME)),
        [{"id": "default", "created_at": now}],
    )


def downgrade() -> None:
    op.drop_table("links")
    op.drop_table("job_labels")
    op.drop_table("jobs")
    op.drop_table("events")
    op.drop_table("attempts")
    op.drop_table("artifacts")
    op.drop_table("models")
    op.drop_table("idempotency_keys")
    op.drop_table("calibrations")
    op.drop_table("builds")
    op.drop_table("tokens")
    op.drop_table("projects")
    op.drop_table("outbox")
