"""``jobs``, ``attach``, ``fetch``, ``cancel``, ``login`` and ``logout``: work with a server."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..client import connect, fetch_artifacts, follow_job, raise_if_failed, save_token
from ..client import forget_token as drop_token
from ..client.connection import Server, ServerError, path_of
from ..errors import ArgumentError, OutputWriteError
from ..paths import check_outputs
from ..progress import JsonlReporter, Reporter

__all__ = ["run_attach", "run_cancel", "run_fetch", "run_jobs", "run_login", "run_logout"]

_JOB = re.compile(r"job_[0-9a-z]{26}")


def run_jobs(args: Namespace, reporter: Reporter) -> int:
    """List jobs, newest first."""
    labels = [f"{key}={value}" for key, value in args.label or ()]
    with connect(args.server, args.token) as server:
        page = server.get(
            path_of("jobs"), limit=min(args.limit, 200), state=args.state, label=labels or None
        )
    jobs = page["items"]
    if args.json or isinstance(reporter, JsonlReporter):
        print(json.dumps(jobs, indent=2))
        return 0
    if not jobs:
        print("no jobs")
        return 0
    print(f"{'job':<30} {'state':<10} {'age':>5}  {'device':<14} name")
    now = datetime.now(UTC)
    for job in jobs:
        age = _age((now - datetime.fromisoformat(job["created_at"])).total_seconds())
        name = _printable(job["name"] or job["type"])
        line = (
            f"{job['id']:<30} {_state(job):<10} {age:>5}  {job['target_device'] or '-':<14} {name}"
        )
        print(line[: shutil.get_terminal_size().columns] if sys.stdout.isatty() else line)
    return 0


def run_attach(args: Namespace, reporter: Reporter) -> int:
    """Follow a job; then bring its files where that is asked for."""
    with connect(args.server, args.token) as server:
        job = _job(server, args.job)
        if args.output is not None:
            check_outputs({"the output": args.output}, [])
        try:
            job = follow_job(server, job["id"], reporter)
        except KeyboardInterrupt:
            raise ServerError(
                "INTERRUPTED",
                f"job {args.job} goes on on {server.url}",
                hint=f"`qbcompiler attach {args.job}` follows it again",
            ) from None
        raise_if_failed(job)
        if args.output is not None or args.output_dir is not None:
            return _bring(server, job, args, reporter)
        reporter.close()
        reporter.result([], {"job": job["id"], **(job.get("summary") or {})})
        if not isinstance(reporter, JsonlReporter):
            print(f"job {job['id']} succeeded; `qbcompiler fetch {job['id']}` brings its files")
    return 0


def run_fetch(args: Namespace, reporter: Reporter) -> int:
    """Bring the files of a job that succeeded."""
    with connect(args.server, args.token) as server:
        job = _job(server, args.job)
        if job["state"] in ("queued", "running"):
            raise ServerError(
                "JOB_NOT_FINISHED",
                f"job {job['id']} is {job['state']}",
                hint=f"`qbcompiler attach {job['id']}` follows it to its end",
            )
        raise_if_failed(job)
        return _bring(server, job, args, reporter)


def run_cancel(args: Namespace, reporter: Reporter) -> int:
    """Cancel a job."""
    with connect(args.server, args.token) as server:
        job = server.post(path_of("jobs", _id(args.job), "cancel"))
    print(f"job {job['id']} is {job['state']}")
    return 0


def run_login(args: Namespace, reporter: Reporter) -> int:
    """Keep a token, once the server has taken it."""
    if args.token_file is not None:
        try:
            token = Path(args.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise ArgumentError(f"the token file {args.token_file!r} cannot be read") from exc
    elif sys.stdin.isatty():
        token = getpass.getpass("token: ").strip()
    else:
        token = sys.stdin.readline().strip()
    if not token:
        raise ArgumentError("no token is given")
    address = args.server or os.environ.get("QB_SERVER") or ""
    with connect(address, token) as server:
        server.get(path_of("jobs"), limit=1)
        path = save_token(server.url, token)
        print(f"the token for {server.url} is kept in {path}")
    return 0


def run_logout(args: Namespace, reporter: Reporter) -> int:
    """Forget a token."""
    address = args.server or os.environ.get("QB_SERVER") or ""
    if not address:
        raise ArgumentError("no server is given", hint="give --server URL")
    print("the token is forgotten" if drop_token(address) else "no token was kept")
    return 0


def _id(text: str) -> str:
    if not _JOB.fullmatch(text):
        raise ArgumentError(f"{text!r} is not the id of a job", hint="`qbcompiler jobs` lists them")
    return text


def _job(server: Server, text: str) -> dict[str, Any]:
    return dict(server.get(path_of("jobs", _id(text))))


def _bring(server: Server, job: Mapping[str, Any], args: Namespace, reporter: Reporter) -> int:
    held = {str(a["kind"]): str(a["name"]) for a in job["artifacts"]}
    main = "mblt" if job["type"] == "parse" else "mxq"
    wanted: dict[str, Path]
    if args.output is not None:
        check_outputs({"the output": args.output}, [])
        wanted = {main: Path(args.output)}
    else:
        folder = Path(args.output_dir if args.output_dir is not None else job["id"])
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise OutputWriteError(
                f"cannot make the folder {folder}: {exc.strerror}", details={"path": str(folder)}
            ) from exc
        # a name comes from the server: its last part alone
        wanted = {kind: folder / Path(name).name for kind, name in held.items()}
    with reporter.phase("download"):
        files = fetch_artifacts(server, job, wanted, reporter)
    reporter.close()
    reporter.result(files, {"job": job["id"], **(job.get("summary") or {})})
    if not isinstance(reporter, JsonlReporter):
        for entry in files:
            print(f"{entry['kind']:<11}{entry['path']}  {entry['size']:,} bytes")
    return 0


def _state(job: Mapping[str, Any]) -> str:
    return str(job["phase"] if job["state"] == "running" and job["phase"] else job["state"])


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
