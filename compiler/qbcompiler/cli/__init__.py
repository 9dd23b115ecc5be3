"""The command line: ``qbcompiler COMMAND …`` and ``python -m qbcompiler COMMAND …``."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module

from ..errors import (
    ArgumentError,
    InternalError,
    OutputWriteError,
    QbCompilerError,
    ResourceLimitError,
)
from ..progress import JsonlReporter, PlainReporter, Reporter, TerminalReporter, jsonl_wanted
from .parser import Handler, build_parser
from .streams import Terminated, protocol_stream, terminable

__all__ = ["main"]

TRACE_VARIABLE = "QBCOMPILER_TRACE"
"""Environment variable: 1 shows the traceback of an internal fault."""

# module and function of each command: a command loads what it needs and no more
_HOMES = {
    "compile": ("build", "run_compile"),
    "parse": ("build", "run_parse"),
    "quantize": ("build", "run_quantize"),
    "compare": ("compare", "run_compare"),
    "dump-config": ("show", "run_dump_config"),
    "presets": ("show", "run_presets"),
    "devices": ("show", "run_devices"),
    "info": ("info", "run_info"),
    "validate": ("show", "run_validate"),
    "extract-body": ("files", "run_extract_body"),
    "export": ("files", "run_export"),
    "run": ("files", "run_run"),
    "check": ("show", "run_check"),
    "explain": ("explain", "run_explain"),
    "jobs": ("remote", "run_jobs"),
    "attach": ("remote", "run_attach"),
    "fetch": ("remote", "run_fetch"),
    "cancel": ("remote", "run_cancel"),
    "login": ("remote", "run_login"),
    "logout": ("remote", "run_logout"),
}

_WRITE_ERRNOS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
}
_INTERRUPTED = 130
_BROKEN_PIPE = 141


def _handler(command: str) -> Handler:
    def run(args: Namespace, reporter: Reporter) -> int:
        module, function = _HOMES[command]
        handler: Handler = getattr(import_module(f".{module}", __name__), function)
        return handler(args, reporter)

    return run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: arguments without the program's name; ``sys.argv`` by default.
    """
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(terminable())
            if jsonl_wanted():
                reporter: Reporter = JsonlReporter(stack.enter_context(protocol_stream()))
            else:
                reporter = Reporter()
            return _run(argv, reporter)
    except Terminated as exc:
        # die of the signal, as the caller expects of a program that it has terminated
        signal.signal(exc.number, signal.SIG_DFL)
        os.kill(os.getpid(), exc.number)
        return 128 + exc.number
    except KeyboardInterrupt:
        print("ERROR [INTERRUPTED]: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # whoever read standard output has gone; keep the interpreter from flushing to it
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _BROKEN_PIPE


def _run(argv: Sequence[str] | None, reporter: Reporter) -> int:
    try:
        args = build_parser({name: _handler(name) for name in _HOMES}).parse_args(argv)
    except QbCompilerError as exc:
        return _fail(exc, reporter)
    if type(reporter) is Reporter:
        reporter = _console(args)
    asked = os.environ.get(TRACE_VARIABLE, "").lower() in ("1", "true", "yes", "on")
    reporter.trace = asked or args.verbose
    try:
        code: int = args.run(args, reporter)
        reporter.close()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        raise
    except Exception as exc:
        reporter.close()
        error = as_error(exc)
        if reporter.trace and error.code == "INTERNAL_ERROR":
            traceback.print_exc()
        return _fail(error, reporter)
    except Terminated as exc:
        reporter.close()
        if signal.Signals(exc.number).name != "SIGXCPU":
            raise
        return _fail(ResourceLimitError("the limit on processor time was met"), reporter)
    except BaseException:
        reporter.close()
        raise


def _console(args: Namespace) -> Reporter:
    if args.quiet:
        return PlainReporter(quiet=True)
    if sys.stderr.isatty():
        return TerminalReporter(verbose=args.verbose)
    return PlainReporter(verbose=args.verbose)


def _fail(error: QbCompilerError, reporter: Reporter) -> int:
    """Say what is wrong on standard error (and in the protocol) and return the exit code."""
    reporter.error(error)
    head = f"ERROR [{error.code}]:"
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        head = f"\x1b[1;31m{head}\x1b[0m"
    print(f"{head} {_one_line(error.message)}", file=sys.stderr)
    if error.hint:
        print(f"hint: {_one_line(error.hint)}", file=sys.stderr)
    print(f"help: qbcompiler explain {error.code}", file=sys.stderr)
    sys.stderr.flush()
    return error.exit_code


def _one_line(text: str) -> str:
    """Return printable text on one line; names in a model may hold anything."""
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


def _lacks_memory(exc: Exception) -> bool:
    """Whether a library could not be mapped, or a thread not be started, for want of memory."""
    return (
        isinstance(exc, ImportError)
        and any(w in str(exc) for w in ("Cannot allocate memory", "failed to map segment"))
    ) or (isinstance(exc, RuntimeError) and "can't start new thread" in str(exc))


def as_error(exc: Exception) -> QbCompilerError:
    """Return the typed error that an exception amounts to."""
    if isinstance(exc, QbCompilerError):
        return exc
    if isinstance(exc, MemoryError) or _lacks_memory(exc):
        return ResourceLimitError(
            "out of memory",
            details={"resource": "memory"},
            hint="give the process more memory, or use fewer threads",
        )
    if isinstance(exc, OSError) and exc.errno in _WRITE_ERRNOS:
        where = f"{exc.filename}: " if exc.filename else ""
        return OutputWriteError(
            f"{where}{exc.strerror or exc}",
            details={"path": exc.filename, "errno": exc.errno},
            hint="free some space, or choose a folder that you may write to",
        )
    if isinstance(exc, UnicodeEncodeError):
        return ArgumentError(f"a name cannot be encoded: {exc}")
    return InternalError(
        f"{type(exc).__name__}: {exc}",
        hint=f"this is a fault of the compiler; {TRACE_VARIABLE}=1 shows where",
    )
