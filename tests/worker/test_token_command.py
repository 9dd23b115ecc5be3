"""``qbserver token``: on an empty database, and against the rule that a token opens its project."""

from __future__ import annotations

import pytest

from service.db import Database, TokenStore
from worker.cli import main


@pytest.fixture
def database_url(any_database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path) -> str:
    monkeypatch.setenv("QB_DATABASE_URL", any_database_url)
    monkeypatch.setenv("QB_DATA_DIR", str(tmp_path))
    return any_database_url


def _verify(url: str, text: str):
    db = Database(url)
    try:
        return TokenStore(db).verify(text)
    finally:
        db.close()


def test_a_token_is_made_on_an_empty_database_and_revoked(database_url, capsys):
    assert main(["token", "create", "ci", "--role", "builder", "--project", "vision"]) == 0
    text = capsys.readouterr().out.strip()
    token = _verify(database_url, text)
    assert (token.name, token.role.value, token.project) == ("ci", "builder", "vision")
    assert token.expires_at is None

    assert main(["token", "list"]) == 0
    listed = capsys.readouterr().out
    assert token.id in listed and "valid" in listed and text not in listed

    assert main(["token", "revoke", token.id]) == 0
    assert _verify(database_url, text) is None
    capsys.readouterr()
    assert main(["token", "list"]) == 0
    assert "revoked" in capsys.readouterr().out


def test_days_bound_a_token(database_url, capsys):
    assert main(["token", "create", "short", "--days", "0.5"]) == 0
    token = _verify(database_url, capsys.readouterr().out.strip())
    assert (token.expires_at - token.created_at).total_seconds() == 43200


@pytest.mark.parametrize("days", ["0", "-1", "nan", "inf", "x"])
def test_senseless_days_are_refused(database_url, days, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["token", "create", "x", "--days", days])
    assert exit_.value.code == 2
    assert "--days" in capsys.readouterr().err


def test_a_bad_project_and_an_unknown_token_are_refused(database_url, capsys):
    assert main(["token", "create", "x", "--project", "No Such"]) == 2
    assert "'No Such' is not a project name" in capsys.readouterr().err
    assert main(["token", "revoke", "tok_missing"]) == 2
    assert "there is no token tok_missing" in capsys.readouterr().err
