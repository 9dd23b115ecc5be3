"""Where samples are: folders, list files and single files, in one deterministic order.

Samples are ordered by the Unicode code points of their path, relative to the folder (or to the
list file's folder) with ``/`` between the parts, so that the order does not depend on the file
system, the platform or the locale.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from ..errors import CalibrationDataError
from .readers import EXTENSIONS, reader_for
from .spec import Limits, data_error

__all__ = ["Found", "SampleRef", "find_samples", "safe_name", "walk"]

_IGNORED = frozenset({"thumbs.db", "desktop.ini", "__macosx"})


@dataclass(frozen=True, slots=True)
class SampleRef:
    """A sample that is not read yet.

    Attributes:
        name: relative path with ``/``, for messages and order.
        file: the file that holds the whole sample, else None.
        parts: file by input name, where each input has its own file.
    """

    name: str
    file: Path | None = None
    parts: Mapping[str, Path] = field(default_factory=dict)


@dataclass(slots=True)
class Found:
    """What a source holds: samples in order, and notes on what was passed over."""

    samples: list[SampleRef] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def safe_name(name: str) -> str:
    """Return an input name as a file name: characters that file systems refuse become ``_``."""
    return re.sub(r"[^\w.\-]", "_", name)


def find_samples(
    source: str | os.PathLike[str], inputs: Sequence[str] | None, limits: Limits
) -> Found:
    """List the samples of a source without reading them.

    Args:
        source: a folder, a ``.txt`` or ``.json`` list, or one sample file.
        inputs: the model's input names; None where there is no model, which takes sub-folders
            that hold the same two or more array names for samples of several inputs.
        limits: bounds.

    Raises:
        CalibrationDataError: the source does not exist, is empty, or its list is malformed.
    """
    path = Path(source)
    if path.is_dir():
        found = _folder(path, inputs, limits)
    elif not path.exists():
        raise data_error(
            f"calibration data {str(source)!r} does not exist",
            path=str(source),
            expected="a folder, a .txt or .json list, or a sample file",
            hint="check --calib-data-path",
        )
    elif path.suffix.lower() == ".txt":
        found = _text_list(path, inputs, limits)
    elif path.suffix.lower() == ".json":
        found = _json_list(path, inputs, limits)
    elif reader_for(path) is not None:
        found = Found([SampleRef(path.name, file=path)])
    else:
        raise data_error(
            f"calibration data {path.name!r} is neither a list nor a sample",
            path=str(source),
            expected=f"a folder, .txt, .json, or one of {' '.join(EXTENSIONS)}",
            got=path.suffix or "no file name ending",
        )
    if len(found.samples) > limits.max_samples:
        raise data_error(
            f"the calibration data has {len(found.samples)} samples",
            expected=f"at most {limits.max_samples}",
            got=len(found.samples),
            hint="a few hundred representative samples are enough",
        )
    found.samples.sort(key=lambda s: s.name)  # stable: a path listed twice counts twice
    return found


# -- folders ------------------------------------------------------------------------------


def _folder(root: Path, inputs: Sequence[str] | None, limits: Limits) -> Found:
    found = Found()
    folders: dict[str, list[Path]] = {}
    others: dict[str, int] = {}
    count = 0
    for path in walk(root, limits):
        count += 1
        if reader_for(path) is None:
            suffix = path.suffix.lower() or path.name
            others[suffix] = others.get(suffix, 0) + 1
            continue
        folders.setdefault(path.parent.relative_to(root).as_posix(), []).append(path)
    whole = inputs is not None and len(inputs) == 1
    if inputs is None:
        whole = not _looks_grouped(folders)
    for folder, files in folders.items():
        grouped = not whole and folder != "."
        if grouped and not all(f.suffix.lower() == ".npz" for f in files):
            found.samples.append(_group(folder, files, inputs))
        else:
            found.samples += [SampleRef(f.relative_to(root).as_posix(), file=f) for f in files]
    if others:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(others.items())[:8])
        found.notes.append(
            f"{sum(others.values())} files are not samples and were ignored: {kinds}"
        )
    if not found.samples:
        seen = f"{count} files, none of them a sample" if count else "no file"
        raise data_error(
            f"the calibration folder {root.name!r} has no samples: {seen}",
            path=str(root),
            expected=f"files ending in {' '.join(EXTENSIONS)}",
            got=seen,
            hint="check the path, or use --use-random-calib for a trial build",
        )
    return found


def walk(root: Path, limits: Limits) -> Iterator[Path]:
    """Yield the regular files under ``root`` in order, hidden ones and folder loops left out."""
    trail: set[tuple[int, int]] = set()
    seen = 0

    def visit(folder: Path) -> Iterator[Path]:
        nonlocal seen
        try:
            status = folder.stat()
            entries = sorted(os.scandir(folder), key=lambda e: e.name)
        except OSError as exc:
            raise data_error(
                f"the calibration folder {folder.name!r} cannot be read: {exc.strerror}",
                path=str(folder),
            ) from exc
        here = (status.st_dev, status.st_ino)
        if here in trail:
            return  # a link to a folder above
        trail.add(here)
        for entry in entries:
            if entry.name.startswith(".") or entry.name.lower() in _IGNORED:
                continue
            path = Path(entry.path)
            if limits.confined and entry.is_symlink():
                raise data_error(
                    f"{path.relative_to(root).as_posix()!r} is a symbolic link",
                    path=path.relative_to(root).as_posix(),
                    expected="regular files",
                    hint="upload the file itself",
                )
            if entry.is_dir():
                yield from visit(path)
            elif entry.is_file():
                seen += 1
                if seen > limits.max_samples * 8:
                    raise data_error(
                        f"the calibration folder has more than {limits.max_samples * 8} files",
                        expected=f"at most {limits.max_samples} samples",
                    )
                yield path
        trail.discard(here)

    yield from visit(root)


def _looks_grouped(folders: Mapping[str, Sequence[Path]]) -> bool:
    """Whether, without a model, sub-folders are samples of several inputs."""
    stems = {tuple(sorted(f.stem for f in files)) for files in folders.values()}
    return (
        "." not in folders
        and len(stems) == 1
        and len(next(iter(stems))) >= 2
        and all(f.suffix.lower() == ".npy" for files in folders.values() for f in files)
    )


def _group(folder: str, files: Sequence[Path], inputs: Sequence[str] | None) -> SampleRef:
    """Make the sample of a sub-folder with one file for each input name."""
    names = {safe_name(n): n for n in inputs or ()}
    parts: dict[str, Path] = {}
    for file in files:
        name = names.get(file.stem, file.stem)
        if inputs is not None and file.stem in inputs:
            name = file.stem
        if name in parts:
            raise data_error(
                f"two files are for input {name!r}: {parts[name].name} and {file.name}",
                sample=folder,
                expected="one file for each input",
                got=sorted(f.name for f in files),
            )
        parts[name] = file
    return SampleRef(folder, parts=parts)


# -- lists --------------------------------------------------------------------------------


def _text_list(path: Path, inputs: Sequence[str] | None, limits: Limits) -> Found:
    found = Found()
    for number, line in enumerate(_text(path, limits).split("\n"), 1):
        entry = line.strip()
        if entry:
            found.samples.append(_entry(path, entry, f"line {number}", inputs, limits))
    return _not_empty(path, found)


def _json_list(path: Path, inputs: Sequence[str] | None, limits: Limits) -> Found:
    text = _text(path, limits)
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise data_error(
            f"the list {path.name!r} is not JSON: {exc}", path=str(path), expected="a JSON list"
        ) from exc
    if not isinstance(items, list):
        raise data_error(
            f"the list {path.name!r} holds a {_kind(items)}",
            path=str(path),
            expected='a list of samples, each "path" or {"input name": "path"}',
            got=_kind(items),
        )
    found = Found()
    for number, item in enumerate(items):
        where = f"item {number}"
        if isinstance(item, str) and item:
            found.samples.append(_entry(path, item, where, inputs, limits))
        elif isinstance(item, dict) and item and all(isinstance(v, str) for v in item.values()):
            parts = {name: _resolve(path, value, where, limits) for name, value in item.items()}
            first = min(parts)
            found.samples.append(SampleRef(_label(path, item[first]), parts=parts))
        else:
            raise data_error(
                f"{where} of the list {path.name!r} is a {_kind(item)}",
                path=str(path),
                expected='"path" or {"input name": "path"}',
                got=_kind(item),
            )
    return _not_empty(path, found)


def _entry(
    source: Path, entry: str, where: str, inputs: Sequence[str] | None, limits: Limits
) -> SampleRef:
    path = _resolve(source, entry, where, limits)
    label = _label(source, entry)
    if path.is_dir():
        files = [f for f in walk(path, limits) if reader_for(f) is not None and f.parent == path]
        if not files:
            raise data_error(
                "the folder has no sample file", sample=label, path=str(source), got=where
            )
        return _group(label, files, inputs)
    if reader_for(path) is None:
        raise data_error(
            f"{where} of the list {source.name!r} names a file of unknown type",
            sample=label,
            expected=f"one of {' '.join(EXTENSIONS)}",
            got=path.suffix or "no file name ending",
        )
    return SampleRef(label, file=path)


def _resolve(source: Path, entry: str, where: str, limits: Limits) -> Path:
    """Return the file of a list entry: relative to the list, else to the current folder."""
    try:
        return _found(source, entry, where, limits)
    except (OSError, ValueError) as exc:
        # too long, or not to be had in the file system's encoding
        raise data_error(
            f"{where} of the list {source.name!r} is not a path", path=str(source), got=entry[:200]
        ) from exc


def _found(source: Path, entry: str, where: str, limits: Limits) -> Path:
    text = entry.replace("\\", "/") if "\\" in entry and not Path(entry).exists() else entry
    if "\0" in text:
        raise data_error(f"{where} of the list {source.name!r} is not a path", path=str(source))
    path = Path(text).expanduser() if not limits.confined else Path(text)
    beside = source.parent / path
    if limits.confined:
        root = source.parent.resolve()
        inside = beside.resolve().is_relative_to(root)
        if path.is_absolute() or not inside:
            raise data_error(
                f"{where} of the list {source.name!r} leaves the data set",
                sample=_label(source, entry),
                expected="a path relative to the list's folder",
                got=entry[:200],
            )
        chosen = beside
    else:
        chosen = beside if path.is_absolute() or beside.exists() or not path.exists() else path
    if not chosen.exists():
        raise data_error(
            f"{where} of the list {source.name!r} names a file that does not exist",
            sample=_label(source, entry),
            expected="a path relative to the list's folder, or absolute",
            got=entry[:200],
            hint="check the list file, and that the data set was copied whole",
        )
    return chosen


def _label(source: Path, entry: str) -> str:
    """Return a sample's name: the entry relative to the list's folder where it is inside."""
    text = entry.replace("\\", "/")
    path = PurePath(os.path.normpath(text))
    if path.is_absolute():
        base = source.parent.absolute()
        path = path.relative_to(base) if path.is_relative_to(base) else PurePath(path.name)
    return path.as_posix()


def _text(path: Path, limits: Limits) -> str:
    try:
        size = path.stat().st_size
        if size > limits.max_list_bytes:
            raise data_error(
                f"the list {path.name!r} has {size} bytes",
                path=str(path),
                expected=f"at most {limits.max_list_bytes} bytes",
                got=size,
            )
        return path.read_text(encoding="utf-8-sig")
    except CalibrationDataError:
        raise
    except UnicodeDecodeError as exc:
        raise data_error(
            f"the list {path.name!r} is not UTF-8 text", path=str(path), got=str(exc.reason)
        ) from exc
    except OSError as exc:
        raise data_error(
            f"the list {path.name!r} cannot be read: {exc.strerror}", path=str(path)
        ) from exc


def _not_empty(path: Path, found: Found) -> Found:
    if not found.samples:
        raise data_error(
            f"the calibration list {path.name!r} names no samples",
            path=str(path),
            expected="at least one sample",
            got="an empty list",
        )
    return found


def _kind(value: Any) -> str:
    names = {dict: "map", list: "list", str: "text", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
