"""HTTP to a compile server, and its problems as typed errors."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

import urllib3

from .._version import __version__
from ..errors import ERROR_CLASSES, ArgumentError, QbCompilerError

__all__ = ["Server", "ServerError"]

_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h

_EXIT_CODES: Mapping[str, int] = {
    "UNAUTHENTICATED": 2,
    "FORBIDDEN": 2,
    "NOT_FOUND": 2,
    "CONFLICT": 2,
    "IDEMPOTENCY_MISMATCH": 2,
    "METHOD_NOT_ALLOWED": 2,
    "BAD_REQUEST": 2,
    "JOB_NOT_FINISHED": 2,
    "PAYLOAD_TOO_LARGE": 5,
    "QUOTA_EXCEEDED": 5,
    "JOB_TIMEOUT": 5,
    "DIGEST_MISMATCH": 3,
    "CANCELLED": 130,
    "INTERRUPTED": 130,
}

# connect, then silence while an answer comes
_TIMEOUT = urllib3.Timeout(connect=10.0, read=120.0)
_ATTEMPTS = 5
_MAX_ANSWER = 64 << 20


class ServerError(QbCompilerError):
    """The server refused, failed or cannot be reached.

    Attributes:
        code: the service's code, such as ``UNAUTHENTICATED``, or ``SERVER_UNAVAILABLE``.
        exit_code: 2 for a request that is wrong, 5 for a limit, 130 for a cancelled job, 69 for a
            server that cannot be reached or is at fault.
        status: the HTTP status, or None.
        retryable: whether the same request may succeed later.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        hint: str | None = None,
        status: int | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message, details=details, hint=hint)
        self.code = code  # type: ignore[misc]
        self.exit_code = _EXIT_CODES.get(code, _UNAVAILABLE)  # type: ignore[misc]
        self.status = status
        self.retryable = retryable


def error_of(
    code: str,
    message: str,
    details: Any,
    hint: Any,
    *,
    status: int | None = None,
    retryable: bool = False,
) -> QbCompilerError:
    """Return the error of a code: the compiler's own class where it is one of the compiler's."""
    known = ERROR_CLASSES.get(code)
    details = dict(details) if isinstance(details, Mapping) else {}
    hint = hint if isinstance(hint, str) else None
    # the server's own fault is not this program's
    if known is not None and code != "INTERNAL_ERROR":
        return known(message, details=details, hint=hint)
    return ServerError(
        code, message, details=details, hint=hint, status=status, retryable=retryable
    )


