"""``OUTPUT.provenance.json``: what differs between two callers of one build.

Equal inputs give equal bytes, so file names, the caller's source revision and labels cannot be
in an MBLT or MXQ; they go into this file beside it, tied to the output by its SHA-256.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import FormatError
from .paths import file_entry, write_bytes

__all__ = ["read_sidecar", "sidecar_path", "write_sidecar"]

_VERSION = 1
_MAX_BYTES = 16 << 20


def sidecar_path(output: str | os.PathLike[str]) -> Path:
    """Return the path of an output's provenance file."""
    path = Path(output)
    return path.with_name(path.name + ".provenance.json")


def write_sidecar(
    output: str | os.PathLike[str],
    *,
    sha256: str,
    size: int,
    command: str,
    model: str | None,
    calibration: Sequence[str] = (),
    source_revision: str | None = None,
    labels: Mapping[str, str] | None = None,
    config_preset: str | None = None,
    compile_config: str | None = None,
    compiler: Mapping[str, Any] | None = None,
) -> Path:
    """Write the provenance file of an output.

    Args:
        output: the MBLT or MXQ.
        sha256, size: its digest and size.
        command: ``compile``, ``parse`` or ``quantize``.
        model: name of the source file, without its folder; None for a model in memory.
        calibration: names of the calibration sources, without their folders.
        source_revision, labels: as the caller gave them.
        config_preset, compile_config: preset and name of the configuration file.
        compiler: name, version and revision.

    Raises:
        OutputWriteError: it cannot be written.
    """
    record = {
        "version": _VERSION,
        "output": {"name": Path(output).name, "sha256": sha256, "size": size},
        "command": command,
        "model": model,
        "calibration": list(calibration),
        "source_revision": source_revision,
        "labels": dict(sorted((labels or {}).items())),
        "config_preset": config_preset,
        "compile_config": compile_config,
        "compiler": dict(compiler or {}),
    }
    path = sidecar_path(output)
    write_bytes(path, (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())
    return path


def read_sidecar(output: str | os.PathLike[str], *, verify: bool = True) -> dict[str, Any] | None:
    """Return an output's provenance file; None where there is none, or it is of other bytes.

    Args:
        output: the MBLT or MXQ.
        verify: compare the SHA-256, which reads the whole output; else its size alone.

    Raises:
        FormatError: the file is not what :func:`write_sidecar` writes.
    """
    path = sidecar_path(output)
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
        data = json.loads(raw) if len(raw) <= _MAX_BYTES else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as exc:
        raise _malformed(path, f"cannot be read: {exc}") from exc
    if not isinstance(data, dict) or data.get("version") != _VERSION:
        raise _malformed(path, f"not a provenance file of version {_VERSION}")
    made = data.get("output")
    if not isinstance(made, dict):
        raise _malformed(path, "it does not say which output it belongs to")
    same = made.get("size") == Path(output).stat().st_size
    if same and verify:
        same = made.get("sha256") == file_entry("", output)["sha256"]
    return data if same else None


def _malformed(path: Path, reason: str) -> FormatError:
    return FormatError(f"{path.name}: {reason}", details={"path": os.fspath(path)})
