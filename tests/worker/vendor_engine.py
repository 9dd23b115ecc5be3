"""``python -m qbcompiler`` of another vendor, as far as its documented command line goes.

Tests install this file as the package ``qbcompiler`` of an environment of its own. It refuses
every option that the qb Compiler 1.3 interface does not have, and says in its package with what
it was called and which files it saw.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path

VERSION = "1.3.0"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="qbcompiler", allow_abbrev=False)
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("check")
    for name in ("compile", "parse", "quantize"):
        command = commands.add_parser(name, allow_abbrev=False)
        command.add_argument("--mblt" if name == "quantize" else "--model", required=True)
        command.add_argument("--output", required=True)
        for option in ("--target-device", "--config-preset", "--compile-config", "--device"):
            command.add_argument(option)
        if name != "quantize":
            command.add_argument("--backend", default="onnx")
            command.add_argument("--cpu-offload", action=argparse.BooleanOptionalAction)
            command.add_argument("--input-shape", action="append")
            command.add_argument("--source-revision")
        if name != "parse":
            command.add_argument("--inference-scheme")
            command.add_argument("--calib-data-path", action="append")
            command.add_argument("--use-random-calib", action=argparse.BooleanOptionalAction)
            command.add_argument("--config-save-path")
            command.add_argument("--report-path")
        if name == "compile":
            command.add_argument("--mblt-save-path")
    return top


def write(path: str, kind: str, made: dict[str, object]) -> dict[str, object]:
    data = json.dumps(made, sort_keys=True).encode()
    Path(path).write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    return {"kind": kind, "path": path, "sha256": digest, "size": len(data)}


def main() -> int:
    args = parser().parse_args()
    if args.command == "check":
        print(f"qb Compiler {VERSION}")
        return 0
    source = Path(args.mblt if args.command == "quantize" else args.model)
    made: dict[str, object] = {
        "made_by": f"vendor {VERSION}",
        "command": args.command,
        "input": hashlib.sha256(source.read_bytes()).hexdigest(),
        "package": str(Path(__file__).resolve()),
        "environment": sorted(k for k in os.environ if k.startswith(("QB_", "AWS_", "PYTHONPATH"))),
    }
    if os.environ.get("QBCOMPILER_JSONL") != "1":
        print("done")
        return 0
    say = {"type": "progress", "phase": args.command, "current": 1, "total": 1, "eta": "soon"}
    print(json.dumps(say), flush=True)
    files = [write(args.output, "mblt" if args.command == "parse" else "mxq", made)]
    for option, kind in (("mblt_save_path", "mblt"), ("report_path", "report"),
                         ("config_save_path", "config")):  # fmt: skip
        path = getattr(args, option, None)
        if path:
            files.append(write(path, kind, {**made, "kind": kind}))
    print(json.dumps({"type": "result", "files": files, "licence": "vendor"}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
