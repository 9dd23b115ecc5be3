"""From a job's request to the build that it asks for. All that can be refused is refused here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qbcompiler.config import CompileConfig, check_effect, resolve_config
from qbcompiler.devices import load_device, resolve_schemes
from qbcompiler.errors import QbCompilerError

from ..domain import (
    ArtifactKind,
    BuildSpec,
    CalibrationInput,
    FieldError,
    FileRef,
    JobKind,
    Model,
    ModelFormat,
    ModelInput,
    ServiceError,
    WebhookUrlError,
    check_webhook_url,
)
from ..engines import Engine
from .context import Context
from .problems import from_compiler
from .schemas import EffectiveLimits, JobIn

__all__ = ["Resolved", "refuse", "resolve_job"]

# paths would be read on the server
_PATH_FIELDS = (
    ("modelPaths",),
    ("calibDataPaths",),
    ("savePaths",),
    ("loadScale", "path"),
    ("saveSample", "path"),
)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request, understood."""

    spec: BuildSpec
    engine: Engine
    limits: EffectiveLimits
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    queue: str
    memory_limit_mb: int | None


def resolve_job(context: Context, project: str, job: JobIn) -> Resolved:
    """Check a request against everything that is known, and complete it.

    Raises:
        ServiceError: the first thing that is wrong, with a pointer to the field.
    """
    if len(job.labels) > context.settings.max_labels:
        raise refuse("/labels", f"at most {context.settings.max_labels} labels")
    _webhook_rules(context, job)
    engine = _engine(context, job)
    model = _model(context, project, job)
    preset, notes, config = _config(job)
    _calibration_rules(job, config)
    calibration = _calibration(context, project, job)
    device = _device(job, model, engine)
    scheme: str | None = None if job.type is JobKind.PARSE else config.inference_scheme
    if device is not None and scheme is not None and engine.builtin:
        _check_scheme(device, scheme, job)
    offload = config.cpu_offload
    if job.type is JobKind.QUANTIZE:
        # an MBLT that was parsed with offloading quantizes without repeating the flag
        offload = offload or bool(model.facts.get("cpu_offload"))
    warnings = _effect(config) if engine.builtin else ()
    resolved = config.resolved(portable=True)
    spec = BuildSpec(
        kind=job.type,
        engine=engine.name,
        engine_version=engine.version,
        model=ModelInput(model.format, model.digest, model.files),
        calibration=calibration,
        use_random_calib=config.use_random_calib and job.type is not JobKind.PARSE,
        target_device=device,
        inference_scheme=scheme,
        config_preset=preset,
        compile_config=job.compile_config or {},
        resolved_config=resolved,
        cpu_offload=offload,
        input_shapes={k: tuple(v) for k, v in sorted(config.input_shape_dict.items())},
    )
    limits = _limits(context, job)
    classes = context.settings.classes
    asked = limits.memory_mb
    if classes.sizes and job.limits.memory_mb is None:
        # begins small, and may be tried again in the largest class
        asked = None
    queue = classes.queue(engine.queue, classes.choose(asked))
    return Resolved(spec, engine, limits, notes, warnings, queue, asked)


def refuse(
    pointer: str,
    detail: str,
    *,
    code: str = "ARGUMENT_ERROR",
    hint: str | None = None,
    nearest: str | None = None,
) -> ServiceError:
    """Return the error that points to a field."""
    near = f"; did you mean {nearest!r}?" if nearest else ""
    return ServiceError(
        code,
        f"{pointer}: {detail}{near}",
        hint=hint,
        errors=[FieldError(pointer, detail, nearest=nearest)],
    )


def _webhook_rules(context: Context, job: JobIn) -> None:
    if job.webhook_url is None:
        return
    try:
        check_webhook_url(job.webhook_url, context.settings.webhook_allowed_networks)
    except WebhookUrlError as exc:
        raise refuse(
            "/webhook_url",
            str(exc),
            hint="give a public https:// URL; QB_WEBHOOK_ALLOWED_NETWORKS lets the server's "
            "operator allow networks of their own",
        ) from exc


def _engine(context: Context, job: JobIn) -> Engine:
    name = job.engine or context.settings.default_engine
    engine = context.engines.get(name)
    if engine is None:
        near = difflib.get_close_matches(name, list(context.engines), n=1)
        raise refuse(
            "/engine",
            f"there is no engine {name!r}",
            hint=f"engines: {', '.join(context.engines)}",
            nearest=near[0] if near else None,
        )
    return engine


def _model(context: Context, project: str, job: JobIn) -> Model:
    quantize = job.type is JobKind.QUANTIZE
    wanted, other = ("mblt_id", "model_id") if quantize else ("model_id", "mblt_id")
    if getattr(job, other) is not None:
        raise refuse(f"/{other}", f"a {job.type.value} job takes {wanted}")
    identifier: str | None = getattr(job, wanted)
    if identifier is None:
        raise refuse(f"/{wanted}", f"a {job.type.value} job needs {wanted}")
    if identifier.startswith("art_"):
        return _of_artifact(context, project, identifier)
    model = context.models.get(project, identifier)
    if model is None:
        raise refuse(f"/{wanted}", f"there is no model {identifier!r}", code="NOT_FOUND")
    expected = ModelFormat.MBLT if quantize else ModelFormat.ONNX
    if model.format is not expected:
        raise refuse(
            f"/{wanted}",
            f"{identifier!r} is an {model.format.value.upper()} file; a {job.type.value} job "
            f"takes an {expected.value.upper()}",
            hint="quantize takes an MBLT, compile and parse take an ONNX model",
        )
    return model


