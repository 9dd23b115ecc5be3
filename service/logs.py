"""Log lines of the server's processes: plain for people, JSON for machines, secrets for nobody.

A line carries the ids of what it is about (request, job, build, attempt) wherever the code that
writes it runs: :func:`log_ids` binds them for a block, and threads that copy the context of their
parent take them along.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

from . import tracing
from .settings import Settings

__all__ = ["add_log_ids", "log_ids", "redact", "set_up_logging"]

_IDS = ("request_id", "job_id", "build_id", "attempt", "token_id", "project", "status", "route")
_bound: ContextVar[Mapping[str, object]] = ContextVar("log_ids", default={})  # noqa: B039 (read only)

# each with what stays of it as its first group
_SECRETS = (
    re.compile(r"(://[^:/@\s'\"]*:)[^@/\s'\"]+(?=@)"),
    re.compile(r"((?i:bearer|basic) )[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"((?i:[?&;](?:signature|x-amz-[a-z-]+|token|key)=))[^&\s\"']+"),
    re.compile(r"((?i:(?:password|secret|passwd)[\"']?\s*[=:]\s*[\"']?))[^\s,;\"'}]+"),
    re.compile(r"(\b(?:qb|whsec)_)[A-Za-z0-9_+/=-]{16,}"),
)
_HIDDEN = r"\1***"


@contextmanager
def log_ids(**ids: object) -> Iterator[None]:
    """Put ids on every line that the block logs; inner ones add to outer ones."""
    token = _bound.set({**_bound.get(), **ids})
    try:
        yield
    finally:
        _bound.reset(token)


def add_log_ids(**ids: object) -> None:
    """Put ids on every line from here to the end of the block of :func:`log_ids`."""
    _bound.set({**_bound.get(), **ids})


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return the text without passwords, tokens, signatures and the secrets that are known."""
    for secret in known:
        text = text.replace(secret, "***")
    for pattern in _SECRETS:
        text = pattern.sub(_HIDDEN, text)
    return text


class _Plain(logging.Formatter):
    def __init__(self, process: str, secrets: Iterable[str]) -> None:
        super().__init__(f"%(asctime)s {process} %(levelname)s %(message)s", "%H:%M:%S")
        self._secrets = tuple(secrets)

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record), self._secrets)


class _Json(logging.Formatter):
    def __init__(self, process: str, secrets: Iterable[str]) -> None:
        super().__init__()
        self._process = process
        self._secrets = tuple(secrets)

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": redact(record.getMessage(), self._secrets),
        }
        bound = _bound.get()
        for key in _IDS:
            value = getattr(record, key, None) or bound.get(key)
            if value is not None:
                entry[key] = value
        for key in ("method", "path", "duration_ms"):
            if hasattr(record, key):
                entry[key] = getattr(record, key)
        entry.update(tracing.current_ids())
        if record.exc_info:
            entry["exception"] = redact(self.formatException(record.exc_info), self._secrets)
        return json.dumps(entry, ensure_ascii=False, default=str)


def set_up_logging(process: str, settings: Settings, stream: TextIO | None = None) -> None:
    """Send all log lines of this process to standard error, or a stream, marked with its name."""
    secrets = [
        value.get_secret_value()
        for value in (
            settings.signing_secret,
            settings.s3_access_key_id,
            settings.s3_secret_access_key,
        )
        # a short one would take innocent words along
        if value is not None and len(value.get_secret_value()) >= 8
    ]
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter((_Json if settings.log_json else _Plain)(process, secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for noisy in ("kombu", "amqp", "botocore", "boto3", "urllib3", "alembic", "s3transfer"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    for chatty in ("celery.worker.strategy", "celery.app.trace", "celery.redirected"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
