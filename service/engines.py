"""The engines that builds can name: this repository's compiler and those of the settings."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from .settings import BUILTIN_ENGINE, Settings

__all__ = ["Engine", "builtin_version", "list_engines"]

# libraries whose version can change the numbers that a build comes out with
_LIBRARIES = ("ml-dtypes", "numpy", "onnx", "onnxruntime", "pillow")


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine.

    Attributes:
        name: as requests name it.
        version: part of the build key.
        queue: where its builds wait.
        command: what a worker runs; empty for the built-in one (``python -m qbcompiler`` of the
            worker's own interpreter).
        description: one line.
        builtin: whether its configuration schema and devices are those that this server knows.
    """

    name: str
    version: str
    queue: str
    command: tuple[str, ...]
    description: str
    builtin: bool


def list_engines(settings: Settings) -> Mapping[str, Engine]:
    """Return every engine by name, the built-in one first."""
    found = {
        BUILTIN_ENGINE: Engine(
            name=BUILTIN_ENGINE,
            version=builtin_version(),
            queue=settings.queue_of(BUILTIN_ENGINE),
            command=(),
            description="This server's own compiler; its packages run in its own runtime.",
            builtin=True,
        )
    }
    for name, engine in sorted(settings.engines.items()):
        found[name] = Engine(
            name=name,
            version=engine.version,
            queue=settings.queue_of(name),
            command=tuple(engine.command),
            description=engine.description,
            builtin=False,
        )
    return found


@lru_cache(maxsize=1)
def builtin_version() -> str:
    """Return the built-in engine's version: the release, and a digest of what is installed.

    The digest is over the compiler's own files and the versions of the libraries that decide
    numbers, so that a changed compiler never answers from a build of the one before.
    """
    digest = hashlib.sha256()
    spec = importlib.util.find_spec("qbcompiler")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".yaml") and path.is_file():
            digest.update(path.relative_to(root).as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    for name in _LIBRARIES:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = "none"
        digest.update(f"{name}={version}\n".encode())
    try:
        release = metadata.version("qb-compile-server")
    except metadata.PackageNotFoundError:
        release = "0"
    return f"{release}+{digest.hexdigest()[:12]}"
