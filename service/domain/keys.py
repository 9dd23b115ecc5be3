"""The build key: equal keys mean that the same bytes would come out.

SHA-256 over the canonical JSON (RFC 8785) of everything that can change a byte of the result.
File names, labels, priority, limits and the caller's source revision are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import rfc8785

from .spec import BuildSpec, FileRef

__all__ = ["KEY_VERSION", "build_key", "canonical_digest", "key_document", "manifest_digest"]

KEY_VERSION = 1
"""Raised when the meaning of the key document changes, so that old builds stop answering."""


def canonical_digest(document: Any) -> str:
    """Return the SHA-256, in hex, of the document's canonical JSON.

    Raises:
        ValueError: it holds something that canonical JSON cannot (NaN, integers beyond 2^53).
    """
    try:
        data = rfc8785.dumps(document)
    except rfc8785.CanonicalizationError as exc:
        raise ValueError(f"not canonical JSON: {exc}") from None
    return hashlib.sha256(data).hexdigest()


def key_document(spec: BuildSpec) -> dict[str, Any]:
    """Return the document that the build key is the digest of."""
    calibration = spec.calibration
    return {
        "key_version": KEY_VERSION,
        "kind": spec.kind.value,
        "engine": {"name": spec.engine, "version": spec.engine_version},
        "model": {"format": spec.model.format.value, "sha256": spec.model.digest},
        "calibration": None
        if calibration is None
        # the entry decides which of the files are samples, and in which order
        else {"sha256": calibration.digest, "entry": calibration.entry},
        "use_random_calib": spec.use_random_calib,
        "target_device": spec.target_device,
        "inference_scheme": spec.inference_scheme,
        # the package records the preset's name, so it is part of the bytes
        "config_preset": spec.config_preset,
        "config": dict(spec.resolved_config),
        "cpu_offload": spec.cpu_offload,
        "input_shapes": {name: list(shape) for name, shape in spec.input_shapes.items()},
        "backend": spec.backend,
    }


def build_key(spec: BuildSpec) -> str:
    """Return the build key, 64 hex digits."""
    return canonical_digest(key_document(spec))


def manifest_digest(files: Sequence[FileRef]) -> str:
    """Return the digest of an ordered list of files: paths, sizes and SHA-256.

    A single file's digest is that of its bytes, so that it equals what ``sha256sum`` prints.
    """
    if len(files) == 1:
        return files[0].sha256
    return canonical_digest([f.to_json() for f in files])
