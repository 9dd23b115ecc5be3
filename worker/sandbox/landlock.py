"""Landlock: a process gives up the file system but for named paths (Linux 5.13 and later).

The interface is the kernel's ``Documentation/userspace-api/landlock.rst``. It needs no privilege,
holds for every child, and cannot be undone. Each version (ABI) of it can refuse more; what this
kernel cannot refuse is left out.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

__all__ = ["abi_version", "restrict"]

# the same numbers on every architecture
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_QUERY_VERSION = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_CHAR, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK = 1 << 6, 1 << 7, 1 << 8, 1 << 9
_MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = 1 << 10, 1 << 11, 1 << 12
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15

_FIRST_ABI = (1 << 13) - 1
_READ = _EXECUTE | _READ_FILE | _READ_DIR
# devices are made by nobody
_WRITE = _READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK
_WRITE |= _MAKE_FIFO | _MAKE_SYM | _REFER | _TRUNCATE | _IOCTL_DEV
# what the kernel allows a rule on something that is not a folder to hold
_FOR_FILES = _EXECUTE | _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV

_NET_BIND_TCP, _NET_CONNECT_TCP = 1 << 0, 1 << 1
_SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1 << 0, 1 << 1


def _syscall(number: int, *args: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(ctypes.c_long(number), *args))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def abi_version() -> int:
    """Return the kernel's Landlock version; 0 where it has none or forbids it."""
    try:
        return _syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_QUERY_VERSION))
    except (OSError, AttributeError):
        return 0


def restrict(readable: Iterable[str], writable: Iterable[str], *, network: bool) -> None:
    """Give up every file but those at and below the given paths; a path that is absent is skipped.

    With signals and abstract sockets to processes outside (ABI 6), and without ``network`` TCP
    (ABI 4). The caller has set ``no_new_privs``.

    Raises:
        OSError: the kernel refuses.
    """
    abi = abi_version()
    handled = _FIRST_ABI
    handled |= _REFER if abi >= 2 else 0
    handled |= _TRUNCATE if abi >= 3 else 0
    handled |= _IOCTL_DEV if abi >= 5 else 0
    tcp = _NET_BIND_TCP | _NET_CONNECT_TCP if abi >= 4 and not network else 0
    scoped = _SCOPE_SIGNAL | (0 if network else _SCOPE_ABSTRACT_UNIX_SOCKET) if abi >= 6 else 0
    attributes = struct.pack("=QQQ", handled, tcp, scoped)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = _syscall(
        _CREATE_RULESET,
        ctypes.c_char_p(attributes),
        ctypes.c_size_t(size),
        ctypes.c_uint32(0),
    )
    try:
        for paths, rights in ((readable, _READ), (writable, _WRITE)):
            for path in paths:
                _allow(ruleset, path, rights & handled)
        _syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= _FOR_FILES
        rule = struct.pack("=Qi", rights, handle)
        _syscall(
            _ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(_RULE_PATH_BENEATH),
            ctypes.c_char_p(rule),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(handle)
