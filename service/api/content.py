"""Serving a stored file: ranges, validators, digests, file names."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from fastapi import Request, Response
from starlette.responses import RedirectResponse, StreamingResponse

from ..domain import Artifact, ServiceError
from ..storage import ObjectMissing
from .context import Context

__all__ = ["content_disposition", "parse_range", "serve_artifact"]

_SPAN = re.compile(r"(\d{1,19})?-(\d{1,19})?\Z")


@dataclass(frozen=True, slots=True)
class Span:
    """A range of bytes, the end not included."""

    start: int
    stop: int


class RangeNotSatisfiable(ValueError):  # noqa: N818 (HTTP's name for it)
    """The range lies behind the end."""


def parse_range(header: str | None, size: int) -> Span | None:
    """Return the range that a ``Range`` header asks for; None for the whole.

    What is not understood, and several ranges at once, are answered with the whole, as RFC 9110
    (14.2) allows.

    Raises:
        RangeNotSatisfiable: it begins behind the end.
    """
    if header is None:
        return None
    unit, sign, text = header.partition("=")
    if not sign or unit.strip().lower() != "bytes" or "," in text:
        return None
    match = _SPAN.match(text.strip())
    if match is None or match.groups() == (None, None):
        return None
    first, last = match.groups()
    if first is None:
        count = int(last)
        if count == 0 or size == 0:
            raise RangeNotSatisfiable
        return Span(max(0, size - count), size)
    start = int(first)
    stop = size if last is None else min(int(last) + 1, size)
    if last is not None and int(last) < start:
        return None
    if start >= size:
        raise RangeNotSatisfiable
    return Span(start, stop)


def content_disposition(name: str) -> str:
    """Return ``attachment`` with the file's name (RFC 6266): plain, and in UTF-8 where needed."""
    plain = "".join(c if " " <= c <= "~" and c not in '"\\%' else "_" for c in name)
    value = f'attachment; filename="{plain}"'
    if plain != name:
        value += f"; filename*=UTF-8''{quote(name, safe='')}"
    return value


def serve_artifact(
    request: Request, context: Context, artifact: Artifact, *, private: bool
) -> Response:
    """Return the response with an artifact's bytes, or where they are.

    Args:
        request: GET or HEAD.
        context: the application's parts.
        artifact: what to serve.
        private: whether a cache that others share may keep it.

    Raises:
        ServiceError: ``PRECONDITION_FAILED``, ``RANGE_NOT_SATISFIABLE``.
    """
    etag = f'"{artifact.sha256}"'
    digest = base64.b64encode(bytes.fromhex(artifact.sha256)).decode()
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": f"{'private' if private else 'public'}, max-age=31536000, immutable",
        "Content-Disposition": content_disposition(artifact.name),
        "Repr-Digest": f"sha-256=:{digest}:",
        "Last-Modified": artifact.created_at.strftime("%a, %d %b %Y %H:%M:%S GMT"),
    }
    if_match = request.headers.get("if-match")
    if if_match is not None and not _matches(if_match, etag, weak=False):
        raise ServiceError("PRECONDITION_FAILED", "the file is not the one that If-Match names")
    none_match = request.headers.get("if-none-match")
    if none_match is not None and _matches(none_match, etag, weak=True):
        return Response(status_code=304, headers=headers)
    url = context.store.presign(
        artifact.sha256,
        disposition=headers["Content-Disposition"],
        media_type=artifact.media_type,
        expires_s=context.settings.s3_presign_seconds,
    )
    head = request.method == "HEAD"
    if url is not None and not head:
        # the URL expires, so the redirect must not be kept
        return RedirectResponse(
            url, 307, headers={**headers, "Cache-Control": "no-store", "Content-Length": "0"}
        )
    span = _span(request, artifact, etag, headers["Last-Modified"])
    if span is not None:
        headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{artifact.size}"
    start, stop = (0, artifact.size) if span is None else (span.start, span.stop)
    headers["Content-Length"] = str(stop - start)
    status = 200 if span is None else 206
    if head:
        if context.store.size(artifact.sha256) is None:
            raise ObjectMissing(artifact.sha256)
        return Response(status_code=status, headers=headers, media_type=artifact.media_type)
    chunks: Iterator[bytes] = context.store.read(artifact.sha256, start, stop)
    return StreamingResponse(
        chunks, status_code=status, headers=headers, media_type=artifact.media_type
    )


def _span(request: Request, artifact: Artifact, etag: str, modified: str) -> Span | None:
    if_range = request.headers.get("if-range")
    if if_range is not None and if_range.strip() not in (etag, modified):
        return None
    try:
        return parse_range(request.headers.get("range"), artifact.size)
    except RangeNotSatisfiable:
        raise ServiceError(
            "RANGE_NOT_SATISFIABLE",
            f"the range lies behind the end; the file has {artifact.size} bytes",
            details={"size": artifact.size},
        ) from None


def _matches(header: str, etag: str, *, weak: bool) -> bool:
    """Say whether a list of validators has ours; W/ counts only in weak comparison."""
    if header.strip() == "*":
        return True
    for item in header.split(","):
        tag = item.strip()
        if weak:
            tag = tag.removeprefix("W/")
        if tag == etag:
            return True
    return False
