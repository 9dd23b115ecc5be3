"""Builds as a worker sees them: claim, heartbeat, progress, log, end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from ..domain import (
    ACTIVE,
    Artifact,
    ArtifactKind,
    Attempt,
    AttemptState,
    Build,
    Claim,
    EventType,
    Failure,
    HeartbeatAnswer,
    IdKind,
    LeaseLost,
    LeasePolicy,
    Phase,
    State,
    StoredFile,
    Usage,
    new_id,
)
from .clean import MAX_SUMMARY, clean_failure, clean_json, clean_text
from .engine import Database
from .mapping import to_artifact, to_attempt, to_build
from .outbox import owe_message
from .tables import ArtifactRow, AttemptRow, BuildRow, EventRow, JobRow
from .transitions import Draft, append_events, lock_build, retrying, write_state

__all__ = ["BuildStore", "end_build", "requeue_build"]

_LOG_CUT = "… the log is cut here: it reached its limit of {limit} bytes\n"


class BuildStore:
    """What a worker does with builds. Each method is one transaction.

    A method that takes a claim raises :class:`LeaseLost` when a newer attempt, the reconciler or
    an end came first; nothing is changed then.
    """

    def __init__(self, db: Database, policy: LeasePolicy | None = None) -> None:
        self._db = db
        self._policy = policy or LeasePolicy()

    # claiming -----------------------------------------------------------------------------

    def claim(self, build_id: str, worker: str) -> Claim | None:
        """Take a queued build; None when it is not queued, or another worker was first."""
        with self._db.write() as session:
            return self._claim(session, build_id, worker)

    def claim_next(self, queue: str, worker: str) -> Claim | None:
        """Take the queued build of the highest priority, the one that waited longest first."""
        with self._db.write() as session:
            build_id = session.execute(
                select(BuildRow.id)
                .where(BuildRow.state == State.QUEUED.value, BuildRow.queue == queue)
                .order_by(BuildRow.priority.desc(), BuildRow.queued_at, BuildRow.id)
                .limit(1)
                .with_for_update(skip_locked=True)
            ).scalar_one_or_none()
            return None if build_id is None else self._claim(session, build_id, worker)

    def _claim(self, session: Session, build_id: str, worker: str) -> Claim | None:
        now = self._db.now(session)
        moved = write_state(
            session,
            BuildRow,
            [BuildRow.id == build_id],
            expect=[State.QUEUED],
            to=State.RUNNING,
            values={
                "fencing": BuildRow.fencing + 1,
                "worker": worker[:255],
                "lease_until": now + timedelta(seconds=self._policy.lease_seconds),
                "started_at": func.coalesce(BuildRow.started_at, now),
                "phase": Phase.FETCH.value,
                "progress_current": None,
                "progress_total": None,
            },
        )
        if not moved:
            return None
        row = lock_build(session, BuildRow.id == build_id)
        assert row is not None
        attempt_id = new_id(IdKind.ATTEMPT)
        session.add(
            AttemptRow(
                id=attempt_id,
                build_id=build_id,
                number=row.fencing,
                worker=worker[:255],
                state=AttemptState.RUNNING.value,
                started_at=now,
                heartbeat_at=now,
            )
        )
        write_state(
            session,
            JobRow,
            [JobRow.build_id == build_id],
            expect=[State.QUEUED],
            to=State.RUNNING,
            values={"started_at": func.coalesce(JobRow.started_at, now)},
        )
        state = {"state": State.RUNNING.value, "attempt": row.fencing}
        append_events(
            session,
            build_id,
            now,
            row.fencing,
            [
                Draft(EventType.STATE, state),
                Draft(EventType.PHASE, {"phase": Phase.FETCH.value}),
            ],
        )
        session.refresh(row)
        return Claim(build=to_build(row), attempt_id=attempt_id, worker=worker, fencing=row.fencing)

    # while it runs ------------------------------------------------------------------------

    def heartbeat(self, claim: Claim, usage: Usage | None = None) -> HeartbeatAnswer:
        """Extend the lease; learn whether to stop, and the limits as they are now."""
        with self._db.write() as session:
            now = self._db.now(session)
            until = now + timedelta(seconds=self._policy.lease_seconds)
            row = session.execute(
                update(BuildRow)
                .where(*_held(claim))
                .values(lease_until=until)
                .returning(
                    BuildRow.cancel_requested, BuildRow.run_limit_s, BuildRow.memory_limit_mb
                )
                .execution_options(synchronize_session=False)
            ).one_or_none()
            if row is None:
                raise LeaseLost(claim.build.id, claim.fencing)
            session.execute(
                update(AttemptRow)
                .where(AttemptRow.id == claim.attempt_id)
                .values(heartbeat_at=now, **_usage_values(usage))
                .execution_options(synchronize_session=False)
            )
            return HeartbeatAnswer(
                cancel_requested=row[0], run_limit_s=row[1], memory_limit_mb=row[2],
                lease_until=until,
            )  # fmt: skip

    def progress(
        self,
        claim: Claim,
        *,
        phase: Phase,
        current: int | None = None,
        total: int | None = None,
        message: str | None = None,
    ) -> None:
        """Say where the build is. Batch calls: a handful a second is enough for a person."""
        with self._db.write() as session:
            row = _hold(session, claim)
            drafts = []
            if row.phase != phase.value:
                drafts.append(Draft(EventType.PHASE, {"phase": phase.value}))
            if current is not None and row.progress_events < self._policy.max_progress_events:
                data: dict[str, Any] = {"phase": phase.value, "current": current, "total": total}
                if message is not None:
                    data["message"] = clean_text(message)[:1000]
                drafts.append(Draft(EventType.PROGRESS, data))
                row.progress_events += 1
            row.phase = phase.value
            row.progress_current = current
            row.progress_total = total
            session.flush()
            if drafts:
                append_events(session, row.id, self._db.now(session), claim.fencing, drafts)

    def append_log(self, claim: Claim, text: str) -> None:
        """Add text to the log; beyond the limit it is cut, with one line that says so."""
        if not text:
            return
        text = clean_text(text)
        with self._db.write() as session:
            row = _hold(session, claim)
            limit = self._policy.max_log_bytes
            data = text.encode()
            room = limit - row.log_bytes
            if room <= 0:
                return
            if len(data) > room:
                text = data[:room].decode("utf-8", "ignore") + "\n" + _LOG_CUT.format(limit=limit)
                data = data[:room]
            row.log_bytes += len(data)
            session.flush()
            append_events(
                session,
                row.id,
                self._db.now(session),
                claim.fencing,
                [Draft(EventType.LOG, {"text": text})],
            )

    # ending -------------------------------------------------------------------------------

    def succeed(
        self,
        claim: Claim,
        files: Sequence[StoredFile],
        summary: dict[str, Any] | None = None,
        usage: Usage | None = None,
    ) -> list[Artifact]:
        """End a build that made its files, and make them artifacts, all in one transaction."""

        def work() -> list[Artifact]:
            with self._db.write() as session:
                return end_build(
                    session, self._db.now(session), claim.build.id, claim.fencing,
                    State.SUCCEEDED, AttemptState.SUCCEEDED,
                    files=files, summary=summary, usage=usage,
                )  # fmt: skip

        return retrying(work)

    def fail(self, claim: Claim, failure: Failure, usage: Usage | None = None) -> None:
        """End a build that failed; the failure answers later requests if it is the input's."""
        self._end(claim, State.FAILED, AttemptState.FAILED, failure, usage)

    def time_out(self, claim: Claim, failure: Failure, usage: Usage | None = None) -> None:
        """End a build that met its run limit."""
        self._end(claim, State.TIMED_OUT, AttemptState.TIMED_OUT, failure, usage)

    def cancelled(self, claim: Claim, usage: Usage | None = None) -> None:
        """End a build that was killed because its last job was cancelled."""
        self._end(claim, State.CANCELLED, AttemptState.CANCELLED, None, usage)

    def release(self, claim: Claim, usage: Usage | None = None) -> None:
        """Put a build back that this worker cannot finish because it shuts down."""
        with self._db.write() as session:
            requeue_build(
                session, self._db.now(session), claim.build.id, claim.fencing,
                AttemptState.RELEASED, usage,
            )  # fmt: skip

    def enlarge(self, claim: Claim, queue: str, failure: Failure, usage: Usage | None) -> None:
        """Put a build back that was killed for memory, into the queue of a larger class."""
        with self._db.write() as session:
            requeue_build(
                session, self._db.now(session), claim.build.id, claim.fencing,
                AttemptState.FAILED, usage, queue=queue, failure=failure,
            )  # fmt: skip

    def lose(self, claim: Claim, failure: Failure, usage: Usage | None = None) -> None:
        """Put a build back whose compiler was killed from outside; counted like a lost worker.

        After the policy's number of losses the build fails with ``failure``.
        """
        with self._db.write() as session:
            now = self._db.now(session)
            row = _hold(session, claim)
            if row.losses + 1 >= self._policy.max_losses:
                row.losses += 1
                session.flush()
                end_build(
                    session, now, row.id, claim.fencing, State.FAILED, AttemptState.LOST,
                    failure=failure, usage=usage,
                )  # fmt: skip
            else:
                requeue_build(session, now, row.id, claim.fencing, AttemptState.LOST, usage)

    def _end(
        self,
        claim: Claim,
        to: State,
        attempt: AttemptState,
        failure: Failure | None,
        usage: Usage | None,
    ) -> None:
        with self._db.write() as session:
            end_build(
                session, self._db.now(session), claim.build.id, claim.fencing, to, attempt,
                failure=failure, usage=usage,
            )  # fmt: skip

    # showing ------------------------------------------------------------------------------

    def get(self, build_id: str) -> Build | None:
        """Return a build, or None."""
        with self._db.read() as session:
            row = session.get(BuildRow, build_id)
            return None if row is None else to_build(row)

    def before(self, build: Build, *, limit: int) -> list[Build]:
        """Return earlier builds of the same project and kind, newest first."""
        with self._db.read() as session:
            # ids rise with time, and their index saves the sorting
            rows = session.execute(
                select(BuildRow)
                .where(
                    BuildRow.id < build.id,
                    BuildRow.project == build.project,
                    BuildRow.kind == build.kind.value,
                )
                .order_by(BuildRow.id.desc())
                .limit(limit)
            ).scalars()
            return [to_build(row) for row in rows]

    def attempts(self, build_id: str) -> list[Attempt]:
        """Return a build's attempts, in order."""
        with self._db.read() as session:
            rows = session.execute(
                select(AttemptRow)
                .where(AttemptRow.build_id == build_id)
                .order_by(AttemptRow.number)
            ).scalars()
            return [to_attempt(row) for row in rows]

    def running_of(self, worker: str) -> list[Build]:
        """Return the builds that a worker holds."""
        with self._db.read() as session:
            rows = session.execute(
                select(BuildRow).where(
                    BuildRow.state == State.RUNNING.value, BuildRow.worker == worker
                )
            ).scalars()
            return [to_build(row) for row in rows]


