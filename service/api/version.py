"""The service's own version."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata

__all__ = ["service_version"]


@lru_cache(maxsize=1)
def service_version() -> str:
    """Return the installed release."""
    try:
        return metadata.version("qb-compile-server")
    except metadata.PackageNotFoundError:
        return "0"
