from __future__ import annotations

import stat
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.settings import Mode, Settings, SettingsError, settings_table

from .conftest import free_settings, in_threads

SECRET = "8f3c1d9e7a5b4c2f0e6d8b1a3c5e7f90"
TEAM = {
    "mode": "team",
    "database_url": "postgresql://db/qb",
    "broker_url": "redis://broker",
    "s3_bucket": "qb",
    "signing_secret": SECRET,
}


def test_settings_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QB_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("QB_PORT", "1234")
    monkeypatch.setenv("QB_RUN_LIMIT_S", "")
    monkeypatch.setenv("QB_ENGINES", '{"v": {"command": ["x"], "version": "1", "queue": "q"}}')
    settings = Settings()
    assert settings.port == 1234
    assert settings.run_limit_s == 21600
    assert settings.effective_database_url == f"sqlite:///{tmp_path}/qb.sqlite3"
    assert settings.effective_broker_url == f"redis+socket://{tmp_path}/valkey.sock"
    assert settings.queue_of("v") == "qb.q"
    assert settings.queue_of("qbcompiler") == "qb.qbcompiler"


def test_a_long_data_folder_still_has_a_socket(tmp_path: Path) -> None:
    settings = free_settings(tmp_path / ("x" * 120))
    assert len(str(settings.broker_socket)) < 100
    assert settings.broker_socket == free_settings(tmp_path / ("x" * 120)).broker_socket
    assert settings.broker_socket != free_settings(tmp_path / ("y" * 120)).broker_socket


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"port": 70000}, "65535"),
        ({"mode": "cloud"}, "team"),
        ({"public_url": "build.example"}, "http"),
        ({"engines": {"qbcompiler": {"command": ["x"], "version": "1"}}}, "own engine"),
        ({"engines": {"a b": {"command": ["x"], "version": "1"}}}, "engine name"),
        ({"engines": {"v": {"command": [], "version": "1"}}}, "command"),
        ({"default_engine": "v"}, "QB_ENGINES"),
        ({"lease_seconds": 5, "heartbeat_seconds": 4}, "half"),
        ({"s3_access_key_id": "x"}, "both"),
        ({"queue_prefix": "a b"}, "pattern"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        free_settings(tmp_path, **changes)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_token(tmp_path: Path, host: str) -> None:
    free_settings(tmp_path, host=host).check_bind()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "build.example", ""])
def test_other_addresses_need_tokens(tmp_path: Path, host: str) -> None:
    with pytest.raises(SettingsError, match="QB_TOKENS_REQUIRED"):
        free_settings(tmp_path).check_bind(host)
    free_settings(tmp_path, tokens_required=True).check_bind(host)


def test_the_own_secret_is_made_once_and_is_private(tmp_path: Path) -> None:
    keys = in_threads(6, lambda _: free_settings(tmp_path / "d").signing_key())
    assert len(set(keys)) == 1
    path = tmp_path / "d" / "signing.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert free_settings(tmp_path / "d").signing_key() == keys[0]
    assert free_settings(tmp_path / "e").signing_key() != keys[0]
    assert [p.name for p in (tmp_path / "d").iterdir()] == ["signing.key"]


def test_a_team_is_complete_or_does_not_start(tmp_path: Path) -> None:
    free_settings(tmp_path, **TEAM).check_team()
    with pytest.raises(SettingsError) as caught:
        free_settings(tmp_path, mode="team").check_team()
    for name in ("QB_DATABASE_URL", "QB_BROKER_URL", "QB_S3_BUCKET", "QB_SIGNING_SECRET"):
        assert name in str(caught.value)
    with pytest.raises(SettingsError, match="QB_SIGNING_SECRET"):
        free_settings(tmp_path, mode="team").signing_key()
    # what embedded mode needs not
    free_settings(tmp_path, mode=Mode.EMBEDDED.value).check_team()


@pytest.mark.parametrize(
    "secret", ["short", "a" * 64, "changeme" * 8, "0123456789-password-0123456789-x", " " * 64]
)
def test_weak_secrets_are_refused(tmp_path: Path, secret: str) -> None:
    with pytest.raises(SettingsError, match="openssl rand"):
        free_settings(tmp_path, **{**TEAM, "signing_secret": secret}).check_team()


def test_secrets_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = free_settings(tmp_path, **TEAM, s3_access_key_id="kkkk", s3_secret_access_key="ssss")
    assert SECRET not in repr(settings) and "ssss" not in repr(settings)
    from service import settings as module

    monkeypatch.setenv("QB_DATABASE_URL", "postgresql://user:hidden@db/qb")
    monkeypatch.setenv("QB_SIGNING_SECRET", SECRET)
    monkeypatch.setattr("sys.argv", ["settings"])
    assert module._main() == 0
    shown = capsys.readouterr().out
    assert "QB_DATABASE_URL=postgresql://user:***@db/qb\n" in shown
    assert SECRET not in shown and "hidden" not in repr(Settings())


def test_the_table_has_every_setting() -> None:
    table = settings_table()
    rows = table.splitlines()[2:]
    assert len(rows) == len(Settings.model_fields)
    for name, row in zip(Settings.model_fields, rows, strict=True):
        cells = [c.strip() for c in row.strip("|").split(" | ")]
        assert cells[0] == f"`QB_{name.upper()}`"
        assert len(cells) == 3 and cells[2] and cells[2] != "None", row
