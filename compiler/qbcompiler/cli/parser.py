"""The command line's grammar: commands, options, help."""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .._version import __version__
from ..errors import ArgumentError

__all__ = ["Handler", "build_parser", "key_value", "shape"]

Handler = Callable[[argparse.Namespace, Any], int]

_EPILOG = """\
to begin with:
  qbcompiler validate --model model.onnx --target-device regulus-rb
  qbcompiler compile --model model.onnx --calib-data-path calibration/ \\
      --target-device regulus-rb --output model.mxq
  qbcompiler info --mxq model.mxq

exit codes: 0 done, 2 bad arguments, 3 the model or the data is at fault,
4 the output cannot be written, 5 out of memory or time, 70 a fault of ours;
with a compile server also 69 it cannot be reached or is at fault.

QBCOMPILER_JSONL=1 writes progress and result as one JSON object a line.
"""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours and whose help fits 80 columns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _Formatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; an option that no command has is the named command's error, not the program's."""
        found, extra = self.parse_known_args(args, namespace)
        if extra:
            commands = [a for a in self._actions if isinstance(a, argparse._SubParsersAction)]
            command = commands[0].choices[found.command] if commands else self
            command.error(f"unrecognized arguments: {' '.join(extra)}")
        return found

    def error(self, message: str) -> NoReturn:
        """Raise in place of exiting; name what was probably meant."""
        near = self._nearest(message)
        if near:
            message = re.sub(r" \(choose from .*\)$", "", message)
        raise ArgumentError(
            message + (f"; did you mean {near}?" if near else ""),
            details={"command": self.prog, "nearest": near},
            hint=f"see `{self.prog} --help`",
        )

    def _nearest(self, message: str) -> str | None:
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if found:
            choices = [c.strip().strip("'") for c in found[2].split(",")]
            return next(iter(difflib.get_close_matches(found[1], choices, n=1)), None)
        found = re.search(r"unrecognized arguments: .*?(--[^\s=]+)", message)
        if found:
            options = [o for o in self._option_string_actions if o.startswith("--")]
            return next(iter(difflib.get_close_matches(found[1], options, n=1)), None)
        return None


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=79)

    def _split_lines(self, text: str, width: int) -> list[str]:
        # a command's name is not broken at its hyphen
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def shape(text: str) -> tuple[str, list[int]]:
    """Parse ``NAME=1,3,224,224``."""
    name, sign, dims = text.rpartition("=")
    try:
        numbers = [int(d) for d in re.split(r"[,x]", dims)] if dims else []
    except ValueError:
        numbers = []
    if not sign or not name or not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=DIM,DIM,… with whole numbers of at least 1"
        )
    return name, numbers


def key_value(text: str) -> tuple[str, str]:
    """Parse ``KEY=VALUE``."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1024")
    return number


def build_parser(handlers: dict[str, Handler], prog: str = "qbcompiler") -> Parser:
    """Return the parser; each command's ``run`` default is its handler.

    Args:
        handlers: the function of each command.
        prog: the program's name in messages.
    """
    parser = Parser(
        prog=prog,
        usage=f"{prog} COMMAND …    ({prog} COMMAND --help tells more)",
        description="Compile ONNX models for Mobilint NPUs: source model to MBLT to MXQ.\n\n"
        + _command_list(),
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"qbcompiler {__version__}")
    commands = parser.add_subparsers(
        prog=prog, metavar="COMMAND", dest="command", required=True, help=argparse.SUPPRESS
    )
    for name, (summary, fill) in _COMMANDS.items():
        command = commands.add_parser(name, description=_capital(summary) + ".")
        fill(command)
        talk = command.add_argument_group("messages")
        talk.add_argument(
            "-v", "--verbose", action="store_true", help="more log lines; tracebacks of our faults"
        )
        talk.add_argument("-q", "--quiet", action="store_true", help="warnings and errors only")
        command.set_defaults(run=handlers[name])
    return parser


