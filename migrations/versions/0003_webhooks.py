"""Webhooks: a job's URL, the messages that are owed, and each try to deliver them."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0001"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column(
        "projects",
        sa.Column("webhook_generation", sa.Integer(), server_default="0", nullable=False),
    )
    op.add_column("projects", sa.Column("webhook_rotated_at", TIME, nullable=True))
    op.add_column("jobs", sa.Column("webhook_url", sa.String(length=2048), nullable=True))
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("event", sa.String(length=32), nullable=False),
        sa.Column("url", sa.String(length=2048), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("tries_this_time", sa.Integer(), nullable=False),
        sa.Column("not_before", TIME, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("finished_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_webhooks_job_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name="fk_webhooks_project"),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
    )
    op.create_index("ix_webhooks_due", "webhooks", ["state", "not_before"])
    op.create_index("ix_webhooks_page", "webhooks", ["project", "created_at", "id"])
    op.create_index("ix_webhooks_job", "webhooks", ["job_id"])
    op.create_table(
        "webhook_attempts",
        sa.Column("webhook_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["webhook_id"],
            ["webhooks.id"],
            name="fk_webhook_attempts_webhook_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("webhook_id", "number", name="pk_webhook_attempts"),
    )


def downgrade() -> None:
    op.drop_table("webhook_attempts")
    op.drop_table("webhooks")
    op.drop_column("jobs", "webhook_url")
    op.drop_column("projects", "webhook_rotated_at")
    op.drop_column("projects", "webhook_generation")
