"""Checks of single settings, and the key that an embedded server makes for itself."""

from __future__ import annotations

import ipaddress
import os
import secrets
import tempfile
from pathlib import Path

__all__ = ["MIN_SECRET_LENGTH", "SettingsError", "checked_secret", "is_loopback", "own_secret"]

MIN_SECRET_LENGTH = 32
"""Characters of a secret, at least."""

_REFUSED_SECRETS = frozenset({"changeme", "change-me", "secret", "default", "password"})


class SettingsError(ValueError):
    """The settings do not allow the service to run; the message says what to set."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address or a host's name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def checked_secret(secret: str) -> bytes:
    """Return a secret as a key.

    Raises:
        SettingsError: it is short, or looks like a default.
    """
    plain = secret.strip()
    if len(plain) < MIN_SECRET_LENGTH or len(set(plain)) < 8:
        raise SettingsError(
            f"QB_SIGNING_SECRET must have at least {MIN_SECRET_LENGTH} random characters "
            "(openssl rand -hex 32)"
        )
    if any(word in plain.lower() for word in _REFUSED_SECRETS):
        raise SettingsError("QB_SIGNING_SECRET looks like a default; use openssl rand -hex 32")
    return plain.encode()


def own_secret(path: Path) -> bytes:
    """Return the key in a file, which is made, readable by its owner only, where there is none.

    Raises:
        SettingsError: the file holds no key.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".signing-")
        try:
            # mkstemp makes the file readable by its owner only
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_hex(32))
                file.flush()
                os.fsync(file.fileno())
            # link, not rename: of two processes that start together the first one's key stays
            Path(path).hardlink_to(temporary)
        except FileExistsError:
            pass
        finally:
            Path(temporary).unlink()
    return checked_secret(path.read_text())
