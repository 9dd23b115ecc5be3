"""What an engine says, on its way to the database."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from sqlalchemy.exc import DBAPIError

from service.db import DATABASE_ERRORS, BuildStore
from service.domain import Claim, LeaseLost, Phase

from .metrics import Observed

__all__ = ["Reporter"]

_log = logging.getLogger(__name__)

_PROGRESS_EVERY = 0.25
_LOG_EVERY = 0.3
_LOG_BATCH = 64 << 10


class Reporter:
    """Sends progress and log lines on, a few times a second; keeps the log as a file too."""

    def __init__(
        self, builds: BuildStore, claim: Claim, path: Path, limit: int, observed: Observed
    ) -> None:
        self._builds = builds
        self._claim = claim
        self._observed = observed
        self._path = path
        self._limit = limit
        self._file: BinaryIO | None = path.open("wb", buffering=0)
        self._written = 0
        self._lines: list[str] = []
        self._bytes = 0
        self._next_log = 0.0
        self._next_progress = 0.0
        self._phase: Phase | None = None
        self._pending: tuple[Phase, int | None, int | None, str | None] | None = None
        self.lost = False

    def progress(
        self, phase: Phase, current: int | None, total: int | None, message: str | None
    ) -> None:
        """The engine is at this point."""
        now = time.monotonic()
        self._observed.phase(phase)
        if phase is self._phase and current is None:
            return
        self._pending = (phase, current, total, message)
        if phase is not self._phase or now >= self._next_progress:
            self._send_progress(now)

    def log(self, line: str) -> None:
        """Take a line for the log, without line end."""
        data = line.encode("utf-8", "replace") + b"\n"
        if self._written >= self._limit:
            return
        self._written += len(data)
        self._keep(data)
        self._lines.append(line)
        self._bytes += len(data)
        if self._bytes >= _LOG_BATCH:
            self._send_log(time.monotonic())

    def _keep(self, data: bytes) -> None:
        """Write to the file; a full disk costs only the file: the database has the text."""
        if self._file is None:
            return
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) or 0 :]
        except OSError as exc:
            _log.warning("build %s: no log file: %s", self._claim.build.id, exc.strerror)
            self.close()

    def close(self) -> None:
        """Close the file; what it holds is no longer of use."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def tick(self) -> None:
        """Send what is due."""
        now = time.monotonic()
        if self._lines and now >= self._next_log:
            self._send_log(now)
        if self._pending is not None and now >= self._next_progress:
            self._send_progress(now)

    def flush(self) -> None:
        """Send what waits."""
        now = time.monotonic()
        if self._lines:
            self._send_log(now)
        if self._pending is not None:
            self._send_progress(now)

    def finish(self) -> tuple[Path, str, int] | None:
        """Close the log file; return its path, SHA-256 and size, None when it has nothing."""
        if self._file is None or not self._written:
            return None
        self.close()
        with self._path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return self._path, digest, self._path.stat().st_size

    def _send_log(self, now: float) -> None:
        text = "\n".join(self._lines) + "\n"
        self._lines, self._bytes = [], 0
        self._next_log = now + _LOG_EVERY
        self._send(lambda: self._builds.append_log(self._claim, text))

    def _send_progress(self, now: float) -> None:
        assert self._pending is not None
        phase, current, total, message = self._pending
        self._pending, self._phase = None, phase
        self._next_progress = now + _PROGRESS_EVERY
        self._send(
            lambda: self._builds.progress(
                self._claim, phase=phase, current=current, total=total, message=message
            )
        )

    def _send(self, write: Callable[[], None]) -> None:
        """Write; a lost lease shows at the end, and a database away for a moment costs a line."""
        if self.lost:
            return
        try:
            write()
        except LeaseLost:
            self.lost = True
        except (DBAPIError, *DATABASE_ERRORS) as exc:
            _log.warning("build %s: progress not written: %s", self._claim.build.id, exc)
