"""Each error code has a page, and what the page says about the code holds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from qbcompiler.cli import main
from qbcompiler.client.connection import _EXIT_CODES, ServerError
from qbcompiler.errors import ERROR_CLASSES, error_page, explained_codes
from service.api.problems import STATUS_OF_CODE
from service.domain.failures import RETRYABLE_CODES

ROOT = Path(__file__).resolve().parents[1]
RAISED = {"ServiceError", "ServerError", "Failure"}


def literals(node: ast.expr) -> set[str]:
    """Return the codes that an expression can be: a literal, or a choice of them."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.IfExp):
        return literals(node.body) | literals(node.orelse)
    return set()


def codes_in_the_code() -> set[str]:
    found = {*ERROR_CLASSES, *STATUS_OF_CODE, *RETRYABLE_CODES, *_EXIT_CODES}
    for folder in ("compiler/qbcompiler", "service", "worker"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text("utf-8")
            found |= set(re.findall(r"ERROR \[([A-Z_]+)\]", text))
            for node in ast.walk(ast.parse(text)):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                    continue
                if node.func.id in RAISED:
                    given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "code")]
                    found |= {code for value in given for code in literals(value)}
    return found


def test_every_code_has_a_page_and_every_page_a_code():
    assert set(explained_codes()) == codes_in_the_code()


def test_the_pages_are_those_of_the_documentation():
    held = {p.stem for p in (ROOT / "docs" / "errors").glob("*.md")}
    assert held == {*explained_codes(), "README"}
    listed = re.findall(
        r"^\| \[(\w+)\]", (ROOT / "docs/errors/README.md").read_text(), re.MULTILINE
    )
    assert sorted(listed) == explained_codes()
    assert (ROOT / "docs/errors/CONFIG_ERROR.md").read_text("utf-8") == error_page("CONFIG_ERROR")


@pytest.mark.parametrize("code", explained_codes())
def test_a_page_tells_exit_code_status_and_whether_to_try_again(code):
    known = ERROR_CLASSES.get(code)
    exit_code = known.exit_code if known else ServerError(code, "").exit_code
    status = STATUS_OF_CODE.get(code)
    http = f"HTTP status {status}" if status else "no HTTP status of its own"
    again = code in RETRYABLE_CODES or code in ("UNAVAILABLE", "SERVER_UNAVAILABLE")
    help_ = "may help" if again else "does not help"
    page = error_page(code)
    assert page.startswith(f"# {code}\n\n")
    assert f"\n\nExit code {exit_code}; {http}; trying again {help_}.\n\n" in page
    titles = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert titles[0] == "How it shows" and titles[1] in ("Causes and what to do", "What to do")


def test_explain_prints_a_page_and_names_the_nearest_code(capsys):
    assert main(["explain", "CONFIG_ERROR"]) == 0
    assert capsys.readouterr().out == error_page("CONFIG_ERROR")
    assert main(["explain", "[config-error]"]) == 0
    assert capsys.readouterr().out == error_page("CONFIG_ERROR")
    assert main(["explain"]) == 0
    listed = capsys.readouterr().out
    assert max(map(len, listed.splitlines())) <= 80
    assert re.findall(r"^[A-Z_]+$", listed, re.MULTILINE) == explained_codes()
    assert main(["explain", "CONFIG_EROR"]) == 2
    assert "did you mean CONFIG_ERROR?" in capsys.readouterr().err
    assert main(["explain", "../README"]) == 2


def test_every_failure_names_its_page(capsys):
    assert main(["info", "--mxq", "absent.mxq"]) == 3
    assert capsys.readouterr().err.splitlines()[-1] == "help: qbcompiler explain MODEL_LOAD_ERROR"
