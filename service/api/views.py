"""From what the service keeps to what the API shows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from ..db import JobView
from ..domain import Artifact, Calibration, Failure, Model, State
from .problems import help_path
from .schemas import (
    ArtifactOut,
    CalibrationOut,
    EffectiveLimits,
    ErrorOut,
    FileOut,
    JobDetail,
    JobOut,
    ModelOut,
    PortOut,
    ProgressOut,
    SampleShapeOut,
    TimingsOut,
)

__all__ = [
    "artifact_out",
    "calibration_out",
    "error_out",
    "job_detail",
    "job_out",
    "model_out",
    "timings_out",
]


def model_out(model: Model) -> ModelOut:
    """Show a model."""
    return ModelOut(
        id=model.id,
        name=model.name,
        format=model.format,
        digest=model.digest,
        size=model.size,
        files=[FileOut(path=f.path, sha256=f.sha256, size=f.size) for f in model.files],
        inputs=[PortOut(**p) for p in model.inputs],
        outputs=[PortOut(**p) for p in model.outputs],
        facts=dict(model.facts),
        source_revision=model.source_revision,
        labels=dict(model.labels),
        created_at=model.created_at,
    )


def calibration_out(found: Calibration) -> CalibrationOut:
    """Show a calibration set."""
    return CalibrationOut(
        id=found.id,
        name=found.name,
        digest=found.digest,
        sample_count=found.sample_count,
        total_bytes=found.total_bytes,
        shapes=[SampleShapeOut(**s) for s in found.shapes],
        list_file=found.entry or None,
        labels=dict(found.labels),
        created_at=found.created_at,
    )


def artifact_out(artifact: Artifact) -> ArtifactOut:
    """Show an artifact."""
    return ArtifactOut(**artifact_fields(artifact))


def artifact_fields(artifact: Artifact) -> dict[str, Any]:
    """Return the fields of an artifact's answer."""
    return {
        "id": artifact.id,
        "kind": artifact.kind,
        "name": artifact.name,
        "sha256": artifact.sha256,
        "size": artifact.size,
        "media_type": artifact.media_type,
        "build_id": artifact.build_id,
        "created_at": artifact.created_at,
        "content_url": f"/v1/artifacts/{artifact.id}/content",
    }


def error_out(failure: Failure | None) -> ErrorOut | None:
    """Show why a job did not succeed."""
    if failure is None:
        return None
    return ErrorOut(
        code=failure.code,
        detail=failure.message,
        hint=failure.hint,
        help=help_path(failure.code),
        retryable=failure.retryable,
        details=dict(failure.details),
    )


def job_out(view: JobView, artifacts: Sequence[Artifact]) -> JobOut:
    """Show a job."""
    return JobOut(**_job_fields(view, artifacts))


def job_detail(view: JobView, artifacts: Sequence[Artifact]) -> JobDetail:
    """Show a job with its request and configuration."""
    return JobDetail(
        **_job_fields(view, artifacts),
        request=dict(view.job.request),
        resolved_config=dict(view.build.spec.resolved_config),
    )


def _job_fields(view: JobView, artifacts: Sequence[Artifact]) -> dict[str, Any]:
    job, build = view.job, view.build
    spec = build.spec
    running = job.state is State.RUNNING
    succeeded = job.state is State.SUCCEEDED
    # a job that ended by itself says nothing about where its build got to
    shows_phase = running or job.state in (State.FAILED, State.TIMED_OUT)
    return {
        "id": job.id,
        "type": job.kind,
        "name": job.name,
        "state": job.state,
        "phase": build.phase if shows_phase and job.started_at is not None else None,
        "progress": ProgressOut(current=build.progress_current, total=build.progress_total)
        if running and build.progress_current is not None
        else None,
        "queue_position": view.queue_position,
        "cache": job.cache,
        "cache_mode": job.cache_mode,
        "build_id": build.id,
        "build_key": build.key,
        "model_id": job.model_id,
        "mblt_id": job.mblt_id,
        "model_digest": spec.model.digest,
        "calibration_id": job.calibration_id,
        "calibration_digest": None if spec.calibration is None else spec.calibration.digest,
        "use_random_calib": spec.use_random_calib,
        "target_device": spec.target_device,
        "inference_scheme": spec.inference_scheme,
        "config_preset": spec.config_preset,
        "cpu_offload": spec.cpu_offload,
        "engine": spec.engine,
        "engine_version": spec.engine_version,
        "source_revision": job.source_revision,
        "labels": dict(job.labels),
        "priority": job.priority,
        "limits": EffectiveLimits(
            queue_s=job.queue_limit_s, run_s=build.run_limit_s, memory_mb=build.memory_limit_mb
        ),
        "retry_of": job.retry_of,
        "attempt": build.fencing,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "timings": timings_out(view),
        "artifacts": [artifact_out(a) for a in artifacts] if succeeded else [],
        "summary": dict(build.summary) if succeeded and build.summary is not None else None,
        "error": error_out(job.failure),
    }


def timings_out(view: JobView) -> TimingsOut:
    """Show how long a job waited and ran."""
    job = view.job
    now = datetime.now(UTC)
    begun = job.started_at or job.finished_at or now
    queue = max(0.0, (begun - job.created_at).total_seconds())
    run = None
    if job.started_at is not None:
        run = max(0.0, ((job.finished_at or now) - job.started_at).total_seconds())
    return TimingsOut(queue_s=round(queue, 3), run_s=None if run is None else round(run, 3))
