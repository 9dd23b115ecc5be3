"""Uploads in parts: what is announced, held, finished and expired."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Text, cast, delete, func, or_, select, update
from sqlalchemy.orm import Session

from ..domain import (
    IdKind,
    ServiceError,
    Upload,
    UploadState,
    new_id,
    part_size_of,
)
from .audit import Action, audit
from .engine import Database
from .paging import Page, cut_page, keyset
from .tables import CalibrationRow, ModelRow, UploadPartRow, UploadRow

__all__ = ["UploadStore"]

_FINISH_SECONDS = 15.0
_BATCH = 100
_NONE: Mapping[int, Any] = {}


class UploadStore:
    """Uploads of a project. Each method is one transaction."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def knows(self, project: str, sha256: str, size: int) -> bool:
        """Say whether a file of the project, in the store or once there, has this content.

        Other projects' files are not looked at.
        """
        # as JSON text: a quote inside a path would be escaped
        mark = f'"sha256": "{sha256}"'
        with self._db.read() as session:
            found = session.execute(
                select(UploadRow.id)
                .where(
                    UploadRow.project == project,
                    UploadRow.sha256 == sha256,
                    UploadRow.size == size,
                    UploadRow.state == UploadState.COMPLETE.value,
                )
                .limit(1)
            ).first()
            found = found or _mentions(session, ModelRow, ModelRow.files, project, mark)
            found = found or _mentions(
                session, CalibrationRow, CalibrationRow.archive, project, mark
            )
            return found is not None

    def announce(
        self,
        project: str,
        *,
        name: str | None,
        size: int,
        sha256: str,
        present: bool,
        part_bytes: int,
        expires_s: float,
        most_open: int,
    ) -> tuple[Upload, bool]:
        """Open an upload, or return the open one of the same content; say whether it is new.

        Raises:
            ServiceError: ``QUOTA_EXCEEDED``: the project has too many open uploads.
        """
        with self._db.write() as session:
            now = self._db.now(session)
            # the same state for all that are finished: present at once
            wanted = UploadState.COMPLETE if present else UploadState.OPEN
            row = session.execute(
                select(UploadRow)
                .where(
                    UploadRow.project == project,
                    UploadRow.sha256 == sha256,
                    UploadRow.size == size,
                    UploadRow.state == wanted.value,
                    UploadRow.expires_at > now,
                )
                .order_by(UploadRow.created_at)
                .limit(1)
                .with_for_update()
            ).scalar_one_or_none()
            if row is not None:
                row.expires_at = now + timedelta(seconds=expires_s)
                row.already_present = row.already_present or present
                session.flush()
                return _upload(session, row), False
            if not present:
                _check_quota(session, project, most_open)
            row = UploadRow(
                id=new_id(IdKind.UPLOAD),
                project=project,
                name=name,
                size=size,
                sha256=sha256,
                part_size=part_size_of(size, part_bytes),
                state=wanted.value,
                staging=None,
                already_present=present,
                finisher=None,
                finishing_until=None,
                created_at=now,
                expires_at=now + timedelta(seconds=expires_s),
                finished_at=now if present else None,
            )
            session.add(row)
            session.flush()
            audit(session, now, project, Action.UPLOAD_CREATE, row.id, size=size, sha256=sha256)
            return _upload(session, row), True

    def stage(self, upload_id: str, staging: str) -> str:
        """Keep what the store calls the unfinished file; return the name that was first."""
        with self._db.write() as session:
            row = session.execute(
                select(UploadRow).where(UploadRow.id == upload_id).with_for_update()
            ).scalar_one()
            row.staging = row.staging or staging
            return row.staging

    def get(self, project: str | None, upload_id: str) -> Upload | None:
        """Return an upload of the project (None: of any); None when there is none any more."""
        where = [UploadRow.id == upload_id]
        if project is not None:
            where.append(UploadRow.project == project)
        with self._db.read() as session:
            row = session.execute(select(UploadRow).where(*where)).scalar_one_or_none()
            if row is None or row.expires_at <= self._db.now(session):
                return None
            return _upload(session, row)

    def page(self, project: str, *, limit: int, cursor: str | None) -> Page[Upload]:
        """Return uploads, newest first; without the parts that are held."""
        with self._db.read() as session:
            now = self._db.now(session)
            rows = session.execute(
                select(UploadRow)
                .where(
                    UploadRow.project == project,
                    UploadRow.expires_at > now,
                    *keyset(UploadRow.created_at, UploadRow.id, cursor),
                )
                .order_by(UploadRow.created_at.desc(), UploadRow.id.desc())
                .limit(limit + 1)
            ).scalars()
            found = [_entity(row) for row in rows]
        return cut_page(found, limit, lambda u: (u.created_at, u.id))

    def drop_part(self, upload_id: str, number: int) -> bool:
        """Note that a part is being written anew; False when the upload takes no more parts.

        It takes none while it is finished, so what is held then stays as it is.
        """
        with self._db.write() as session:
            if not _lock_open(session, upload_id, self._db.now(session)):
                return False
            session.execute(
                delete(UploadPartRow).where(
                    UploadPartRow.upload_id == upload_id, UploadPartRow.number == number
                )
            )
            return True

    def hold_part(self, upload_id: str, number: int, size: int) -> str | None:
        """Note that a part is held whole, and return its mark.

        Returns:
            None when the upload takes no more parts.
        """
        with self._db.write() as session:
            now = self._db.now(session)
            if not _lock_open(session, upload_id, now):
                return None
            mark = secrets.token_hex(16)
            session.merge(
                UploadPartRow(
                    upload_id=upload_id, number=number, size=size, mark=mark, created_at=now
                )
            )
            return mark

    def begin_finish(self, project: str, upload_id: str) -> tuple[Upload, str] | None:
        """Take the finishing of an open upload; None when there is none.

        Returns:
            The upload, and the secret with which its end is written; empty when it has ended.

        Raises:
            ServiceError: ``CONFLICT``: another call is at it.
        """
        with self._db.write() as session:
            now = self._db.now(session)
            row = _locked(session, project, upload_id, now)
            if row is None:
                return None
            if row.state != UploadState.OPEN.value:
                return _upload(session, row), ""
            _refuse_while_checked(row, now, hint="ask again; the answer is then the result")
            row.finisher = secrets.token_hex(16)
            row.finishing_until = now + timedelta(seconds=_FINISH_SECONDS)
            session.flush()
            return _upload(session, row), row.finisher

    def renew_finish(self, upload_id: str, finisher: str) -> bool:
        """Say that the check goes on; False when its time was over, or it is another's by now."""
        with self._db.write() as session:
            now = self._db.now(session)
            until = now + timedelta(seconds=_FINISH_SECONDS)
            return _set(session, upload_id, finisher, alive_at=now, finishing_until=until)

    def end_finish(
        self, upload_id: str, finisher: str, state: UploadState, expires_s: float | None = None
    ) -> bool:
        """Write the end of a check: OPEN gives it back. False when it is another's by now."""
        with self._db.write() as session:
            now = self._db.now(session)
            values: dict[str, Any] = {
                "state": state.value,
                "finisher": None,
                "finishing_until": None,
                "finished_at": None if state is UploadState.OPEN else now,
            }
            if expires_s is not None:
                values["expires_at"] = now + timedelta(seconds=expires_s)
            if not _set(session, upload_id, finisher, alive_at=None, **values):
                return False
            if state is not UploadState.OPEN:
                row = session.execute(
                    select(UploadRow).where(UploadRow.id == upload_id)
                ).scalar_one()
                right = state is UploadState.COMPLETE
                action = Action.UPLOAD_COMPLETE if right else Action.UPLOAD_FAIL
                audit(session, now, row.project, action, upload_id, sha256=row.sha256)
            return True

    def give_up(self, project: str, upload_id: str) -> Upload | None:
        """End an upload at once, whatever its state; None when there is none.

        The row goes when what was staged has gone: see :meth:`expired`.
        """
        with self._db.write() as session:
            now = self._db.now(session)
            row = _locked(session, project, upload_id, now)
            if row is None:
                return None
            _refuse_while_checked(row, now, hint="ask again in a moment")
            row.expires_at = now
            session.flush()
            audit(session, now, project, Action.UPLOAD_DELETE, upload_id)
            return _upload(session, row)

    def expired(self) -> list[Upload]:
        """Return some uploads whose time is over and which nobody is finishing."""
        with self._db.read() as session:
            now = self._db.now(session)
            rows: Sequence[UploadRow] = (
                session.execute(
                    select(UploadRow)
                    .where(
                        UploadRow.expires_at <= now,
                        or_(UploadRow.finishing_until.is_(None), UploadRow.finishing_until <= now),
                    )
                    .order_by(UploadRow.expires_at)
                    .limit(_BATCH)
                )
                .scalars()
                .all()
            )
            return [_entity(row) for row in rows]

    def forget(self, upload_id: str) -> None:
        """Remove the record of an upload whose time is over."""
        with self._db.write() as session:
            now = self._db.now(session)
            session.execute(
                delete(UploadRow).where(UploadRow.id == upload_id, UploadRow.expires_at <= now)
            )


