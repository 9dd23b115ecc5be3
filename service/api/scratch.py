"""A request's scratch folder, made and removed off the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from starlette.concurrency import run_in_threadpool

from ..storage import scratch_folder
from ..storage.spool import write_error
from .context import Context

__all__ = ["request_scratch"]


@asynccontextmanager
async def request_scratch(context: Context, what: str) -> AsyncIterator[Path]:
    """Make a folder for this request; remove it at the end, also when the client goes away.

    Raises:
        ServiceError: ``OUTPUT_WRITE_ERROR``: it cannot be made.
    """
    scratch = scratch_folder(context.settings.scratch_dir)
    try:
        folder = await run_in_threadpool(scratch.__enter__)
    except OSError as exc:
        raise write_error(exc, what) from exc
    try:
        yield folder
    finally:
        with anyio.CancelScope(shield=True):
            await run_in_threadpool(scratch.__exit__, None, None, None)
