"""Webhooks: what is sent when a job has ended, how it is signed, and where it may go.

The form is that of Standard Webhooks (https://www.standardwebhooks.com): headers ``webhook-id``,
``webhook-timestamp`` and ``webhook-signature``, the signature an HMAC-SHA-256 over
``id.timestamp.body`` under the receiver's secret.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from urllib.parse import SplitResult, urlsplit

__all__ = [
    "DeliveryState",
    "Network",
    "WebhookAttempt",
    "WebhookDelivery",
    "WebhookSigner",
    "WebhookUrlError",
    "address_refused",
    "check_webhook_url",
]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

SECRET_PREFIX = "whsec_"  # noqa: S105 (the standard's mark of a secret)

# RFC 6052: addresses that a NAT64 gateway turns into the IPv4 address in their last 32 bits
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class DeliveryState(StrEnum):
    """How a delivery stands."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class WebhookAttempt:
    """One try to deliver. ``status`` is the receiver's; None when there was no answer."""

    number: int
    at: datetime
    seconds: float
    status: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """A message about a job's end to one URL. ``id`` stays the same over all tries."""

    id: str
    project: str
    job_id: str
    event: str
    url: str
    body: str
    state: DeliveryState
    tries: int
    retries_left: int
    next_try_at: datetime | None
    created_at: datetime
    finished_at: datetime | None


class WebhookSigner:
    """Derives each project's secret from the server's key, and signs with it.

    A derived secret is in no table: a copy of the database alone does not let anyone forge a
    message. Rotation raises the project's generation.

    Args:
        key: the server's signing key.
    """

    def __init__(self, key: bytes) -> None:
        self._key = hmac.digest(key, b"qb webhook secret v1", hashlib.sha256)

    def secret(self, project: str, generation: int) -> str:
        """Return a project's secret, ``whsec_`` and base64, as receivers are given it."""
        return SECRET_PREFIX + base64.b64encode(self._raw(project, generation)).decode()

    def headers(
        self,
        project: str,
        generations: Sequence[int],
        message_id: str,
        timestamp: int,
        body: bytes,
    ) -> dict[str, str]:
        """Return the headers that prove where a message is from.

        Args:
            project: whose secret.
            generations: of the secrets; each gives a signature, and one that fits is enough.
            message_id: the delivery's id.
            timestamp: of this try, Unix seconds.
            body: the exact bytes.
        """
        signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
        signatures = (
            hmac.digest(self._raw(project, generation), signed, hashlib.sha256)
            for generation in generations
        )
        return {
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": " ".join(
                f"v1,{base64.b64encode(signature).decode()}" for signature in signatures
            ),
        }

    def _raw(self, project: str, generation: int) -> bytes:
        return hmac.digest(self._key, f"{generation}\n{project}".encode(), hashlib.sha256)


class WebhookUrlError(ValueError):
    """The URL is none that messages are sent to; the text says why."""


def check_webhook_url(url: str, allowed: Sequence[Network]) -> SplitResult:
    """Return the parts of a URL that messages may be sent to, as far as its text tells.

    Where a name leads is known only when it is connected to, and checked again then.

    Raises:
        WebhookUrlError: another scheme, no host, credentials or a fragment, a refused address.
    """
    if any(c <= " " or c == "\x7f" for c in url) or not url.isascii():
        raise WebhookUrlError("a URL has visible ASCII characters only")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise WebhookUrlError("not a URL") from exc
    if parts.scheme not in ("https", "http"):
        raise WebhookUrlError("must begin with https:// or http://")
    if not host or port == 0:
        raise WebhookUrlError("names no host")
    if "@" in parts.netloc:
        raise WebhookUrlError("credentials in a URL are not sent; prove the sender by signature")
    if parts.fragment or "\\" in url:
        raise WebhookUrlError("has a part that is never sent")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.rstrip(".")
        if name == "localhost" or name.endswith(".localhost"):
            loopback = ipaddress.ip_address("127.0.0.1")
            if address_refused(loopback, allowed):
                raise WebhookUrlError(
                    "loopback, private and link-local addresses are refused"
                ) from None
    else:
        if address_refused(address, allowed):
            raise WebhookUrlError("loopback, private and link-local addresses are refused")
    return parts


def address_refused(address: _Address, allowed: Sequence[Network]) -> bool:
    """Say whether nothing may be sent to an address.

    Only addresses of the public Internet are taken, and those of an allowed network. An IPv4
    address that an IPv6 one carries (mapped, NAT64, 6to4, Teredo) must be fit too.
    """
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address_refused(address.ipv4_mapped, allowed)
        if address.scope_id is not None:
            return True
    if any(address.version == net.version and address in net for net in allowed):
        return False
    if not address.is_global or address.is_multicast:
        return True
    return any(address_refused(inner, allowed) for inner in _carried(address))


def _carried(address: _Address) -> list[ipaddress.IPv4Address]:
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found = []
    if address in _NAT64:
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address.sixtofour is not None:
        found.append(address.sixtofour)
    if address.teredo is not None:
        found.extend(address.teredo)
    return found
