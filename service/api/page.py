"""The pages for people: the start page and the API's own documentation. Nothing is loaded from
elsewhere."""

from __future__ import annotations

import functools
import hashlib
from importlib import resources
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request, Response

from ..domain import ServiceError

__all__ = ["framed", "page_headers", "router"]

router = APIRouter(include_in_schema=False)

_TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css"}

# no inline script or style, nothing from other hosts, no frame around it
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


@router.get("/")
def index(request: Request) -> Response:
    """The start page."""
    return _file("index.html", request)


@router.get("/docs")
def docs(request: Request) -> Response:
    """The API's documentation."""
    return _file("docs.html", request)


@router.get("/web/{name:path}")
def asset(request: Request, name: str) -> Response:
    """A script or style of the pages."""
    return _file(name, request)


@functools.cache
def _files() -> dict[str, tuple[bytes, str]]:
    """Return bytes and entity tag of what the pages consist of, by its path below the folder."""
    root = resources.files("service").joinpath("web")
    found: dict[str, tuple[bytes, str]] = {}

    def walk(folder: Traversable, prefix: str) -> None:
        for item in folder.iterdir():
            if item.is_dir():
                walk(item, f"{prefix}{item.name}/")
            elif f".{item.name.rpartition('.')[2]}" in _TYPES:
                data = item.read_bytes()
                found[prefix + item.name] = (data, f'"{hashlib.sha256(data).hexdigest()[:32]}"')

    walk(root, "")
    return found


def _file(name: str, request: Request) -> Response:
    # looked up, never joined to a path
    found = _files().get(name)
    if found is None:
        raise ServiceError("NOT_FOUND", "there is no such page")
    data, tag = found
    headers = {**page_headers(), "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=_TYPES[f".{name.rpartition('.')[2]}"], headers=headers)


def framed(title: str, body: str) -> str:
    """Return a page without scripts: head and header of the API's own, around HTML that is safe."""
    head = _files()["docs.html"][0].decode().partition("<main>\n")[0]
    head = head.replace("<title>API - ", f"<title>{title} - ", 1)
    return f"{head}<main>\n{body}</main>\n</body>\n</html>\n"


def page_headers() -> dict[str, str]:
    """Return the headers of every page."""
    return {
        "Content-Security-Policy": _POLICY,
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
