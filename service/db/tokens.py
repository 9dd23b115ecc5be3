"""Bearer tokens and projects."""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import timedelta

from sqlalchemy import func, select, update

from ..domain import IdKind, Role, ServiceError, Token, new_id
from .audit import Action, audit
from .engine import Database
from .tables import ProjectRow, TokenRow

__all__ = ["TOKEN_PREFIX", "TokenStore"]

TOKEN_PREFIX = "qbt_"  # noqa: S105 (a marker that secret scanners look for)

_PROJECT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")


class TokenStore:
    """Makes, checks and revokes tokens. Each method is one transaction.

    A token's text has 256 random bits, so its plain SHA-256 is all that need be stored.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    def create(
        self, *, project: str, name: str, role: Role, expires_in_s: int | None = None
    ) -> tuple[Token, str]:
        """Make a token, and its project when that is new; return it and its text.

        The text is shown this once and cannot be found again.

        Raises:
            ServiceError: the project's name is not one.
        """
        if _PROJECT.match(project) is None:
            raise ServiceError(
                "ARGUMENT_ERROR",
                f"{project!r} is not a project name",
                hint="1 to 64 of a-z, 0-9, '.', '_', '-', beginning with a letter or digit",
            )
        text = TOKEN_PREFIX + secrets.token_urlsafe(32)
        with self._db.write() as session:
            now = self._db.now(session)
            if session.get(ProjectRow, project) is None:
                session.add(ProjectRow(id=project, created_at=now))
                session.flush()
            row = TokenRow(
                id=new_id(IdKind.TOKEN),
                project=project,
                name=name[:255],
                role=role.value,
                digest=_digest(text),
                created_at=now,
                expires_at=None if expires_in_s is None else now + timedelta(seconds=expires_in_s),
            )
            session.add(row)
            session.flush()
            audit(
                session, now, project, Action.TOKEN_CREATE, row.id,
                name=row.name, role=row.role,
            )  # fmt: skip
            return _token(row), text

    def projects(self) -> dict[str, int | None]:
        """Return each project, and its retention in days (None: the server's, 0: for good)."""
        with self._db.read() as session:
            rows = session.execute(
                select(ProjectRow.id, ProjectRow.retention_days).order_by(ProjectRow.id)
            )
            return {str(identifier): days for identifier, days in rows}

    def set_retention(self, project: str, days: int | None) -> bool:
        """Set a project's retention; False when there is no such project."""
        with self._db.write() as session:
            row = session.get(ProjectRow, project, with_for_update=True)
            if row is None:
                return False
            row.retention_days = days
            audit(session, self._db.now(session), project, Action.RETENTION_SET, None, days=days)
            return True

    def verify(self, text: str) -> Token | None:
        """Return the token with this text, or None when there is none that is valid now."""
        if not text.startswith(TOKEN_PREFIX) or len(text) > 200:
            return None
        with self._db.read() as session:
            row = session.execute(
                select(TokenRow).where(TokenRow.digest == _digest(text))
            ).scalar_one_or_none()
            if row is None or row.revoked_at is not None:
                return None
            if row.expires_at is not None and row.expires_at <= self._db.now(session):
                return None
            return _token(row)

    def list(self) -> list[Token]:
        """Return every token, newest first."""
        with self._db.read() as session:
            rows = session.execute(select(TokenRow).order_by(TokenRow.created_at.desc()))
            return [_token(row) for row in rows.scalars()]

    def revoke(self, token_id: str) -> bool:
        """Revoke a token for good; False when there is none."""
        with self._db.write() as session:
            now = self._db.now(session)
            project = session.execute(
                update(TokenRow)
                .where(TokenRow.id == token_id)
                .values(revoked_at=func.coalesce(TokenRow.revoked_at, now))
                .returning(TokenRow.project)
                .execution_options(synchronize_session=False)
            ).scalar_one_or_none()
            if project is not None:
                audit(session, now, project, Action.TOKEN_REVOKE, token_id)
            return project is not None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _token(row: TokenRow) -> Token:
    return Token(
        id=row.id,
        project=row.project,
        name=row.name,
        role=Role(row.role),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