def _of_artifact(context: Context, project: str, identifier: str) -> Model:
    artifact = context.artifacts.get(project, identifier)
    if artifact is None:
        raise refuse("/mblt_id", f"there is no artifact {identifier!r}", code="NOT_FOUND")
    if artifact.kind is not ArtifactKind.MBLT:
        raise refuse("/mblt_id", f"{identifier!r} is of kind {artifact.kind.value}, not mblt")
    build = context.builds.get(artifact.build_id)
    assert build is not None
    return Model(
        id=artifact.id,
        project=project,
        name=artifact.name,
        format=ModelFormat.MBLT,
        digest=artifact.sha256,
        size=artifact.size,
        files=(FileRef(artifact.name, artifact.sha256, artifact.size),),
        inputs=(),
        outputs=(),
        facts={
            "target_device": build.spec.target_device,
            "cpu_offload": build.spec.cpu_offload,
        },
        source_revision=None,
        labels={},
        created_at=artifact.created_at,
    )


def _config(job: JobIn) -> tuple[str | None, tuple[str, ...], CompileConfig]:
    given = job.compile_config
    if given is not None:
        _no_paths(given)
    if job.config_preset is not None:
        try:
            resolve_config(preset=job.config_preset)
        except QbCompilerError as exc:
            raise from_compiler(exc, "/config_preset") from exc
    arguments: dict[str, Any] = {
        "use_random_calib": job.use_random_calib,
        "cpu_offload": job.cpu_offload,
        "input_shape_dict": job.input_shapes or None,
    }
    try:
        found = resolve_config(arguments=arguments, compile_config=given, preset=job.config_preset)
        config = found.config
        if job.inference_scheme is not None and job.type is not JobKind.PARSE:
            # checked against the device below, with a better answer than the schema's
            config = config.model_copy(update={"inference_scheme": job.inference_scheme})
    except QbCompilerError as exc:
        raise from_compiler(exc, "/compile_config") from exc
    return job.config_preset, found.notes, config


def _no_paths(given: Mapping[str, Any]) -> None:
    for path in _PATH_FIELDS:
        value: Any = given
        for part in path:
            snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in part)
            value = value.get(part, value.get(snake)) if isinstance(value, Mapping) else None
        if value:
            raise refuse(
                f"/compile_config/{'/'.join(path)}",
                "a path would be looked for on the server",
                code="CONFIG_ERROR",
                hint="upload the file, and name it by its id",
            )


def _calibration_rules(job: JobIn, config: CompileConfig) -> None:
    if job.type is JobKind.PARSE:
        if job.calibration_id is not None:
            raise refuse("/calibration_id", "a parse job takes no calibration data")
        return
    if job.calibration_id is not None and config.use_random_calib:
        raise refuse(
            "/use_random_calib" if job.use_random_calib else "/compile_config/useRandomCalib",
            "random calibration and a calibration set exclude each other",
            hint="leave one of the two out",
        )
    if job.calibration_id is None and not config.use_random_calib:
        raise refuse(
            "/calibration_id",
            "No calibration dataset is provided",
            code="CALIBRATION_MISSING",
            hint="upload one to /v1/calibrations and give its calibration_id, or set "
            "use_random_calib for a trial build",
        )


def _calibration(context: Context, project: str, job: JobIn) -> CalibrationInput | None:
    if job.calibration_id is None:
        return None
    found = context.calibrations.get(project, job.calibration_id)
    if found is None:
        raise refuse(
            "/calibration_id",
            f"there is no calibration set {job.calibration_id!r}",
            code="NOT_FOUND",
        )
    return CalibrationInput(
        digest=found.digest,
        archive=found.archive,
        entry=found.entry,
        sample_count=found.sample_count,
    )


def _device(job: JobIn, model: Model, engine: Engine) -> str | None:
    name = job.target_device
    if name is None and job.type is JobKind.QUANTIZE:
        name = model.facts.get("target_device")
    if name is None:
        if job.type is JobKind.PARSE:
            return None
        own = "; the MBLT was parsed for none" if job.type is JobKind.QUANTIZE else ""
        raise refuse(
            "/target_device",
            f"a {job.type.value} job needs a target device{own}",
            code="DEVICE_SCHEME_ERROR",
            hint="GET /v1/devices lists them",
        )
    if engine.builtin:
        try:
            load_device(name)
        except QbCompilerError as exc:
            raise from_compiler(exc, "/target_device") from exc
    return name


def _check_scheme(device: str, scheme: str, job: JobIn) -> None:
    pointer = (
        "/inference_scheme"
        if job.inference_scheme is not None
        else "/compile_config/inferenceScheme"
    )
    try:
        resolve_schemes(device, scheme)
    except QbCompilerError as exc:
        raise from_compiler(exc, pointer) from exc


def _effect(config: CompileConfig) -> tuple[str, ...]:
    try:
        return tuple(f"{remark.pointer}: {remark.reason}" for remark in check_effect(config))
    except QbCompilerError as exc:
        raise from_compiler(exc, "/compile_config") from exc


def _limits(context: Context, job: JobIn) -> EffectiveLimits:
    settings = context.settings
    most = max(settings.memory_classes.values(), default=settings.memory_limit_mb)
    memory = [m for m in (job.limits.memory_mb, most) if m is not None]
    return EffectiveLimits(
        queue_s=min(job.limits.queue_s or settings.queue_limit_s, settings.queue_limit_s),
        run_s=min(job.limits.run_s or settings.run_limit_s, settings.run_limit_s),
        memory_mb=min(memory) if memory else None,
    )
