"""What the service keeps: plain, immutable records. Times are aware and in UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from .failures import Failure
from .spec import BuildSpec, FileRef, JobKind, ModelFormat
from .states import TERMINAL, AttemptState, Phase, State

__all__ = [
    "DEFAULT_PROJECT",
    "Artifact",
    "ArtifactKind",
    "Attempt",
    "Build",
    "CacheAnswer",
    "CacheMode",
    "Calibration",
    "Claim",
    "Event",
    "EventType",
    "HeartbeatAnswer",
    "Job",
    "LeasePolicy",
    "Link",
    "Model",
    "Role",
    "StoredFile",
    "Token",
    "Usage",
]

DEFAULT_PROJECT = "default"


class CacheMode(StrEnum):
    """How a request wants the cache to be used."""

    ON = "on"
    """Answer from a finished build, join a running one."""
    REFRESH = "refresh"
    """Build again; the new build then answers later requests."""
    OFF = "off"
    """Never share: neither answer from another build nor let others use this one."""


class CacheAnswer(StrEnum):
    """How a job got its build."""

    MISS = "miss"
    HIT = "hit"
    JOINED = "joined"


class ArtifactKind(StrEnum):
    """What a file of a finished build is."""

    MBLT = "mblt"
    MXQ = "mxq"
    REPORT = "report"
    CONFIG = "config"
    LOG = "log"
    BODY = "body"
    VALIDATION = "validation"
    PROVENANCE = "provenance"
    BUNDLE = "bundle"


class EventType(StrEnum):
    """Kinds of events in a job's stream."""

    STATE = "state"
    PHASE = "phase"
    PROGRESS = "progress"
    LOG = "log"


class Role(StrEnum):
    """What a token may do: each role can do what the ones before it can."""

    READER = "reader"
    BUILDER = "builder"
    ADMIN = "admin"

    def covers(self, needed: Role) -> bool:
        """Say whether this role may do what ``needed`` may."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token; its text is known to its holder only."""

    id: str
    project: str
    name: str
    role: Role
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class Model:
    """An uploaded model. ``digest`` covers its external data; ``files[0]`` is the model itself."""

    id: str
    project: str
    name: str
    format: ModelFormat
    digest: str
    size: int
    files: tuple[FileRef, ...]
    inputs: tuple[Mapping[str, Any], ...]
    outputs: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any]
    """``producer``, ``opset``, ``ir_version``; of an MBLT ``target_device`` and ``cpu_offload``."""
    source_revision: str | None
    labels: Mapping[str, str]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Calibration:
    """An uploaded calibration set, unpacked, checked and packed again in order."""

    id: str
    project: str
    name: str
    digest: str
    archive: FileRef
    entry: str
    sample_count: int
    total_bytes: int
    shapes: tuple[Mapping[str, Any], ...]
    """One for each distinct ``format``, ``dtype`` and ``shape``, with ``count``."""
    labels: Mapping[str, str]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Usage:
    """What an attempt has used so far."""

    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Build:
    """The work. Many jobs may share one."""

    id: str
    project: str
    kind: JobKind
    key: str
    cache_key: str | None
    """The key while this build answers requests for it, else None."""
    state: State
    spec: BuildSpec
    engine: str
    queue: str
    priority: int
    phase: Phase | None
    progress_current: int | None
    progress_total: int | None
    fencing: int
    """Number of the newest attempt; a write with an older one changes nothing."""
    losses: int
    """Attempts that ended by losing their lease."""
    worker: str | None
    lease_until: datetime | None
    run_limit_s: int
    memory_limit_mb: int | None
    cancel_requested: bool
    created_at: datetime
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    failure: Failure | None
    summary: Mapping[str, Any] | None
    event_seq: int
    refresh_of: str | None
    traceparent: str | None
    """Trace of the request that made it (W3C Trace Context), where requests are traced."""

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended."""
        return self.state in TERMINAL


@dataclass(frozen=True, slots=True)
class Attempt:
    """One worker's try at a build."""

    id: str
    build_id: str
    number: int
    worker: str
    state: AttemptState
    started_at: datetime
    heartbeat_at: datetime
    finished_at: datetime | None
    cpu_seconds: float | None
    peak_memory_bytes: int | None
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class Job:
    """A request, and how it stands."""

    id: str
    project: str
    kind: JobKind
    build_id: str
    state: State
    cache: CacheAnswer
    cache_mode: CacheMode
    request: Mapping[str, Any]
    """The request as it was given, validated."""
    name: str | None
    labels: Mapping[str, str]
    source_revision: str | None
    model_id: str | None
    mblt_id: str | None
    calibration_id: str | None
    target_device: str | None
    priority: int
    queue_limit_s: int
    failure: Failure | None
    retry_of: str | None
    event_floor: int
    """Events up to this number came before the job."""
    event_end: int | None
    """Number of the job's last event, once it has ended."""
    created_at: datetime
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended."""
        return self.state in TERMINAL


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of a build's stream; ``seq`` rises by commit order."""

    build_id: str
    seq: int
    job_id: str | None
    """None: for every job on the build."""
    type: EventType
    attempt: int
    at: datetime
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a finished build made."""

    id: str
    project: str
    build_id: str
    kind: ArtifactKind
    name: str
    sha256: str
    size: int
    media_type: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Link:
    """A download link that needs no token, until it expires or is revoked."""

    id: str
    project: str
    artifact_id: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A result file that is in the object store already."""

    kind: ArtifactKind
    name: str
    sha256: str
    size: int
    media_type: str = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker's hold on a build."""

    build: Build
    attempt_id: str
    worker: str
    fencing: int


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What a worker learns from its heartbeat."""

    cancel_requested: bool
    run_limit_s: int
    memory_limit_mb: int | None
    lease_until: datetime


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """Times and counts that decide when a worker counts as lost."""

    lease_seconds: float = 30.0
    max_losses: int = 3
    resend_seconds: float = 60.0
    """A queued build whose message is older than this gets another one."""
    max_log_bytes: int = field(default=4 << 20)
    max_progress_events: int = 2000
