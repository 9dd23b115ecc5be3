"""``qbserver doctor``: what is missing, and how to mend it."""

from __future__ import annotations

import platform
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from service.broker import CelerySender
from service.db import Database, current_revision, head_revision, read_gauges
from service.logs import redact
from service.settings import BUILTIN_ENGINE, Mode, Settings
from service.storage import open_store

from .engine import check_sandbox, probe_version

__all__ = ["Finding", "examine"]

_LOW_DISK = 2 << 30
_MOST_SKEW = 30.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing."""

    name: str
    ok: bool
    text: str
    mend: str = ""


def examine(settings: Settings) -> list[Finding]:
    """Check everything that a server or a worker with these settings needs."""
    checks: list[tuple[str, Callable[[], str], str]] = [
        ("python", _python, "use Python 3.11, 3.12 or 3.13"),
        (
            "settings",
            lambda: _settings(settings),
            "set what is named; `python -m service.settings --markdown` lists all settings",
        ),
        (
            "data folder",
            lambda: _folder(settings),
            "set QB_DATA_DIR to a folder that this user may write, with space",
        ),
        (
            "database",
            lambda: _database(settings),
            "check QB_DATABASE_URL; run `qbserver migrate`",
        ),
        (
            "broker",
            lambda: _broker(settings),
            "embedded: it runs while `qbserver serve` does; team: check QB_BROKER_URL",
        ),
        ("storage", lambda: _storage(settings), "check the QB_S3_* settings and the bucket"),
    ]
    checks.append(
        (
            "sandbox",
            lambda: check_sandbox(settings),
            "run workers on Linux 5.13 or later with Landlock and seccomp, or set QB_SANDBOX=auto",
        )
    )
    checks += [
        (
            f"engine {name}",
            lambda name=name: _engine(settings, name),  # type: ignore[misc]
            "check the engine's command in QB_ENGINES",
        )
        for name in (BUILTIN_ENGINE, *sorted(settings.engines))
    ]
    checks.append(("queue", lambda: _queue(settings), "start `qbserver worker` for that queue"))
    if settings.otlp_endpoint is not None:
        checks.append(
            (
                "traces",
                lambda: _collector(str(settings.otlp_endpoint)),
                "check QB_OTLP_ENDPOINT; builds run without it, their traces are lost",
            )
        )
    findings = []
    for name, check, mend in checks:
        try:
            findings.append(Finding(name, True, check()))
        except Exception as exc:
            # drivers like to repeat the URL that they were given
            text = redact(str(exc)).strip().splitlines()
            findings.append(Finding(name, False, text[0] if text else type(exc).__name__, mend))
    return findings


def _python() -> str:
    version = sys.version_info[:2]
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if not (3, 11) <= version < (3, 14):
        raise RuntimeError(f"{text} is not supported")
    return text


def _settings(settings: Settings) -> str:
    settings.check_bind()
    settings.check_team()
    return f"{settings.mode.value} mode"


def _folder(settings: Settings) -> str:
    folder = settings.data_dir
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / ".doctor"
    probe.write_bytes(b"x")
    probe.unlink()
    free = shutil.disk_usage(folder).free
    if free < _LOW_DISK:
        raise RuntimeError(f"{folder}: only {free >> 20} MiB are free")
    return f"{folder}, {free >> 30} GiB free"


def _database(settings: Settings) -> str:
    db = Database(settings.effective_database_url)
    try:
        db.check()
        have, newest = current_revision(db), head_revision()
        with db.read() as session:
            ahead = (datetime.now(UTC) - db.now(session)).total_seconds()
    finally:
        db.close()
    if abs(ahead) > _MOST_SKEW:
        raise RuntimeError(
            f"this host's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the"
            " database's: set both by NTP"
        )
    if have != newest:
        # the embedded server migrates when it starts
        if have is None and settings.mode is Mode.EMBEDDED:
            return "empty; `qbserver serve` sets it up"
        raise RuntimeError(f"the schema is at {have or 'nothing'}, this program needs {newest}")
    return f"reached, schema {have}"


def _queue(settings: Settings) -> str:
    """Say how the queues are; builds that wait long while none of their queue runs are a fault."""
    db = Database(settings.effective_database_url)
    try:
        if current_revision(db) != head_revision():
            return "not looked at: the database is not set up"
        now = read_gauges(db)
    finally:
        db.close()
    patience = 2 * (settings.resend_seconds + settings.reconcile_seconds)
    for queue, seconds in sorted(now.oldest_s.items()):
        if seconds > patience and queue not in now.running:
            raise RuntimeError(
                f"{now.queued[queue]} builds wait in {queue}, one for {seconds:.0f} s; none runs"
            )
    return f"{sum(now.queued.values())} builds wait, {sum(now.running.values())} run"


def _collector(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with socket.create_connection((parts.hostname or "", port), timeout=3):
        return f"{parts.hostname}:{port} reached"


def _broker(settings: Settings) -> str:
    sender = CelerySender(settings)
    try:
        sender.check()
    finally:
        sender.close()
    return "reached"


def _storage(settings: Settings) -> str:
    open_store(settings).check()
    return "bucket " + settings.s3_bucket if settings.s3_bucket else f"{settings.objects_dir}"


def _engine(settings: Settings, name: str) -> str:
    lines = probe_version(settings, name).splitlines()
    return lines[0] if lines else "runs"
