"""External data of a model: files that must lie inside the model's folder."""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path, PurePosixPath, PureWindowsPath

from onnx import TensorProto

from ..errors import ModelLoadError

__all__ = ["ExternalFiles"]


class ExternalFiles:
    """Opens the external files of one model, each once, by memory map.

    Args:
        base: the folder that they must lie in; None when the model came without one.
        label: the model, for messages.
    """

    def __init__(self, base: Path | None, label: str) -> None:
        self._base = base
        self._label = label
        self._views: dict[str, memoryview] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The locations opened so far, sorted."""
        return tuple(sorted(self._views))

    @property
    def views(self) -> tuple[memoryview, ...]:
        """The bytes of all files opened so far."""
        return tuple(self._views.values())

    @property
    def size(self) -> int:
        """Bytes of all files opened so far."""
        return sum(len(v) for v in self._views.values())

    def digest(self, model_sha256: str) -> str:
        """Return the SHA-256 over the model's and the external files' (see ``SourceModel``)."""
        if not self._views:
            return model_sha256
        whole = hashlib.sha256(model_sha256.encode())
        for name in self.names:
            whole.update(f"\n{name}\n{hashlib.sha256(self._views[name]).hexdigest()}".encode())
        return whole.hexdigest()

    def view(self, tensor: TensorProto) -> memoryview:
        """Return the bytes of an external tensor.

        Raises:
            ModelLoadError: the location is missing, outside the folder, or too short.
        """
        entries = {e.key: e.value for e in tensor.external_data}
        location = entries.get("location", "")
        data = self._open(location, tensor.name)
        try:
            offset = int(entries.get("offset", "0") or 0)
            length = int(entries["length"]) if entries.get("length") else len(data) - offset
        except ValueError as exc:
            raise self._error(
                f"weight {tensor.name!r} has a malformed external data entry", location
            ) from exc
        if offset < 0 or length < 0 or offset + length > len(data):
            raise self._error(
                f"weight {tensor.name!r} needs bytes {offset} to {offset + length} of external"
                f" file {location!r}, which has {len(data)}",
                location,
            )
        return data[offset : offset + length]

    def _open(self, location: str, tensor: str) -> memoryview:
        if location in self._views:
            return self._views[location]
        path = self._resolve(location, tensor)
        try:
            with path.open("rb") as file:
                if path.stat().st_size == 0:
                    view = memoryview(b"")
                else:
                    view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as exc:
            raise self._error(
                f"external file {location!r} cannot be read: {exc.strerror}", location
            ) from exc
        self._views[location] = view
        return view

    def _resolve(self, location: str, tensor: str) -> Path:
        if self._base is None:
            raise ModelLoadError(
                f"{self._label} keeps weight {tensor!r} in external file {location!r},"
                " but no folder was given to look in",
                details={"path": location, "tensor": tensor},
                hint="give the model by its path, or name the folder of its external data",
            )
        posix, windows = PurePosixPath(location), PureWindowsPath(location)
        if (
            not location
            or "\0" in location
            or posix.is_absolute()
            or windows.is_absolute()
            or windows.drive
            or ".." in posix.parts
            or ".." in windows.parts
        ):
            raise self._error(
                f"external file {location!r} points outside the model's folder", location
            )
        base = self._base.resolve()
        path = base / posix
        try:
            real = path.resolve(strict=True)
        except (FileNotFoundError, NotADirectoryError) as exc:
            raise self._error(
                f"external file {location!r} does not exist beside the model", location
            ) from exc
        except (OSError, RuntimeError) as exc:
            raise self._error(f"external file {location!r} cannot be followed", location) from exc
        if not real.is_relative_to(base):
            raise self._error(
                f"external file {location!r} is a link that leads outside the model's folder",
                location,
            )
        if not real.is_file():
            raise self._error(f"external file {location!r} is not a regular file", location)
        return real

    def _error(self, message: str, location: str) -> ModelLoadError:
        return ModelLoadError(
            f"{self._label}: {message}", details={"path": location, "model": self._label}
        )
