"""``make_calib`` and ``make_calib_man``: images into prepared ``.npy`` samples."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArgumentError, CalibrationDataError, OutputWriteError
from ..ir import Array
from .readers import IMAGE_EXTENSIONS, ReadContext, reader_for
from .recipe import read_recipe
from .sources import walk
from .spec import Limits, data_error

__all__ = ["make_calib", "make_calib_man"]

PathLike = str | os.PathLike[str]
_NUMBERED = re.compile(r"\d{3,}\.npy")


def make_calib(
    args_pre: Any,
    data_dir: PathLike,
    save_dir: PathLike,
    save_name: str,
    max_size: int | None = None,
    *,
    seed: int | None = None,
    remove_npy: bool = False,
) -> str:
    """Preprocess the images of a folder and save them as samples.

    Args:
        args_pre: the preprocessing: path of a YAML or JSON file, a map, a list of steps, or a
            ``PreprocessingConfig`` (see :mod:`qbcompiler.calibration.recipe`).
        data_dir: folder of images; sub-folders are searched.
        save_dir: where ``SAVE_NAME/000.npy …`` and ``SAVE_NAME.txt`` are written.
        save_name: name of the data set.
        max_size: how many images at most; evenly spaced in path order. None or 0 takes all.
        seed: choose at random instead, from this seed.
        remove_npy: remove other ``.npy`` files from the folder.

    Returns:
        The path of ``SAVE_NAME.txt``, which lists the samples.

    Raises:
        ConfigError: the preprocessing is wrong.
        ArgumentError: a name or number is wrong, or the folder holds other samples.
        CalibrationDataError: there is no image, or one is bad.
        OutputWriteError: the samples cannot be written.
    """
    recipe = read_recipe(args_pre)
    limits = Limits()
    root = Path(data_dir)

    def prepare(path: Path, name: str) -> Any:
        reader = reader_for(path)
        assert reader is not None
        content = reader.read(path, ReadContext(name, limits, recipe.channels))
        image = recipe.pipeline.apply(content.tensors[None])
        return image.transpose(2, 0, 1) if recipe.channel_first else image

    files = _files(root, limits, IMAGE_EXTENSIONS)
    return _write(prepare, root, files, Path(save_dir), save_name, max_size, seed, remove_npy)


def make_calib_man(
    pre_ftn: Callable[[str], Any],
    data_dir: PathLike,
    save_dir: PathLike,
    save_name: str,
    max_size: int | None = None,
    *,
    seed: int | None = None,
    remove_npy: bool = False,
) -> str:
    """Run a function on the files of a folder and save what it returns as samples.

    Args:
        pre_ftn: takes a file's path, returns an array of numbers.
        data_dir, save_dir, save_name, max_size, seed, remove_npy: as for :func:`make_calib`;
            files of any type are given to the function.

    Returns:
        The path of ``SAVE_NAME.txt``, which lists the samples.

    Raises:
        ArgumentError, CalibrationDataError, OutputWriteError: as for :func:`make_calib`; an
            exception of ``pre_ftn`` is wrapped, with the file's name.
    """
    if not callable(pre_ftn):
        raise ArgumentError(
            "pre_ftn must be a function of a path", details={"got": type(pre_ftn).__name__}
        )
    root = Path(data_dir)

    def prepare(path: Path, name: str) -> Any:
        return pre_ftn(str(path))

    files = _files(root, Limits(), None)
    return _write(prepare, root, files, Path(save_dir), save_name, max_size, seed, remove_npy)


def _files(root: Path, limits: Limits, extensions: Sequence[str] | None) -> list[Path]:
    if not root.is_dir():
        raise data_error(
            f"the image folder {root.name!r} does not exist", path=str(root), expected="a folder"
        )
    files = [p for p in walk(root, limits) if extensions is None or p.suffix.lower() in extensions]
    if not files:
        raise data_error(
            f"the folder {root.name!r} has no {'images' if extensions else 'files'}",
            path=str(root),
            expected=f"files ending in {' '.join(extensions)}" if extensions else "files",
        )
    return sorted(files, key=lambda p: p.relative_to(root).as_posix())


def _choose(files: list[Path], max_size: int | None, seed: int | None) -> list[Path]:
    if not max_size or max_size >= len(files):
        return files
    if seed is None:
        return [files[i * len(files) // max_size] for i in range(max_size)]
    keys = np.asarray(np.random.PCG64(np.random.SeedSequence(seed)).random_raw(len(files)))
    chosen = np.sort(np.argsort(keys, kind="stable")[:max_size])
    return [files[int(i)] for i in chosen]


def _write(
    prepare: Callable[[Path, str], Any],
    root: Path,
    files: list[Path],
    save_dir: Path,
    save_name: str,
    max_size: int | None,
    seed: int | None,
    remove_npy: bool,
) -> str:
    if not save_name or Path(save_name).name != save_name:
        raise ArgumentError(
            f"save_name {save_name!r} is not a plain name", details={"got": save_name}
        )
    if max_size is not None and (isinstance(max_size, bool) or not isinstance(max_size, int)):
        raise ArgumentError("max_size must be a whole number", details={"got": repr(max_size)})
    files = _choose(files, max_size if max_size and max_size > 0 else None, seed)
    folder = save_dir / save_name
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        old = {p.name for p in folder.glob("*.npy")}
    foreign = sorted(n for n in old if not _NUMBERED.fullmatch(n))
    if foreign and not remove_npy:
        raise ArgumentError(
            f"{folder.name!r} holds other samples: {', '.join(foreign[:5])}",
            details={"path": str(folder), "got": foreign[:20]},
            hint="pass remove_npy=True, or another save_name",
        )
    names = []
    for number, path in enumerate(files):
        name = f"{number:03d}.npy"
        array = _checked(prepare, path, path.relative_to(root).as_posix())
        with _writing(folder / name):
            _save(folder / name, partial(np.save, arr=array, allow_pickle=False))
        names.append(name)
    listing = save_dir / f"{save_name}.txt"
    with _writing(listing):
        for name in sorted(old - set(names)):
            (folder / name).unlink()
        text = "".join(f"{save_name}/{n}\n" for n in names)
        _save(listing, lambda stream: stream.write(text.encode("utf-8")))
    return str(listing)


def _checked(prepare: Callable[[Path, str], Any], path: Path, name: str) -> Array:
    try:
        result = prepare(path, name)
    except CalibrationDataError as exc:
        if "sample" in exc.details:
            raise
        raise data_error(exc.message, sample=name, hint=exc.hint, **exc.details) from exc
    except Exception as exc:
        raise data_error(
            f"the preprocessing function failed: {type(exc).__name__}: {exc}", sample=name
        ) from exc
    array = np.asarray(result) if not hasattr(result, "detach") else np.asarray(result.detach())
    if array.dtype.kind not in "fiub" or array.size == 0:
        raise data_error(
            f"the preprocessing function returned {type(result).__name__}",
            sample=name,
            expected="an array of numbers",
            got=f"{array.dtype}{list(array.shape)}",
        )
    if array.dtype == np.float64:  # what models take; halves the file
        array = array.astype(np.float32)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise data_error(
            "preprocessing gives values that are not finite",
            sample=name,
            expected="finite values",
        )
    return np.ascontiguousarray(array).reshape(array.shape)


def _save(path: Path, write: Callable[[Any], Any]) -> None:
    """Write a file under a temporary name in the same folder, flush it to disk, rename it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise OutputWriteError(
            f"{path.name!r} cannot be written: {exc.strerror or exc}",
            details={"path": str(path), "reason": str(exc)},
            hint="check the folder's permissions and the free space",
        ) from exc
