"""No secret in a log, an error, a representation or a dump."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
import pytest

from service.db import Database, run_migrations
from service.db.tokens import TokenStore
from service.domain import Role
from service.settings import Settings, SettingsError
from worker.doctor import examine

from .live import serving

HIDDEN = {
    "signing_secret": "hidden-signing-" * 4,
    "s3_access_key_id": "hidden-key-id",
    "s3_secret_access_key": "hidden-access-key",
    "database_url": "postgresql+psycopg://user:hidden-database@127.0.0.1:1/d?connect_timeout=1",
    "broker_url": "redis://user:hidden-broker@127.0.0.1:1/0",
}


def test_settings_show_and_dump_none(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, s3_bucket="b", **HIDDEN)  # type: ignore[arg-type]
    assert settings.database_url == HIDDEN["database_url"]
    shown = (
        repr(settings), str(settings), f"{settings!s:.9000}", settings.model_dump_json(),
        str(settings.model_dump()), str(settings.model_dump(mode="json")),
    )  # fmt: skip
    for text in shown:
        assert "hidden" not in text
    assert "redis://user:***@127.0.0.1:1/0" in settings.model_dump_json()


def test_a_refused_secret_is_not_repeated(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, signing_secret="hidden")  # type: ignore[arg-type]
    with pytest.raises(SettingsError) as caught:
        settings.signing_key()
    assert "QB_SIGNING_SECRET" in str(caught.value) and "hidden" not in str(caught.value)


def test_the_doctor_tells_none(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, database_url=HIDDEN["database_url"],
                        broker_url=HIDDEN["broker_url"])  # fmt: skip
    findings = examine(settings)
    assert {f.name for f in findings if not f.ok} >= {"database", "broker"}
    for finding in findings:
        assert "hidden" not in finding.text + finding.mend


def test_a_server_logs_and_answers_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(data_dir=tmp_path / "data", tokens_required=True, log_level="debug",
                        signing_secret=HIDDEN["signing_secret"])  # type: ignore[arg-type] # fmt: skip
    settings.data_dir.mkdir()
    url = settings.effective_database_url
    run_migrations(url)
    database = Database(url)
    token, text = TokenStore(database).create(project="default", name="t", role=Role.BUILDER)
    assert text not in repr(token)
    database.close()
    with caplog.at_level(logging.DEBUG), serving(settings) as live:
        headers = {"Authorization": f"Bearer {text}"}
        answers = [
            live.http.get("/v1/models", headers=headers),
            live.http.get("/v1/models/mdl_none", headers=headers),
            live.http.post("/v1/jobs", headers=headers, json={"type": "parse", "x": text}),
            live.http.get("/v1/models", headers={"Authorization": f"Bearer {text}x"}),
            live.http.get(f"/v1/models?token={text}"),
            live.http.get("/metrics", headers=headers),
            httpx.get(f"{live.url}/v1/artifacts/art_x/content?signature=hidden-signature"),
        ]
        assert [a.status_code for a in answers[:5]] == [200, 422, 422, 401, 401]
        for answer in answers[:2] + answers[3:]:
            assert text not in answer.text and "hidden" not in answer.text
    # the client of this test logs what it sends
    ours = (r for r in caplog.records if not r.name.startswith(("httpx", "httpcore")))
    said = "".join((*(r.getMessage() for r in ours), *capfd.readouterr()))
    assert text not in said and "hidden" not in said
