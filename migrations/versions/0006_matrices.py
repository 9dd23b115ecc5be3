"""Matrices: jobs that were asked for together, to be compared."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "matrices",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=True),
        sa.Column("request", JSON, nullable=False),
        sa.Column("skipped", JSON, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name="fk_matrices_project"),
        sa.PrimaryKeyConstraint("id", name="pk_matrices"),
    )
    op.create_index("ix_matrices_page", "matrices", ["project", "created_at", "id"])
    op.add_column("jobs", sa.Column("matrix_id", sa.String(length=40), nullable=True))
    op.add_column("jobs", sa.Column("matrix_index", sa.Integer(), nullable=True))
    op.create_index("ix_jobs_matrix", "jobs", ["matrix_id", "matrix_index"])


def downgrade() -> None:
    op.drop_index("ix_jobs_matrix", "jobs")
    op.drop_column("jobs", "matrix_index")
    op.drop_column("jobs", "matrix_id")
    op.drop_table("matrices")
