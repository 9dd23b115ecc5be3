"""Messages about ended jobs: owed by the transaction that ends the job, delivered after it.

A message is delivered at least once. Its id stays the same over all tries, so that a receiver can
tell a second delivery.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from ..domain import (
    DeliveryState,
    IdKind,
    State,
    WebhookAttempt,
    WebhookDelivery,
    new_id,
)
from .audit import Action, audit
from .engine import Database
from .paging import Page, cut_page, keyset
from .tables import ArtifactRow, JobRow, ProjectRow, WebhookAttemptRow, WebhookRow

__all__ = ["RetryPolicy", "WebhookSecret", "WebhookStore", "owe_webhooks"]

_OVERLAP = timedelta(hours=24)
"""How long the secret before the newest one signs too."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a failed delivery is tried again.

    Args:
        tries: in all, before it counts as failed.
        first_s: pause after the first try; each later one is four times as long, up to ``most_s``,
            and up to a fifth longer by chance, so that what failed together does not come back
            together.
        lease_s: a try that is silent for so long was that of a process that died.
    """

    tries: int = 10
    first_s: float = 5.0
    most_s: float = 6 * 3600.0
    lease_s: float = 120.0

    def pause(self, tries: int, asked_s: int | None) -> timedelta:
        """Return the pause after so many tries; the receiver's ``Retry-After`` makes it longer."""
        plain = min(self.first_s * 4.0 ** min(tries - 1, 30), self.most_s)
        jitter = 1 + random.random() / 5  # noqa: S311 (no secret)
        return timedelta(seconds=max(plain * jitter, min(asked_s or 0, self.most_s)))


@dataclass(frozen=True, slots=True)
class WebhookSecret:
    """Which of a project's secrets sign now, the newest first."""

    generations: tuple[int, ...]
    rotated_at: datetime | None


class WebhookStore:
    """What the deliverer and the API do with messages. Each method is one transaction."""

    def __init__(self, db: Database, policy: RetryPolicy | None = None) -> None:
        self._db = db
        self._policy = policy or RetryPolicy()

    # delivering ---------------------------------------------------------------------------

    def claim(self, limit: int) -> list[WebhookDelivery]:
        """Take messages that are due; no other process takes them until the lease runs out."""
        with self._db.read() as session:
            now = self._db.now(session)
            due = list(
                session.execute(
                    select(WebhookRow.id)
                    .where(
                        WebhookRow.state == DeliveryState.PENDING.value,
                        WebhookRow.not_before <= now,
                    )
                    .order_by(WebhookRow.not_before)
                    .limit(limit)
                ).scalars()
            )
        if not due:
            return []
        with self._db.write() as session:
            now = self._db.now(session)
            rows = session.execute(
                update(WebhookRow)
                .where(
                    WebhookRow.id.in_(due),
                    WebhookRow.state == DeliveryState.PENDING.value,
                    WebhookRow.not_before <= now,
                )
                .values(
                    tries=WebhookRow.tries + 1,
                    tries_this_time=WebhookRow.tries_this_time + 1,
                    not_before=now + timedelta(seconds=self._policy.lease_s),
                )
                .returning(WebhookRow)
                .execution_options(synchronize_session=False)
            ).scalars()
            return [self._entity(row) for row in rows]

    def record(
        self,
        delivery: WebhookDelivery,
        *,
        status: int | None,
        error: str | None,
        seconds: float,
        delivered: bool,
        gone: bool = False,
        retry_after_s: int | None = None,
    ) -> None:
        """Record a try, and put the next one off or end the delivery.

        Args:
            delivery: as claimed.
            status, error, seconds: of the try.
            delivered: whether the receiver took it.
            gone: whether the receiver never wants it (410).
            retry_after_s: what the receiver asked for.
        """
        with self._db.write() as session:
            now = self._db.now(session)
            row = session.execute(
                select(WebhookRow).where(WebhookRow.id == delivery.id).with_for_update()
            ).scalar_one_or_none()
            if row is None:
                return
            session.add(
                WebhookAttemptRow(
                    webhook_id=row.id,
                    number=delivery.tries,
                    at=now - timedelta(seconds=seconds),
                    seconds=round(seconds, 3),
                    status=status,
                    error=error,
                )
            )
            if row.tries != delivery.tries or row.state != DeliveryState.PENDING.value:
                # a newer try holds it
                return
            if delivered or gone or row.tries_this_time >= self._policy.tries:
                ended = DeliveryState.DELIVERED if delivered else DeliveryState.FAILED
                row.state, row.finished_at = ended.value, now
            else:
                row.not_before = now + self._policy.pause(row.tries_this_time, retry_after_s)

    def secret(self, project: str) -> WebhookSecret:
        """Return which secrets sign a project's messages now."""
        with self._db.read() as session:
            row = session.get_one(ProjectRow, project)
            return _secret(row, self._db.now(session))

    def rotate(self, project: str) -> WebhookSecret:
        """Give a project a new secret; the one before it signs for another day too."""
        with self._db.write() as session:
            row = session.get_one(ProjectRow, project, with_for_update=True)
            row.webhook_generation += 1
            row.webhook_rotated_at = self._db.now(session)
            session.flush()
            audit(session, row.webhook_rotated_at, project, Action.WEBHOOK_ROTATE, None)
            return _secret(row, row.webhook_rotated_at)

    # showing ------------------------------------------------------------------------------

    def page(
        self,
        project: str,
        *,
        limit: int,
        cursor: str | None,
        job_id: str | None = None,
        states: Sequence[DeliveryState] = (),
    ) -> Page[WebhookDelivery]:
        """Return deliveries, newest first."""
        where = [WebhookRow.project == project]
        if job_id is not None:
            where.append(WebhookRow.job_id == job_id)
        if states:
            where.append(WebhookRow.state.in_([s.value for s in states]))
        with self._db.read() as session:
            rows = session.execute(
                select(WebhookRow)
                .where(*where, *keyset(WebhookRow.created_at, WebhookRow.id, cursor))
                .order_by(WebhookRow.created_at.desc(), WebhookRow.id.desc())
                .limit(limit + 1)
            ).scalars()
            found = [self._entity(row) for row in rows]
        return cut_page(found, limit, lambda d: (d.created_at, d.id))

    def get(
        self, project: str, delivery_id: str
    ) -> tuple[WebhookDelivery, list[WebhookAttempt]] | None:
        """Return a delivery of the project and its newest hundred tries, oldest first; or None."""
        with self._db.read() as session:
            row = session.execute(
                select(WebhookRow).where(
                    WebhookRow.id == delivery_id, WebhookRow.project == project
                )
            ).scalar_one_or_none()
            if row is None:
                return None
            tries = session.execute(
                select(WebhookAttemptRow)
                .where(WebhookAttemptRow.webhook_id == delivery_id)
                .order_by(WebhookAttemptRow.number.desc())
                .limit(100)
            ).scalars()
            found = [WebhookAttempt(t.number, t.at, t.seconds, t.status, t.error) for t in tries]
            return self._entity(row), found[::-1]

    def redeliver(self, project: str, delivery_id: str) -> bool:
        """Owe a message again, with all its tries; False when there is none."""
        with self._db.write() as session:
            now = self._db.now(session)
            done = session.execute(
                update(WebhookRow)
                .where(WebhookRow.id == delivery_id, WebhookRow.project == project)
                .values(
                    state=DeliveryState.PENDING.value,
                    tries_this_time=0,
                    not_before=now,
                    finished_at=None,
                )
                .returning(WebhookRow.id)
                .execution_options(synchronize_session=False)
            ).scalar_one_or_none()
            if done is not None:
                audit(session, now, project, Action.WEBHOOK_REDELIVER, delivery_id)
            return done is not None

    def _entity(self, row: WebhookRow) -> WebhookDelivery:
        pending = row.state == DeliveryState.PENDING.value
        return WebhookDelivery(
            id=row.id,
            project=row.project,
            job_id=row.job_id,
            event=row.event,
            url=row.url,
            body=row.body,
            state=DeliveryState(row.state),
            tries=row.tries,
            retries_left=max(0, self._policy.tries - row.tries_this_time) if pending else 0,
            next_try_at=row.not_before if pending else None,
            created_at=row.created_at,
            finished_at=row.finished_at,
        )


