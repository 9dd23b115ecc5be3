"""Show a job of the server as a build of one's own."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import urllib3

from ..progress import PHASES, Level, Phase, Reporter
from .connection import Server, ServerError, error_of, path_of

__all__ = ["TERMINAL", "follow_job", "raise_if_failed"]

TERMINAL = frozenset({"succeeded", "failed", "cancelled", "timed_out"})

_LEVELS: tuple[Level, ...] = ("info", "warning", "error")
_QUIET = urllib3.Timeout(connect=10.0, read=90.0)
_PATIENCE = 300.0
"""Seconds that the server may be away while a job is followed."""
_MAX_EVENT = 4 << 20


def follow_job(server: Server, job_id: str, reporter: Reporter) -> dict[str, Any]:
    """Pass a job's phases, progress and log to the reporter until it has ended; return the job.

    A connection that breaks is made again, and goes on after the last event that was seen.

    Raises:
        ServerError: there is no such job, or the server is away for long.
    """
    show = _Show(reporter)
    away = 0.0
    with show:
        while True:
            try:
                _follow(server, job_id, show)
                job: dict[str, Any] = server.get(path_of("jobs", job_id))
                if job["state"] in TERMINAL:
                    return job
                away = 0.0
            except ServerError as exc:
                now = time.monotonic()
                if away == 0.0:
                    away = now
                    reporter.warning(f"{exc.message}; trying again")
                if not exc.retryable or now - away > _PATIENCE:
                    raise
                time.sleep(min(10.0, 0.5 + (now - away) / 4))


def raise_if_failed(job: dict[str, Any]) -> None:
    """Raise the error of a job that did not succeed.

    Raises:
        QbCompilerError: of the class of its code.
    """
    if job["state"] == "succeeded":
        return
    error = job.get("error") or {}
    code = str(error.get("code") or job["state"].upper())
    if job["state"] == "cancelled":
        raise ServerError("CANCELLED", f"job {job['id']} was cancelled")
    details = {**(error.get("details") or {}), "job": job["id"]}
    raise error_of(code, str(error.get("detail") or code), details, error.get("hint"))


def _follow(server: Server, job_id: str, show: _Show) -> None:
    headers = {"Accept": "text/event-stream"}
    if show.seen:
        headers["Last-Event-ID"] = str(show.seen)
    with server.streaming(
        path_of("jobs", job_id, "events"), headers=headers, timeout=_QUIET
    ) as response:
        if response.status == 204:
            return
        for number, name, data in _events(response):
            show.event(name, data)
            show.seen = number or show.seen
            if name == "state" and data.get("state") in TERMINAL:
                return


class _Show:
    """Gives events to a reporter; a phase ends where the next begins.

    Attributes:
        seen: number of the last event.
    """

    def __init__(self, reporter: Reporter) -> None:
        self.seen = 0
        self._reporter = reporter
        self._phase: Phase | None = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> _Show:
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def event(self, name: str, data: dict[str, Any]) -> None:
        """Show one event."""
        phase = data.get("phase")
        if name in ("phase", "progress") and phase in PHASES and phase != self._phase:
            self._enter(phase)
        if name == "progress" and self._phase is not None and data.get("total"):
            self._reporter.progress(self._phase, int(data["current"]), int(data["total"]))
        elif name == "state" and data.get("state") == "queued":
            # queued again: a worker was lost, and the next one begins anew
            self._leave()
        elif name == "log":
            for line in str(data.get("text", "")).splitlines():
                self._log(line)

    def _enter(self, phase: Phase) -> None:
        self._leave()
        self._open.enter_context(self._reporter.phase(phase))
        self._phase = phase

    def _leave(self) -> None:
        self._open.close()
        self._phase = None

    def _log(self, line: str) -> None:
        level, sign, text = line.partition(": ")
        for known in _LEVELS:
            if sign and level == known:
                return self._reporter.log(known, text)
        return self._reporter.info(line)


def _events(
    response: urllib3.BaseHTTPResponse,
) -> Iterator[tuple[int | None, str, dict[str, Any]]]:
    """Yield number, name and data of each server-sent event (HTML standard, 9.2.6)."""
    number: int | None = None
    name, data, pending = "message", "", b""
    for piece in response.stream(64 << 10):
        pending += piece
        if len(pending) > _MAX_EVENT:
            raise ServerError("SERVER_UNAVAILABLE", "the server sent an event without end")
        *lines, pending = pending.split(b"\n")
        for raw in lines:
            line = raw.decode("utf-8", "replace").rstrip("\r")
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "id" and value.isdecimal():
                number = int(value)
            elif field == "event":
                name = value
            elif field == "data":
                data += value
            elif not line:
                with contextlib.suppress(ValueError, RecursionError):
                    found = json.loads(data) if data else None
                    if isinstance(found, dict):
                        yield number, name, found
                name, data = "message", ""
