"""The validation samples of a build, kept so that anyone can check another runtime against it.

An ``.npz`` with, for each sample ``NNN``, ``NNN/input/NAME``, ``NNN/float/NAME`` (the float
model's output) and ``NNN/integer/NAME`` (the integer graph's, as real numbers). Equal builds give
equal bytes: entries are stored, in order, with a fixed date.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..errors import OutputWriteError
from ..ir import Array

__all__ = ["MAX_SAMPLE_BYTES", "SampleWriter"]

MAX_SAMPLE_BYTES = 64 << 20
"""Samples are kept until they hold this many bytes; the first one always is."""

_DATE = (1980, 1, 1, 0, 0, 0)


class SampleWriter:
    """Writes samples one at a time; nothing is at ``path`` before :meth:`close`.

    Args:
        path: the file to write.

    Raises:
        OutputWriteError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._part = self.path.with_name(f".{self.path.name[:100]}.{secrets.token_hex(8)}.tmp")
        self._bytes = 0
        self._count = 0
        try:
            self._file = self._part.open("xb")
        except OSError as exc:
            raise self._error(exc) from exc
        self._archive = zipfile.ZipFile(self._file, "w", zipfile.ZIP_STORED)

    def __enter__(self) -> SampleWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def add(
        self,
        inputs: Mapping[str, Array],
        expected: Mapping[str, Array],
        got: Mapping[str, Array],
    ) -> bool:
        """Keep a sample; False when the file is full already."""
        parts = (("input", inputs), ("float", expected), ("integer", got))
        size = sum(a.nbytes for _, arrays in parts for a in arrays.values())
        if self._count and self._bytes + size > MAX_SAMPLE_BYTES:
            return False
        try:
            for role, arrays in parts:
                for name, array in arrays.items():
                    self._write(f"{self._count:03d}/{role}/{_plain(name)}.npy", array)
        except OSError as exc:
            self.abort()
            raise self._error(exc) from exc
        self._bytes += size
        self._count += 1
        return True

    def close(self) -> None:
        """Put the file in place."""
        try:
            self._archive.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self.path)
        except OSError as exc:
            self.abort()
            raise self._error(exc) from exc

    def abort(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(OSError):
            self._archive.close()
        with contextlib.suppress(OSError):
            self._file.close()
        self._part.unlink(missing_ok=True)

    def _write(self, name: str, array: Array) -> None:
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
        info = zipfile.ZipInfo(name, _DATE)
        info.external_attr = 0o644 << 16
        info.create_system = 3
        self._archive.writestr(info, buffer.getvalue())

    def _error(self, exc: OSError) -> OutputWriteError:
        return OutputWriteError(
            f"the validation samples cannot be written to {self.path}: {exc.strerror}",
            details={"path": str(self.path)},
            hint="check the folder, its permissions and the free space",
        )


def _plain(name: str) -> str:
    """Return a tensor's name as one path component, as an archive may hold it."""
    return name.replace("%", "%25").replace("/", "%2F").replace("\\", "%5C")
