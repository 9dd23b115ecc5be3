"""Folders for one request's temporary files, gone at its end, and after a crash at the next start.

A folder is locked as long as its process lives; the lock goes with the process however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["clean_scratch", "scratch_folder"]

_log = logging.getLogger(__name__)

_PREFIX = "request-"
# between being made and being locked, a folder looks like one that was left behind
_GRACE_SECONDS = 60.0


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Make a folder below ``parent``; remove it at the end, in every case.

    Raises:
        OSError: it cannot be made.
    """
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=_PREFIX))
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def clean_scratch(parent: Path, *, grace_seconds: float = _GRACE_SECONDS) -> int:
    """Remove the folders that no living process holds; return how many there were."""
    removed = 0
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime < grace_seconds:
                continue
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                removed += 1
            finally:
                os.close(handle)
    if removed:
        _log.info("removed %d scratch folders that requests had left behind", removed)
    return removed
