"""A thread that clears away uploads whose time is over."""

from __future__ import annotations

import logging
import threading

from ..db import UploadStore
from ..storage import Staging

__all__ = ["UploadSweep"]

_log = logging.getLogger(__name__)

_EVERY_SECONDS = 60.0


class UploadSweep:
    """Removes parts and records of expired uploads now and then. Several may run side by side."""

    def __init__(self, uploads: UploadStore, staging: Staging) -> None:
        self._uploads = uploads
        self._staging = staging
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uploads", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def run_once(self) -> int:
        """Clear some away; return how many."""
        done = 0
        for upload in self._uploads.expired():
            if self._stopped.is_set():
                break
            try:
                # the record last: without it nobody would find the parts
                self._staging.discard(upload)
                self._uploads.forget(upload.id)
                done += 1
            except Exception as exc:
                _log.warning("cannot clear upload %s away: %s", upload.id, exc)
        return done

    def _run(self) -> None:
        while not self._stopped.wait(_EVERY_SECONDS):
            try:
                while self.run_once():
                    pass
            except Exception as exc:
                _log.warning("cannot look for uploads to clear away: %s", exc)
