"""Writes ``openapi/openapi.json`` from the application, or says that it is out of date.

python -m service.api.openapi --write
python -m service.api.openapi --check
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ..settings import Settings
from .app import create_app

__all__ = ["openapi_text"]

_FILE = Path(__file__).resolve().parents[2] / "openapi" / "openapi.json"


def openapi_text() -> str:
    """Return the description of the API, as it is written to the file."""
    # settings of their own: what the environment says must not change the file
    app = create_app(Settings.model_construct())
    return json.dumps(app.openapi(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--write", action="store_true", help="write the file")
    group.add_argument("--check", action="store_true", help="fail when the file differs")
    parser.add_argument("--file", type=Path, default=_FILE)
    args = parser.parse_args()
    text = openapi_text()
    if args.write:
        args.file.parent.mkdir(parents=True, exist_ok=True)
        args.file.write_text(text, "utf-8")
        return 0
    if args.file.exists() and args.file.read_text("utf-8") == text:
        return 0
    sys.stderr.write(f"{args.file} is out of date: python -m service.api.openapi --write\n")
    return 1


if __name__ == "__main__":
    sys.exit(_main())
