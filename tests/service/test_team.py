"""The team's way: Postgres, Valkey and S3, two services side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from service.api import create_app
from service.db import run_migrations
from service.settings import Settings, SettingsError

from ..support.servers import new_database
from .live import Live, events, serving


@pytest.fixture
def team(
    tmp_path: Path, postgres_url: str, valkey_url: str, s3_settings: dict[str, Any]
) -> Settings:
    return Settings.model_validate(
        {
            "mode": "team",
            "data_dir": tmp_path / "scratch",
            "database_url": new_database(postgres_url),
            "broker_url": valkey_url,
            "signing_secret": "8f3c1d9e7a5b4c2f0e6d8b1a3c5e7f90",
            "queue_prefix": f"t{tmp_path.name[-8:]}.",
            "poll_seconds": 0.02,
            **s3_settings,
        }
    )


def test_two_services_are_one(team: Settings, valkey_url: str) -> None:
    run_migrations(team.database_url)
    with serving(team) as one, serving(team) as two:
        model = one.upload()
        assert two.http.get(f"/v1/models/{model['id']}").json() == model
        calibration = two.calibrate()
        body = {
            "type": "compile",
            "model_id": model["id"],
            "calibration_id": calibration["id"],
            "target_device": "aries-rb",
            "inference_scheme": "all",
            "labels": {"a": "b"},
        }
        job = one.submit(**body)
        assert two.submit(**body)["build_id"] == job["build_id"]
        # a stream on one sees what happens through the other
        with two.http.stream("GET", f"/v1/jobs/{job['id']}/events") as stream:
            artifact = one.finish(job, b"package", "m.mxq")
            states = [
                e["data"]["state"] for e in events(stream.iter_lines()) if e.get("event") == "state"
            ]
        assert states == ["queued", "running", "succeeded"]
        link = one.http.post(f"/v1/artifacts/{artifact['id']}/links").json()["url"]
        other = link.replace(one.url, two.url)
        assert httpx.get(other, follow_redirects=True).content == b"package"
        assert two.submit(**body)["cache"] == "hit"
        found = two.http.get("/v1/jobs", params={"label": "a=b", "state": "succeeded"}).json()
        assert len(found["items"]) == 3
        # nothing but the scratch folder is local
        assert not [p for p in team.data_dir.rglob("*") if p.is_file()]


def test_messages_go_to_the_broker_and_readiness_covers_it(team: Settings, valkey_url: str) -> None:
    run_migrations(team.database_url)
    with serving(team, real_broker=True) as live:
        checks = {c["name"]: c["ok"] for c in live.http.get("/readyz").json()["checks"]}
        assert checks == {"database": True, "schema": True, "object_store": True, "broker": True}
        live.parse_job(1)
        client = redis.Redis(unix_socket_path=valkey_url.removeprefix("redis+socket://"))
        _wait_for(live, client, f"{team.queue_prefix}qbcompiler")


def _wait_for(live: Live, client: redis.Redis, queue: str) -> None:
    import time

    deadline = time.monotonic() + 20
    while not list(client.scan_iter(f"{queue}*")):
        assert time.monotonic() < deadline, live.http.get("/readyz").text
        time.sleep(0.02)


def test_a_team_without_migrations_or_secrets_does_not_start(team: Settings) -> None:
    from service.api.app import _open

    with pytest.raises(SettingsError, match="qbserver migrate"):
        _open(team, lambda _: None)
    with pytest.raises(SettingsError, match="QB_SIGNING_SECRET"):
        _open(team.model_copy(update={"signing_secret": None}), lambda _: None)
    assert create_app(team) is not None
