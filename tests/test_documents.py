"""The documents agree with each other and with the tree."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    p
    for f in (".", "docs", "examples", "tests")
    for p in (ROOT / f).glob("**/*.md" if f != "." else "*.md")
)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as code hosts make them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        other = (path.parent / file).resolve() if file else path
        if not other.exists() or (anchor and anchor not in anchors(other)):
            broken.append(target)
    assert not broken


def test_every_document_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", index))
    assert listed == {p.name for p in (ROOT / "docs").glob("*.md")} - {"README.md"}


def test_every_decision_is_in_the_list():
    folder = ROOT / "docs" / "adr"
    listed = set(re.findall(r"\((\d{4}-[^)]+\.md)\)", (folder / "README.md").read_text("utf-8")))
    assert listed == {p.name for p in folder.glob("0*.md")}


def test_locks_have_hashes_and_name_no_index():
    for name in ("runtime.txt", "dev.txt", "models.txt"):
        text = (ROOT / "requirements" / name).read_text("utf-8")
        pins = [line for line in text.replace("\\\n", " ").splitlines() if line[:1] != "#"]
        assert pins and all("==" in pin and "--hash=sha256:" in pin for pin in pins)
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links|file:", text)


def test_the_runtime_lock_is_part_of_the_dev_lock():
    def pins(name: str) -> set[str]:
        text = (ROOT / "requirements" / name).read_text("utf-8")
        return set(re.findall(r"^(\S+==\S+)", text, re.MULTILINE))

    assert pins("runtime.txt") <= pins("dev.txt")


def test_runtime_requirements_are_those_of_the_package():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = (ROOT / "requirements" / "runtime.in").read_text("utf-8").splitlines()
    given = {line for line in lines if line and not line.startswith("#")}
    assert given == {*project["dependencies"], "setuptools>=77"}


def test_make_help_names_every_target():
    text = (ROOT / "Makefile").read_text("utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    done = subprocess.run(
        ["make", "--no-print-directory", "-C", str(ROOT), "help"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert {line.split()[0] for line in done.stdout.splitlines()} == set(phony.split())


def test_attacks_name_tests_that_exist():
    rows = re.findall(r"^\| .* \| `(tests/\S+)::(\w+)` \|$",
                      (ROOT / "docs" / "security.md").read_text("utf-8"), re.MULTILINE)  # fmt: skip
    assert len(rows) > 20
    for file, name in rows:
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), name
