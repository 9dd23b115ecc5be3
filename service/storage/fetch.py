"""Objects to local files, for a worker: verified, and never outside their folder."""

from __future__ import annotations

import hashlib
import os
import tarfile
from pathlib import Path, PurePosixPath

from ..domain import CalibrationInput, FileRef, ModelInput
from .port import CHUNK, ObjectStore, StorageError

__all__ = ["fetch_calibration", "fetch_file", "fetch_model", "inside"]


def inside(folder: Path, relative: str) -> Path:
    """Return the path of a relative name below a folder.

    Raises:
        ValueError: the name is empty, absolute, has a drive, a backslash or NUL, or leaves the
            folder.
    """
    pure = PurePosixPath(relative)
    parts = pure.parts
    if (
        not parts
        or pure.is_absolute()
        or ".." in parts
        or "\\" in relative
        or "\0" in relative
        or ":" in parts[0]
    ):
        raise ValueError(f"unsafe name {relative!r}")
    return folder.joinpath(*parts)


def fetch_file(store: ObjectStore, file: FileRef, target: Path) -> Path:
    """Write an object to a new file and check its digest.

    Raises:
        ObjectMissing: it is not there.
        StorageError: the bytes are not those that were stored.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    chunks = store.read(file.sha256)
    with target.open("xb") as out:
        for chunk in chunks:
            digest.update(chunk)
            out.write(chunk)
    if digest.hexdigest() != file.sha256:
        target.unlink()
        raise StorageError(f"object {file.sha256} has other bytes than were stored")
    return target


def fetch_model(store: ObjectStore, model: ModelInput, folder: Path) -> Path:
    """Write a model and its external data below a folder; return the path of the model."""
    paths = [fetch_file(store, f, inside(folder, f.path)) for f in model.files]
    return paths[0]


def fetch_calibration(store: ObjectStore, calibration: CalibrationInput, folder: Path) -> Path:
    """Unpack a calibration set into a new folder; return what to give to the compiler.

    The archive is one that this service packed, yet names are checked again.
    """
    archive = folder.parent / f"{folder.name}.tar"
    fetch_file(store, calibration.archive, archive)
    folder.mkdir(parents=True)
    try:
        # r|: one pass, no seeking
        with tarfile.open(archive, "r|") as tar:
            for member in tar:
                if not member.isreg():
                    raise StorageError(f"unexpected entry {member.name!r} in a calibration set")
                target = inside(folder, member.name)
                target.parent.mkdir(parents=True, exist_ok=True)
                source = tar.extractfile(member)
                assert source is not None
                with target.open("xb") as out:
                    while data := source.read(CHUNK):
                        out.write(data)
    except (tarfile.TarError, EOFError) as exc:
        raise StorageError(f"the stored calibration set is damaged: {exc}") from exc
    finally:
        os.unlink(archive)  # noqa: PTH108
    return inside(folder, calibration.entry) if calibration.entry else folder