_GROUPS = {
    "build": ("compile", "parse", "quantize", "compare"),
    "look": ("validate", "info", "run", "export", "extract-body", "check"),
    "ask": ("devices", "presets", "dump-config", "explain"),
    "compile server": ("jobs", "attach", "fetch", "cancel", "login", "logout"),
}


def _command_list() -> str:
    """Return the commands, by what they are for."""
    lines = []
    for title, names in _GROUPS.items():
        lines.append(f"{title}:")
        lines += [f"  {name:<13} {_COMMANDS[name][0]}" for name in names]
    return "\n".join(lines)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# -- groups of options ----------------------------------------------------------------------


def _source(command: Parser, *, required: bool = True) -> None:
    group = command.add_argument_group("source model")
    group.add_argument("--model", metavar="FILE", required=required, help="the ONNX model")
    group.add_argument(
        "--backend", default="onnx", metavar="NAME", help="format of the model (default: onnx)"
    )
    group.add_argument(
        "--input-shape",
        type=shape,
        action="append",
        metavar="NAME=DIMS",
        help="shape of an input whose model leaves dimensions open, such as x=1,3,224,224; "
        "repeatable",
    )


def _target(command: Parser, *, scheme: bool, help_device: str) -> None:
    group = command.add_argument_group("target")
    group.add_argument("--target-device", metavar="NAME", help=help_device)
    if scheme:
        group.add_argument(
            "--inference-scheme",
            metavar="NAME",
            help="single, multi, global4, global8 or all (default: the configuration's, which "
            "is single)",
        )
    group.add_argument(
        "--device",
        metavar="gpu|cpu",
        choices=("gpu", "cpu"),
        help="what compiles; gpu falls back to the CPU where there is none",
    )


def _offload(command: Parser) -> None:
    command.add_argument(
        "--cpu-offload",
        action=argparse.BooleanOptionalAction,
        help="run layers that the NPU lacks on the CPU",
    )


def _configuration(command: Parser, *, save: bool) -> None:
    group = command.add_argument_group("configuration")
    group.add_argument("--config-preset", metavar="NAME", help="a preset; see `presets`")
    group.add_argument(
        "--compile-config",
        metavar="FILE",
        help="JSON or YAML, layered over the preset; see `dump-config`",
    )
    if save:
        group.add_argument(
            "--config-save-path", metavar="FILE", help="write the resolved configuration"
        )


def _calibration(command: Parser) -> None:
    group = command.add_argument_group("calibration")
    group.add_argument(
        "--calib-data-path",
        action="append",
        metavar="PATH",
        help="folder, list file or sample; repeatable",
    )
    group.add_argument(
        "--use-random-calib",
        action=argparse.BooleanOptionalAction,
        help="calibrate with seeded random numbers; such a build is not for release",
    )
    group.add_argument(
        "--cache-dir",
        metavar="DIR",
        help="keep what calibration observes, for later builds on the same model and data "
        "(default: QBCOMPILER_CACHE_DIR, else nothing is kept)",
    )


def _records(command: Parser, *, report: bool) -> None:
    group = command.add_argument_group("records")
    if report:
        group.add_argument(
            "--report-path", metavar="FILE", help="write the report; a page for a .html, else JSON"
        )
        group.add_argument(
            "--trace-path",
            metavar="FILE",
            help="write the estimated timeline of each core, a trace that Perfetto opens (JSON)",
        )
        group.add_argument(
            "--validation-save-path",
            metavar="FILE",
            help="write the validation samples: inputs, float and integer outputs (.npz)",
        )
    group.add_argument(
        "--body-save-path", metavar="FILE", help="write the NPU body as an MBLT of its own"
    )
    group.add_argument(
        "--source-revision",
        metavar="TEXT",
        help="revision of the model's source, for OUTPUT.provenance.json",
    )
    group.add_argument(
        "--label",
        type=key_value,
        action="append",
        metavar="KEY=VALUE",
        help="recorded in OUTPUT.provenance.json; repeatable",
    )


def _threads(command: Parser) -> None:
    command.add_argument(
        "--threads",
        type=_positive,
        metavar="N",
        help="threads to compute with (default: all that may be used); no output depends on it",
    )


