"""Confine a process and become the engine: ``python -I -S launch.py LIMITS -- COMMAND …``.

A program of its own because code between fork and exec is not safe in a process with threads.
Kills the engine when the worker dies, bounds files, memory, processes and core dumps, gives up
privileges, files, network and system calls, then executes COMMAND. Standard library only; starts
without site-packages.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import struct
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 24, 38
_CAPABILITY_VERSION = 0x20080522


def main(argv: list[str]) -> None:
    """Apply the limits in ``argv[0]`` (JSON) and execute ``argv[2:]``."""
    limits = json.loads(argv[0])
    command = argv[2:]
    program = shutil.which(command[0])
    if program is None:
        _stop(127, f"cannot start {command[0]}: no such program")
    _bound(limits)
    if sys.platform == "linux":
        _confine(limits.get("sandbox", {"mode": "off"}))
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # the worker may have died before the call above
        if os.getppid() != limits["parent"]:
            os._exit(1)
    try:
        os.execv(program, command)  # noqa: S606
    except OSError as exc:
        _stop(127, f"cannot start {command[0]}: {exc.strerror}")


def _stop(code: int, why: str) -> NoReturn:
    sys.stderr.write(why + "\n")
    sys.stderr.flush()
    os._exit(code)


def _bound(limits: Mapping[str, Any]) -> None:
    _lower(resource.RLIMIT_CORE, 0)
    if (open_files := limits.get("open_files")) is not None:
        _lower(resource.RLIMIT_NOFILE, open_files)
    if (file_bytes := limits.get("file_bytes")) is not None:
        _lower(resource.RLIMIT_FSIZE, file_bytes)
        # a write beyond the bound then fails with EFBIG instead of killing the engine
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if (data_bytes := limits.get("data_bytes")) is not None:
        _lower(resource.RLIMIT_DATA, data_bytes)
    if (more := limits.get("more_processes")) is not None and sys.platform == "linux":
        # the kernel counts by user
        _lower(resource.RLIMIT_NPROC, _threads_of_user() + more)


def _lower(which: int, bound: int) -> None:
    _, hard = resource.getrlimit(which)
    bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
    # hard too: a soft limit is one that the engine may raise again
    resource.setrlimit(which, (bound, bound))


def _threads_of_user() -> int:
    user, total = os.getuid(), 0
    with os.scandir("/proc") as entries:
        for entry in entries:
            # processes come and go
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and entry.stat().st_uid == user:
                    total += len(os.listdir(f"/proc/{entry.name}/task"))  # noqa: PTH208
    return total


def _confine(sandbox: Mapping[str, Any]) -> None:
    if sandbox["mode"] == "off":
        return
    # above this folder lies the package, and nothing else of it is imported
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))  # noqa: PTH120
    from worker.sandbox import landlock, seccomp
    from worker.sandbox.support import kernel_support

    support = kernel_support()
    network = bool(sandbox["network"])
    must = sandbox["mode"] == "require"
    missing = support.missing()
    if must and missing:
        _stop(126, "the sandbox is required, and this kernel cannot refuse " + "; ".join(missing))
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        _drop_capabilities(libc)
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "no_new_privs")
        if support.files:
            own = (f"/proc/{os.getpid()}",)
            landlock.restrict((*sandbox["readable"], *own), sandbox["writable"], network=network)
        if support.seccomp:
            seccomp.install(network=network)
    except OSError as exc:
        if must:
            _stop(126, f"the sandbox is required, and it cannot be set up: {exc}")
        sys.stderr.write(f"warning: this engine runs without a whole sandbox: {exc}\n")


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Give up what the user root, or a program started with capabilities, may do beyond others."""
    for number in range(64):
        if libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    if libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(bytes(24))) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


if __name__ == "__main__":
    main(sys.argv[1:])
