"""What the API takes and gives, as JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ..domain import (
    ArtifactKind,
    CacheAnswer,
    CacheMode,
    IdKind,
    JobKind,
    ModelFormat,
    Phase,
    State,
    id_pattern,
)
from .fields import Labels, Name, Revision

__all__ = [
    "ArtifactOut",
    "CacheExplanation",
    "CalibrationOut",
    "CheckOut",
    "DeviceOut",
    "DifferenceOut",
    "EngineOut",
    "ErrorOut",
    "FileOut",
    "GraphOut",
    "Health",
    "JobIn",
    "JobLimits",
    "JobOut",
    "KeyOut",
    "LayerOut",
    "LinkIn",
    "LinkOut",
    "ModelOut",
    "NearestOut",
    "Out",
    "PageOut",
    "PortOut",
    "PresetOut",
    "PresetSummary",
    "Readiness",
    "TimingsOut",
    "ValidationOut",
]

T = TypeVar("T")

_Digest = Annotated[str, Field(description="SHA-256, hex.")]


class Out(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(protected_namespaces=())


class PageOut(Out, Generic[T]):
    """A page of a list, newest first."""

    items: list[T]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; or null.")


class PortOut(Out):
    """An input or output of a model."""

    name: str = Field(examples=["x"])
    dtype: str | None = Field(examples=["float32"])
    shape: list[int | str | None] | None = Field(
        description="A dimension is a number, the name of one that is open, or null.",
        examples=[[1, 3, 224, 224]],
    )
    layout: str | None = Field(default=None, description="Known for an MBLT.", examples=["NCHW"])


class FileOut(Out):
    """A stored file."""

    path: str
    sha256: _Digest
    size: int


class ModelOut(Out):
    """A model."""

    id: str = Field(examples=["mdl_01k2v7b0m8x9qj4t5w6y7z8a9b"])
    name: str = Field(examples=["resnet50.onnx"])
    format: ModelFormat
    digest: _Digest
    size: int = Field(description="Bytes, external data included.")
    files: list[FileOut] = Field(description="The model itself first, then its external data.")
    inputs: list[PortOut]
    outputs: list[PortOut]
    facts: dict[str, Any] = Field(description="Producer, operator sets and the like.")
    source_revision: str | None
    labels: dict[str, str]
    created_at: datetime


class SampleShapeOut(Out):
    """A kind of sample in a calibration set."""

    name: str | None = Field(description="The array's name in an .npz; else null.")
    format: str = Field(examples=["npy"])
    dtype: str | None = Field(examples=["float32"])
    shape: list[int] | None = Field(examples=[[224, 224, 3]])
    count: int


class CalibrationOut(Out):
    """A calibration set."""

    id: str = Field(examples=["cal_01k2v7b0m8x9qj4t5w6y7z8a9b"])
    name: str
    digest: _Digest
    sample_count: int
    total_bytes: int
    shapes: list[SampleShapeOut]
    list_file: str | None = Field(description="The list that names the samples, if any.")
    labels: dict[str, str]
    created_at: datetime


class JobLimits(BaseModel):
    """Limits of one job; the server has its own above them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    queue_s: int | None = Field(
        default=None, ge=1, le=31_536_000, description="Longest wait in the queue, seconds."
    )
    run_s: int | None = Field(
        default=None, ge=1, le=31_536_000, description="Longest run, seconds."
    )
    memory_mb: int | None = Field(
        default=None, ge=64, le=16_777_216, description="Most memory of the compiler, MiB."
    )


_Shape = Annotated[
    list[Annotated[int, Field(ge=1, le=2**31 - 1)]], Field(min_length=0, max_length=16)
]


