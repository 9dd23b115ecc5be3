"""The pages for people: the start page and the API's own documentation. Nothing is loaded from
elsewhere."""

from __future__ import annotations

from importlib import resources

from fastapi import APIRouter, Response

from ..domain import ServiceError

__all__ = ["page_headers", "router"]

router = APIRouter(include_in_schema=False)

_TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css"}

# no inline script or style, nothing from other hosts, no frame around it
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


@router.get("/")
def index() -> Response:
    """The start page."""
    return _file("index.html")


@router.get("/docs")
def docs() -> Response:
    """The API's documentation."""
    return _file("docs.html")


@router.get("/web/{name}")
def asset(name: str) -> Response:
    """A script or style of the pages."""
    return _file(name)


def _file(name: str) -> Response:
    suffix = f".{name.rpartition('.')[2]}"
    folder = resources.files("service").joinpath("web")
    known = {item.name: item for item in folder.iterdir()}
    if suffix not in _TYPES or name not in known:
        raise ServiceError("NOT_FOUND", "there is no such page")
    return Response(
        known[name].read_bytes(),
        media_type=_TYPES[suffix],
        headers=page_headers(),
    )


def page_headers() -> dict[str, str]:
    """Return the headers of every page."""
    return {
        "Content-Security-Policy": _POLICY,
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
