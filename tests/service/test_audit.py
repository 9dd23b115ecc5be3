from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.db import Action, Actor, AuditFilter, AuditStore, Database, TokenStore, acting_as
from service.domain import ArtifactKind, Role
from worker.cli import main

from .conftest import Bench, free_settings
from .live import Live, problem, serving, tiny_onnx

Call = Callable[..., httpx.Response]


def client(live: Live, project: str, role: Role) -> tuple[str, Call]:
    token, text = live.context.tokens.create(project=project, name=f"{role.value}'s", role=role)

    def call(method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {text}", **more.pop("headers", {})}
        return live.http.request(method, path, headers=headers, **more)

    return token.id, call


def test_every_deed_is_recorded_with_its_doer(tmp_path: Path) -> None:
    with serving(free_settings(tmp_path, tokens_required=True)) as live:
        _, admin = client(live, "one", Role.ADMIN)
        me, builder = client(live, "one", Role.BUILDER)
        _, reader = client(live, "one", Role.READER)
        _, stranger = client(live, "two", Role.ADMIN)

        model = builder("POST", "/v1/models", files={"file": ("m.onnx", tiny_onnx())}).json()
        job = builder(
            "POST", "/v1/jobs", json={"type": "parse", "model_id": model["id"]},
            headers={"X-Request-Id": "ci-1"},
        ).json()  # fmt: skip
        claim = live.claim(job)
        live.context.builds.succeed(claim, [live.put(b"x", ArtifactKind.MBLT, "m.mblt")], {})
        (artifact,) = builder("GET", f"/v1/jobs/{job['id']}").json()["artifacts"]
        link = builder("POST", f"/v1/artifacts/{artifact['id']}/links").json()
        builder("DELETE", f"/v1/artifacts/{artifact['id']}/links/{link['id']}")
        other = builder(
            "POST", "/v1/jobs",
            json={"type": "parse", "model_id": model["id"], "input_shapes": {"x": [1, 3, 8, 8]}},
        ).json()  # fmt: skip
        builder("POST", f"/v1/jobs/{other['id']}/cancel")
        builder("DELETE", f"/v1/models/{model['id']}")
        problem(reader("POST", f"/v1/jobs/{job['id']}/retry"), 403, "FORBIDDEN")
        admin("POST", "/v1/webhooks/secret/rotate")
        # what only looks, and what fails, leaves nothing
        reader("GET", f"/v1/jobs/{job['id']}")
        builder("POST", f"/v1/jobs/{other['id']}/cancel")
        builder("DELETE", f"/v1/models/{model['id']}")

        found = admin("GET", "/v1/audit").json()["items"]
        assert [(e["actor"]["role"], e["action"], e["subject"]) for e in reversed(found)] == [
            ("builder", "model.create", model["id"]),
            ("builder", "job.submit", job["id"]),
            ("builder", "link.create", link["id"]),
            ("builder", "link.revoke", link["id"]),
            ("builder", "job.submit", other["id"]),
            ("builder", "job.cancel", other["id"]),
            ("builder", "model.delete", model["id"]),
            ("reader", "access.denied", None),
            ("admin", "webhook.rotate", None),
        ]
        submitted = found[-2]
        assert submitted["actor"] == {
            "kind": "token", "id": me, "name": "builder's", "role": "builder",
            "address": "127.0.0.1", "request_id": "ci-1",
        }  # fmt: skip
        assert submitted["details"]["cache"] == "miss"
        assert found[1]["details"] == {
            "needed": "builder", "call": f"POST /v1/jobs/{job['id']}/retry",
        }  # fmt: skip
        assert link["url"] not in admin("GET", "/v1/audit").text

        problem(builder("GET", "/v1/audit"), 403, "FORBIDDEN")
        assert stranger("GET", "/v1/audit").json()["items"] == []
        get = lambda **q: [e["action"] for e in admin("GET", "/v1/audit", params=q).json()["items"]]  # noqa: E731
        assert get(subject=job["id"]) == ["job.submit"]
        assert get(action=["job.cancel", "link.revoke"]) == ["job.cancel", "link.revoke"]
        # the last is the call to the log itself
        assert len(get(actor_id=me)) == 8
        later = datetime.fromisoformat(submitted["at"]) + timedelta(microseconds=1)
        assert len(get(created_after=later.isoformat())) == 8
        assert get(created_before=submitted["at"]) == ["model.create"]
        first = admin("GET", "/v1/audit", params={"limit": 4}).json()
        second = admin(
            "GET", "/v1/audit", params={"limit": 200, "cursor": first["next_cursor"]}
        ).json()
        assert len(first["items"]) + len(second["items"]) == 10


def test_commands_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                               capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setenv("QB_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "operator")
    assert main(["token", "create", "ci", "--role", "reader"]) == 0
    text = capsys.readouterr().out.strip()
    db = Database(f"sqlite:///{tmp_path / 'qb.sqlite3'}")
    try:
        token = TokenStore(db).verify(text)
        assert token is not None
        assert main(["token", "revoke", token.id]) == 0
        page = AuditStore(db).page("default", AuditFilter(), limit=9, cursor=None)
        assert [(e.action, e.subject, e.actor.kind, e.actor.name) for e in page.items] == [
            (Action.TOKEN_REVOKE, token.id, "command", "operator"),
            (Action.TOKEN_CREATE, token.id, "command", "operator"),
        ]
        assert text not in str(page.items)
    finally:
        db.close()


def test_a_deed_and_its_record_stand_or_fall_together(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.db import submitting

    log = AuditStore(bench.db)
    with acting_as(Actor("local")):
        done = bench.jobs.submit(bench.new(1))

        def broken(*_: object) -> None:
            raise RuntimeError("in the middle")

        monkeypatch.setattr(submitting, "_catch_up", broken)
        with pytest.raises(RuntimeError):
            bench.jobs.submit(bench.new(2))
    entries = log.page("default", AuditFilter(), limit=9, cursor=None).items
    assert [e.subject for e in entries] == [done.job.id]
    # the server's own doings are no one's
    monkeypatch.undo()
    bench.jobs.submit(bench.new(3))
    assert len(log.page("default", AuditFilter(), limit=9, cursor=None).items) == 1
