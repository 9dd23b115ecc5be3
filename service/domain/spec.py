"""What a build is to do, complete: the worker needs nothing else from the request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

__all__ = ["BuildSpec", "CalibrationInput", "FileRef", "JobKind", "ModelFormat", "ModelInput"]


class JobKind(StrEnum):
    """What a job asks for."""

    COMPILE = "compile"
    PARSE = "parse"
    QUANTIZE = "quantize"


class ModelFormat(StrEnum):
    """What kind of file a model is."""

    ONNX = "onnx"
    MBLT = "mblt"


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file in the object store and the name that it had.

    Args:
        path: relative name with ``/``; never absolute, never with ``..``.
        sha256: hex digest, its key in the object store.
        size: bytes.
    """

    path: str
    sha256: str
    size: int

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"path": self.path, "sha256": self.sha256, "size": self.size}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_json` wrote."""
        return cls(path=str(data["path"]), sha256=str(data["sha256"]), size=int(data["size"]))


@dataclass(frozen=True, slots=True)
class ModelInput:
    """The model of a build: the file itself first, then its external data files."""

    format: ModelFormat
    digest: str
    files: tuple[FileRef, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "format": self.format.value,
            "digest": self.digest,
            "files": [f.to_json() for f in self.files],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_json` wrote."""
        return cls(
            format=ModelFormat(data["format"]),
            digest=str(data["digest"]),
            files=tuple(FileRef.from_json(f) for f in data["files"]),
        )


@dataclass(frozen=True, slots=True)
class CalibrationInput:
    """The calibration data of a build.

    Args:
        digest: SHA-256 over the ordered manifest (path, size, SHA-256 of each file).
        archive: the object, a plain tar with the files in order.
        entry: path inside the unpacked folder to give to the compiler; empty for the folder.
        sample_count: files that are samples.
    """

    digest: str
    archive: FileRef
    entry: str
    sample_count: int

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "digest": self.digest,
            "archive": self.archive.to_json(),
            "entry": self.entry,
            "sample_count": self.sample_count,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_json` wrote."""
        return cls(
            digest=str(data["digest"]),
            archive=FileRef.from_json(data["archive"]),
            entry=str(data["entry"]),
            sample_count=int(data["sample_count"]),
        )


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """A build, complete and resolved.

    Args:
        kind: what to do.
        engine: name of the engine that does it.
        engine_version: the version that the request was resolved for.
        model: an ONNX model; for ``quantize`` an MBLT.
        calibration: None for ``parse`` and with random calibration.
        use_random_calib: calibrate with seeded random numbers.
        target_device: None only where the kind allows it (``parse``).
        inference_scheme: None for ``parse``.
        config_preset: name, or None.
        compile_config: the caller's own part of the configuration, as given.
        resolved_config: the whole configuration, every default filled in.
        cpu_offload: run unsupported layers on the CPU.
        input_shapes: shapes by input name, for models that leave some open.
        backend: front end of the compiler.
    """

    kind: JobKind
    engine: str
    engine_version: str
    model: ModelInput
    calibration: CalibrationInput | None = None
    use_random_calib: bool = False
    target_device: str | None = None
    inference_scheme: str | None = None
    config_preset: str | None = None
    compile_config: Mapping[str, Any] = field(default_factory=dict)
    resolved_config: Mapping[str, Any] = field(default_factory=dict)
    cpu_offload: bool = False
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    backend: str = "onnx"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "kind": self.kind.value,
            "engine": self.engine,
            "engine_version": self.engine_version,
            "model": self.model.to_json(),
            "calibration": None if self.calibration is None else self.calibration.to_json(),
            "use_random_calib": self.use_random_calib,
            "target_device": self.target_device,
            "inference_scheme": self.inference_scheme,
            "config_preset": self.config_preset,
            "compile_config": dict(self.compile_config),
            "resolved_config": dict(self.resolved_config),
            "cpu_offload": self.cpu_offload,
            "input_shapes": {name: list(shape) for name, shape in self.input_shapes.items()},
            "backend": self.backend,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_json` wrote."""
        calibration = data["calibration"]
        return cls(
            kind=JobKind(data["kind"]),
            engine=data["engine"],
            engine_version=data["engine_version"],
            model=ModelInput.from_json(data["model"]),
            calibration=None if calibration is None else CalibrationInput.from_json(calibration),
            use_random_calib=data["use_random_calib"],
            target_device=data["target_device"],
            inference_scheme=data["inference_scheme"],
            config_preset=data["config_preset"],
            compile_config=data["compile_config"],
            resolved_config=data["resolved_config"],
            cpu_offload=data["cpu_offload"],
            input_shapes={name: tuple(shape) for name, shape in data["input_shapes"].items()},
            backend=data["backend"],
        )
