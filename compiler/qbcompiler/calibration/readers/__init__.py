"""Readers of sample files: an explicit list, one module for each format."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from .base import Content, ReadContext, Reader
from .image import ImageReader
from .npy import NpyReader
from .npz import NpzReader
from .torch_tensor import TorchReader

__all__ = [
    "EXTENSIONS",
    "IMAGE_EXTENSIONS",
    "READERS",
    "Content",
    "ReadContext",
    "Reader",
    "by_extension",
    "reader_for",
]

READERS: tuple[Reader, ...] = (NpyReader(), NpzReader(), TorchReader(), ImageReader())

IMAGE_EXTENSIONS = ImageReader.extensions


def by_extension(readers: Iterable[Reader]) -> dict[str, Reader]:
    """Index readers by file name ending; ValueError where two claim one."""
    index: dict[str, Reader] = {}
    for reader in readers:
        for extension in reader.extensions:
            if extension in index:
                raise ValueError(f"{extension} is claimed by two readers")
            index[extension] = reader
    return index


_INDEX = by_extension(READERS)

EXTENSIONS = tuple(_INDEX)
"""Every file name ending that a sample may have."""


def reader_for(path: PurePath) -> Reader | None:
    """Return the reader of a file by its name, None where there is none."""
    return _INDEX.get(path.suffix.lower())
