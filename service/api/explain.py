"""The pages of error codes: HTML for a browser, Markdown for everybody else."""

from __future__ import annotations

import functools
import html

from fastapi import APIRouter, Request, Response
from markdown_it import MarkdownIt

from qbcompiler.errors import error_page, explained_codes

from ..domain import ServiceError
from .page import framed, page_headers

__all__ = ["router"]

router = APIRouter(include_in_schema=False)


@router.get("/errors")
def index(request: Request) -> Response:
    """Every code with the first words of its page."""
    return _answer(request, "Errors", _index())


@router.get("/errors/{code}")
def page(request: Request, code: str) -> Response:
    """The page of one code."""
    try:
        text = error_page(code)
    except KeyError:
        raise ServiceError(
            "NOT_FOUND", f"there is no error code {code[:100]!r}", hint="GET /errors lists all"
        ) from None
    return _answer(request, code, text)


def _answer(request: Request, title: str, text: str) -> Response:
    headers = {**page_headers(), "Vary": "Accept"}
    if "text/html" not in request.headers.get("accept", ""):
        return Response(text, media_type="text/markdown; charset=utf-8", headers=headers)
    page = framed(html.escape(title), _html(text))
    return Response(page, media_type="text/html; charset=utf-8", headers=headers)


@functools.cache
def _index() -> str:
    entries = []
    for code in explained_codes():
        summary = " ".join(error_page(code).split("\n\n")[1].split())
        entries.append(f"* [{code}](/errors/{code}): {summary}\n")
    return "# Errors\n\nEvery error has a stable code.\n\n" + "".join(entries)


@functools.lru_cache(maxsize=128)
def _html(text: str) -> str:
    # raw HTML in the text is shown, not taken over
    return str(MarkdownIt("commonmark", {"html": False}).enable("table").render(text))