def _build_server(command: Parser) -> None:
    group = command.add_argument_group("compile server")
    _server_options(group)
    group.add_argument("--local", action="store_true", help="compile here, whatever QB_SERVER says")


def _server_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--server",
        metavar="URL",
        help="address of the compile server (default: QB_SERVER)",
    )
    group.add_argument(
        "--token",
        metavar="TOKEN",
        help="its bearer token (default: QB_TOKEN, else the one that `login` kept)",
    )


# -- commands -------------------------------------------------------------------------------


def _compile(command: Parser) -> None:
    command.add_argument("--output", metavar="FILE", help="the MXQ to write")
    command.add_argument("--mblt-save-path", metavar="FILE", help="keep the MBLT too")
    _offload(command)
    _threads(command)
    command.add_argument(
        "--estimate-only",
        action="store_true",
        help="estimate cycles and memory on the device; no calibration, writes nothing",
    )
    _source(command, required=False)
    _target(command, scheme=True, help_device="the target device; see `devices`")
    _calibration(command)
    _configuration(command, save=True)
    _records(command, report=True)
    _build_server(command)


def _parse(command: Parser) -> None:
    command.add_argument("--output", metavar="FILE", help="the MBLT to write")
    _offload(command)
    _source(command, required=False)
    _target(
        command,
        scheme=False,
        help_device="the target device (default: none; any may be chosen later)",
    )
    _configuration(command, save=False)
    _records(command, report=False)
    _build_server(command)


def _quantize(command: Parser) -> None:
    command.add_argument("--mblt", metavar="FILE", required=True, help="the MBLT")
    command.add_argument("--output", metavar="FILE", help="the MXQ to write")
    _threads(command)
    _target(
        command,
        scheme=True,
        help_device="the target device (default: the one that the MBLT was parsed for)",
    )
    _calibration(command)
    _configuration(command, save=True)
    _records(command, report=True)
    _build_server(command)


def _compare(command: Parser) -> None:
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", metavar="FILE", help="the ONNX model")
    source.add_argument("--mblt", metavar="FILE", help="the MBLT")
    command.add_argument(
        "--input-shape",
        type=shape,
        action="append",
        metavar="NAME=DIMS",
        help="shape of an input whose model leaves dimensions open; repeatable",
    )
    command.add_argument(
        "--target-device",
        action="append",
        required=True,
        metavar="NAME",
        help="a target device; repeatable",
    )
    _offload(command)
    _threads(command)
    _calibration(command)
    group = command.add_argument_group("settings to compare, each on every device")
    group.add_argument(
        "--config-preset",
        action="append",
        metavar="NAME",
        help="a preset, or `default` for none; repeatable",
    )
    group.add_argument(
        "--compile-config",
        action="append",
        metavar="FILE",
        help="JSON or YAML, over the defaults; repeatable",
    )
    _listing(command)


def _dump_config(command: Parser) -> None:
    command.add_argument(
        "--output", metavar="FILE", required=True, help="the .json, .yaml or .yml file to write"
    )
    command.add_argument("--preset", metavar="NAME", help="start from a preset")


def _listing(command: Parser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON")


def _info(command: Parser) -> None:
    _one_file(command)
    form = command.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="print JSON (default where output is no terminal)"
    )
    form.add_argument("--table", action="store_true", help="print tables (default on a terminal)")


def _validate(command: Parser) -> None:
    _source(command)
    command.add_argument("--target-device", metavar="NAME", help="the target device (optional)")
    _offload(command)
    _listing(command)


def _extract_body(command: Parser) -> None:
    command.add_argument("--mblt", metavar="FILE", required=True, help="the MBLT")
    command.add_argument("--output", metavar="FILE", required=True, help="the MBLT to write")


def _export(command: Parser) -> None:
    _one_file(command)
    command.add_argument("--output", metavar="FILE", required=True, help="the .onnx to write")


