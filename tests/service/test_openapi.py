"""The API's description keeps the linters' recommended rules, and client generators take it."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from service.api.openapi import openapi_text

from . import openapi_rules as rules


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(openapi_text())
    return found


def test_the_description_is_openapi(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    assert [e.message for e in OpenAPIV31SpecValidator(document).iter_errors()] == []


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_the_linters_rules(
    document: dict[str, Any], rule: Callable[[Mapping[str, Any]], Iterator[str]]
) -> None:
    wrong = list(rule(document))
    assert not wrong, "\n".join(wrong)


def _drop(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        part = document
        for step in path[:-1]:
            part = part[step]
        del part[path[-1]]

    return change


def _put(value: Any, *path: str) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        part = document
        for step in path[:-1]:
            part = part[step]
        part[path[-1]] = value

    return change


_JOB = ("paths", "/v1/jobs/{job_id}", "get")
_ANSWER = (*_JOB, "responses", "200", "content", "application/json")


@pytest.mark.parametrize(
    ("rule", "change", "says"),
    [
        (rules.info, _drop("info", "contact"), "contact"),
        (rules.servers, _put([], "servers"), "no servers"),
        (rules.tags, _put(["nonsense"], *_JOB, "tags"), "get_job: tag nonsense"),
        (rules.words, _put("", *_JOB, "description"), "get_job has no description"),
        (rules.operation_ids, _put("list_jobs", *_JOB, "operationId"), "list_jobs 2 times"),
        (rules.paths, _put([], *_JOB, "parameters"), "get_job: path parameters"),
        (rules.answers, _drop(*_JOB, "responses", "200"), "get_job has no 2xx"),
        (rules.security, _drop("paths", "/healthz", "get", "security"), "healthz does not say"),
        (rules.references, _drop("components", "schemas", "Problem"), "Problem is not there"),
        (rules.references, _put({}, "components", "schemas", "Idle"), "Idle is not used"),
        (rules.schemas, _put({"type": "array"}, *_ANSWER, "schema"), "without items"),
        (rules.examples, _drop(*_ANSWER, "example"), "get_job: the application/json of 200"),
        (rules.examples, _put("nowhere", *_ANSWER, "example", "state"), "$.state"),
        (
            rules.schema_examples,
            _put([7], "components", "schemas", "PortOut", "properties", "name", "examples"),
            "PortOut.name",
        ),
    ],
)
def test_a_broken_rule_is_named(
    document: dict[str, Any],
    rule: Callable[[Mapping[str, Any]], Iterator[str]],
    change: Callable[[dict[str, Any]], None],
    says: str,
) -> None:
    broken = copy.deepcopy(document)
    change(broken)
    assert any(says in wrong for wrong in rule(broken)), list(rule(broken))


def test_a_client_generator_takes_it(tmp_path: Path, document: dict[str, Any]) -> None:
    """openapi-python-client makes a client with every operation, and Python reads it."""
    source = tmp_path / "openapi.json"
    source.write_text(json.dumps(document), "utf-8")
    config = tmp_path / "config.yaml"
    # the generator knows of bytes by one media type only
    config.write_text(
        "post_hooks: []\ncontent_type_overrides:\n  application/x-tar: application/octet-stream\n",
        "utf-8",
    )
    done = subprocess.run(
        [
            sys.executable, "-m", "openapi_python_client", "generate", "--path", str(source),
            "--config", str(config), "--meta", "none", "--output-path", str(tmp_path / "client"),
            "--fail-on-warning",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    made = {path.stem for path in (tmp_path / "client" / "api").rglob("*.py")}
    wanted = {operation["operationId"] for _, _, operation in rules.operations(document)}
    assert wanted <= made
    for path in (tmp_path / "client").rglob("*.py"):
        compile(path.read_text("utf-8"), str(path), "exec")
