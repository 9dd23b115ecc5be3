"""Write the parts of the documents that come from the code, or say that they are out of date.

A part lies between ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->``.

    python docs/generate.py [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from qbcompiler.devices import list_devices
from qbcompiler.devices.model import number
from service.api.openapi import openapi_text
from service.settings import settings_table

HERE = Path(__file__).resolve().parent


def devices_table() -> str:
    """Return the target devices as a table."""
    lines = [
        "| device | chip | cores | schemes | int8, TOPS | operators that it lacks |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for device in list_devices():
        cores = str(device.cores)
        if device.clusters > 1:
            cores += f" in {device.clusters} clusters"
        lacks = sum(len(group.operators) for group in device.unsupported)
        lines.append(
            f"| `{device.name}` | {device.chip} | {cores} "
            f"| {', '.join(f'`{scheme}`' for scheme in device.schemes)} "
            f"| {number(device.compute.peak_int8_ops_per_s) / 1e12:g} | {lacks or 'none'} |"
        )
    return "\n".join(lines) + "\n"


def operations_table() -> str:
    """Return the calls of the HTTP API as a table."""
    lines = ["| call | what it does |", "| --- | --- |"]
    for path, item in json.loads(openapi_text())["paths"].items():
        for method, operation in item.items():
            if method in ("get", "put", "post", "delete", "head"):
                lines.append(f"| `{method.upper()} {path}` | {operation['summary']} |")
    return "\n".join(lines) + "\n"


# document -> name of a part -> what writes it
PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "operations.md": {"settings": settings_table},
    "devices.md": {"devices": devices_table},
    "http-api.md": {"operations": operations_table},
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
