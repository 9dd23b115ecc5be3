"""What goes into the store of jobs, and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..domain import Build, BuildSpec, CacheMode, Job, JobKind, State

__all__ = ["JobFilter", "JobView", "NewJob", "Submission"]


@dataclass(frozen=True, slots=True)
class NewJob:
    """A validated request.

    Args:
        project: who asks.
        spec: the work, complete.
        request: the request as it was given, for the record and for a retry.
        queue: the queue of the engine.
        priority: 0 (last) to 9 (first).
        queue_limit_s, run_limit_s, memory_limit_mb: limits.
        cache_mode: how to use the cache.
        webhook_url: where to tell that the job has ended.
        compare_with: build that a refresh is compared with; the one that would answer by default.
        idempotency_key, request_digest, idempotency_hours: makes a repeated request answer with
            the first one's job.
        traceparent: the trace that the build goes on with.
        max_active: most jobs of the project that may wait or run with this one; None for no bound.
    """

    project: str
    spec: BuildSpec
    request: Mapping[str, Any]
    queue: str
    priority: int
    queue_limit_s: int
    run_limit_s: int
    memory_limit_mb: int | None = None
    cache_mode: CacheMode = CacheMode.ON
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    source_revision: str | None = None
    model_id: str | None = None
    mblt_id: str | None = None
    calibration_id: str | None = None
    retry_of: str | None = None
    webhook_url: str | None = None
    compare_with: str | None = None
    idempotency_key: str | None = None
    request_digest: str = ""
    idempotency_hours: int = 24
    traceparent: str | None = None
    max_active: int | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """What became of a request. ``replayed``: its Idempotency-Key had made this job before."""

    job: Job
    build: Build
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class JobView:
    """A job with its build and its place in the queue (0 is next; None when not queued)."""

    job: Job
    build: Build
    queue_position: int | None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list; what is not set does not matter."""

    states: Sequence[State] = ()
    kinds: Sequence[JobKind] = ()
    target_device: str | None = None
    model_id: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    created_after: datetime | None = None
    created_before: datetime | None = None
