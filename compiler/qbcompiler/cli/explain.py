"""``explain``: the page of an error code."""

from __future__ import annotations

import difflib
import json
import sys
import textwrap
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from ..errors import ArgumentError, error_page, explained_codes
from ..progress import JsonlReporter, Reporter

__all__ = ["run_explain"]

_WIDEST = 100


def run_explain(args: Namespace, reporter: Reporter) -> int:
    """Print the page of a code, or list the codes."""
    if args.code is None:
        pages = {code: _summary(error_page(code)) for code in explained_codes()}
        if not _machine(args, reporter, pages):
            for code, summary in pages.items():
                print(code)
                print(textwrap.fill(summary, 79, initial_indent="  ", subsequent_indent="  "))
        return 0
    code = args.code.strip().strip("[]").upper().replace("-", "_")
    try:
        page = error_page(code)
    except KeyError:
        near = difflib.get_close_matches(code, explained_codes(), n=1)
        raise ArgumentError(
            f"there is no error code {args.code!r}"
            + (f"; did you mean {near[0]}?" if near else ""),
            hint="`qbcompiler explain` lists all of them",
        ) from None
    if _machine(args, reporter, {"code": code, "page": page}):
        return 0
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        console = Console()
        console.print(Markdown(page, hyperlinks=False), width=min(_WIDEST, console.width))
    else:
        print(page, end="")
    return 0


def _summary(page: str) -> str:
    """Return the sentence that a page begins with."""
    return " ".join(page.split("\n\n")[1].split())


def _machine(args: Namespace, reporter: Reporter, data: Mapping[str, Any]) -> bool:
    """Print for a program, if one asks."""
    if isinstance(reporter, JsonlReporter):
        reporter.result([], data)
    elif args.json:
        print(json.dumps(data, indent=2))
    else:
        return False
    return True
