"""Set a process up and become the engine: ``python -I -S launch.py LIMITS -- COMMAND …``.

A program of its own because code between fork and exec is not safe in a process with threads.
Kills the engine when the worker dies, bounds file size and core dumps, then executes COMMAND.
Standard library only; starts without site-packages.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Apply the limits in ``argv[0]`` (JSON) and execute ``argv[2:]``."""
    limits = json.loads(argv[0])
    command = argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # the worker may have died before the call above
        if os.getppid() != limits["parent"]:
            os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    file_bytes = limits.get("file_bytes")
    if file_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        bound = file_bytes if hard == resource.RLIM_INFINITY else min(file_bytes, hard)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bound, hard))
        # a write beyond the bound then fails with EFBIG instead of killing the engine
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as exc:
        sys.stderr.write(f"cannot start {command[0]}: {exc.strerror}\n")
        os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
