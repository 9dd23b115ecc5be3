"""Around every request: an id, a log line, metrics, and the last line of defence."""

from __future__ import annotations

import ipaddress
import logging
import re
import time
from collections.abc import Iterable
from contextvars import ContextVar
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..domain import IdKind, ServiceError, new_id
from .context import Context
from .problems import problem_response

__all__ = ["RequestMiddleware", "request_id_of_log"]

_log = logging.getLogger("service.http")
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_CLIENT_LEFT = 499
"""What the log and the metrics show for a client that went away; nginx's number for it."""
_PROBES = frozenset({"/healthz", "/readyz", "/metrics"})

request_id_of_log: ContextVar[str] = ContextVar("request_id", default="")


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
        token = request_id_of_log.set(request_id)
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
            request_id_of_log.reset(token)
            seconds = time.perf_counter() - started
            route = getattr(scope.get("route"), "path", "unknown")
            if context is not None and scope["path"] not in _PROBES:
                context.metrics.requests.labels(
                    route, scope["method"] if scope["method"] in _METHODS else "other", str(status)
                ).observe(seconds)
            level = logging.DEBUG if scope["path"] in _PROBES else logging.INFO
            # the path without its query: a link's signature must not be in a log
            _log.log(
                level,
                "%s %s %d %.1f ms",
                scope["method"],
                scope["path"].encode("unicode_escape").decode()[:500],
                status,
                seconds * 1000,
                extra={"request_id": request_id, "status": status},
            )


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
