"""Signed statements: DSSE envelopes (v1.0.2 of the protocol) with ed25519 (RFC 8032).

https://github.com/secure-systems-lab/dsse. The signature is over the pre-authentication encoding
``DSSEv1 SP LEN(type) SP type SP LEN(body) SP body``, so that a body cannot be read as another type.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from .settings import Mode, Settings, SettingsError

__all__ = [
    "PAYLOAD_TYPE",
    "NotVerified",
    "StatementSigner",
    "load_public_key",
    "open_envelope",
    "statement_signer",
]

PAYLOAD_TYPE = "application/vnd.in-toto+json"

_MAX_ENVELOPE = 64 << 20


class NotVerified(Exception):  # noqa: N818 (what was found out, not a fault of ours)
    """An envelope is malformed, or its signature is not that of the key."""


class StatementSigner:
    """Signs statements with one key.

    Args:
        key: the private key.

    Attributes:
        key_id: SHA-256 of the public key (its 32 bytes), hex.
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.key_id = _key_id(key.public_key())

    def public_pem(self) -> str:
        """Return the public key as PEM (SubjectPublicKeyInfo)."""
        return _public_pem(self._key.public_key())

    def envelope(self, statement: Mapping[str, Any]) -> dict[str, Any]:
        """Return the statement in a signed envelope; the same statement gives the same bytes."""
        body = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
        signature = self._key.sign(_encoded(PAYLOAD_TYPE, body))
        return {
            "payloadType": PAYLOAD_TYPE,
            "payload": base64.b64encode(body).decode(),
            "signatures": [{"keyid": self.key_id, "sig": base64.b64encode(signature).decode()}],
        }


def open_envelope(data: bytes, key: Ed25519PublicKey) -> dict[str, Any]:
    """Return the statement of an envelope that the key has signed.

    Raises:
        NotVerified: it is malformed, of another type, or not signed by the key.
    """
    if len(data) > _MAX_ENVELOPE:
        raise NotVerified("it is too large for an envelope")
    try:
        envelope = json.loads(data)
        kind, text = envelope["payloadType"], envelope["payload"]
        signatures = [base64.b64decode(s["sig"], validate=True) for s in envelope["signatures"]]
        body = base64.b64decode(text, validate=True)
    except (ValueError, KeyError, TypeError, binascii.Error, RecursionError) as exc:
        raise NotVerified("it is not a DSSE envelope") from exc
    if kind != PAYLOAD_TYPE:
        raise NotVerified(f"its payload is {str(kind)[:80]!r}, not {PAYLOAD_TYPE}")
    if not signatures:
        raise NotVerified("it is not signed")
    for signature in signatures:
        try:
            key.verify(signature, _encoded(kind, body))
        except InvalidSignature:
            continue
        statement = json.loads(body)
        if not isinstance(statement, dict):
            raise NotVerified("its payload is not a statement")
        return statement
    raise NotVerified(f"it is not signed by the key {_key_id(key)[:16]}…")


def load_public_key(path: Path) -> Ed25519PublicKey:
    """Read a public key (PEM).

    Raises:
        NotVerified: it cannot be read, or is of another kind.
    """
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as exc:
        raise NotVerified(f"{path} is not a public key in PEM") from exc
    if not isinstance(key, Ed25519PublicKey):
        raise NotVerified(f"{path} is not an ed25519 key")
    return key


def statement_signer(settings: Settings) -> StatementSigner | None:
    """Return the signer of the settings' key; None for a team's server without one.

    An embedded server makes a key of its own, once, in ``provenance.pem`` in the data folder.

    Raises:
        SettingsError: the key file cannot be read, or is not an ed25519 private key.
    """
    path = settings.provenance_key_file
    if path is None:
        if settings.mode is Mode.TEAM:
            return None
        path = settings.data_dir / "provenance.pem"
        _make_key(path)
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as exc:
        raise SettingsError(
            f"QB_PROVENANCE_KEY_FILE: {path} is not a private key in PEM without a password "
            "(openssl genpkey -algorithm ed25519)"
        ) from exc
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsError(f"QB_PROVENANCE_KEY_FILE: {path} is not an ed25519 key")
    return StatementSigner(key)


def _make_key(path: Path) -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    # mkstemp makes the file readable by its owner only
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".provenance-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        # link, not rename: of two processes that start together the first one's key stays
        path.hardlink_to(temporary)
    except FileExistsError:
        pass
    finally:
        Path(temporary).unlink()


def _encoded(kind: str, body: bytes) -> bytes:
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(body), body)


def _key_id(key: Ed25519PublicKey) -> str:
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()


def _public_pem(key: Ed25519PublicKey) -> str:
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()
