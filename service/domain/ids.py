"""Identifiers: a prefix that names the kind, then 26 characters that sort by time.

The 128 bits are 48 of Unix milliseconds and 80 of randomness, in Crockford's base 32, lower
case. They are opaque to clients; the order only keeps database pages local.
"""

from __future__ import annotations

import re
import secrets
import time
from enum import StrEnum

__all__ = ["IdKind", "id_pattern", "is_id", "new_id"]

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 26


class IdKind(StrEnum):
    """The prefix of each kind of identifier."""

    MODEL = "mdl"
    CALIBRATION = "cal"
    JOB = "job"
    BUILD = "bld"
    ATTEMPT = "att"
    ARTIFACT = "art"
    LINK = "lnk"
    UPLOAD = "upl"
    TOKEN = "tok"  # noqa: S105 (a prefix)
    REQUEST = "req"
    WEBHOOK = "msg"
    AUDIT = "aud"
    MATRIX = "mtx"


def new_id(kind: IdKind) -> str:
    """Return a fresh identifier, for instance ``job_01k…``."""
    value = (time.time_ns() // 1_000_000 & (1 << 48) - 1) << 80 | secrets.randbits(80)
    digits = []
    for _ in range(_LENGTH):
        digits.append(_ALPHABET[value & 31])
        value >>= 5
    return f"{kind.value}_{''.join(reversed(digits))}"


def id_pattern(*kinds: IdKind) -> str:
    """Return the regular expression that identifiers of these kinds match."""
    prefixes = "|".join(kind.value for kind in kinds)
    return f"^(?:{prefixes})_[{_ALPHABET}]{{{_LENGTH}}}$"


def is_id(text: str, kind: IdKind) -> bool:
    """Say whether ``text`` is an identifier of this kind."""
    return re.fullmatch(id_pattern(kind), text) is not None
