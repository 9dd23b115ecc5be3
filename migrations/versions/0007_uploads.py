"""Uploads in parts."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("part_size", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("staging", sa.String(length=1024), nullable=True),
        sa.Column("already_present", sa.Boolean(), nullable=False),
        sa.Column("finisher", sa.String(length=64), nullable=True),
        sa.Column("finishing_until", TIME, nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("finished_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name="fk_uploads_project"),
        sa.PrimaryKeyConstraint("id", name="pk_uploads"),
    )
    op.create_index("ix_uploads_content", "uploads", ["project", "sha256", "state"])
    op.create_index("ix_uploads_expires", "uploads", ["expires_at"])
    op.create_index("ix_uploads_page", "uploads", ["project", "created_at", "id"])
    op.create_table(
        "upload_parts",
        sa.Column("upload_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("mark", sa.String(length=32), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["upload_id"], ["uploads.id"], name="fk_upload_parts_upload_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("upload_id", "number", name="pk_upload_parts"),
    )


def downgrade() -> None:
    op.drop_table("upload_parts")
    op.drop_table("uploads")