def owe_webhooks(session: Session, job_ids: Sequence[str], to: State, now: datetime) -> None:
    """Add to the transaction the messages about jobs that it has brought to their end."""
    jobs = list(
        session.execute(
            select(JobRow)
            .where(JobRow.id.in_(job_ids), JobRow.webhook_url.is_not(None))
            .execution_options(populate_existing=True)
        ).scalars()
    )
    for job in jobs:
        session.add(
            WebhookRow(
                id=new_id(IdKind.WEBHOOK),
                project=job.project,
                job_id=job.id,
                event=f"job.{to.value}",
                url=job.webhook_url,
                body=json.dumps(
                    _message(session, job, to, now), separators=(",", ":"), ensure_ascii=False
                ),
                state=DeliveryState.PENDING.value,
                tries=0,
                tries_this_time=0,
                not_before=now,
                created_at=now,
            )
        )
    if jobs:
        session.flush()


def _message(session: Session, job: JobRow, to: State, now: datetime) -> dict[str, Any]:
    artifacts: list[dict[str, Any]] = []
    if to is State.SUCCEEDED:
        rows = session.execute(
            select(ArtifactRow)
            .where(ArtifactRow.build_id == job.build_id)
            .order_by(ArtifactRow.kind, ArtifactRow.name)
        ).scalars()
        artifacts = [
            {"id": a.id, "kind": a.kind, "name": a.name, "sha256": a.sha256, "size": a.size}
            for a in rows
        ]
    return {
        "type": f"job.{to.value}",
        "timestamp": now.isoformat().replace("+00:00", "Z"),
        "data": {
            "job_id": job.id,
            "project": job.project,
            "job_type": job.kind,
            "state": to.value,
            "name": job.name,
            "labels": job.labels,
            "source_revision": job.source_revision,
            "target_device": job.target_device,
            "cache": job.cache,
            "build_id": job.build_id,
            "artifacts": artifacts,
            "error": None
            if job.failure is None
            else {"code": job.failure["code"], "detail": job.failure["message"]},
        },
    }


def _secret(row: ProjectRow, now: datetime) -> WebhookSecret:
    newest = row.webhook_generation
    rotated = row.webhook_rotated_at
    overlap = rotated is not None and now < rotated + _OVERLAP
    return WebhookSecret((newest, newest - 1) if overlap else (newest,), rotated)
