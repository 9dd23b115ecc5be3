"""The command ``info``, which reads a manifest alone and so starts fast."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import Namespace
from typing import Any

from ..errors import FormatError
from ..paths import check_input
from ..progress import JsonlReporter, Reporter
from ..provenance import read_sidecar
from ..report.describe import info, info_text

__all__ = ["print_json", "run_info"]


def run_info(args: Namespace, reporter: Reporter) -> int:
    """Print what a file is."""
    path, wanted = (args.mblt, "mblt") if args.mblt else (args.mxq, "mxq")
    check_input(path, wanted.upper())
    data = info(path)
    if data["kind"] != wanted:
        got = data["kind"]
        raise FormatError(
            f"{path} is an {got.upper()}, not an {wanted.upper()}",
            details={"path": path, "expected": wanted, "got": got},
            hint=f"give it as --{got}",
        )
    data["caller"] = read_sidecar(path, verify=False)
    if isinstance(reporter, JsonlReporter):
        reporter.result([], data)
    elif args.table or (sys.stdout.isatty() and not args.json):
        print(info_text(data, width=shutil.get_terminal_size().columns), end="")
    else:
        print_json(data)
    return 0


def print_json(data: Any) -> None:
    """Print indented JSON in what standard output can show."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(data, indent=2, ensure_ascii=not utf8))
