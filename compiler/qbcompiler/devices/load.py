"""Finding devices: the files that come with the package, and those in a search path."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from ..config.documents import read_document
from ..errors import ConfigError, DeviceSchemeError
from .model import SCHEMES, Device

__all__ = ["DEVICE_PATH", "list_devices", "load_device", "resolve_schemes"]

DEVICE_PATH = "QBCOMPILER_DEVICE_PATH"
"""Environment variable: more folders with device files, separated as in ``PATH``."""

SearchPath = Iterable[str | os.PathLike[str]] | None

_BUILT_IN = Path(__file__).parent


def list_devices(search_path: SearchPath = None) -> list[Device]:
    """Return every device, sorted by name.

    Args:
        search_path: folders to look into after the built-in one; by default those that
            ``QBCOMPILER_DEVICE_PATH`` names.

    Raises:
        ConfigError: a device file is wrong, or two files define one device.
    """
    return [_read(path) for path in _files(search_path).values()]


def load_device(name: str, search_path: SearchPath = None) -> Device:
    """Return a device by its device string.

    Raises:
        DeviceSchemeError: there is no such device; names the nearest one and lists all.
        ConfigError: its file is wrong.
    """
    files = _files(search_path)
    if name not in files:
        known = list(files)
        near = difflib.get_close_matches(name.lower().replace("_", "-"), known, n=1, cutoff=0.5)
        raise DeviceSchemeError(
            f"unknown target device {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
            details={"device": name, "nearest": near[0] if near else None, "known": known},
            hint=f"target devices: {', '.join(known)}",
        )
    return _read(files[name])


def resolve_schemes(device: Device | str, scheme: str) -> tuple[str, ...]:
    """Return the inference schemes that ``scheme`` means on a device.

    ``all`` is every scheme that the device has, which is ``single`` alone where there is no other.

    Raises:
        DeviceSchemeError: an unknown device, an unknown scheme, or one that the device lacks.
    """
    target = load_device(device) if isinstance(device, str) else device
    if scheme == "all":
        return tuple(target.schemes)
    if scheme in target.schemes:
        return (scheme,)
    offered = list(target.schemes) + (["all"] if len(target.schemes) > 1 else [])
    details = {"device": target.name, "scheme": scheme, "known": [*target.schemes, "all"]}
    hint = f"{target.name} has: {', '.join(offered)}"
    if scheme == "global":
        wide = [s for s in ("global4", "global8") if s in target.schemes]
        raise DeviceSchemeError(
            "inference scheme 'global' is an old spelling of 'global4' and 'global8'",
            details=details,
            hint=f"say {' or '.join(wide)}" if wide else hint,
        )
    if scheme in SCHEMES:
        raise DeviceSchemeError(
            f"{target.name} has no inference scheme {scheme!r}; it has {', '.join(offered)}",
            details=details,
            hint=hint,
        )
    near = difflib.get_close_matches(scheme, [*SCHEMES, "all"], n=1)
    raise DeviceSchemeError(
        f"unknown inference scheme {scheme!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
        details={**details, "nearest": near[0] if near else None},
        hint=hint,
    )


def _files(search_path: SearchPath) -> dict[str, Path]:
    if search_path is None:
        search_path = [p for p in os.environ.get(DEVICE_PATH, "").split(os.pathsep) if p]
    found: dict[str, Path] = {}
    for folder in (_BUILT_IN, *map(Path, search_path)):
        if not folder.is_dir():
            raise ConfigError(
                f"device folder {os.fspath(folder)!r} does not exist",
                details={"path": os.fspath(folder)},
                hint=f"mend {DEVICE_PATH}",
            )
        for path in sorted(folder.glob("*.yaml")):
            if path.stem in found and found[path.stem] != path:
                raise ConfigError(
                    f"device {path.stem!r} is defined twice",
                    details={"paths": [os.fspath(found[path.stem]), os.fspath(path)]},
                )
            found[path.stem] = path
    return dict(sorted(found.items()))


def _read(path: Path) -> Device:
    stat = path.stat()
    return _read_version(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=64)
def _read_version(path: Path, mtime_ns: int, size: int) -> Device:
    data = read_document(path)
    try:
        # strict checking takes lists for tuples only where the input is JSON
        device = Device.model_validate(data, strict=False)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = "/".join(map(str, first["loc"]))
        raise ConfigError(
            f"device file {os.fspath(path)!r}: /{where}: {first['msg']}",
            details={"path": os.fspath(path), "pointer": f"/{where}"},
        ) from exc
    if device.name != path.stem:
        raise ConfigError(
            f"device file {os.fspath(path)!r} defines {device.name!r}; the two must agree",
            details={"path": os.fspath(path), "device": device.name},
        )
    return device
