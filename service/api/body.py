"""JSON bodies, read strictly: bounded in size and depth, no key twice, no NaN, plain text only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from ..domain import ServiceError
from .problems import BadBody

__all__ = ["StrictRoute", "check_length", "parse_json"]

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


class StrictRequest(Request):
    """A request whose JSON is read strictly."""

    async def body(self) -> bytes:
        """Return the body, refusing one that is too large before it is all here."""
        if not hasattr(self, "_body"):
            limit = self.app.state.qb.settings.max_json_bytes
            try:
                check_length(self, limit, "the JSON body")
            except ServiceError as exc:
                raise BadBody(exc) from exc
            data = bytearray()
            async for chunk in self.stream():
                data += chunk
                if len(data) > limit:
                    raise BadBody(_too_large(limit, "the JSON body"))
            self._body = bytes(data)
        return self._body

    async def json(self) -> Any:
        """Return the parsed body."""
        try:
            return parse_json(await self.body(), self.app.state.qb.settings.max_json_depth)
        except ServiceError as exc:
            raise BadBody(exc) from exc


class StrictRoute(APIRoute):
    """A route whose JSON body is read strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(StrictRequest(request.scope, request.receive))

        return strict


def parse_json(data: bytes, max_depth: int) -> Any:
    """Parse JSON.

    Raises:
        json.JSONDecodeError: it is not JSON.
        ServiceError: it is nested too deeply, says a key twice, or holds a number or text that
            JSON does not have.
    """
    depth = 0
    for match in _TOKENS.finditer(data):
        first = match.group()[0]
        if first in b"[{":
            depth += 1
            if depth > max_depth:
                raise ServiceError(
                    "BAD_REQUEST", f"the JSON body is nested deeper than {max_depth} levels"
                )
        elif first in b"]}":
            depth -= 1
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise ServiceError("BAD_REQUEST", "the JSON body is not UTF-8") from None
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError:
        raise
    except ValueError as exc:
        # Python's bound on the digits of a number
        raise ServiceError("BAD_REQUEST", f"the JSON body has a number too long: {exc}") from None
    _check_text(found)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ServiceError("BAD_REQUEST", f"the JSON body has the key {key[:100]!r} twice")
            seen.add(key)
    return found


def _no_constant(name: str) -> Any:
    raise ServiceError("BAD_REQUEST", f"{name} is not JSON", hint="use a number, or null")


def _check_text(value: Any) -> None:
    """Refuse what a database cannot hold: lone surrogates and NUL."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if "\0" in item:
                raise ServiceError("BAD_REQUEST", "a text in the JSON body has a NUL character")
            if any("\ud800" <= c <= "\udfff" for c in item):
                raise ServiceError("BAD_REQUEST", "a text in the JSON body is not Unicode")
        elif isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def check_length(request: Request, limit: int, what: str) -> None:
    """Refuse a body by the length that it announces, before any of it is read.

    A client that sent ``Expect: 100-continue`` has not sent a byte then.

    Raises:
        ServiceError: ``PAYLOAD_TOO_LARGE``.
    """
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdecimal() and int(announced[:20]) > limit:
        raise _too_large(limit, what)


def _too_large(limit: int, what: str) -> ServiceError:
    return ServiceError(
        "PAYLOAD_TOO_LARGE",
        f"{what} is larger than {limit} bytes",
        hint="GET /v1/limits lists every bound",
        details={"limit": limit},
    )