def end_build(
    session: Session,
    now: datetime,
    build_id: str,
    fencing: int,
    to: State,
    attempt: AttemptState,
    *,
    files: Sequence[StoredFile] = (),
    summary: dict[str, Any] | None = None,
    failure: Failure | None = None,
    usage: Usage | None = None,
) -> list[Artifact]:
    """End a running build, its attempt and its jobs, and record its files.

    Raises:
        LeaseLost: the build does not run under this fencing number.
    """
    plain = None if failure is None else clean_failure(failure)
    moved = write_state(
        session,
        BuildRow,
        [BuildRow.id == build_id, BuildRow.fencing == fencing],
        expect=[State.RUNNING],
        to=to,
        values={"finished_at": now, "lease_until": None, "failure": plain},
    )
    if not moved:
        raise LeaseLost(build_id, fencing)
    row = lock_build(session, BuildRow.id == build_id)
    assert row is not None
    _end_attempt(session, row, attempt, now, plain, usage)
    artifacts = [_artifact_row(row, file, now) for file in files]
    session.add_all(artifacts)
    session.flush()
    if row.refresh_of is not None and to is State.SUCCEEDED:
        summary = {**(summary or {}), "refresh": _compare(session, row.refresh_of, files)}
    row.summary = None if summary is None else clean_json(summary, limit=MAX_SUMMARY)
    keeps_key = to is State.SUCCEEDED or (
        to is State.FAILED and failure is not None and failure.is_input_fault
    )
    _settle_cache(session, row, keeps_key)
    data: dict[str, Any] = {"state": to.value}
    if plain is not None:
        data["error"] = plain
    last = append_events(session, build_id, now, fencing, [Draft(EventType.STATE, data)])
    write_state(
        session,
        JobRow,
        [JobRow.build_id == build_id],
        expect=sorted(ACTIVE),
        to=to,
        values={"finished_at": now, "event_end": last, "failure": plain},
    )
    # nobody wants to see a bar fill up again
    session.execute(
        delete(EventRow).where(
            EventRow.build_id == build_id, EventRow.type == EventType.PROGRESS.value
        )
    )
    return [to_artifact(a) for a in artifacts]


