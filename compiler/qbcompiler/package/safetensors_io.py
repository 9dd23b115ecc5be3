"""Weights in the safetensors layout: eight bytes of header length, a JSON header, the data.

Tensors lie without gaps (the format demands it), ordered by falling element size so that each
is aligned to its own element, and the header is padded with spaces so that the data begins at
a multiple of 64 bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from ..errors import FormatError
from ..ir import Array
from .formats import MAX_RANK
from .json_io import Fields, dump_json, parse_json
from .writer import Section
from .zip_layout import ALIGNMENT

__all__ = ["TensorView", "TensorsReader", "tensors_section"]

"""Largest number of dimensions of a stored tensor."""

_MAX_HEADER = 64 << 20
_MAX_DIMENSION = (1 << 40) - 1
_CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_DTYPES = {code: np.dtype(name).newbyteorder("<") for name, code in _CODES.items()}


def tensors_section(name: str, tensors: Mapping[str, Array]) -> Section:
    """Return the section that holds ``tensors``; they are read only when it is written.

    Args:
        name: of the section.
        tensors: arrays by key; order among equal element sizes is kept.

    Raises:
        ValueError: an element type that the format lacks, or a key that it reserves.
    """
    order = sorted(tensors, key=lambda k: -tensors[k].dtype.itemsize)
    header: dict[str, object] = {}
    position = 0
    for key in order:
        array = tensors[key]
        code = _CODES.get(array.dtype.name)
        if code is None or key == "__metadata__":
            raise ValueError(f"tensor {key!r} of type {array.dtype} cannot be stored")
        header[key] = {
            "dtype": code,
            "shape": [int(d) for d in array.shape],
            "data_offsets": [position, position + array.nbytes],
        }
        position += array.nbytes
    text = dump_json(header)
    del header
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    if len(text) > _MAX_HEADER:
        raise ValueError("too many tensors for one section")

    def chunks() -> Iterator[bytes | memoryview]:
        yield struct.pack("<Q", len(text)) + text
        for key in order:
            if tensors[key].size:
                yield _bytes_of(tensors[key])

    return Section(name, "tensors", 8 + len(text) + position, chunks)


def _bytes_of(array: Array) -> memoryview:
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


@dataclass(frozen=True, slots=True)
class TensorView:
    """Where a tensor lies: NumPy dtype, shape, first and past-the-end byte of the data."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    begin: int
    end: int


class TensorsReader:
    """The tensors of a section, as read-only views of its bytes."""

    def __init__(self, data: memoryview, section: str) -> None:
        """Read the header.

        Raises:
            FormatError: the header is not what the format allows, names the section.
        """
        self._section = section
        if len(data) < 8:
            self._fail("it is shorter than its header")
        (length,) = struct.unpack("<Q", data[:8])
        if length > min(len(data) - 8, _MAX_HEADER):
            self._fail(f"its header claims {length} bytes")
        self._data = data[8 + length :]
        parsed = parse_json(data[8 : 8 + length], section)
        header = Fields(parsed, section).plain
        self.tensors: dict[str, TensorView] = {}
        position = 0
        for key, value in header.items():
            view = self._entry(Fields(value, section, key[:200]))
            if view.begin != position:
                self._fail(f"tensor {key[:200]!r} does not follow the one before it")
            position = view.end
            self.tensors[key] = view
        if position != len(self._data):
            self._fail(f"{len(self._data)} bytes of data, but the header lists {position}")

    def _entry(self, fields: Fields) -> TensorView:
        dtype = _DTYPES.get(fields.text("dtype", 16))
        if dtype is None:
            fields.fail("unknown dtype")
        shape = tuple(fields.integers("shape", MAX_RANK, 0, _MAX_DIMENSION))
        begin, end = [*fields.integers("data_offsets", 2, 0, 1 << 62), -1, -1][:2]
        if math.prod(shape) * dtype.itemsize != end - begin:
            fields.fail("shape and offsets disagree")
        return TensorView(dtype, shape, begin, end)

    def array(self, key: str) -> Array:
        """Return a tensor as a read-only view; FormatError where there is none of that key."""
        view = self.tensors.get(key)
        if view is None:
            self._fail(f"it has no tensor {key[:200]!r}")
        try:
            flat = np.frombuffer(self._data[view.begin : view.end], dtype=np.uint8)
            if flat.size == 0:
                return np.empty(view.shape, dtype=view.dtype)
            return flat.view(view.dtype).reshape(view.shape)
        except ValueError as exc:
            self._fail(f"tensor {key[:200]!r}: {exc}")

    def _fail(self, reason: str) -> NoReturn:
        raise FormatError(f"{self._section}: {reason}", details={"section": self._section})
