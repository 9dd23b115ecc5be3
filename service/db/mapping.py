"""Rows to entities."""

from __future__ import annotations

from ..domain import (
    Artifact,
    ArtifactKind,
    Attempt,
    AttemptState,
    Build,
    BuildSpec,
    CacheAnswer,
    CacheMode,
    Calibration,
    Event,
    EventType,
    Failure,
    FileRef,
    Job,
    JobKind,
    Link,
    Model,
    ModelFormat,
    Phase,
    State,
)
from .tables import (
    ArtifactRow,
    AttemptRow,
    BuildRow,
    CalibrationRow,
    EventRow,
    JobRow,
    LinkRow,
    ModelRow,
)

__all__ = [
    "to_artifact",
    "to_attempt",
    "to_build",
    "to_calibration",
    "to_event",
    "to_job",
    "to_link",
    "to_model",
]


def _failure(data: dict[str, object] | None) -> Failure | None:
    return None if data is None else Failure.from_json(data)


def to_model(row: ModelRow) -> Model:
    """Return the entity of a row."""
    return Model(
        id=row.id,
        project=row.project,
        name=row.name,
        format=ModelFormat(row.format),
        digest=row.digest,
        size=row.size,
        files=tuple(FileRef.from_json(f) for f in row.files),
        inputs=tuple(row.inputs),
        outputs=tuple(row.outputs),
        facts=row.facts,
        source_revision=row.source_revision,
        labels=row.labels,
        created_at=row.created_at,
    )


def to_calibration(row: CalibrationRow) -> Calibration:
    """Return the entity of a row."""
    return Calibration(
        id=row.id,
        project=row.project,
        name=row.name,
        digest=row.digest,
        archive=FileRef.from_json(row.archive),
        entry=row.entry,
        sample_count=row.sample_count,
        total_bytes=row.total_bytes,
        shapes=tuple(row.shapes),
        labels=row.labels,
        created_at=row.created_at,
    )


def to_build(row: BuildRow) -> Build:
    """Return the entity of a row."""
    return Build(
        id=row.id,
        project=row.project,
        kind=JobKind(row.kind),
        key=row.key,
        cache_key=row.cache_key,
        state=State(row.state),
        spec=BuildSpec.from_json(row.spec),
        engine=row.engine,
        queue=row.queue,
        priority=row.priority,
        phase=None if row.phase is None else Phase(row.phase),
        progress_current=row.progress_current,
        progress_total=row.progress_total,
        fencing=row.fencing,
        losses=row.losses,
        worker=row.worker,
        lease_until=row.lease_until,
        run_limit_s=row.run_limit_s,
        memory_limit_mb=row.memory_limit_mb,
        cancel_requested=row.cancel_requested,
        created_at=row.created_at,
        queued_at=row.queued_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        failure=_failure(row.failure),
        summary=row.summary,
        event_seq=row.event_seq,
        refresh_of=row.refresh_of,
        traceparent=row.traceparent,
    )


def to_attempt(row: AttemptRow) -> Attempt:
    """Return the entity of a row."""
    return Attempt(
        id=row.id,
        build_id=row.build_id,
        number=row.number,
        worker=row.worker,
        state=AttemptState(row.state),
        started_at=row.started_at,
        heartbeat_at=row.heartbeat_at,
        finished_at=row.finished_at,
        cpu_seconds=row.cpu_seconds,
        peak_memory_bytes=row.peak_memory_bytes,
        failure=_failure(row.failure),
    )


def to_job(row: JobRow) -> Job:
    """Return the entity of a row."""
    return Job(
        id=row.id,
        project=row.project,
        kind=JobKind(row.kind),
        build_id=row.build_id,
        state=State(row.state),
        cache=CacheAnswer(row.cache),
        cache_mode=CacheMode(row.cache_mode),
        request=row.request,
        name=row.name,
        labels=row.labels,
        source_revision=row.source_revision,
        model_id=row.model_id,
        mblt_id=row.mblt_id,
        calibration_id=row.calibration_id,
        target_device=row.target_device,
        priority=row.priority,
        queue_limit_s=row.queue_limit_s,
        failure=_failure(row.failure),
        retry_of=row.retry_of,
        event_floor=row.event_floor,
        event_end=row.event_end,
        created_at=row.created_at,
        queued_at=row.queued_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def to_event(row: EventRow) -> Event:
    """Return the entity of a row."""
    return Event(
        build_id=row.build_id,
        seq=row.seq,
        job_id=row.job_id,
        type=EventType(row.type),
        attempt=row.attempt,
        at=row.at,
        data=row.data,
    )


def to_artifact(row: ArtifactRow) -> Artifact:
    """Return the entity of a row."""
    return Artifact(
        id=row.id,
        project=row.project,
        build_id=row.build_id,
        kind=ArtifactKind(row.kind),
        name=row.name,
        sha256=row.sha256,
        size=row.size,
        media_type=row.media_type,
        created_at=row.created_at,
    )


def to_link(row: LinkRow) -> Link:
    """Return the entity of a row."""
    return Link(
        id=row.id,
        project=row.project,
        artifact_id=row.artifact_id,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
