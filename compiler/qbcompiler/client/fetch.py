"""Bring a job's files: whole, of the digest that the server said, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import urllib3

from ..errors import OutputWriteError
from ..paths import file_entry
from ..progress import Reporter
from .connection import Server, ServerError

__all__ = ["Wanted", "fetch_artifacts"]

Wanted = Mapping[str, str | os.PathLike[str]]
"""Where each kind of artifact goes."""

_ATTEMPTS = 6
_CHUNK = 1 << 20


def fetch_artifacts(
    server: Server, job: Mapping[str, Any], wanted: Wanted, reporter: Reporter
) -> list[dict[str, Any]]:
    """Download artifacts of a job that succeeded; return an entry for each file written.

    Args:
        server: the server.
        job: the job as the server shows it.
        wanted: path by kind; a kind that the job lacks is a warning.
        reporter: takes progress.

    Raises:
        ServerError: a file cannot be fetched, or came with another digest.
        OutputWriteError: it cannot be written.
    """
    held = {str(a["kind"]): a for a in job.get("artifacts") or ()}
    for kind in wanted:
        if kind not in held:
            reporter.warning(f"job {job['id']} has no {kind} file")
    chosen = [(held[k], Path(p), k) for k, p in wanted.items() if k in held]
    total = sum(int(a["size"]) for a, _, _ in chosen)
    done = 0
    entries: list[dict[str, Any]] = []
    for artifact, path, kind in chosen:
        start = done

        def step(size: int, start: int = start) -> None:
            reporter.progress("download", -(-(start + size) // 1024), -(-total // 1024))

        _fetch(server, artifact, path, step)
        done += int(artifact["size"])
        entries.append(file_entry(kind, path, str(artifact["sha256"]), int(artifact["size"])))
    return entries


def _fetch(server: Server, artifact: Mapping[str, Any], target: Path, step: Any) -> None:
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    size, digest = int(artifact["size"]), hashlib.sha256()
    try:
        with temporary.open("xb") as out:
            for attempt in range(_ATTEMPTS):
                try:
                    _rest(server, artifact, out, digest, size, step)
                    break
                except ServerError as exc:
                    if not exc.retryable or attempt == _ATTEMPTS - 1:
                        raise
                    time.sleep(min(8.0, 0.5 * 2**attempt))
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != artifact["sha256"]:
            raise ServerError(
                "DIGEST_MISMATCH",
                f"{target.name} came with SHA-256 {digest.hexdigest()}, not {artifact['sha256']}",
                hint="something between here and the server alters files; try again",
            )
        temporary.replace(target)
    except OSError as exc:
        raise OutputWriteError(
            f"cannot write {target}: {exc.strerror or exc}",
            details={"path": os.fspath(target), "errno": exc.errno},
            hint="choose an existing, writable folder with enough free space",
        ) from exc
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _rest(
    server: Server, artifact: Mapping[str, Any], out: Any, digest: Any, size: int, step: Any
) -> None:
    """Append what is missing of an artifact."""
    have = out.tell()
    headers = {"Range": f"bytes={have}-"} if have else {}
    with server.streaming(str(artifact["content_url"]), headers=headers) as response:
        if have and response.status != 206:
            raise ServerError("SERVER_UNAVAILABLE", "the server does not go on with a download")
        try:
            for data in response.stream(_CHUNK):
                if out.tell() + len(data) > size:
                    raise ServerError("DIGEST_MISMATCH", f"{artifact['name']} is too long")
                out.write(data)
                digest.update(data)
                step(out.tell())
        except urllib3.exceptions.HTTPError as exc:
            raise _broken(artifact) from exc
    if out.tell() < size:
        raise _broken(artifact)


def _broken(artifact: Mapping[str, Any]) -> ServerError:
    return ServerError(
        "SERVER_UNAVAILABLE",
        f"the download of {artifact['name']} broke off",
        hint="`qbcompiler fetch JOB` brings the files of a job that has ended",
        retryable=True,
    )