def requeue_build(
    session: Session,
    now: datetime,
    build_id: str,
    fencing: int,
    attempt: AttemptState,
    usage: Usage | None = None,
    *,
    queue: str | None = None,
    failure: Failure | None = None,
) -> None:
    """Put a running build back into its queue, or another one, with a message for a worker.

    A build that no job needs any more ends here, cancelled.

    Raises:
        LeaseLost: the build does not run under this fencing number.
    """
    held = lock_build(session, BuildRow.id == build_id, BuildRow.fencing == fencing)
    if held is not None and held.cancel_requested:
        end_build(session, now, build_id, fencing, State.CANCELLED, attempt, usage=usage)
        return
    lost = attempt is AttemptState.LOST
    moved = write_state(
        session,
        BuildRow,
        [BuildRow.id == build_id, BuildRow.fencing == fencing],
        expect=[State.RUNNING],
        to=State.QUEUED,
        values={
            "losses": BuildRow.losses + (1 if lost else 0),
            "worker": None,
            "lease_until": None,
            "phase": None,
            "progress_current": None,
            "progress_total": None,
            "queued_at": now,
            "announced_at": now,
            **({} if queue is None else {"queue": queue}),
        },
    )
    if not moved:
        raise LeaseLost(build_id, fencing)
    row = lock_build(session, BuildRow.id == build_id)
    assert row is not None
    plain = None if failure is None else clean_failure(failure)
    _end_attempt(session, row, attempt, now, plain, usage)
    jobs = session.execute(
        select(JobRow).where(JobRow.build_id == build_id, JobRow.state == State.RUNNING.value)
    ).scalars()
    for job in jobs:
        write_state(
            session,
            JobRow,
            [JobRow.id == job.id],
            expect=[State.RUNNING],
            to=State.QUEUED,
            values={
                "queued_at": now,
                "queue_deadline": now + timedelta(seconds=job.queue_limit_s),
            },
        )
    data = {"state": State.QUEUED.value, "reason": attempt.value, "attempt": fencing}
    append_events(session, build_id, now, fencing, [Draft(EventType.STATE, data)])
    owe_message(session, build_id, row.queue, row.priority, now)


