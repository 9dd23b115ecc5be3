"""What a reader of sample files is, and the checks that all of them share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from ...errors import CalibrationDataError, ResourceLimitError
from ...ir import Array
from ..spec import Limits, data_error

__all__ = ["Content", "ReadContext", "Reader", "check_dtype", "check_size", "opening"]

_KINDS = "fiub"


@dataclass(frozen=True, slots=True)
class Content:
    """What a file holds.

    Attributes:
        tensors: array by tensor name; the only key is None where the format has no names.
        is_image: the array is a decoded picture, [height, width, channels] of uint8.
    """

    tensors: Mapping[str | None, Array]
    is_image: bool = False


@dataclass(frozen=True, slots=True)
class ReadContext:
    """What a reader is told.

    Attributes:
        sample: the sample's relative name, for messages.
        limits: bounds.
        channels: channels that pictures are converted to; None keeps the picture's own.
    """

    sample: str
    limits: Limits
    channels: int | None = None


class Reader(Protocol):
    """Reads one file format."""

    @property
    def name(self) -> str:
        """Name for messages."""
        ...

    @property
    def extensions(self) -> tuple[str, ...]:
        """File name endings that it reads, lower case, with the dot."""
        ...

    def read(self, path: Path, context: ReadContext) -> Content:
        """Read a file; CalibrationDataError that names the sample when it cannot."""
        ...


@contextmanager
def opening(path: Path, context: ReadContext, what: str) -> Iterator[None]:
    """Turn what goes wrong while reading ``path`` into an error that names the sample."""
    try:
        yield
    except (CalibrationDataError, ResourceLimitError):
        raise
    except FileNotFoundError:
        raise data_error(
            "the file does not exist",
            sample=context.sample,
            path=path.name,
            hint="check the list file, and that the data set was copied whole",
        ) from None
    except PermissionError as exc:
        raise data_error(
            f"the file cannot be opened: {exc.strerror}", sample=context.sample, path=path.name
        ) from None
    except MemoryError:
        raise ResourceLimitError(
            f"calibration sample {context.sample!r}: the {what} needs more memory than there is",
            details={"sample": context.sample, "path": path.name},
        ) from None
    except Exception as exc:
        reason = " ".join(str(exc).split())[:300] or type(exc).__name__
        raise data_error(
            f"the {what} is corrupt or truncated ({reason})",
            sample=context.sample,
            path=path.name,
            expected=f"a readable {what}",
            got=reason,
            hint="write the file again, or remove the sample",
        ) from exc


def check_dtype(dtype: np.dtype[np.generic], context: ReadContext, tensor: str | None) -> None:
    """Refuse element types that no tensor has: objects, records, text, complex numbers, dates."""
    if dtype.kind in _KINDS and dtype.itemsize <= 8:
        return
    label = f"tensor {tensor!r} " if tensor else "the array "
    if dtype.hasobject:
        raise data_error(
            f"{label}holds Python objects, which are never loaded, instead of numbers",
            sample=context.sample,
            expected="an array of numbers",
            got=f"dtype {dtype}",
            hint="save it as numbers: np.save(path, np.asarray(x, dtype=np.float32))",
        )
    raise data_error(
        f"{label}has element type {dtype}, which is no tensor's",
        sample=context.sample,
        expected="float16, float32, float64, an integer type or bool",
        got=f"dtype {dtype}",
        hint="save it as float32, or as the model's integer type",
    )


def check_size(
    shape: tuple[int, ...],
    dtype: np.dtype[np.generic],
    context: ReadContext,
    tensor: str | None,
) -> int:
    """Return the bytes of a tensor; refuse negative extents and more than the bound."""
    if any(d < 0 for d in shape) or len(shape) > 32:
        raise data_error(
            "the file is corrupt: its header gives an impossible shape",
            sample=context.sample,
            got=list(shape[:40]),
        )
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes > context.limits.max_sample_bytes:
        label = f"tensor {tensor!r}" if tensor else "the array"
        raise data_error(
            f"{label} has {nbytes} bytes, above the bound of {context.limits.max_sample_bytes}",
            sample=context.sample,
            expected=f"at most {context.limits.max_sample_bytes} bytes",
            got=f"{dtype.name}{list(shape)}",
        )
    return nbytes
