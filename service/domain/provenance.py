"""What is known of how a job's packages were made, as data.

An in-toto Statement (v1) with a SLSA provenance predicate (v1): https://in-toto.io/Statement/v1 and
https://slsa.dev/provenance/v1. The checklist is the same for people: what is needed to build again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from .entities import Artifact, ArtifactKind, Build, Job
from .keys import key_document
from .spec import BuildSpec

__all__ = [
    "BUILD_TYPE",
    "PREDICATE_TYPE",
    "STATEMENT_TYPE",
    "checklist",
    "differences",
    "statement",
]

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:qb-compile-server:build:v1"
"""The parameters are those of ``POST /v1/jobs``; docs/reproducibility.md explains each."""

_PACKAGES = (ArtifactKind.MXQ, ArtifactKind.MBLT)


def statement(
    job: Job, build: Build, artifacts: Sequence[Artifact], *, builder: str, version: str
) -> dict[str, Any]:
    """Return the provenance of a job that succeeded.

    Args:
        job, build: the request and the work.
        artifacts: what the build made.
        builder: URI of the server.
        version: its release.
    """
    spec = build.spec
    ordered = sorted(artifacts, key=lambda a: (a.kind.value, a.name))
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": a.name, "digest": {"sha256": a.sha256}} for a in ordered if a.kind in _PACKAGES
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    **_parameters(spec),
                    "source_revision": job.source_revision,
                    "name": job.name,
                    "labels": dict(sorted(job.labels.items())),
                },
                "internalParameters": {
                    "engine": {"name": spec.engine, "version": spec.engine_version},
                    "build_key": build.key,
                    "resolved_config": dict(spec.resolved_config),
                },
                "resolvedDependencies": _dependencies(spec),
            },
            "runDetails": {
                "builder": {
                    "id": builder,
                    "version": {"qb-compile-server": version, spec.engine: spec.engine_version},
                },
                "metadata": {
                    "invocationId": build.id,
                    "startedOn": _time(build.started_at),
                    "finishedOn": _time(build.finished_at),
                },
                "byproducts": [
                    {
                        "name": a.name,
                        "digest": {"sha256": a.sha256},
                        "annotations": {"kind": a.kind.value},
                    }
                    for a in ordered
                    if a.kind not in _PACKAGES
                ],
            },
        },
    }


def checklist(job: Job, build: Build, artifacts: Sequence[Artifact]) -> dict[str, Any]:
    """Return everything that is needed to build again, and what came out, by name."""
    spec = build.spec
    made = {a.kind: {"name": a.name, "sha256": a.sha256, "size": a.size} for a in artifacts}
    calibration = spec.calibration
    return {
        "source_model": {
            "format": spec.model.format.value,
            "sha256": spec.model.digest,
            "files": [f.to_json() for f in spec.model.files],
        },
        "source_revision": job.source_revision,
        "calibration": None
        if calibration is None
        else {
            "sha256": calibration.digest,
            "samples": calibration.sample_count,
            "list_file": calibration.entry or None,
            "archive": calibration.archive.to_json(),
        },
        "use_random_calib": spec.use_random_calib,
        "config_preset": spec.config_preset,
        "config": dict(spec.compile_config),
        "resolved_config": dict(spec.resolved_config),
        "target_device": spec.target_device,
        "inference_scheme": spec.inference_scheme,
        "cpu_offload": spec.cpu_offload,
        "input_shapes": {name: list(shape) for name, shape in spec.input_shapes.items()},
        "engine": {"name": spec.engine, "version": spec.engine_version},
        "build_key": build.key,
        "mblt": made.get(ArtifactKind.MBLT),
        "mxq": made.get(ArtifactKind.MXQ),
        "npu_body": made.get(ArtifactKind.BODY),
        "validation": made.get(ArtifactKind.VALIDATION),
        "report": made.get(ArtifactKind.REPORT),
    }


def differences(this: BuildSpec, that: BuildSpec, *, limit: int = 1000) -> list[dict[str, Any]]:
    """Return in what two builds' keys differ: JSON pointer, the one's value, the other's.

    Args:
        this, that: the builds; ``this`` and ``other`` in the answer.
        limit: most differences told.
    """
    found: list[dict[str, Any]] = []
    _compare(key_document(this), key_document(that), "", found, limit)
    return found


def _compare(this: Any, that: Any, pointer: str, found: list[dict[str, Any]], limit: int) -> None:
    if len(found) >= limit or this == that:
        return
    if isinstance(this, Mapping) and isinstance(that, Mapping):
        for name in sorted({*this, *that}):
            step = str(name).replace("~", "~0").replace("/", "~1")
            _compare(this.get(name), that.get(name), f"{pointer}/{step}", found, limit)
        return
    found.append({"pointer": pointer, "this": this, "other": that})


def _parameters(spec: BuildSpec) -> dict[str, Any]:
    return {
        "type": spec.kind.value,
        "target_device": spec.target_device,
        "inference_scheme": spec.inference_scheme,
        "config_preset": spec.config_preset,
        "compile_config": dict(spec.compile_config),
        "cpu_offload": spec.cpu_offload,
        "input_shapes": {name: list(shape) for name, shape in spec.input_shapes.items()},
        "use_random_calib": spec.use_random_calib,
    }


def _dependencies(spec: BuildSpec) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "name": f.path,
            "digest": {"sha256": f.sha256},
            "annotations": {"role": "model" if i == 0 else "external_data"},
        }
        for i, f in enumerate(spec.model.files)
    ]
    calibration = spec.calibration
    if calibration is not None:
        found.append(
            {
                "name": calibration.archive.path,
                "digest": {"sha256": calibration.archive.sha256},
                "annotations": {
                    "role": "calibration",
                    "manifest_sha256": calibration.digest,
                    "samples": calibration.sample_count,
                    "list_file": calibration.entry or None,
                },
            }
        )
    return found


def _time(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat().replace("+00:00", "Z")
