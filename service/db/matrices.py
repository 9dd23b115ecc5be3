"""Matrices: jobs that one request asks for together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select

from ..domain import IdKind, ServiceError, build_key, new_id
from .engine import Database
from .mapping import to_build, to_job
from .paging import Page, cut_page, keyset
from .requests import JobView, NewJob
from .submitting import add_job, hold_inputs
from .tables import BuildRow, IdempotencyRow, JobRow, MatrixRow
from .transitions import retrying

__all__ = ["Matrix", "MatrixStore"]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A request for several jobs. ``skipped`` are the combinations that cannot be built."""

    id: str
    project: str
    name: str | None
    request: Mapping[str, Any]
    skipped: Sequence[Mapping[str, Any]]
    created_at: datetime


class MatrixStore:
    """What the API does with matrices. Each method is one transaction."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def submit(
        self,
        project: str,
        request: Mapping[str, Any],
        jobs: Sequence[NewJob],
        skipped: Sequence[Mapping[str, Any]],
        *,
        name: str | None = None,
        idempotency_key: str | None = None,
        request_digest: str = "",
        idempotency_hours: int = 24,
    ) -> tuple[Matrix, bool]:
        """Make a matrix and all of its jobs, or none; say whether its key had made it before.

        Raises:
            ServiceError: ``IDEMPOTENCY_MISMATCH``; ``NOT_FOUND`` when an input was deleted
                meanwhile.
        """

        def work() -> tuple[Matrix, bool]:
            with self._db.write() as session:
                now = self._db.now(session)
                if idempotency_key is not None:
                    earlier = session.get(IdempotencyRow, (project, idempotency_key))
                    if earlier is not None and earlier.expires_at >= now:
                        if earlier.request_digest != request_digest:
                            raise _mismatch(earlier.job_id)
                        return _matrix(session.get_one(MatrixRow, earlier.job_id)), True
                    session.execute(delete(IdempotencyRow).where(IdempotencyRow.expires_at < now))
                row = MatrixRow(
                    id=new_id(IdKind.MATRIX),
                    project=project,
                    name=name,
                    request=dict(request),
                    skipped=[dict(s) for s in skipped],
                    created_at=now,
                )
                session.add(row)
                session.flush()
                if idempotency_key is not None:
                    session.add(
                        IdempotencyRow(
                            project=project,
                            key=idempotency_key,
                            request_digest=request_digest,
                            job_id=row.id,
                            expires_at=now + timedelta(hours=idempotency_hours),
                        )
                    )
                found = _matrix(row)
                hold_inputs(session, jobs[0])
                # builds are locked in one order, whatever that of the request
                keyed = sorted(
                    ((build_key(job.spec), index, job) for index, job in enumerate(jobs)),
                    key=lambda item: item[:2],
                )
                for key, index, job in keyed:
                    add_job(session, job, key, now, matrix=(found.id, index))
                return found, False

        return retrying(work)

    def get(self, project: str, matrix_id: str) -> tuple[Matrix, list[JobView]] | None:
        """Return a matrix of the project and its jobs in the request's order, or None."""
        with self._db.read() as session:
            row = session.execute(
                select(MatrixRow).where(MatrixRow.id == matrix_id, MatrixRow.project == project)
            ).scalar_one_or_none()
            if row is None:
                return None
            jobs = session.execute(
                select(JobRow, BuildRow)
                .join(BuildRow, BuildRow.id == JobRow.build_id)
                .where(JobRow.matrix_id == matrix_id)
                .order_by(JobRow.matrix_index)
            )
            return _matrix(row), [JobView(to_job(j), to_build(b), None) for j, b in jobs]

    def page(self, project: str, *, limit: int, cursor: str | None) -> Page[Matrix]:
        """Return matrices, newest first."""
        with self._db.read() as session:
            rows = session.execute(
                select(MatrixRow)
                .where(
                    MatrixRow.project == project,
                    *keyset(MatrixRow.created_at, MatrixRow.id, cursor),
                )
                .order_by(MatrixRow.created_at.desc(), MatrixRow.id.desc())
                .limit(limit + 1)
            ).scalars()
            found = [_matrix(row) for row in rows]
        return cut_page(found, limit, lambda m: (m.created_at, m.id))


def _mismatch(matrix_id: str) -> ServiceError:
    return ServiceError(
        "IDEMPOTENCY_MISMATCH",
        "this Idempotency-Key was used before with another request body",
        hint="use a new key for a new request",
        details={"id": matrix_id},
    )


def _matrix(row: MatrixRow) -> Matrix:
    return Matrix(row.id, row.project, row.name, row.request, row.skipped, row.created_at)
