"""Folders for temporary files, gone at their user's end, and after a crash at the next look.

A folder is locked as long as its process lives; the lock goes with the process however it ends, and
unlike a process id it means the same after a restart in a container.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["clean_scratch", "scratch_folder"]

_log = logging.getLogger(__name__)

_PREFIX = "request-"


@contextmanager
def scratch_folder(parent: Path, prefix: str = _PREFIX) -> Iterator[Path]:
    """Make a folder below ``parent``; remove it at the end, in every case.

    Raises:
        OSError: it cannot be made.
    """
    parent.mkdir(parents=True, exist_ok=True)
    folder, handle = _make(parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _make(parent: Path, prefix: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        try:
            handle = _lock(folder, wait=True)
        except FileNotFoundError:
            # a cleaner came between: an unlocked folder looks like one that was left behind
            continue
        if folder.exists():
            return folder, handle
        os.close(handle)


def _lock(folder: Path, *, wait: bool) -> int:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(handle)
        raise
    return handle


def clean_scratch(
    parent: Path, prefix: str = _PREFIX, *, before: Callable[[Path], None] | None = None
) -> int:
    """Remove the folders that no living process holds; return how many there were.

    Args:
        parent: where they are.
        prefix: how their names begin.
        before: called with each folder that is about to be removed.
    """
    removed = 0
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            handle = _lock(folder, wait=False)
            try:
                if before is not None:
                    before(folder)
                shutil.rmtree(folder)
                removed += 1
            finally:
                os.close(handle)
    if removed:
        _log.info("removed %d scratch folders that were left behind", removed)
    return removed
