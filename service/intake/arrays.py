"""Reads the headers of sample files: type and shape, without loading what follows."""

from __future__ import annotations

import ast
import math
import re
import struct
import zipfile
from pathlib import Path
from typing import IO, Any

__all__ = ["SampleError", "array_header", "describe_sample", "is_sample"]

SAMPLE_SUFFIXES = frozenset(
    {".npy", ".npz", ".pt", ".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"}
)
_IMAGE_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF")
_MAX_HEADER = 1 << 20
_MAX_ARRAYS = 1000
_DTYPE = re.compile(r"[<>|=]?([biufc])(\d{1,2})\Z")
_NAMES = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8",
    "u2": "uint16", "u4": "uint32", "u8": "uint64", "f2": "float16", "f4": "float32",
    "f8": "float64", "c8": "complex64", "c16": "complex128",
}  # fmt: skip


class SampleError(ValueError):
    """A sample file cannot be used; the text says why, without the file's name."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def is_sample(name: str) -> bool:
    """Say whether a file is a sample, by its name's ending."""
    return Path(name).suffix.lower() in SAMPLE_SUFFIXES


def describe_sample(path: Path, *, max_pixels: int) -> list[dict[str, Any]]:
    """Return what a sample file holds: for each array ``name`` (or None), ``dtype``, ``shape``.

    Raises:
        SampleError: it is damaged, cut short, of another kind, or holds Python objects.
    """
    suffix = path.suffix.lower()
    if suffix == ".npy":
        with path.open("rb") as file:
            dtype, shape, size = array_header(file)
            left = path.stat().st_size - file.tell()
        _whole(size, left)
        return [{"name": None, "format": "npy", "dtype": dtype, "shape": list(shape)}]
    if suffix == ".npz":
        return _npz(path)
    if suffix == ".pt":
        # weights-only loading is the compiler's; here only the container is looked at
        if not zipfile.is_zipfile(path):
            raise SampleError(
                "it is not a tensor file that can be read safely",
                "save it with torch.save of a tensor (PyTorch 1.6 or newer), or as .npy",
            )
        return [{"name": None, "format": "pt", "dtype": None, "shape": None}]
    return [_image(path, max_pixels)]


def array_header(file: IO[bytes]) -> tuple[str, tuple[int, ...], int]:
    """Read the header of a .npy: the type's name, the shape, and the bytes that must follow.

    Raises:
        SampleError: it is not a .npy, or an array of objects.
    """
    magic = file.read(8)
    if len(magic) < 8 or magic[:6] != b"\x93NUMPY":
        raise SampleError("it is not a .npy file" if magic else "it is empty")
    wide = magic[6] >= 2
    raw = file.read(4 if wide else 2)
    if magic[6] not in (1, 2, 3) or len(raw) < (4 if wide else 2):
        raise SampleError("its .npy header is damaged")
    (length,) = struct.unpack("<I" if wide else "<H", raw)
    if length > _MAX_HEADER:
        raise SampleError("its .npy header is too large")
    text = file.read(length)
    if len(text) < length:
        raise SampleError("it is cut short")
    try:
        header = ast.literal_eval(text.decode("utf-8" if magic[6] == 3 else "latin-1"))
        descr, shape = header["descr"], header["shape"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise SampleError("its .npy header is damaged") from None
    if not isinstance(descr, str):
        raise SampleError("it is an array of records", "save one plain array for each input")
    if descr.lstrip("<>|=").startswith("O"):
        raise SampleError(
            "it is an array of Python objects, which cannot be loaded safely",
            "save a plain numeric array: np.save(path, array.astype(np.float32))",
        )
    match = _DTYPE.match(descr)
    name = None if match is None else _NAMES.get(f"{match[1]}{match[2]}")
    if match is None or name is None:
        raise SampleError(f"its type {descr[:20]!r} is not numeric")
    if not isinstance(shape, tuple) or not all(
        isinstance(d, int) and not isinstance(d, bool) and 0 <= d < 2**48 for d in shape
    ):
        raise SampleError("its .npy header is damaged")
    if len(shape) > 32:
        raise SampleError("it has more than 32 dimensions")
    return name, shape, math.prod(shape) * int(match[2])


def _whole(size: int, left: int) -> None:
    if left < size:
        raise SampleError(f"it is cut short: {size} bytes of data expected, {left} are there")


def _npz(path: Path) -> list[dict[str, Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            if not infos:
                raise SampleError("it holds no array")
            if len(infos) > _MAX_ARRAYS:
                raise SampleError(f"it holds more than {_MAX_ARRAYS} arrays")
            found = []
            for info in infos:
                if not info.filename.endswith(".npy"):
                    raise SampleError(f"{info.filename[:100]!r} in it is not an array")
                with archive.open(info) as file:
                    dtype, shape, size = array_header(file)
                    _whole(size, info.file_size - file.tell())
                name = info.filename.removesuffix(".npy")[:200]
                found.append({"name": name, "format": "npz", "dtype": dtype, "shape": list(shape)})
            return found
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError) as exc:
        raise SampleError("it is a damaged .npz") from exc


def _image(path: Path, max_pixels: int) -> dict[str, Any]:
    # the first image of a set pays for the import, not the service's start
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path, formats=_IMAGE_FORMATS) as image:
            width, height = image.size
            bands = len(image.getbands())
            kind = (image.format or "").lower()
    except UnidentifiedImageError:
        raise SampleError("it is not an image that can be read") from None
    except Image.DecompressionBombError:
        raise SampleError(f"it has more than {max_pixels} pixels") from None
    except (OSError, ValueError, SyntaxError, KeyError, struct.error) as exc:
        raise SampleError("it is a damaged image") from exc
    if width * height > max_pixels:
        raise SampleError(f"it has {width * height} pixels; at most {max_pixels} are taken")
    return {"name": None, "format": kind, "dtype": "uint8", "shape": [height, width, bands]}
