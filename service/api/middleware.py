"""Around every request: an id, a log line, metrics, and the last line of defence."""

from __future__ import annotations

import ipaddress
import logging
import re
import time
from collections.abc import Iterable
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import tracing
from ..domain import IdKind, ServiceError, new_id
from ..logs import log_ids
from .context import Context
from .problems import problem_response

__all__ = ["RequestMiddleware"]

_log = logging.getLogger("service.http")
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_CLIENT_LEFT = 499
"""What the log and the metrics show for a client that went away; nginx's number for it."""
_PROBES = frozenset({"/healthz", "/readyz", "/metrics"})


class RequestMiddleware:
    """The outermost part of the application.

    A request's id is the caller's ``X-Request-Id`` where that is one, else a new one; it is in
    the answer, in every problem document and in the log. An error that nothing caught becomes a
    problem document without a word about its cause, which goes to the log.

    Without tokens the server trusts whoever reaches its loopback address. A web page in the
    user's browser must not be among them: names that resolve to loopback and requests from
    other sites are refused.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _ID.match(given) else new_id(IdKind.REQUEST)
        scope.setdefault("state", {})["request_id"] = request_id
        if scope["path"] in _PROBES:
            await self._handle(scope, receive, send, headers, request_id, tracing.Span())
            return
        with (
            log_ids(request_id=request_id),
            tracing.span(
                "HTTP",
                kind="server",
                parent=headers.get("traceparent"),
                http__request__method=_method(scope),
                qb__request_id=request_id,
            ) as span,
        ):
            await self._handle(scope, receive, send, headers, request_id, span)

    async def _handle(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: Headers,
        request_id: str,
        span: tracing.Span,
    ) -> None:
        started = time.perf_counter()
        status = 0

        async def respond(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                found = MutableHeaders(scope=message)
                found["X-Request-Id"] = request_id
                found.setdefault("X-Content-Type-Options", "nosniff")
                found.setdefault("Cache-Control", "no-store")
            await send(message)

        context: Context | None = getattr(scope["app"].state, "qb", None)
        try:
            refusal = None if context is None else _stranger(scope, headers, context)
            if refusal is not None:
                await problem_response(request_id, refusal)(scope, receive, respond)
            else:
                await self._app(scope, receive, respond)
        except ClientDisconnect:
            # nobody is there to be answered
            status = _CLIENT_LEFT
        except Exception:
            _log.exception("unexpected error, request %s", request_id)
            if status:
                # the answer has begun: breaking it off is the only way to say that it is wrong
                raise
            error = ServiceError(
                "INTERNAL_ERROR",
                "the server made a mistake",
                hint=f"tell its operator the request id {request_id}",
            )
            await problem_response(request_id, error)(scope, receive, respond)
        finally:
            _account(scope, context, span, request_id, status, time.perf_counter() - started)


def _account(
    scope: Scope,
    context: Context | None,
    span: tracing.Span,
    request_id: str,
    status: int,
    seconds: float,
) -> None:
    """Count, trace and log a request that has been answered."""
    probe = scope["path"] in _PROBES
    route = getattr(scope.get("route"), "path", "unknown")
    method = _method(scope)
    if context is not None and not probe:
        context.metrics.requests.labels(route, method, str(status)).observe(seconds)
    span.rename(f"{method} {route}")
    span.set(http__route=route, http__response__status_code=status)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        span.fail(str(status))
    # the path without its query: a link's signature must not be in a log
    path = scope["path"].encode("unicode_escape").decode()[:500]
    _log.log(
        logging.DEBUG if probe else logging.INFO,
        "%s %s %d %.1f ms",
        scope["method"],
        path,
        status,
        seconds * 1000,
        extra={
            "request_id": request_id,
            "status": status,
            "method": scope["method"],
            "path": path,
            "route": route,
            "duration_ms": round(seconds * 1000, 1),
        },
    )


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in _METHODS else "other"


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


def _stranger(scope: Scope, headers: Headers, context: Context) -> ServiceError | None:
    settings = context.settings
    if settings.tokens_required:
        return None
    host = _hostname(headers.get("host", ""))
    own = set(_names(settings.public_url))
    if not (host in own or host == "localhost" or _is_address(host)):
        return ServiceError(
            "FORBIDDEN",
            "the Host header is not this server's",
            hint="call it by its address, or set QB_PUBLIC_URL to the name it is reached by",
        )
    if scope["method"] in _SAFE:
        return None
    origin = headers.get("origin")
    same = origin is None or _hostname(urlsplit(origin).netloc) in {host, *own}
    if not same or headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        return ServiceError(
            "FORBIDDEN", "requests from other web sites are refused", hint="use a token server"
        )
    return None


def _names(url: str | None) -> Iterable[str]:
    return () if url is None else (_hostname(urlsplit(url).netloc),)


def _hostname(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
