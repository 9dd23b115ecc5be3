"""``qbserver gc`` and ``qbserver project``: collect, and say how long projects keep jobs."""

from __future__ import annotations

import argparse
import sys

from service.db import Database, TokenStore, acting_as, run_migrations
from service.gc import Collector, Retention
from service.settings import Mode, Settings
from service.storage import open_store

from .tokens import operator

__all__ = ["add_parsers"]

_SHOWN = 20


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser], epilog: str) -> None:
    """Add the commands to ``qbserver``'s commands."""
    gc = commands.add_parser(
        "gc",
        help="remove what is no longer needed",
        description="Remove jobs that are older than their project keeps them, with their builds "
        "and results, and objects that nothing names. It may run at any time, beside everything "
        "else. Exit code 1: an object that is needed is missing from the store.",
        epilog=epilog,
    )
    gc.add_argument("--dry-run", action="store_true", help="only say what would go")
    gc.set_defaults(run=_gc)
    project = commands.add_parser("project", help="list projects, set retention", epilog=epilog)
    actions = project.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list projects and how long they keep jobs")
    listing.set_defaults(run=_list)
    keep = actions.add_parser("keep", help="say how long a project keeps ended jobs")
    keep.add_argument("project")
    keep.add_argument(
        "days", type=_days, help="days, 'forever', or 'default' for QB_RETENTION_DAYS"
    )
    keep.set_defaults(run=_keep)


def _days(text: str) -> int | None:
    if text == "default":
        return None
    if text == "forever":
        return 0
    try:
        days = int(text)
    except ValueError:
        days = 0
    if not 1 <= days <= 36500:
        raise argparse.ArgumentTypeError("1 to 36500, 'forever' or 'default'")
    return days


def _open(settings: Settings) -> Database:
    settings.check_team()
    if settings.mode is Mode.EMBEDDED:
        run_migrations(settings.effective_database_url)
    return Database(settings.effective_database_url)


def _gc(settings: Settings, args: argparse.Namespace) -> int:
    db = _open(settings)
    try:
        retention = Retention(settings.retention_days, settings.audit_days)
        found = Collector(db, open_store(settings), retention).run(dry_run=args.dry_run)
    finally:
        db.close()
    removed = "would remove" if args.dry_run else "removed"
    sys.stdout.write(
        f"{removed} {found.jobs} jobs, {found.builds} builds, {found.artifacts} artifacts, "
        f"{found.inputs} deleted inputs, {found.audit_entries} audit entries, "
        f"{found.objects} objects ({found.object_bytes} bytes)\n"
    )
    if found.missing:
        sys.stderr.write(
            f"ERROR [NOT_FOUND]: {len(found.missing)} objects that rows name are missing from the "
            "store; bring them back from a backup:\n"
        )
        for digest in found.missing[:_SHOWN]:
            sys.stderr.write(f"  {digest}\n")
    return 1 if found.missing else 0


def _list(settings: Settings, _args: argparse.Namespace) -> int:
    db = _open(settings)
    try:
        for project, days in TokenStore(db).projects().items():
            kept = settings.retention_days if days is None else days
            own = "" if days is not None else " (QB_RETENTION_DAYS)"
            sys.stdout.write(f"{project:<24} {f'{kept} days' if kept else 'for good'}{own}\n")
    finally:
        db.close()
    return 0


def _keep(settings: Settings, args: argparse.Namespace) -> int:
    db = _open(settings)
    try:
        with acting_as(operator()):
            done = TokenStore(db).set_retention(args.project, args.days)
    finally:
        db.close()
    if not done:
        sys.stderr.write(f"ERROR [NOT_FOUND]: there is no project {args.project!r}\n")
        return 2
    return 0
