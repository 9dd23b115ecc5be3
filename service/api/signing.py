"""Signatures of download links."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import datetime

__all__ = ["LinkSigner"]


class LinkSigner:
    """Signs links: HMAC-SHA-256 over the artifact, the expiry and the link's id.

    Args:
        key: the secret.
    """

    def __init__(self, key: bytes) -> None:
        # a key of its own, so that no other use of the secret can yield a link's signature
        self._key = hmac.digest(key, b"qb download link v1", hashlib.sha256)

    def sign(self, link_id: str, artifact_id: str, expires_at: datetime) -> str:
        """Return the signature, as unpadded base64url."""
        text = f"{link_id}\n{artifact_id}\n{int(expires_at.timestamp())}"
        digest = hmac.digest(self._key, text.encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def verify(self, signature: str, link_id: str, artifact_id: str, expires_at: datetime) -> bool:
        """Say whether the signature is that of the link, in constant time."""
        wanted = self.sign(link_id, artifact_id, expires_at)
        return hmac.compare_digest(signature.encode("utf-8", "replace"), wanted.encode())
