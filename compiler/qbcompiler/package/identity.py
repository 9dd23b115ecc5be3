"""What built a file: name, version and source revision of this compiler."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from .._version import __version__

__all__ = ["ENGINE", "compiler_identity"]

ENGINE = "qbcompiler"
"""Name of the compiler, as engine and as author of a file."""

_REVISION_FILE = "REVISION"


@cache
def _revision() -> str | None:
    """Return the revision that the build of this package recorded in ``qbcompiler/REVISION``.

    A checkout has none: asking version control would make the bytes of a file depend on the
    folder that the compiler runs in.
    """
    try:
        text = resources.files("qbcompiler").joinpath(_REVISION_FILE).read_text("ascii").strip()
    except (FileNotFoundError, OSError, UnicodeDecodeError):
        return None
    return text[:64] or None


def compiler_identity() -> dict[str, Any]:
    """Return ``{"name", "version", "revision"}``; revision is None where it is not known."""
    return {"name": ENGINE, "version": __version__, "revision": _revision()}
