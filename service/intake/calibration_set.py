"""From uploaded files to a calibration set: checked, described, packed again in a fixed order."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..domain import FileRef, ServiceError, manifest_digest
from ..storage import ObjectStore, inside
from .arrays import SampleError, describe_sample, is_sample

__all__ = ["CalibrationFacts", "pack_calibration"]

_MAX_SHAPES = 100
_MAX_LIST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class CalibrationFacts:
    """A set that is in the object store. See :class:`service.domain.Calibration`."""

    digest: str
    archive: FileRef
    entry: str
    sample_count: int
    total_bytes: int
    shapes: list[dict[str, Any]]


def pack_calibration(
    folder: Path,
    files: Sequence[FileRef],
    entry: str,
    *,
    scratch: Path,
    store: ObjectStore,
    max_pixels: int,
) -> CalibrationFacts:
    """Check the samples, pack them and store the pack.

    Args:
        folder: where the files are.
        files: what is there.
        entry: name of a list file among them that says which are samples; empty takes all.
        scratch: folder for the pack until it is stored.
        store: where it goes.
        max_pixels: most pixels of an image.

    Raises:
        ServiceError: ``CALIBRATION_DATA_ERROR`` that names the sample.
    """
    ordered = sorted(files, key=lambda f: f.path)
    known = {f.path for f in ordered}
    samples = [f.path for f in ordered if is_sample(f.path)]
    if entry:
        samples = _listed(folder, entry, known)
    if not samples:
        raise ServiceError(
            "CALIBRATION_DATA_ERROR",
            f"there is no sample among the {len(ordered)} files"
            if ordered
            else "there is no file in it",
            hint="samples end in .npy, .npz, .pt, .jpg, .jpeg, .png, .bmp, .webp or .tif",
        )
    shapes = _describe(folder, samples, max_pixels)
    pack = scratch / "calibration.tar"
    sha256, size = _pack(folder, ordered, pack)
    store.put_file(pack, sha256)
    return CalibrationFacts(
        digest=manifest_digest(ordered),
        archive=FileRef("calibration.tar", sha256, size),
        entry=entry,
        sample_count=len(samples),
        total_bytes=sum(f.size for f in ordered),
        shapes=shapes,
    )


def _describe(folder: Path, samples: Sequence[str], max_pixels: int) -> list[dict[str, Any]]:
    counts: dict[str, dict[str, Any]] = {}
    for name in samples:
        try:
            arrays = describe_sample(inside(folder, name), max_pixels=max_pixels)
        except SampleError as exc:
            raise ServiceError(
                "CALIBRATION_DATA_ERROR",
                f"sample {name!r}: {exc}",
                hint=exc.hint,
                details={"sample": name},
            ) from exc
        for array in arrays:
            key = json.dumps(array, sort_keys=True)
            entry = counts.setdefault(key, {**array, "count": 0})
            entry["count"] += 1
    found = sorted(counts.values(), key=lambda e: (-int(e["count"]), json.dumps(e, sort_keys=True)))
    return found[:_MAX_SHAPES]


def _pack(folder: Path, files: Sequence[FileRef], pack: Path) -> tuple[str, int]:
    """Write a plain tar whose bytes depend on names and contents alone."""
    with pack.open("xb") as raw:
        out = _Hashing(raw)
        # PAX: any name, any size; no time, owner or mode of the upload
        with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
            for file in files:
                info = tarfile.TarInfo(file.path)
                info.size = file.size
                info.mode = 0o644
                with inside(folder, file.path).open("rb") as source:
                    tar.addfile(info, source)
                # the pack holds it now: half the disk space
                inside(folder, file.path).unlink()
        return out.digest.hexdigest(), out.size


class _Hashing:
    """A file to write to that hashes what passes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self._file.write(data)


def _listed(folder: Path, entry: str, known: set[str]) -> list[str]:
    if entry not in known:
        raise ServiceError(
            "CALIBRATION_DATA_ERROR",
            f"the list {entry!r} is not among the uploaded files",
            details={"list": entry},
        )
    path = inside(folder, entry)
    if path.stat().st_size > _MAX_LIST_BYTES:
        raise ServiceError("CALIBRATION_DATA_ERROR", f"the list {entry!r} is too long")
    names = _list_entries(path, entry)
    base = Path(entry).parent
    found = []
    for name in names:
        try:
            relative = inside(base, name).as_posix()
        except ValueError:
            relative = ""
        if relative not in known:
            raise ServiceError(
                "CALIBRATION_DATA_ERROR",
                f"the list {entry!r} names {name[:200]!r}, which is not among the uploaded files",
                hint="a list names files of the upload, relative to itself",
                details={"list": entry, "path": name[:200]},
            )
        found.append(relative)
    return found


def _list_entries(path: Path, entry: str) -> list[str]:
    try:
        text = path.read_text("utf-8-sig")
        if path.suffix.lower() == ".txt":
            return [line.strip() for line in text.splitlines() if line.strip()]
        if path.suffix.lower() == ".json":
            found: list[str] = []
            for item in json.loads(text):
                found += [str(v) for v in item.values()] if isinstance(item, dict) else [str(item)]
            return found
    except (ValueError, TypeError, RecursionError) as exc:
        raise ServiceError(
            "CALIBRATION_DATA_ERROR", f"the list {entry!r} cannot be read", details={"list": entry}
        ) from exc
    raise ServiceError("CALIBRATION_DATA_ERROR", f"the list {entry!r} must end in .txt or .json")
