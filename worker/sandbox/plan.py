"""What an engine may touch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

__all__ = [
    "Sandbox",
    "SandboxMode",
    "device_paths",
    "installation_of",
    "system_paths",
    "without",
]

# what a dynamic linker, an interpreter and numeric libraries read on an ordinary Linux
_SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/alternatives",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/version",
    "/proc/filesystems",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system",
    "/sys/fs/cgroup",
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class SandboxMode(StrEnum):
    """How much of a sandbox an engine gets."""

    AUTO = "auto"
    """What the kernel allows."""
    REQUIRE = "require"
    """The whole, or the engine does not start."""
    OFF = "off"
    """None."""


@dataclass(frozen=True)
class Sandbox:
    """The sandbox of one run.

    Attributes:
        mode: whether to confine, and what to do where the kernel does not allow it.
        readable, writable: the paths that stay open; folders with all below them.
        network: whether sockets stay open.
    """

    mode: SandboxMode
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    network: bool = False


def system_paths() -> tuple[str, ...]:
    """Return the paths of the operating system that every engine may read."""
    return _SYSTEM


def device_paths() -> tuple[str, ...]:
    """Return the device files that every engine may read and write."""
    return _DEVICES


def installation_of(command: Sequence[str], hidden: Path) -> tuple[str, ...]:
    """Return the paths where a command is installed: its program's, and those in its words.

    For ``/opt/engine/bin/python -m tool`` it is ``/opt/engine`` and where the interpreter behind
    that virtual environment lives. Of a folder around ``hidden``, the server's data, only what
    does not lead to it.
    """
    found: list[Path] = []
    program = shutil.which(command[0])
    if program is not None:
        for path in _links(Path(program).absolute()):
            found.append(_root_of(path))
            found += _home_of(_root_of(path))
    found += [Path(word) for word in command[1:] if word.startswith("/")]
    return tuple(str(p) for path in dict.fromkeys(found) for p in without(path, hidden))


def without(path: Path, hidden: Path) -> Iterator[Path]:
    """Yield ``path``, or if ``hidden`` is at or below it, what is in it beside the way there."""
    resolved, hidden = Path(os.path.realpath(path)), Path(os.path.realpath(hidden))
    if resolved.is_relative_to(hidden):
        return
    if not hidden.is_relative_to(resolved):
        yield path
        return
    try:
        children: Iterable[Path] = sorted(resolved.iterdir())
    except OSError:
        return
    for child in children:
        if not child.is_symlink():
            yield from without(child, hidden)


def _links(path: Path) -> Iterator[Path]:
    """Yield a path and what it links to, step by step."""
    for _ in range(16):
        yield path
        if not path.is_symlink():
            break
        path = path.parent / path.readlink()
    yield Path(os.path.realpath(path))


def _root_of(program: Path) -> Path:
    """Return the folder around ``bin`` of a program; the program itself outside a ``bin``."""
    root = Path(os.path.normpath(program.parent.parent))
    return root if program.parent.name in ("bin", "sbin") and root != Path("/") else program


def _home_of(root: Path) -> list[Path]:
    """Return where the interpreter of a virtual environment comes from."""
    try:
        lines = (root / "pyvenv.cfg").read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    for line in lines:
        key, _, value = line.partition("=")
        if key.strip() == "home" and value.strip().startswith("/"):
            return [_root_of(Path(value.strip()) / "python")]
    return []
