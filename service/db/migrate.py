"""Bringing a database to the newest schema, from code."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

import migrations

from .engine import Database

__all__ = ["alembic_config", "current_revision", "head_revision", "run_migrations"]


def alembic_config(url: str) -> Config:
    """Return Alembic's configuration, with the packaged migrations."""
    config = Config()
    config.set_main_option("path_separator", "newline")
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    # '%' is the ini file's own escape character
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def run_migrations(url: str, revision: str = "head") -> None:
    """Upgrade the database to a revision; a database that is there already stays as it is.

    Several processes may start at once: on Postgres the upgrade holds an advisory lock, on SQLite
    the write lock.
    """
    command.upgrade(alembic_config(url), revision)


def head_revision() -> str | None:
    """Return the newest revision that this program knows."""
    return ScriptDirectory.from_config(alembic_config("sqlite://")).get_current_head()


def current_revision(db: Database) -> str | None:
    """Return the revision that a database is at, None when it is empty."""
    with db.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()
