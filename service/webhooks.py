"""Sending webhooks: one POST to an address that was checked, within one deadline."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult

from .domain import Network, WebhookUrlError, address_refused, check_webhook_url

__all__ = ["Answer", "Resolver", "post", "system_resolver"]

Resolver = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host, in the order in which to try them; raises OSError."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a try. ``status`` is None when there was no answer; ``error`` says why then."""

    status: int | None
    error: str | None
    seconds: float
    retry_after_s: int | None = None

    @property
    def delivered(self) -> bool:
        """Whether the receiver took it: any 2xx."""
        return self.status is not None and 200 <= self.status < 300


def system_resolver(host: str, port: int) -> Sequence[str]:
    """Ask the system for a host's addresses."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(item[4][0]) for item in found))


def post(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    allowed: Sequence[Network],
    seconds: float,
    resolve: Resolver = system_resolver,
) -> Answer:
    """Send a body to a URL.

    The host is resolved once; each address is checked, and the connection goes to an address that
    passed, so that a name that changes its answer in between gains nothing. Redirects are not
    followed and proxies of the environment are not used. The receiver's body is not read.

    Args:
        url: where to.
        headers: besides ``Host``, ``Content-Type`` and ``Content-Length``.
        body: JSON.
        allowed: networks that are taken although they are not public.
        seconds: for everything after the name was resolved.
        resolve: finds a host's addresses.
    """
    started = time.monotonic()

    def failed(error: str) -> Answer:
        return Answer(None, error, time.monotonic() - started)

    try:
        parts = check_webhook_url(url, allowed)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        addresses = [ipaddress.ip_address(a) for a in resolve(host, port)]
    except WebhookUrlError as exc:
        return failed(str(exc))
    except (OSError, UnicodeError, ValueError):
        return failed("the host's name cannot be resolved")
    usable = [a for a in addresses if not address_refused(a, allowed)]
    if not usable:
        return failed("the host's address is loopback, private or link-local, which is refused")
    # resolving has limits of its own that cannot be set
    deadline = time.monotonic() + seconds
    try:
        status, retry_after = _exchange(parts, port, usable, headers, body, deadline)
    except TimeoutError:
        return failed(f"no answer within {seconds:g} s")
    except ssl.SSLError as exc:
        return failed(f"TLS: {getattr(exc, 'verify_message', '') or exc.reason or 'failed'}")
    except (OSError, http.client.HTTPException) as exc:
        if time.monotonic() >= deadline:
            return failed(f"no answer within {seconds:g} s")
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else type(exc).__name__
        return failed(f"connection: {reason}")
    return Answer(status, None, time.monotonic() - started, retry_after)


def _exchange(
    parts: SplitResult,
    port: int,
    addresses: Sequence[ipaddress.IPv4Address | ipaddress.IPv6Address],
    headers: Mapping[str, str],
    body: bytes,
    deadline: float,
) -> tuple[int, int | None]:
    host = parts.hostname or ""
    tls = parts.scheme == "https"
    sock = _connect(addresses, port, deadline)
    if tls:
        sock = ssl.create_default_context().wrap_socket(
            sock, server_hostname=host, do_handshake_on_connect=False
        )
    # a timeout is for one read; a receiver that sends a byte now and then would never meet it
    watchdog = threading.Timer(max(0.0, deadline - time.monotonic()), _cut, [sock])
    watchdog.daemon = True
    watchdog.start()
    connection = http.client.HTTPConnection(host, port)
    try:
        if isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()
        # the port is written into Host unless it is this one
        connection.default_port = 443 if tls else 80
        connection.sock = sock
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", target, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        if time.monotonic() >= deadline:
            # the end of what was cut off looks like the end of the headers
            raise TimeoutError
        given = (answer.getheader("retry-after") or "").strip()
        return answer.status, int(given) if given.isdecimal() and len(given) < 9 else None
    finally:
        watchdog.cancel()
        connection.close()
        sock.close()


def _connect(
    addresses: Sequence[ipaddress.IPv4Address | ipaddress.IPv6Address], port: int, deadline: float
) -> socket.socket:
    last: OSError | None = None
    for address in addresses:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            return socket.create_connection((str(address), port), timeout=left)
        except OSError as exc:
            last = exc
    raise last or TimeoutError()


def _cut(sock: socket.socket) -> None:
    try:
        # the plain socket's: that of TLS lets go of the session, which a thread is reading from
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        # closed already
        return
