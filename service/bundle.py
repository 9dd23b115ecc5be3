"""A job's bundle: one tar with all that is needed to build again, and what came out.

The bytes depend on the job alone: entries are in a fixed order, without times or owners. The tar is
made while it is sent; nothing but a chunk of it is held.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .domain import (
    Artifact,
    ArtifactKind,
    Build,
    JobKind,
    ServiceError,
    compiler_arguments,
)
from .settings import BUILTIN_ENGINE
from .storage import ObjectStore

__all__ = ["Bundle", "make_bundle"]

_BLOCK = 512
_RECORD = 10240
_KEPT = (
    ArtifactKind.MXQ,
    ArtifactKind.MBLT,
    ArtifactKind.BODY,
    ArtifactKind.VALIDATION,
    ArtifactKind.REPORT,
    ArtifactKind.CONFIG,
    ArtifactKind.LOG,
)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file of the bundle: its bytes, or an object that has them."""

    name: str
    size: int
    data: bytes | None = None
    sha256: str = ""
    mode: int = 0o644


class Bundle:
    """A tar that can be sent.

    Attributes:
        size: its bytes.
        etag: names its bytes; SHA-256 over the list of entries.
    """

    def __init__(self, entries: Sequence[_Entry], store: ObjectStore) -> None:
        self._entries = list(entries)
        self._store = store
        heads = [_head(e) for e in self._entries]
        padded = sum(len(h) + _padded(e.size) for h, e in zip(heads, self._entries, strict=True))
        whole = padded + 2 * _BLOCK
        self.size = whole + (-whole % _RECORD)
        listing = [(e.name, e.size, e.sha256 or hashlib.sha256(e.data or b"").hexdigest())
                   for e in self._entries]  # fmt: skip
        self.etag = hashlib.sha256(json.dumps(listing).encode()).hexdigest()

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes.

        Raises:
            StorageError: an object cannot be read.
        """
        sent = 0
        for entry in self._entries:
            head = _head(entry)
            yield head
            size = 0
            for data in [entry.data] if entry.data is not None else self._store.read(entry.sha256):
                size += len(data)
                yield data
            if size != entry.size:
                raise ServiceError("INTERNAL_ERROR", f"{entry.name} has not the recorded size")
            fill = _padded(size) - size
            yield b"\0" * fill
            sent += len(head) + size + fill
        yield b"\0" * (self.size - sent)


def make_bundle(
    build: Build,
    artifacts: Sequence[Artifact],
    checklist: Mapping[str, Any],
    statement: Mapping[str, Any],
    envelope: Mapping[str, Any] | None,
    store: ObjectStore,
) -> Bundle:
    """Put a bundle together.

    Args:
        build: the work.
        artifacts: what it made.
        checklist, statement: as ``domain.provenance`` has them.
        envelope: the signed statement, or None.
        store: where the files are.

    Raises:
        ServiceError: ``NOT_FOUND`` where a file is gone from the store.
    """
    spec = build.spec
    entries = [
        _text("README.txt", _README.format(engine=spec.engine, version=spec.engine_version)),
        _json("checklist.json", checklist),
        _json("compile-config.json", dict(spec.compile_config)),
        _json("resolved-config.json", dict(spec.resolved_config)),
        _json("provenance.json", statement),
    ]
    if envelope is not None:
        entries.append(_json("provenance.dsse.json", envelope))
    entries.append(_text("rebuild.sh", rebuild_script(build), mode=0o755))
    entries += [_Entry(f"source/{f.path}", f.size, sha256=f.sha256) for f in spec.model.files]
    if spec.calibration is not None:
        archive = spec.calibration.archive
        entries.append(_Entry("calibration.tar", archive.size, sha256=archive.sha256))
    by_kind = {a.kind: a for a in artifacts}
    for kind in _KEPT:
        if kind in by_kind:
            made = by_kind[kind]
            entries.append(_Entry(f"output/{made.name}", made.size, sha256=made.sha256))
    for entry in entries:
        if entry.data is None and store.size(entry.sha256) != entry.size:
            raise ServiceError(
                "NOT_FOUND",
                f"{entry.name} is no longer kept",
                hint="upload the model or the calibration data again, or build again",
            )
    sums = "".join(
        f"{e.sha256 or hashlib.sha256(e.data or b'').hexdigest()}  {e.name}\n" for e in entries
    )
    entries.append(_text("SHA256SUMS", sums))
    return Bundle(entries, store)


def rebuild_script(build: Build) -> str:
    """Return ``rebuild.sh``: the command of the build, and the comparison."""
    spec = build.spec
    calibration = None
    if spec.calibration is not None:
        calibration = "/".join(filter(None, ("rebuilt/calibration", spec.calibration.entry)))
    command = compiler_arguments(
        spec,
        model=f"source/{spec.model.files[0].path}",
        output="rebuilt",
        calibration=calibration,
        config="compile-config.json" if spec.compile_config else None,
        records=False,
        own=spec.engine == BUILTIN_ENGINE,
    )
    outputs = {JobKind.PARSE: ["model.mblt"], JobKind.QUANTIZE: ["model.mxq"]}.get(
        spec.kind, ["model.mxq", "model.mblt"]
    )
    lines = [
        "#!/bin/sh",
        "# Builds again from this folder alone, and compares every byte.",
        f"# Engine of the record: {shlex.quote(f'{spec.engine} {spec.engine_version}')};",
        "# QBCOMPILER names the command to run, by default qbcompiler.",
        "set -eu",
        'cd "$(dirname "$0")"',
        "rm -rf rebuilt",
        "mkdir -p rebuilt/calibration",
    ]
    if calibration is not None:
        lines.append("tar -xf calibration.tar -C rebuilt/calibration")
    lines.append("${QBCOMPILER:-qbcompiler} " + " ".join(shlex.quote(word) for word in command))
    lines += [
        f'cmp output/{name} rebuilt/{name} && echo "{name}: every byte agrees"' for name in outputs
    ]
    return "\n".join(lines) + "\n"


_README = """\
Everything that is needed to build this package again, and what came out of it.

checklist.json         what went in and what came out, with digests
rebuild.sh             builds again with {engine} {version} and compares every byte
source/                the model, with its external data
calibration.tar        the calibration set, in order
compile-config.json    the configuration as it was given; resolved-config.json with every default
output/                the package and what was recorded with it
provenance.json        in-toto statement (SLSA v1); provenance.dsse.json is the same, signed
SHA256SUMS             sha256sum --check SHA256SUMS
"""


def _text(name: str, text: str, mode: int = 0o644) -> _Entry:
    data = text.encode()
    return _Entry(name, len(data), data=data, mode=mode)


def _json(name: str, document: Mapping[str, Any]) -> _Entry:
    return _text(name, json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def _head(entry: _Entry) -> bytes:
    info = tarfile.TarInfo(f"bundle/{entry.name}")
    info.size, info.mode = entry.size, entry.mode
    return info.tobuf(tarfile.PAX_FORMAT)


def _padded(size: int) -> int:
    return size + (-size % _BLOCK)
