"""Log lines of the server's processes: plain for people, JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

__all__ = ["set_up_logging"]


class _Json(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key in ("request_id", "job_id", "build_id"):
            if hasattr(record, key):
                entry[key] = getattr(record, key)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def set_up_logging(process: str, *, level: str, as_json: bool) -> None:
    """Send all log lines of this process to standard error, marked with its name."""
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(_Json(process))
    else:
        handler.setFormatter(
            logging.Formatter(f"%(asctime)s {process} %(levelname)s %(message)s", "%H:%M:%S")
        )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("kombu", "amqp", "botocore", "boto3", "urllib3", "alembic", "s3transfer"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    for chatty in ("celery.worker.strategy", "celery.app.trace", "celery.redirected"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
