"""The fenced blocks of the documents, and what may be done with each.

A block is run as it stands unless the line before it is ``<!-- not run: WHY -->``. Of a
block that is not run the syntax and the command lines are checked.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if "adr" not in p.parts),
    *sorted((ROOT / "examples").rglob("*.md")),
]

_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<why>.*?) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    line: int
    language: str
    text: str
    not_run: str | None

    def commands(self) -> list[str]:
        """Return the lines of a shell block as typed, a continued line as one."""
        text = self.text
        if self.language == "console":
            text = "".join(re.findall(r"^\$ (.*\n)", text, re.MULTILINE))
        return re.sub(r"\\\n\s*", " ", text).splitlines()

    def steps(self) -> Iterator[tuple[str, str]]:
        """Yield each command of a ``console`` block with the output that it shows."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a document, in order."""
    text = path.read_text("utf-8")
    found = []
    for match in _FENCE.finditer(text):
        indent = match["indent"]
        body = re.sub(rf"^{indent}", "", match["text"], flags=re.MULTILINE)
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Block(line, match["language"], body, match["why"]))
    return found


def prose(path: Path) -> str:
    """Return a document's text without its fenced blocks."""
    return _FENCE.sub("", path.read_text("utf-8"))


def output_pattern(shown: str) -> re.Pattern[str]:
    """Return what output must look like.

    ``…`` stands for any part of a line; alone on a line, for any number of lines. What comes before
    the first line that is shown, such as progress, is left out.
    """
    lines = [r"(?:[^\n]*\n)*?"] if shown.strip() else []
    for line in shown.splitlines():
        if line.strip() == "…":
            lines.append(r"(?:[^\n]*\n)*")
        else:
            lines.append(r"[^\n]*".join(map(re.escape, line.rstrip().split("…"))) + r" *\n")
    return re.compile("".join(lines))


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_END = re.compile(r"[|;&<>()]+|\d?>+")


def command_lines(block: Block, program: tuple[str, ...]) -> Iterator[list[str]]:
    """Yield the arguments of each call of a program in a shell block.

    Args:
        block: the block.
        program: the words that the call begins with.
    """
    for line in block.commands():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            continue  # a quoted text of several lines; bash checks its syntax
        while words:
            end = next((i for i, word in enumerate(words) if _END.fullmatch(word)), len(words))
            call, words = words[:end], words[end + 1 :]
            while call and _ASSIGNMENT.match(call[0]):
                call = call[1:]
            if tuple(call[: len(program)]) == program:
                yield call[len(program) :]
