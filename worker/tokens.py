"""``qbserver token``: make, list and revoke bearer tokens, straight in the database."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from datetime import UTC, datetime

from service.db import Actor, Database, TokenStore, acting_as, run_migrations
from service.domain import DEFAULT_PROJECT, Role, ServiceError
from service.settings import Settings

__all__ = ["add_parser", "operator"]

_DAY = 86400


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], epilog: str) -> None:
    """Add the command to ``qbserver``'s commands."""
    token = commands.add_parser("token", help="make, list and revoke tokens", epilog=epilog)
    actions = token.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a token; its text is shown this once")
    create.add_argument("name", help="who or what it is for")
    create.add_argument(
        "--role", choices=[r.value for r in Role], default=Role.BUILDER.value,
        help="reader: look and download; builder: upload and build too; admin (default: builder)",
    )  # fmt: skip
    create.add_argument(
        "--project", default=DEFAULT_PROJECT, help="what it sees (default: %(default)s)"
    )
    create.add_argument(
        "--days", type=_days, default=None, help="valid for so many days (default: for good)"
    )
    create.set_defaults(run=_create)
    listing = actions.add_parser("list", help="list all tokens, newest first")
    listing.set_defaults(run=_list)
    revoke = actions.add_parser("revoke", help="revoke a token for good")
    revoke.add_argument("id", help="its id, as listed")
    revoke.set_defaults(run=_revoke)


def _days(text: str) -> float:
    days = float(text)
    if not 0 < days <= 36500:
        raise argparse.ArgumentTypeError("more than 0 and at most 36500")
    return days


def _open(settings: Settings) -> Database:
    # a token is often the first thing that a new server is given
    run_migrations(settings.effective_database_url)
    return Database(settings.effective_database_url)


def operator() -> Actor:
    """Return who acts at the command line: the user of that name."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        # a container's user has a number, but often no name
        name = str(os.getuid())
    return Actor("command", name=name)


def _create(settings: Settings, args: argparse.Namespace) -> int:
    db = _open(settings)
    try:
        with acting_as(operator()):
            token, text = TokenStore(db).create(
                project=args.project,
                name=args.name,
                role=Role(args.role),
                expires_in_s=None if args.days is None else round(args.days * _DAY),
            )
    except ServiceError as exc:
        sys.stderr.write(f"ERROR [{exc.code}]: {exc.detail}\n")
        return 2
    finally:
        db.close()
    sys.stderr.write(f"{token.id}: {token.role.value} of project {token.project}; keep it safe\n")
    # alone on standard output, for scripts
    sys.stdout.write(f"{text}\n")
    return 0


def _list(settings: Settings, _args: argparse.Namespace) -> int:
    db = _open(settings)
    try:
        for t in TokenStore(db).list():
            expired = t.expires_at is not None and t.expires_at <= datetime.now(UTC)
            state = "revoked" if t.revoked_at else "expired" if expired else "valid"
            end = f"until {t.expires_at:%Y-%m-%d}" if t.expires_at else "for good"
            sys.stdout.write(
                f"{t.id}  {state:<8} {t.role.value:<8} {t.project:<16} {end:<17} {t.name}\n"
            )
    finally:
        db.close()
    return 0


def _revoke(settings: Settings, args: argparse.Namespace) -> int:
    db = _open(settings)
    try:
        with acting_as(operator()):
            found = TokenStore(db).revoke(args.id)
    finally:
        db.close()
    if not found:
        sys.stderr.write(f"ERROR [NOT_FOUND]: there is no token {args.id}\n")
        return 2
    sys.stdout.write(f"{args.id} is revoked\n")
    return 0
