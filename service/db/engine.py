"""Opening the database, and the two kinds of transaction.

SQLite runs in WAL mode with foreign keys on; a writing transaction begins with BEGIN IMMEDIATE,
so that it waits for its turn at the start and never fails half-way on a lock upgrade. Postgres
runs at READ COMMITTED; the stores lock the build's row first and everything else after it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool, StaticPool

__all__ = ["DATABASE_ERRORS", "Database", "database_url", "is_full"]

DATABASE_ERRORS = (OperationalError, InterfaceError, PoolTimeout)
"""What is raised when the database is away, locked or full."""

_BUSY_SECONDS = 30
_BEGIN = "qb_begin"


def database_url(url: str) -> URL:
    """Return the URL with the driver that the service uses.

    Raises:
        ValueError: the database is neither SQLite nor Postgres.
    """
    parsed = make_url(url)
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        return parsed.set(drivername="sqlite+pysqlite")
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    raise ValueError(f"{backend!r} databases are not supported; use SQLite or Postgres")


def is_full(exc: BaseException) -> bool:
    """Say whether a database error means that no space is left."""
    text = str(getattr(exc, "orig", exc)).lower()
    return "disk is full" in text or "no space left" in text


class Database:
    """Access to the database. A process that is forked opens connections of its own.

    Args:
        url: SQLAlchemy URL, ``sqlite:///path`` or ``postgresql://…``.
        pool_size: connections kept open (Postgres).
    """

    def __init__(self, url: str, *, pool_size: int = 10) -> None:
        self.url = database_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = _sqlite(self.url) if self.is_sqlite else _postgres(self.url, pool_size)
        writer = self.engine.execution_options(**{_BEGIN: "IMMEDIATE"})
        self._readers = sessionmaker(self.engine, expire_on_commit=False)
        self._writers = sessionmaker(writer, expire_on_commit=False)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a transaction that only reads; it sees one state of the database (SQLite) or the
        newest committed one at each statement (Postgres)."""
        with self._readers() as session, session.begin():
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a transaction that writes; it commits at the end, and rolls back on an error."""
        with self._writers() as session, session.begin():
            yield session

    def now(self, session: Session) -> datetime:
        """Return the current time by the one clock that all processes share.

        On Postgres that is the server's, so that hosts whose clocks differ agree on leases; with
        SQLite there is one machine.
        """
        if self.is_sqlite:
            return datetime.now(UTC)
        found: datetime = session.execute(text("SELECT clock_timestamp()")).scalar_one()
        return found.astimezone(UTC)

    def check(self) -> None:
        """Raise when the database cannot be reached."""
        with self.read() as session:
            session.execute(text("SELECT 1"))

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


def _sqlite(url: URL) -> Engine:
    in_memory = url.database in (None, "", ":memory:")
    if not in_memory:
        Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(
        url,
        connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False},
        poolclass=StaticPool if in_memory else QueuePool,
        **({} if in_memory else {"pool_size": 10, "max_overflow": 100}),
    )
    _not_across_forks(engine)

    @event.listens_for(engine, "connect")
    def _set_up(connection: Any, _record: Any) -> None:
        # the driver's own BEGIN comes too late for reads and is never IMMEDIATE
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        mode = connection.get_execution_options().get(_BEGIN, "DEFERRED")
        connection.exec_driver_sql(f"BEGIN {mode}")

    return engine


def _postgres(url: URL, pool_size: int) -> Engine:
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_pre_ping=True,
        pool_recycle=1800,
        isolation_level="READ COMMITTED",
        connect_args={"connect_timeout": 10, "application_name": "qb"},
    )
    _not_across_forks(engine)
    return engine


def _not_across_forks(engine: Engine) -> None:
    """Let a process that was forked open connections of its own."""

    @event.listens_for(engine, "connect")
    def _remember(_connection: Any, record: ConnectionPoolEntry) -> None:
        record.info["pid"] = os.getpid()

    @event.listens_for(engine, "checkout")
    def _check(_connection: Any, record: Any, proxy: Any) -> None:
        if record.info["pid"] != os.getpid():
            # the parent's: dropped here, not closed
            record.dbapi_connection = proxy.dbapi_connection = None
            raise DisconnectionError("the connection is another process's")
