"""``.npy`` arrays: the header is checked before anything is allocated; no pickle."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import numpy as np

from ...errors import CalibrationDataError
from ...ir import Array
from ..spec import data_error
from .base import Content, ReadContext, check_dtype, check_size, opening

__all__ = ["NpyReader", "read_npy"]


def read_npy(
    stream: IO[bytes], context: ReadContext, tensor: str | None, available: int | None
) -> Array:
    """Read one array in NumPy's format from a stream.

    Args:
        stream: positioned at the magic bytes.
        context: sample and bounds.
        tensor: the tensor's name for messages.
        available: bytes of the whole stream where known; tells truncation before allocating.

    Raises:
        CalibrationDataError: objects, another element type, too large, truncated.
        ValueError, OSError: not NumPy's format (the caller words it).
    """
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version in ((2, 0), (3, 0)):
        # version 3 differs from 2 in that field names may be UTF-8; record types are refused
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise ValueError(f"format version {version} is unknown")
    check_dtype(dtype, context, tensor)
    nbytes = check_size(shape, dtype, context, tensor)
    if available is not None and available - stream.tell() < nbytes:
        raise _truncated(context, nbytes, max(0, available - stream.tell()), shape, dtype)
    # the destination is allocated only now, so that a short file cannot ask for much
    data = bytearray(nbytes)
    view = memoryview(data)
    filled = 0
    while filled < nbytes:
        block = stream.read(min(nbytes - filled, 1 << 22))
        if not block:
            raise _truncated(context, nbytes, filled, shape, dtype)
        view[filled : filled + len(block)] = block
        filled += len(block)
    flat: Array = np.frombuffer(data, dtype=dtype)
    array = flat.reshape(shape[::-1]).transpose() if fortran else flat.reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _truncated(
    context: ReadContext,
    wanted: int,
    found: int,
    shape: tuple[int, ...],
    dtype: np.dtype[np.generic],
) -> CalibrationDataError:
    return data_error(
        f"the file is truncated: {found} of {wanted} bytes of data",
        sample=context.sample,
        expected=f"{wanted} bytes for {dtype.name}{list(shape)}",
        got=f"{found} bytes",
        hint="write the file again, or remove the sample",
    )


class NpyReader:
    """Reads NumPy's ``.npy`` format, versions 1 to 3."""

    name = "NumPy array"
    extensions = (".npy",)

    def read(self, path: Path, context: ReadContext) -> Content:
        """Return the array without a name."""
        with opening(path, context, "NumPy array"), path.open("rb") as stream:
            return Content({None: read_npy(stream, context, None, path.stat().st_size)})
