"""Alembic's environment: runs the migrations in one transaction, one process at a time."""

from __future__ import annotations

from alembic import context
from sqlalchemy import text

from service.db.engine import Database
from service.db.tables import Base

# any number; the same in every process
_LOCK = 0x71625F6D696772


def run() -> None:
    """Upgrade the database that the configuration names."""
    url = context.config.get_main_option("sqlalchemy.url")
    assert url is not None
    database = Database(url)
    try:
        # on SQLite this begins with BEGIN IMMEDIATE, so a second process waits here
        with database.write() as session:
            connection = session.connection()
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            context.configure(
                connection=connection,
                target_metadata=Base.metadata,
                compare_type=True,
                # SQLite alters a table by copying it
                render_as_batch=connection.dialect.name == "sqlite",
                transactional_ddl=True,
            )
            with context.begin_transaction():
                context.run_migrations()
    finally:
        database.close()


run()
