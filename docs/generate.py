"""Write the parts of the documents that come from the code, or say that they are out of date.

A part lies between ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->``.

    python docs/generate.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from service.settings import settings_table

HERE = Path(__file__).resolve().parent

# document -> name of a part -> what writes it
PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "operations.md": {"settings": settings_table},
}


def renew(document: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """Return a document's text with its parts written anew.

    Raises:
        SystemExit: the document lacks a part's marks.
    """
    text = (HERE / document).read_text("utf-8")
    for name, write in parts.items():
        first, last = f"<!-- generated: {name} -->\n", f"<!-- end: {name} -->"
        if text.count(first) != 1 or text.count(last) != 1:
            raise SystemExit(f"docs/{document} must have the marks of {name!r} once")
        before, _, rest = text.partition(first)
        text = f"{before}{first}\n{write()}\n{last}{rest.partition(last)[2]}"
    return text


def main() -> int:
    """Write the documents, or with ``--check`` compare them; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail when a document differs")
    check: bool = parser.parse_args().check
    stale = 0
    for document, parts in PARTS.items():
        path = HERE / document
        text = renew(document, parts)
        if text == path.read_text("utf-8"):
            continue
        if check:
            print(f"docs/{document} is out of date: make docs", file=sys.stderr)
            stale = 1
        else:
            path.write_text(text, "utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
