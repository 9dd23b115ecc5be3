"""Every command of the documents, run as it stands there, or checked where it cannot be run."""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qbcompiler import CompileConfig
from qbcompiler.cli.parser import build_parser, command_names
from qbcompiler.config.load import load_config_file
from tests.support.documents import (
    DOCUMENTS,
    ROOT,
    Block,
    blocks,
    command_lines,
    output_pattern,
    prose,
)
from worker.cli import _parser as server_parser

from .server import Server, serving, write_project

ADDRESSES = ("http://127.0.0.1:8000", "http://compile.example.org:8000")
SHELL = ("sh", "console")
KNOWN = {*SHELL, "python", "yaml", "json", "text", "cmake", "make", "starlark", "mermaid"}
MARK = "\x1e"


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("documents") / "data") as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, digits_cnn: Path, digits) -> Path:
    """A folder as the documents suppose it: ``model.onnx`` and ``calibration/NNN.npy``."""
    folder = tmp_path / "work"
    write_project(folder, digits_cnn, digits.train_images[:16])
    for shared in ("models", "tests", "examples"):
        (folder / shared).symlink_to(ROOT / shared)
    return folder


def script(run: list[Block]) -> tuple[str, list[tuple[Block, re.Pattern[str] | None]]]:
    """Return a script of all blocks, and for each part that it marks the block and its output."""
    lines = ["set -euo pipefail"]
    parts: list[tuple[Block, re.Pattern[str] | None]] = []

    def part(block: Block, command: str, pattern: re.Pattern[str] | None = None) -> None:
        lines.extend([f"printf '\\n{MARK}'", command])
        parts.append((block, pattern))

    for block in run:
        if block.language == "console":
            # its output is what tells whether it did as it should
            for command, shown in block.steps():
                part(block, f"{{ {command}\n}} || true", output_pattern(shown))
        elif block.language == "python":
            part(block, f"python - <<'END_OF_PYTHON'\n{block.text}END_OF_PYTHON")
        else:
            part(block, block.text)
    return "\n".join(lines) + f"\nprintf '\\n{MARK}'\n", parts


def in_bash(folder: Path, server: Server, text: str) -> tuple[int, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("QB_", "QBCOMPILER_", "XDG_"))}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    env["HOME"] = str(folder.parent)
    env["QB_DATA_DIR"] = str(folder.parent / "var")
    for address in ADDRESSES:
        text = text.replace(address, server.url)
    done = subprocess.run(
        ["bash", "-c", text], cwd=folder, env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240,
    )  # fmt: skip
    return done.returncode, done.stdout.replace(server.url, ADDRESSES[0])


RUNNABLE = (*SHELL, "python")
TOOLS = ("curl", "jq", "unzip", "cmake")


def runnable(path: Path) -> list[Block]:
    return [b for b in blocks(path) if b.language in RUNNABLE and not b.not_run]


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if runnable(p)], ids=name)
def test_the_blocks_work_in_order(path: Path, folder: Path, server: Server):
    chosen = runnable(path)
    whole = "".join(b.text for b in chosen)
    for tool in TOOLS:
        if re.search(rf"\b{tool}\b", whole) and not shutil.which(tool):
            pytest.skip(f"needs {tool}")
    for model in re.findall(r"\bmodels/\w+\.onnx", whole):
        if not (ROOT / model).is_file():
            pytest.skip(f"{model} has not been fetched")
    text, parts = script(chosen)
    code, output = in_bash(folder, server, text)
    _, *outputs = output.split(f"\n{MARK}")
    reached = parts[min(len(outputs), len(parts)) - 1][0]
    assert code == 0 and len(outputs) == len(parts) + 1, (
        f"{name(path)}:{reached.line} ends with {code}:\n{outputs[-1][-3000:]}"
    )
    for (block, pattern), got in zip(parts, outputs, strict=False):
        shown = got if not got or got.endswith("\n") else got + "\n"
        assert pattern is None or pattern.fullmatch(shown), (
            f"{name(path)}:{block.line} shows other output than\n{got}"
        )


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (actions,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(actions.choices)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


PARSER = build_parser({command: lambda _args, _reporter: 0 for command in command_names()})


def check_calls(block: Block) -> None:
    """Check the command lines of a block that is not run."""
    for program in (("qbcompiler",), ("python", "-m", "qbcompiler")):
        for words in command_lines(block, program):
            PARSER.parse_args(words)
    for words in command_lines(block, ("qbserver",)):
        server_parser().parse_args(words)
    for words in command_lines(block, ("make",)):
        targets = {w for w in words if "=" not in w and not w.startswith("-")}
        assert targets and targets <= make_targets()
    for words in command_lines(block, ("python", "-m")):
        module = ROOT / words[0].replace(".", "/")
        assert words[0] == "qbcompiler" or module.exists() or module.with_suffix(".py").exists()


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_what_is_not_run_is_checked(path: Path, tmp_path: Path):
    for block in blocks(path):
        where = f"{name(path)}:{block.line}"
        assert block.language in KNOWN, f"{where}: say what language the block is in"
        if block.language in SHELL:
            subprocess.run(["bash", "-n", "-c", "\n".join(block.commands())], check=True)
            if block.not_run:
                check_calls(block)
        elif block.language == "python":
            ast.parse(block.text)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml" and not block.not_run:
            file = tmp_path / "config.yaml"
            file.write_text(block.text, "utf-8")
            CompileConfig.model_validate(load_config_file(file))


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_commands_named_in_sentences_exist(path: Path):
    text = prose(path)
    ours, theirs = commands_of(PARSER), commands_of(server_parser())
    for command, rest in re.findall(r"`(?:python -m )?qbcompiler ([a-z-]+)((?: [^`]*)?)`", text):
        assert command in ours, command
        for option in re.findall(r"--[a-z-]+", rest):
            assert option in ours[command]._option_string_actions, f"{command} has no {option}"
    for command, rest in re.findall(r"`qbserver ([a-z]+)([^`]*)`", text):
        assert command in theirs, command
        for option in re.findall(r"--[a-z-]+", rest):
            assert option in str(theirs[command].format_help()) or command == "token", option
    assert set(re.findall(r"`make ([a-z]+)", text)) <= make_targets()
    typed = re.findall(r"^ {4,}(?:qbcompiler|qbserver|python -m|curl|make) .*$", text, re.MULTILINE)
    assert not typed, "put commands into fenced blocks, so that they are tested"