def _mentions(
    session: Session,
    table: type[ModelRow] | type[CalibrationRow],
    column: Any,
    project: str,
    mark: str,
) -> Any:
    return session.execute(
        select(table.id)
        .where(table.project == project, cast(column, Text).contains(mark, autoescape=True))
        .limit(1)
    ).first()


def _check_quota(session: Session, project: str, most: int) -> None:
    count = session.execute(
        select(func.count())
        .select_from(UploadRow)
        .where(UploadRow.project == project, UploadRow.state == UploadState.OPEN.value)
    ).scalar_one()
    if count >= most:
        raise ServiceError(
            "QUOTA_EXCEEDED",
            f"the project has {count} open uploads; {most} are allowed",
            hint="complete or delete some: GET /v1/uploads lists them",
            details={"limit": most},
            retry_after_s=60,
        )


def _lock_open(session: Session, upload_id: str, now: datetime) -> bool:
    row = session.execute(
        select(UploadRow.id)
        .where(
            UploadRow.id == upload_id,
            UploadRow.state == UploadState.OPEN.value,
            UploadRow.expires_at > now,
            or_(UploadRow.finishing_until.is_(None), UploadRow.finishing_until <= now),
        )
        .with_for_update()
    ).scalar_one_or_none()
    return row is not None


