"""Retention by project, and holds that keep fresh objects from being collected."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("projects", sa.Column("retention_days", sa.Integer(), nullable=True))
    op.create_table(
        "object_holds",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_object_holds"),
    )


def downgrade() -> None:
    op.drop_table("object_holds")
    op.drop_column("projects", "retention_days")
