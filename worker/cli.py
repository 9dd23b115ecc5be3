"""The ``qbserver`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from service.logs import set_up_logging
from service.settings import BUILTIN_ENGINE, Mode, Settings, SettingsError

from . import gc, tokens, verify

__all__ = ["main"]

_EPILOG = "Settings come from the environment (QB_*); docs/operations.md lists them."


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``qbserver`` and return its exit code: 0 done, 1 failed, 2 bad arguments or settings."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        settings = _settings(args)
    except ValidationError as exc:
        for error in exc.errors():
            name = "QB_" + "_".join(str(p) for p in error["loc"]).upper() if error["loc"] else ""
            sys.stderr.write(f"ERROR [CONFIG_ERROR]: {name or 'settings'}: {error['msg']}\n")
        return 2
    set_up_logging(args.command, settings)
    try:
        return int(args.run(settings, args))
    except SettingsError as exc:
        sys.stderr.write(f"ERROR [CONFIG_ERROR]: {exc}\n")
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="qbserver", description="The compile server for Mobilint NPUs.", epilog=_EPILOG
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="run the server",
        description="Run the server. Embedded (the default): with its own database, broker and "
        "one worker, all in the data folder. Team (QB_MODE=team): the HTTP service alone.",
        epilog=_EPILOG,
    )
    serve.add_argument("--host", help="address to listen on (QB_HOST, default 127.0.0.1)")
    serve.add_argument("--port", type=int, help="port, 0 picks one (QB_PORT, default 8000)")
    serve.add_argument("--data-dir", metavar="DIR", help="data folder (QB_DATA_DIR, default var)")
    serve.set_defaults(run=_serve)
    worker = commands.add_parser(
        "worker",
        help="run a worker",
        description="Run a worker: it claims builds and runs compilers. Start as many as you "
        "like, on as many hosts.",
        epilog=_EPILOG,
    )
    worker.add_argument("--concurrency", type=int, help="builds at a time (QB_WORKER_CONCURRENCY)")
    worker.add_argument(
        "--engine", action="append", metavar="NAME", help="serve only this engine; repeatable"
    )
    worker.add_argument(
        "--memory-class",
        action="append",
        metavar="NAME",
        help="serve only this class of QB_MEMORY_CLASSES; repeatable",
    )
    worker.set_defaults(run=_worker)
    migrate = commands.add_parser(
        "migrate", help="bring the database to the newest schema", epilog=_EPILOG
    )
    migrate.set_defaults(run=_migrate)
    tokens.add_parser(commands, _EPILOG)
    gc.add_parsers(commands, _EPILOG)
    verify.add_parsers(commands, _EPILOG)
    doctor = commands.add_parser(
        "doctor", help="say what is missing and how to mend it", epilog=_EPILOG
    )
    doctor.set_defaults(run=_doctor)
    return parser


def _settings(args: argparse.Namespace) -> Settings:
    given = {
        "host": getattr(args, "host", None),
        "port": getattr(args, "port", None),
        "data_dir": getattr(args, "data_dir", None),
        "worker_concurrency": getattr(args, "concurrency", None),
    }
    return Settings(**{k: v for k, v in given.items() if v is not None})


def _serve(settings: Settings, args: argparse.Namespace) -> int:
    from .embedded import EmbeddedServer, StartError
    from .http import bind, run_http

    if settings.mode is Mode.TEAM:
        settings.check_team()
        settings.check_bind()
        run_http(settings, bind(settings.host, settings.port))
        return 0
    try:
        return EmbeddedServer(settings, settings.host, settings.port).run()
    except StartError as exc:
        sys.stderr.write(f"ERROR: {exc}\n")
        return 1


def _worker(settings: Settings, args: argparse.Namespace) -> int:
    from .app import queues_of, run_worker

    settings.check_team()
    engines, classes = args.engine or [], args.memory_class or []
    for what, given, known in (
        ("engine", engines, {BUILTIN_ENGINE, *settings.engines}),
        ("memory class", classes, set(settings.memory_classes)),
    ):
        for name in given:
            if name not in known:
                there = ", ".join(sorted(known)) or "none; QB_MEMORY_CLASSES names them"
                raise SettingsError(f"no {what} {name!r}; there are {there}")
    run_worker(settings, queues=queues_of(settings, engines, classes))
    return 0


def _migrate(settings: Settings, _args: argparse.Namespace) -> int:
    from service.db import Database, current_revision, run_migrations

    run_migrations(settings.effective_database_url)
    db = Database(settings.effective_database_url)
    sys.stdout.write(f"the database is at schema {current_revision(db)}\n")
    db.close()
    return 0


def _doctor(settings: Settings, _args: argparse.Namespace) -> int:
    from .doctor import examine

    findings = examine(settings)
    for f in findings:
        sys.stdout.write(f"{'ok     ' if f.ok else 'MISSING'}  {f.name}: {f.text}\n")
        if not f.ok:
            sys.stdout.write(f"         {f.mend}\n")
    return 0 if all(f.ok for f in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