def _set(
    session: Session, upload_id: str, owner: str, *, alive_at: datetime | None, **values: Any
) -> bool:
    where = [UploadRow.id == upload_id, UploadRow.finisher == owner]
    if alive_at is not None:
        where.append(UploadRow.finishing_until > alive_at)
    done = session.execute(
        update(UploadRow)
        .where(*where)
        .values(**values)
        .returning(UploadRow.id)
        .execution_options(synchronize_session=False)
    ).scalar_one_or_none()
    return done is not None


def _upload(session: Session, row: UploadRow) -> Upload:
    parts = session.execute(
        select(UploadPartRow.number, UploadPartRow.size, UploadPartRow.mark)
        .where(UploadPartRow.upload_id == row.id)
        .order_by(UploadPartRow.number)
    ).all()
    return _entity(row, {n: size for n, size, _ in parts}, {n: mark for n, _, mark in parts})


def _locked(session: Session, project: str, upload_id: str, now: datetime) -> UploadRow | None:
    """Return an upload that has not expired, held until the transaction ends."""
    return session.execute(
        select(UploadRow)
        .where(
            UploadRow.id == upload_id,
            UploadRow.project == project,
            UploadRow.expires_at > now,
        )
        .with_for_update()
    ).scalar_one_or_none()


def _refuse_while_checked(row: UploadRow, now: datetime, hint: str) -> None:
    if row.finishing_until is not None and row.finishing_until > now:
        raise ServiceError(
            "CONFLICT",
            f"upload {row.id} is being checked",
            hint=hint,
            retryable=True,
            retry_after_s=1,
        )


def _entity(
    row: UploadRow, parts: Mapping[int, int] = _NONE, marks: Mapping[int, str] = _NONE
) -> Upload:
    return Upload(
        id=row.id,
        project=row.project,
        name=row.name,
        size=row.size,
        sha256=row.sha256,
        part_size=row.part_size,
        state=UploadState(row.state),
        staging=row.staging,
        already_present=row.already_present,
        created_at=row.created_at,
        expires_at=row.expires_at,
        finished_at=row.finished_at,
        parts=parts,
        marks=marks,
    )
