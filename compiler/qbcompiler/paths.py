"""Checks of input and output paths, made before any work starts."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .errors import ArgumentError, ModelLoadError, OutputWriteError

__all__ = ["check_input", "check_outputs", "file_entry", "write_bytes"]

StrPath = str | os.PathLike[str]


def check_input(path: StrPath, what: str) -> Path:
    """Return the path of an input file that exists and can be read.

    Args:
        path: as the user gave it.
        what: names it in errors, such as ``model``.

    Raises:
        ModelLoadError: it does not exist, is a folder, or cannot be read.
    """
    file = Path(path)
    try:
        mode = file.stat().st_mode
    except OSError as exc:
        reason = "does not exist" if isinstance(exc, FileNotFoundError) else exc.strerror
        raise ModelLoadError(
            f"{what} file {os.fspath(path)!r} {reason}", details={"path": os.fspath(path)}
        ) from exc
    if stat.S_ISDIR(mode):
        raise ModelLoadError(
            f"{what} {os.fspath(path)!r} is a folder, not a file",
            details={"path": os.fspath(path)},
        )
    if not os.access(file, os.R_OK):
        raise ModelLoadError(
            f"{what} file {os.fspath(path)!r} cannot be read: Permission denied",
            details={"path": os.fspath(path)},
        )
    return file


def check_outputs(outputs: Mapping[str, StrPath | None], inputs: Iterable[StrPath]) -> None:
    """Check that every output can be written and none would overwrite an input or another output.

    Args:
        outputs: paths by what they are for, such as ``the report``; None ones are skipped.
        inputs: files that are read.

    Raises:
        OutputWriteError: the folder is missing or not writable, or the name is taken by a folder.
        ArgumentError: two outputs, or an output and an input, are one file.
    """
    taken: dict[Path, str] = {Path(p).resolve(): "an input" for p in inputs}
    for purpose, path in outputs.items():
        if path is None:
            continue
        name = os.fspath(path)
        if not name:
            raise ArgumentError(f"the path of {purpose} is empty")
        target = Path(path).resolve()
        if target in taken:
            raise ArgumentError(
                f"{purpose}, {name!r}, is {taken[target]} too",
                details={"path": name},
                hint="give it another name",
            )
        taken[target] = purpose
        _check_output(name, target)


def _check_output(name: str, target: Path) -> None:
    details = {"path": name}
    folder = target.parent
    if not folder.is_dir():
        raise OutputWriteError(
            f"cannot write {name}: the folder {os.fspath(folder)!r} does not exist",
            details=details,
            hint="make the folder first",
        )
    if target.is_dir():
        raise OutputWriteError(f"cannot write {name}: it is a folder", details=details)
    if target.exists() and not target.is_file():
        raise OutputWriteError(
            f"cannot write {name}: it is not a regular file, which the output replaces",
            details=details,
        )
    try:
        # permission bits do not tell everything (read-only mounts, quotas, root): try it
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as exc:
        raise OutputWriteError(
            f"cannot write {name}: the folder {os.fspath(folder)!r} is not writable: "
            f"{exc.strerror or exc}",
            details={**details, "errno": exc.errno},
            hint="choose a folder that you may write to",
        ) from exc


def file_entry(
    kind: str, path: StrPath, sha256: str | None = None, size: int | None = None
) -> dict[str, Any]:
    """Return the entry of a file in a ``result`` message; reads it where it must."""
    file = Path(path)
    if sha256 is None or size is None:
        with file.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            size = os.fstat(stream.fileno()).st_size
    return {"kind": kind, "path": os.fspath(path), "sha256": sha256, "size": size}


def write_bytes(path: StrPath, data: bytes) -> None:
    """Write a file that appears under its name only when it is complete.

    Raises:
        OutputWriteError: it cannot be written.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except OSError as exc:
        raise OutputWriteError(
            f"cannot write {os.fspath(path)}: {exc.strerror or exc}",
            details={"path": os.fspath(path), "errno": exc.errno},
            hint="choose an existing, writable folder with enough free space",
        ) from exc
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
