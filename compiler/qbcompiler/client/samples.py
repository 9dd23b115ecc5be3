"""Calibration data as files to send: names that keep their order, and the set's digest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rfc8785

from ..calibration.readers import reader_for
from ..calibration.sources import Found, SampleRef, find_samples, safe_name, walk
from ..calibration.spec import Limits

__all__ = ["SampleFile", "gather", "list_digest", "manifest_digest"]

Read = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class SampleFile:
    """A file of a calibration set: its name in the set, and where it is."""

    name: str
    path: Path
    size: int


def gather(sources: Sequence[str | os.PathLike[str]]) -> list[SampleFile]:
    """Return the files of calibration sources under names that sort as the samples do.

    One folder keeps its names, so that the set is the one that an archive of the folder makes.
    Several sources, and lists, get numbered folders: the server takes samples in the order of
    their names, and the order decides the digest.

    Raises:
        CalibrationDataError: a source is missing, empty or malformed.
    """
    limits = Limits()
    only = Path(sources[0]) if len(sources) == 1 else None
    files: list[SampleFile] = []
    if only is not None and only.is_dir():
        find_samples(only, None, limits)  # refuses what has no sample
        files = _folder(only, "", limits)
    elif only is not None and only.suffix.lower() not in (".txt", ".json"):
        files = _listed(find_samples(only, None, limits), "", numbered=False)
    else:
        width = max(2, len(str(len(sources))))
        for number, source in enumerate(sources):
            prefix = f"{number:0{width}}/"
            if Path(source).is_dir():
                find_samples(source, None, limits)
                files += _folder(Path(source), prefix, limits)
            else:
                files += _listed(find_samples(source, None, limits), prefix, numbered=True)
    return sorted(files, key=lambda f: f.name)


def manifest_digest(files: Sequence[SampleFile], read: Read) -> str:
    """Return the digest that the server knows a set by: over names, sizes and SHA-256.

    Args:
        files: the set, in order.
        read: told how many bytes were read.
    """
    entries = []
    for file in files:
        digest = hashlib.sha256()
        with file.path.open("rb") as stream:
            while data := stream.read(1 << 20):
                digest.update(data)
                read(len(data))
        entries.append({"path": file.name, "sha256": digest.hexdigest(), "size": file.size})
    if len(entries) == 1:
        return str(entries[0]["sha256"])
    return list_digest(entries)


def list_digest(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return SHA-256 over the canonical JSON (RFC 8785) of ``path``, ``sha256`` and ``size``."""
    return hashlib.sha256(rfc8785.dumps([dict(e) for e in entries])).hexdigest()


def _folder(root: Path, prefix: str, limits: Limits) -> list[SampleFile]:
    return [
        _file(prefix + path.relative_to(root).as_posix(), path)
        for path in walk(root, limits)
        if reader_for(path) is not None
    ]


def _listed(found: Found, prefix: str, *, numbered: bool) -> list[SampleFile]:
    width = max(6, len(str(len(found.samples))))
    files: list[SampleFile] = []
    for number, sample in enumerate(found.samples):
        folder = f"{prefix}{number:0{width}}/" if numbered else prefix
        files += [_file(folder + name, path) for name, path in _parts(sample)]
    return files


def _parts(sample: SampleRef) -> list[tuple[str, Path]]:
    if sample.file is not None:
        return [(sample.file.name, sample.file)]
    return [(safe_name(name) + path.suffix, path) for name, path in sample.parts.items()]


def _file(name: str, path: Path) -> SampleFile:
    return SampleFile(name, path, path.stat().st_size)