class JobIn(BaseModel):
    """A job."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        protected_namespaces=(),
        json_schema_extra={
            "examples": [
                {
                    "type": "compile",
                    "model_id": "mdl_01k2v7b0m8x9qj4t5w6y7z8a9b",
                    "calibration_id": "cal_01k2v7b0m8x9qj4t5w6y7z8a9b",
                    "target_device": "regulus-rb",
                    "inference_scheme": "single",
                    "config_preset": "classification",
                    "source_revision": "9fceb02",
                }
            ]
        },
    )

    type: Annotated[JobKind, Field(strict=False)] = Field(
        description="`compile`: model to MXQ. `parse`: model to MBLT. `quantize`: MBLT to MXQ."
    )
    model_id: Annotated[str, StringConstraints(pattern=id_pattern(IdKind.MODEL))] | None = Field(
        default=None, description="The ONNX model, for `compile` and `parse`."
    )
    mblt_id: (
        Annotated[str, StringConstraints(pattern=id_pattern(IdKind.MODEL, IdKind.ARTIFACT))] | None
    ) = Field(
        default=None,
        description="The MBLT, for `quantize`: an artifact of a parse, or an uploaded one.",
    )
    calibration_id: (
        Annotated[str, StringConstraints(pattern=id_pattern(IdKind.CALIBRATION))] | None
    ) = Field(default=None, description="The calibration set, for `compile` and `quantize`.")
    use_random_calib: bool | None = Field(
        default=None,
        description="Calibrate with seeded random numbers; such a build is not for release.",
    )
    target_device: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = Field(
        default=None,
        description="A device of GET /v1/devices. Optional for `parse`; for `quantize` the MBLT's "
        "own is the default.",
    )
    inference_scheme: Annotated[str, StringConstraints(min_length=1, max_length=16)] | None = Field(
        default=None, description="`single`, `multi`, `global4`, `global8` or `all`."
    )
    config_preset: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = Field(
        default=None, description="A preset of GET /v1/presets."
    )
    compile_config: dict[str, Any] | None = Field(
        default=None,
        description="The configuration, as in a configuration file; it is laid over the preset. "
        "Its schema is GET /v1/schemas/compile-config.",
    )
    cpu_offload: bool | None = Field(
        default=None, description="Run layers that the NPU lacks on the CPU."
    )
    input_shapes: dict[Annotated[str, StringConstraints(max_length=4096)], _Shape] | None = Field(
        default=None,
        description="Shapes of inputs whose model leaves some open.",
        examples=[{"x": [1, 3, 48, 192]}],
        max_length=1000,
    )
    engine: Annotated[str, StringConstraints(max_length=64)] | None = Field(
        default=None, description="An engine of GET /v1/engines."
    )
    name: Name | None = Field(default=None, description="A name for people.")
    source_revision: Revision | None = Field(
        default=None, description="Revision of the model's source; recorded, not part of the key."
    )
    labels: Labels = Field(default_factory=dict, description="Labels to find the job by.")
    priority: int = Field(default=5, ge=0, le=9, description="9 is served first.")
    cache: Annotated[CacheMode, Field(strict=False)] = Field(
        default=CacheMode.ON,
        description="`on`: answer from a finished build, join a running one. `refresh`: build "
        "again, and say whether the bytes agree. `off`: never share.",
    )
    limits: JobLimits = Field(default_factory=JobLimits)
    webhook_url: Annotated[str, StringConstraints(min_length=1, max_length=2048)] | None = Field(
        default=None,
        description="Where to POST a signed message to (Standard Webhooks) when the job has ended.",
        examples=["https://ci.example/hooks/qb"],
    )
    validate_only: bool = Field(
        default=False, description="Only say what would happen; answered with 200."
    )


class ErrorOut(Out):
    """Why a job did not succeed."""

    code: str = Field(examples=["UNSUPPORTED_OPERATOR"])
    detail: str
    hint: str | None
    help: str = Field(description="The code's page.", examples=["/errors/UNSUPPORTED_OPERATOR"])
    retryable: bool
    details: dict[str, Any]


class ProgressOut(Out):
    """How far the phase is."""

    current: int
    total: int | None


class TimingsOut(Out):
    """Seconds so far."""

    queue_s: float = Field(description="From the request to the start of the work.", examples=[0.9])
    run_s: float | None = Field(
        description="From the start of the work to its end.", examples=[155.2]
    )


class ArtifactOut(Out):
    """A result file."""

    id: str = Field(examples=["art_01k2v7b0m8x9qj4t5w6y7z8a9b"])
    kind: ArtifactKind
    name: str = Field(examples=["model.mxq"])
    sha256: _Digest
    size: int
    media_type: str
    build_id: str
    created_at: datetime
    content_url: str = Field(description="Path of the bytes.")


class MadeByOut(Out):
    """What made an artifact."""

    job_id: str | None = Field(description="The first job on the build that is still recorded.")
    type: JobKind
    model_sha256: str
    calibration_digest: str | None
    target_device: str | None
    inference_scheme: str | None
    config_preset: str | None
    engine: str
    engine_version: str


class ArtifactDetail(ArtifactOut):
    """A result file and what made it."""

    made_by: MadeByOut


class EngineOut(Out):
    """An engine."""

    name: str = Field(examples=["qbcompiler"])
    version: str
    description: str = Field(examples=["The compiler of this server."])
    default: bool = Field(description="Whether it serves requests that name none.")
    builtin: bool = Field(
        description="Whether its configuration is checked against this server's own schema."
    )


class EffectiveLimits(Out):
    """The limits that hold for a job."""

    queue_s: int
    run_s: int
    memory_mb: int | None


class JobOut(Out):
    """A job."""

    id: str = Field(examples=["job_01k2v7b0m8x9qj4t5w6y7z8a9b"])
    type: JobKind
    name: str | None
    state: State
    phase: Phase | None = Field(description="What a running job does; of one that failed, did.")
    progress: ProgressOut | None
    queue_position: int | None = Field(description="0 is next; null when not queued.")
    cache: CacheAnswer = Field(
        description="`hit`: answered from a finished build. `joined`: shares a running one."
    )
    cache_mode: CacheMode
    build_id: str
    build_key: _Digest
    model_id: str | None
    mblt_id: str | None
    model_digest: _Digest
    calibration_id: str | None
    calibration_digest: str | None
    use_random_calib: bool
    target_device: str | None
    inference_scheme: str | None
    config_preset: str | None
    cpu_offload: bool
    engine: str
    engine_version: str
    source_revision: str | None
    labels: dict[str, str]
    priority: int
    limits: EffectiveLimits
    retry_of: str | None
    attempt: int = Field(description="How often the work was begun.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    timings: TimingsOut
    artifacts: list[ArtifactOut]
    summary: dict[str, Any] | None = Field(
        description="What the compiler says of the result: accuracy, seconds a phase …"
    )
    error: ErrorOut | None


class JobDetail(JobOut):
    """A job with its request and configuration."""

    request: dict[str, Any] = Field(description="The request as it was given.")
    resolved_config: dict[str, Any] = Field(description="The configuration, every default filled.")


class ValidationOut(Out):
    """What a job would do."""

    valid: Literal[True] = True
    build_key: _Digest
    cache: CacheAnswer = Field(description="How the cache would answer.")
    build_id: str | None = Field(description="The build that would answer or be joined.")
    target_device: str | None
    inference_scheme: str | None
    engine: str
    engine_version: str
    limits: EffectiveLimits
    resolved_config: dict[str, Any]
    notes: list[str] = Field(description="How the configuration was put together.")
    warnings: list[str] = Field(description="Settings that have no effect, and why.")


class NearestOut(Out):
    """An earlier build."""

    build_id: str
    build_key: _Digest
    state: State
    created_at: datetime


class DifferenceOut(Out):
    """One part of the key that differs."""

    pointer: str = Field(
        description="JSON pointer into the key's document.", examples=["/config/calibration/mode"]
    )
    this: Any = Field(description="The job's own value.", examples=[1])
    other: Any = Field(description="The earlier build's.", examples=[0])


class CacheExplanation(Out):
    """Why a job was answered as it was."""

    cache: CacheAnswer
    cache_mode: CacheMode
    build_key: _Digest
    nearest: NearestOut | None = Field(
        description="The earlier build that differs least, among the newest; null for none."
    )
    differences: list[DifferenceOut] = Field(
        description="Empty with a nearest build: it has the same key, but could not answer."
    )


class LayerOut(Out):
    """A layer of a graph."""

    name: str = Field(examples=["/conv1/Conv"])
    op: str = Field(examples=["Convolution"])
    source: list[str] = Field(
        description="The ONNX nodes that it was made from.",
        examples=[["/conv1/Conv", "/relu/Relu"]],
    )
    inputs: list[str] = Field(
        description="Values that it reads; weights are not among them.", examples=[["x"]]
    )
    outputs: list[str] = Field(examples=[["/relu/Relu_output_0"]])
    shapes: list[list[int]] = Field(
        description="Of the outputs, in the model's own order.", examples=[[[1, 64, 112, 112]]]
    )
    place: str | None = Field(description="`head`, `body` or `tail`.", examples=["body"])
    device: str | None = Field(description="`npu` or `cpu`.", examples=["npu"])
    reason: str | None = Field(description="Why it is not on the NPU.", examples=[None])
    parameters: int | None = Field(examples=[9472])
    macs: int | None = Field(description="Multiply-adds of one inference.", examples=[118_013_952])
    attributes: dict[str, Any] = Field(examples=[{"strides": [2, 2], "pads": [3, 3, 3, 3]}])


class GraphOut(Out):
    """A graph."""

    name: str
    target_device: str | None
    inputs: list[str] = Field(examples=[["x"]])
    outputs: list[str] = Field(examples=[["logits"]])
    layers: list[LayerOut] = Field(description="In execution order.")


class KeyOut(Out):
    """A public key."""

    keyid: str = Field(description="SHA-256 of the key's 32 bytes, hex.")
    algorithm: Literal["ed25519"] = "ed25519"
    pem: str = Field(examples=["-----BEGIN PUBLIC KEY-----\n…"])


class LinkIn(BaseModel):
    """A link."""

    model_config = ConfigDict(extra="forbid", strict=True)

    expires_in: int = Field(
        default=3600, ge=1, le=31_536_000, description="Seconds that it is valid."
    )


class LinkOut(Out):
    """A download link that needs no token."""

    id: str = Field(examples=["lnk_01k2v7b0m8x9qj4t5w6y7z8a9b"])
    artifact_id: str
    url: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None


class DeviceOut(Out):
    """A target device."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    name: str = Field(examples=["regulus-rb"])
    chip: str
    description: str
    cores: int
    clusters: int
    schemes: list[str]
    unsupported_operators: dict[str, str] = Field(description="Operators it lacks, and why.")


class PresetSummary(Out):
    """A preset."""

    name: str = Field(examples=["classification"])
    description: str = Field(examples=["Image classifiers."])
    extends: str | None


class PresetOut(PresetSummary):
    """A preset and what it sets."""

    config: dict[str, Any] = Field(description="What it sets, with all that it extends.")
    resolved_config: dict[str, Any] = Field(description="The same, every default filled in.")


class Health(Out):
    """The process is alive."""

    status: Literal["ok"] = "ok"
    version: str


class CheckOut(Out):
    """One dependency."""

    name: str = Field(examples=["database"])
    ok: bool
    detail: str | None = None
    seconds: float


class Readiness(Out):
    """Every dependency."""

    ready: bool
    checks: list[CheckOut]
