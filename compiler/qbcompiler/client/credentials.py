"""Which server, and which token: the options, the environment, or the kept file.

The file is ``$XDG_CONFIG_HOME/qbcompiler/tokens.json`` (``~/.config`` by default), readable by its
owner alone: a map from server address to token.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path

from ..errors import ArgumentError, OutputWriteError
from .connection import Server

__all__ = ["SERVER_VARIABLE", "TOKEN_VARIABLE", "connect", "forget_token", "save_token"]

SERVER_VARIABLE = "QB_SERVER"
"""Environment variable: address of the compile server."""

TOKEN_VARIABLE = "QB_TOKEN"  # noqa: S105 (a name, not a secret)
"""Environment variable: the bearer token."""

_MAX_FILE = 1 << 20


def connect(server: str | None = None, token: str | None = None) -> Server:
    """Return the server that was named, with its token.

    Args:
        server: address; ``QB_SERVER`` by default.
        token: bearer token; by default ``QB_TOKEN``, else the one kept for this server.

    Raises:
        ArgumentError: there is no address, or it is not one; the kept file is open to others.
    """
    address = server or os.environ.get(SERVER_VARIABLE)
    if not address:
        raise ArgumentError(
            "no server is given", hint=f"give --server http://HOST:PORT, or set {SERVER_VARIABLE}"
        )
    url = Server(address).url
    found = token or os.environ.get(TOKEN_VARIABLE) or _read().get(url)
    return Server(url, found or None)


def save_token(url: str, token: str) -> Path:
    """Keep a token for a server; returns the file.

    Raises:
        ArgumentError: the address or the token is malformed.
        OutputWriteError: the file cannot be written.
    """
    known = Server(url, token).url
    return _write({**_read(), known: token})


def forget_token(url: str) -> bool:
    """Drop the token that is kept for a server; whether there was one."""
    known, kept = Server(url).url, _read()
    if kept.pop(known, None) is None:
        return False
    _write(kept)
    return True


def _path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "qbcompiler" / "tokens.json"


def _read() -> dict[str, str]:
    path = _path()
    try:
        with path.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            raw = stream.read(_MAX_FILE)
    except OSError:
        return {}
    if os.name == "posix" and mode & 0o077:
        raise ArgumentError(
            f"{path} can be read by others", hint=f"chmod 600 {path}", details={"path": str(path)}
        )
    with contextlib.suppress(ValueError, RecursionError):
        data = json.loads(raw)
        if isinstance(data, dict):
            return {k: v for k, v in data.items() if isinstance(v, str)}
    raise ArgumentError(
        f"{path} is not a map from server to token",
        hint="delete it and log in again",
        details={"path": str(path)},
    )


def _write(tokens: dict[str, str]) -> Path:
    path = _path()
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(dict(sorted(tokens.items())), stream, indent=2)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as exc:
        raise OutputWriteError(
            f"cannot write {path}: {exc.strerror}", details={"path": str(path)}
        ) from exc
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return path