def _held(claim: Claim) -> list[Any]:
    return [
        BuildRow.id == claim.build.id,
        BuildRow.fencing == claim.fencing,
        BuildRow.state == State.RUNNING.value,
    ]


def _hold(session: Session, claim: Claim) -> BuildRow:
    row = lock_build(session, *_held(claim))
    if row is None:
        raise LeaseLost(claim.build.id, claim.fencing)
    return row


def _usage_values(usage: Usage | None) -> dict[str, Any]:
    if usage is None:
        return {}
    found = {
        "cpu_seconds": usage.cpu_seconds,
        "peak_memory_bytes": usage.peak_memory_bytes,
    }
    return {name: value for name, value in found.items() if value is not None}


def _end_attempt(
    session: Session,
    build: BuildRow,
    state: AttemptState,
    now: datetime,
    failure: dict[str, Any] | None,
    usage: Usage | None,
) -> None:
    session.execute(
        update(AttemptRow)
        .where(AttemptRow.build_id == build.id, AttemptRow.number == build.fencing)
        .values(state=state.value, finished_at=now, failure=failure, **_usage_values(usage))
        .execution_options(synchronize_session=False)
    )


def _artifact_row(build: BuildRow, file: StoredFile, now: datetime) -> ArtifactRow:
    return ArtifactRow(
        id=new_id(IdKind.ARTIFACT),
        project=build.project,
        build_id=build.id,
        kind=file.kind.value,
        name=clean_text(file.name)[:255],
        sha256=file.sha256,
        size=file.size,
        media_type=file.media_type,
        created_at=now,
    )


def _compare(session: Session, earlier: str, files: Sequence[StoredFile]) -> dict[str, Any]:
    """Say whether the files are the same bytes as those of an earlier build.

    The report and the log are left out: they tell how long that one run took.
    """
    kinds = (
        ArtifactKind.MXQ,
        ArtifactKind.MBLT,
        ArtifactKind.BODY,
        ArtifactKind.CONFIG,
        ArtifactKind.VALIDATION,
    )
    before = {
        str(kind): str(sha256)
        for kind, sha256 in session.execute(
            select(ArtifactRow.kind, ArtifactRow.sha256).where(
                ArtifactRow.build_id == earlier, ArtifactRow.kind.in_([k.value for k in kinds])
            )
        )
    }
    after = {file.kind.value: file.sha256 for file in files if file.kind in kinds}
    return {
        "build_id": earlier,
        "bytes_agree": before == after if before else None,
        "differs": sorted(
            kind for kind in before.keys() | after.keys() if before.get(kind) != after.get(kind)
        )
        if before
        else [],
    }


def _settle_cache(session: Session, row: BuildRow, keeps_key: bool) -> None:
    if not keeps_key:
        row.cache_key = None
    elif row.refresh_of is not None and not row.cancel_requested:
        session.execute(
            update(BuildRow)
            .where(BuildRow.project == row.project, BuildRow.cache_key == row.key)
            .values(cache_key=None)
            .execution_options(synchronize_session=False)
        )
        row.cache_key = row.key
    session.flush()