class Server:
    """A compile server.

    Args:
        url: such as ``https://compile.example.org``; a path in front of ``/v1`` is kept.
        token: bearer token, or None.

    Raises:
        ArgumentError: the URL is not one.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = _checked_url(url)
        self._headers = {"User-Agent": f"qbcompiler/{__version__}", "Accept": "application/json"}
        if token is not None:
            if not token.isascii() or not token.isprintable() or " " in token or not token:
                raise ArgumentError("the token has characters that no token has")
            self._headers["Authorization"] = f"Bearer {token}"
        self._pool = urllib3.PoolManager(timeout=_TIMEOUT, retries=False, maxsize=4)

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def get(self, path: str, **query: Any) -> Any:
        """Return a resource as JSON data; tried again while the server cannot be reached."""
        return self._repeated("GET", self._with_query(path, query))

    def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, key: str | None = None
    ) -> Any:
        """Post JSON and return the answer.

        Args:
            path: of the resource.
            body: JSON data.
            key: an Idempotency-Key; with one, a request that was lost is sent again.
        """
        headers = {"Content-Type": "application/json"}
        data = json.dumps({} if body is None else body).encode()
        if key is None:
            return _json(self.request("POST", path, body=data, headers=headers))
        return self._repeated("POST", path, body=data, headers={**headers, "Idempotency-Key": key})

    def send(
        self, method: str, path: str, body: Iterable[bytes], headers: Mapping[str, str]
    ) -> Any:
        """Send a body piece by piece and return the answer."""
        return _json(self.request(method, path, body=body, headers=headers))

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
        timeout: urllib3.Timeout | None = None,
        anonymous: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        """Return the response to one request.

        Redirects of GET are followed (downloads may come from object storage), the token is not
        sent to another host, and with ``anonymous`` to none.

        Raises:
            QbCompilerError: the server's problem, or that it cannot be reached.
        """
        url = path if path.startswith(("http://", "https://")) else self.url + path
        own = url.startswith(self.url + "/") and not anonymous
        sent = dict(self._headers) if own else {"User-Agent": self._headers["User-Agent"]}
        redirects = urllib3.Retry(
            total=None, connect=0, read=0, status=0, other=0, redirect=5 if method == "GET" else 0,
            raise_on_redirect=True,
        )  # fmt: skip
        try:
            response = self._pool.request(
                method,
                url,
                body=body,
                headers={**sent, **(headers or {})},
                preload_content=not stream,
                decode_content=not stream,
                retries=redirects,
                timeout=timeout or _TIMEOUT,
            )
        except urllib3.exceptions.HTTPError as exc:
            raise self._unreachable(exc) from exc
        if response.status >= 400:
            with contextlib.suppress(urllib3.exceptions.HTTPError, OSError):
                text = response.read(_MAX_ANSWER) if stream else response.data
                raise _problem(response.status, text, self.url)
            raise _problem(response.status, b"", self.url)
        return response

    @contextlib.contextmanager
    def streaming(self, path: str, **options: Any) -> Iterator[urllib3.BaseHTTPResponse]:
        """Give a response whose body is read as it comes."""
        response = self.request("GET", path, stream=True, **options)
        try:
            yield response
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            raise self._unreachable(exc) from exc
        finally:
            response.close()
            response.release_conn()

    def _repeated(self, method: str, path: str, **options: Any) -> Any:
        for attempt in range(_ATTEMPTS):
            try:
                return _json(self.request(method, path, **options))
            except ServerError as exc:
                if not exc.retryable or attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(min(8.0, 0.5 * 2**attempt))
        raise AssertionError  # the loop returns or raises

    def _with_query(self, path: str, query: Mapping[str, Any]) -> str:
        pairs = [(k, v) for k, v in query.items() if v is not None]
        return f"{path}?{urlencode(pairs, doseq=True)}" if pairs else path

    def _unreachable(self, exc: Exception) -> ServerError:
        reason = _reason(exc)
        return ServerError(
            "SERVER_UNAVAILABLE",
            f"the compile server {self.url} cannot be reached: {reason}",
            details={"server": self.url},
            hint="check --server (QB_SERVER) and that the server runs; --local compiles here",
            retryable=True,
        )


def path_of(*parts: str) -> str:
    """Return ``/v1/…`` with each part quoted."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _checked_url(url: str) -> str:
    text = url.strip()
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        valid = valid and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or re.search(r"[\x00-\x20\x7f]", text):
        raise ArgumentError(
            f"{url!r} is not the address of a server",
            hint="give --server http://HOST:PORT, or set QB_SERVER",
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ArgumentError(
            "the server's address must have no user, query or fragment",
            hint="a token goes into QB_TOKEN, or is kept by `qbcompiler login`",
        )
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def _json(response: urllib3.BaseHTTPResponse) -> Any:
    if response.status == 204:
        return None
    try:
        return json.loads(response.data)
    except (ValueError, RecursionError) as exc:
        raise ServerError(
            "SERVER_UNAVAILABLE",
            f"the answer of {response.url or 'the server'} is not JSON",
            hint="is this the address of a compile server?",
            status=response.status,
        ) from exc


def _problem(status: int, text: bytes, server: str) -> QbCompilerError:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or not isinstance(data.get("code"), str):
        return ServerError(
            "SERVER_UNAVAILABLE",
            f"{server} answered with status {status}",
            hint="is this the address of a compile server?",
            status=status,
            retryable=status in (502, 503, 504),
        )
    code = data["code"]
    details = data.get("details")
    return error_of(
        code,
        str(data.get("detail") or data.get("title") or code),
        {**(details if isinstance(details, dict) else {}), "request_id": data.get("request_id")},
        data.get("hint") or _hint(code),
        status=status,
        retryable=bool(data.get("retryable")),
    )


def _hint(code: str) -> str | None:
    if code == "UNAUTHENTICATED":
        return "set QB_TOKEN, or keep a token with `qbcompiler login --server URL`"
    return None


def _reason(exc: BaseException) -> str:
    """Return the innermost reason in a few words."""
    while isinstance(exc, urllib3.exceptions.MaxRetryError) and exc.reason is not None:
        exc = exc.reason
    if isinstance(exc, urllib3.exceptions.NameResolutionError):
        return "its name is not known"
    # a refused connection is a kind of ConnectTimeoutError in urllib3; the cause tells them apart
    cause = exc.__cause__ or exc.__context__
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    if isinstance(exc, urllib3.exceptions.ConnectTimeoutError):
        return "no answer to the connection"
    if isinstance(exc, urllib3.exceptions.ReadTimeoutError):
        return "it is silent"
    found = re.search(r"\[Errno -?\d+\] ([^'\")]+)", str(cause or exc))
    return found[1] if found else str(cause or exc)[:200]