def _run(command: Parser) -> None:
    _one_file(command)
    command.add_argument(
        "--input",
        action="append",
        required=True,
        metavar="PATH",
        help=".npy, .npz or image, a folder or a list of them; repeatable",
    )
    command.add_argument(
        "--output", metavar="FILE", help="the .npz (or .npy, for one output) to write"
    )
    command.add_argument(
        "--core-mode",
        default="auto",
        choices=("auto", "single", "multi", "global4", "global8"),
        help="core mode of the package (default: its only one)",
    )
    _threads(command)


def _check(command: Parser) -> None:
    command.add_argument("--mxq", metavar="FILE", help="check this package too")
    _listing(command)


def _explain(command: Parser) -> None:
    command.add_argument(
        "code", nargs="?", metavar="CODE", help="the code of an error (default: list all of them)"
    )
    _listing(command)


def _job(command: Parser) -> None:
    command.add_argument("job", metavar="JOB", help="id of the job")
    _server_options(command.add_argument_group("compile server"))


def _outputs(command: Parser) -> None:
    group = command.add_argument_group("files")
    where = group.add_mutually_exclusive_group()
    where.add_argument("--output", metavar="FILE", help="where the MXQ (of a parse: MBLT) goes")
    where.add_argument(
        "--output-dir", metavar="DIR", help="folder for all files of the job; made if needed"
    )


def _jobs(command: Parser) -> None:
    command.add_argument(
        "--state",
        action="append",
        choices=("queued", "running", "succeeded", "failed", "cancelled", "timed_out"),
        metavar="STATE",
        help="only jobs that are queued, running, succeeded, failed, cancelled or timed_out; "
        "repeatable",
    )
    command.add_argument(
        "--label", type=key_value, action="append", metavar="KEY=VALUE", help="only with this label"
    )
    command.add_argument(
        "--limit", type=_positive, default=20, metavar="N", help="at most so many (default: 20)"
    )
    _listing(command)
    _server_options(command.add_argument_group("compile server"))


def _attach(command: Parser) -> None:
    _job(command)
    _outputs(command)


def _fetch(command: Parser) -> None:
    _job(command)
    _outputs(command)


def _login(command: Parser) -> None:
    command.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with the token (default: asked for, or read from standard input)",
    )
    command.add_argument("--server", metavar="URL", help="the server (default: QB_SERVER)")


def _logout(command: Parser) -> None:
    command.add_argument("--server", metavar="URL", help="the server (default: QB_SERVER)")


def _one_file(command: Parser) -> None:
    group = command.add_mutually_exclusive_group(required=True)
    group.add_argument("--mblt", metavar="FILE", help="an MBLT")
    group.add_argument("--mxq", metavar="FILE", help="an MXQ")


_COMMANDS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "compile": ("compile a source model to an MXQ", _compile),
    "parse": ("parse a source model to an MBLT", _parse),
    "quantize": ("quantize an MBLT to an MXQ", _quantize),
    "compare": ("build several settings and compare what they keep and cost", _compare),
    "dump-config": ("write a configuration template with every field", _dump_config),
    "presets": ("list the configuration presets", _listing),
    "devices": ("list the target devices, their cores, schemes and gaps", _listing),
    "info": ("print what an MBLT or MXQ is", _info),
    "validate": ("say whether a model parses and which layers a device supports", _validate),
    "extract-body": ("write the NPU body of an MBLT as its own MBLT", _extract_body),
    "export": ("write an MBLT (float) or MXQ (quantized) as standard ONNX", _export),
    "run": ("run an MXQ or MBLT in the reference runtime", _run),
    "check": ("check the environment, and a package", _check),
    "explain": ("say what an error code means and what to do", _explain),
    "jobs": ("list the jobs of a compile server", _jobs),
    "attach": ("follow a job of a compile server to its end", _attach),
    "fetch": ("bring the files of a job that succeeded", _fetch),
    "cancel": ("cancel a job of a compile server", _job),
    "login": ("keep a token for a compile server", _login),
    "logout": ("forget the token of a compile server", _logout),
}


def command_names() -> Sequence[str]:
    """Return the names of all commands."""
    return list(_COMMANDS)
