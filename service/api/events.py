"""A job's events and log, as they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ..db import JobView
from ..domain import TERMINAL, Event, EventType, FieldError, ServiceError, State
from .body import StrictRoute
from .context import Context, Ctx, Principal, Reader
from .fields import JobId
from .jobs import find_job
from .problems import problems
from .watch import Watch, Watcher

__all__ = ["router"]

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=StrictRoute)

_BATCH = 500
_LOOK_SECONDS = 30.0

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events, each with its number as `id`, until the job has ended.",
        "content": {
            "text/event-stream": {
                "schema": {"type": "string"},
                "example": "id: 3\nevent: state\n"
                'data: {"state": "running", "attempt": 1, "at": "2026-01-02T03:04:05Z"}\n\n',
            }
        },
    },
    204: {"description": "The job has ended and every event was seen: do not connect again."},
}


@router.get(
    "/{job_id}/events",
    response_class=StreamingResponse,
    response_model=None,
    responses={**_STREAM, **problems(404, 422)},
    summary="Follow a job",
    operation_id="job_events",
)
async def job_events(
    context: Ctx,
    principal: Reader,
    job_id: JobId,
    last_event_id: Annotated[
        str | None, Header(max_length=30, description="Number of the last event that was seen.")
    ] = None,
    after: Annotated[
        int, Query(ge=0, le=2**62, description="The same, for clients without the header.")
    ] = 0,
) -> Response:
    """Server-sent events: `state`, `phase`, `progress` and `log`.

    Numbers rise; a client that lost its connection goes on from `Last-Event-ID`. The stream ends
    with the job.
    """
    seen = _number(last_event_id) if last_event_id else after
    view = await run_in_threadpool(find_job, context, principal, job_id)
    if view.job.event_end is not None and seen >= view.job.event_end:
        return Response(status_code=204)
    # refused here, while there still is a status to refuse with
    watch = context.watcher.open(view.build.id)
    return _Stream(_events(context, principal, view, watch, seen), context.watcher, watch)


class _Stream(StreamingResponse):
    """An event stream that frees its place in every case, begun or not."""

    def __init__(self, content: AsyncIterator[bytes], watcher: Watcher, watch: Watch) -> None:
        super().__init__(
            content,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        self._watcher = watcher
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._watcher.close(self._watch)


def _number(given: str) -> int:
    if not (given.isascii() and given.isdecimal()) or int(given) > 2**62:
        raise ServiceError(
            "ARGUMENT_ERROR",
            "parameter Last-Event-ID: not a number that this server gave",
            errors=[FieldError(None, "must be a number", parameter="Last-Event-ID")],
        )
    return int(given)


async def _events(
    context: Context, principal: Principal, view: JobView, watch: Watch, seen: int
) -> AsyncIterator[bytes]:
    job = view.job
    seen = max(seen, job.event_floor)
    # the first bytes tell proxies and clients that the stream is open
    yield b"retry: 2000\n\n"
    while True:
        # taken before the look: what comes during it wakes the wait below
        number = watch.number
        found = watch.feed.after(seen)
        whole = found is not None
        if found is None:
            # the job first, its events second: an end that is seen has all its events behind it
            job = (await run_in_threadpool(find_job, context, principal, job.id)).job
            found = await run_in_threadpool(context.jobs.events, job, seen, limit=_BATCH)
            whole = len(found) < _BATCH
        for event in found:
            seen = event.seq
            if event.job_id not in (None, job.id):
                continue
            yield _frame(event)
            if event.type is EventType.STATE and State(event.data["state"]) in TERMINAL:
                # the build's end, or this job's own
                return
        if not whole:
            continue
        if job.is_terminal:
            return
        quiet = context.settings.sse_keepalive_seconds
        while not await watch.changed(number, quiet):
            yield b": keep-alive\n\n"


def _frame(event: Event) -> bytes:
    data = {**event.data, "at": event.at.isoformat().replace("+00:00", "Z")}
    if event.type is EventType.LOG:
        data["attempt"] = event.attempt
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"id: {event.seq}\nevent: {event.type.value}\ndata: {text}\n\n".encode()


@router.get(
    "/{job_id}/log",
    response_class=StreamingResponse,
    response_model=None,
    responses={
        200: {
            "description": "The log so far.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **problems(404, 422),
    },
    summary="Show a job's log",
    operation_id="job_log",
)
async def job_log(
    context: Ctx,
    principal: Reader,
    job_id: JobId,
    follow: Annotated[
        bool, Query(description="Go on until the job has ended, as `tail -f` does.")
    ] = False,
) -> Response:
    """The whole log as plain text, also while the job runs.

    A job that shares a build, or was answered from one, shows that build's log.
    """
    view = await run_in_threadpool(find_job, context, principal, job_id)
    follows = follow and not view.job.is_terminal
    return StreamingResponse(
        _follow(context, principal, view) if follows else _LogReader(context, view.build.id).text(),
        media_type="text/plain; charset=utf-8",
        headers={"X-Accel-Buffering": "no"},
    )


class _LogReader:
    """Reads a build's log from where it was last, with a line between attempts."""

    def __init__(self, context: Context, build_id: str) -> None:
        self._context = context
        self._build_id = build_id
        self._seen = 0
        self._attempt = 0

    async def text(self) -> AsyncIterator[bytes]:
        """Yield what is new."""
        read = self._context.jobs.log_chunks
        while found := await run_in_threadpool(read, self._build_id, self._seen):
            for event in found:
                self._seen = event.seq
                text = str(event.data.get("text", ""))
                if self._attempt and event.attempt != self._attempt:
                    text = f"--- attempt {event.attempt} ---\n{text}"
                self._attempt = event.attempt
                yield text.encode()


async def _follow(context: Context, principal: Principal, view: JobView) -> AsyncIterator[bytes]:
    log = _LogReader(context, view.build.id)
    with context.watcher.watch(view.build.id) as watch:
        while True:
            number = watch.number
            ended = (await run_in_threadpool(find_job, context, principal, view.job.id)).job
            async for text in log.text():
                yield text
            if ended.is_terminal:
                return
            await watch.changed(number, _LOOK_SECONDS)
            # many small events make one look
            await asyncio.sleep(0.05)
