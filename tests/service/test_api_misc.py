from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.db import Database, TokenStore, run_migrations
from service.domain import Role
from service.settings import Settings, SettingsError

from .conftest import free_settings
from .live import Live, problem, serving, tiny_onnx

ROOT = Path(__file__).resolve().parents[2]


# errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "NOT_FOUND"),
        ("GET", "/v1/", 404, "NOT_FOUND"),
        ("GET", "/v1/jobs/", 404, "NOT_FOUND"),
        ("GET", "/web/../settings.py", 404, "NOT_FOUND"),
        ("GET", "/web/..%2fsettings.py", 404, "NOT_FOUND"),
        ("GET", "/web/nothing.js", 404, "NOT_FOUND"),
        ("PATCH", "/v1/jobs", 405, "METHOD_NOT_ALLOWED"),
        ("DELETE", "/v1/jobs", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/healthz", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/v1/devices/regulus-rc", 404, "NOT_FOUND"),
        ("GET", "/v1/presets/none", 404, "NOT_FOUND"),
        ("GET", "/v1/jobs/x", 422, "ARGUMENT_ERROR"),
        ("GET", "/v1/jobs/x%00y", 422, "ARGUMENT_ERROR"),
    ],
)
def test_every_error_is_a_problem(
    live: Live, method: str, path: str, status: int, code: str
) -> None:
    answer = live.http.request(method, path)
    problem(answer, status, code)
    if status == 405:
        assert answer.headers["allow"]


def test_request_ids(live: Live) -> None:
    mine = live.http.get("/healthz", headers={"X-Request-Id": "ci-42.a_b"})
    assert mine.headers["x-request-id"] == "ci-42.a_b"
    for bad in ("a b", "x" * 200, "ä".encode(), ""):
        answer = live.http.get("/healthz", headers={"X-Request-Id": bad})
        assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_fault_of_ours_says_nothing_of_itself(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret: SELECT * FROM /srv/secret")

    monkeypatch.setattr(live.context.jobs, "get", broken)
    with caplog.at_level(logging.ERROR):
        found = problem(live.http.get(f"/v1/jobs/job_{'0' * 26}"), 500, "INTERNAL_ERROR")
    assert "secret" not in json.dumps(found)
    assert found["request_id"] in found["hint"]
    assert any("secret" in str(r.exc_info) for r in caplog.records)
    assert any(found["request_id"] in r.getMessage() for r in caplog.records)


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        ("database is locked", 503, "UNAVAILABLE"),
        ("connection to server at db, user qb failed", 503, "UNAVAILABLE"),
        ("database or disk is full", 507, "OUTPUT_WRITE_ERROR"),
        ("could not extend file: No space left on device", 507, "OUTPUT_WRITE_ERROR"),
    ],
)
def test_a_database_that_is_away_or_full(
    live: Live, monkeypatch: pytest.MonkeyPatch, text: str, status: int, code: str
) -> None:
    from sqlalchemy.exc import OperationalError

    def broken(*_: object, **__: object) -> None:
        raise OperationalError("SELECT secret", {}, Exception(text))

    monkeypatch.setattr(live.context.jobs, "page", broken)
    answer = live.http.get("/v1/jobs")
    found = problem(answer, status, code)
    assert found["retryable"] and answer.headers["retry-after"]
    assert "secret" not in answer.text and "user qb" not in answer.text


def test_an_object_store_that_is_away(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    from service.storage import StorageError

    def broken(*_: object) -> None:
        raise StorageError("cannot store an object: EndpointConnectionError")

    monkeypatch.setattr(live.context.store, "put_file", broken)
    answer = live.http.post("/v1/models", files={"file": tiny_onnx()})
    assert problem(answer, 503, "UNAVAILABLE")["retryable"]


def test_the_log_has_no_signature(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="service.http"):
        live.http.get(f"/v1/links/lnk_{'0' * 26}/x?expires=1&signature=SECRET")
        time.sleep(0.05)
    lines = [r.getMessage() for r in caplog.records if r.name == "service.http"]
    assert any("/v1/links" in line for line in lines)
    assert not any("SECRET" in line for line in lines)


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/models", "GET, POST, PUT"),
        ("/v1/jobs", "GET, POST"),
        (f"/v1/models/mdl_{'0' * 26}", "DELETE, GET"),
        (f"/v1/artifacts/art_{'0' * 26}/content", "GET, HEAD"),
        ("/healthz", "GET"),
    ],
)
def test_every_method_of_a_path_is_named(live: Live, path: str, methods: str) -> None:
    answer = live.http.patch(path)
    problem(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == methods


# who may call -------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "evil.example:80"])
def test_names_that_resolve_to_loopback_are_refused(live: Live, host: str) -> None:
    problem(live.http.get("/v1/jobs", headers={"Host": host}), 403, "FORBIDDEN")


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1", "[::1]:80"])
def test_own_names_are_taken(live: Live, host: str) -> None:
    assert live.http.get("/v1/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}],
)
def test_web_pages_of_others_cannot_write(live: Live, headers: dict[str, str]) -> None:
    answer = live.http.post("/v1/models", files={"file": tiny_onnx()}, headers=headers)
    problem(answer, 403, "FORBIDDEN")


def test_the_own_page_can_write(live: Live) -> None:
    headers = {"Origin": live.url, "Sec-Fetch-Site": "same-origin"}
    answer = live.http.post("/v1/models", files={"file": tiny_onnx()}, headers=headers)
    assert answer.status_code == 201


def test_tokens_roles_and_projects(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, tokens_required=True, poll_seconds=0.02)
    run_migrations(settings.effective_database_url)
    db = Database(settings.effective_database_url)
    tokens = TokenStore(db)
    _, reader = tokens.create(project="default", name="r", role=Role.READER)
    builder_token, builder = tokens.create(project="default", name="b", role=Role.BUILDER)
    _, stranger = tokens.create(project="other", name="s", role=Role.ADMIN)
    _, expired = tokens.create(project="default", name="e", role=Role.ADMIN, expires_in_s=-1)
    with db.read() as session:
        kept = session.connection().exec_driver_sql("SELECT * FROM tokens").all()
    assert not any(text in str(kept) for text in (reader, builder, stranger))

    with serving(settings) as live:
        auth = lambda text: {"Authorization": f"Bearer {text}"}  # noqa: E731
        for headers in (
            {},
            auth("qbt_wrong"),
            auth("wrong"),
            auth(expired),
            {"Authorization": "x"},
        ):
            answer = live.http.get("/v1/jobs", headers=headers)
            problem(answer, 401, "UNAUTHENTICATED")
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert live.http.get("/healthz").status_code == 200
        post = lambda text: live.http.post(  # noqa: E731
            "/v1/models", files={"file": tiny_onnx()}, headers=auth(text)
        )
        assert "needs builder" in problem(post(reader), 403, "FORBIDDEN")["detail"]
        model = post(builder).json()
        assert live.http.get(f"/v1/models/{model['id']}", headers=auth(reader)).status_code == 200
        # another project's id is as if it never was
        found = live.http.get(f"/v1/models/{model['id']}", headers=auth(stranger))
        problem(found, 404, "NOT_FOUND")
        assert live.http.get("/v1/models", headers=auth(stranger)).json()["items"] == []
        body = {"type": "parse", "model_id": model["id"]}
        problem(live.http.post("/v1/jobs", json=body, headers=auth(stranger)), 404, "NOT_FOUND")
        live.http.headers.update(auth(builder))
        artifact = live.finish(live.submit(**body))
        problem(live.http.get(artifact["content_url"], headers=auth(stranger)), 404, "NOT_FOUND")
        url = live.http.post(f"/v1/artifacts/{artifact['id']}/links").json()["url"]
        # a link needs no token
        import httpx

        assert httpx.get(url).status_code == 200
        # with tokens any name may be the server's
        assert live.http.get("/v1/jobs", headers={"Host": "build.example"}).status_code == 200
        assert tokens.revoke(builder_token.id)
        problem(live.http.get("/v1/jobs"), 401, "UNAUTHENTICATED")
    db.close()


# what can be asked for ----------------------------------------------------------------------


def test_the_catalogue(live: Live) -> None:
    devices = live.http.get("/v1/devices").json()
    names = [d["name"] for d in devices]
    assert names == sorted(names) and {"regulus-rb", "aries-rb"} <= set(names)
    rb = live.http.get("/v1/devices/regulus-rb").json()
    assert rb in devices
    assert rb["schemes"] == ["single", "all"]
    assert rb["assumptions"]
    presets = live.http.get("/v1/presets").json()
    assert "classification" in [p["name"] for p in presets]
    preset = live.http.get("/v1/presets/classification_torchvision").json()
    assert preset["extends"] == "classification"
    assert preset["resolved_config"]["calibration"]["mode"] == 1
    schema = live.http.get("/v1/schemas/compile-config").json()
    assert "calibration" in schema["properties"]
    (engine,) = live.http.get("/v1/engines").json()
    assert (engine["name"], engine["default"], engine["builtin"]) == ("qbcompiler", True, True)
    assert "+" in engine["version"]
    limits = live.http.get("/v1/limits").json()
    assert limits["max_model_bytes"] == 200_000
    assert limits["memory_limit_mb"] is None


def test_a_second_engine_by_configuration(tmp_path: Path) -> None:
    engines = {"vendor": {"command": ["/opt/qb/bin/python", "-m", "qbcompiler"], "version": "1.3"}}
    settings = Settings.model_validate({"data_dir": tmp_path, "engines": engines})
    with serving(settings) as live:
        assert [e["name"] for e in live.http.get("/v1/engines").json()] == ["qbcompiler", "vendor"]
        body = {"type": "parse", "model_id": live.upload()["id"]}
        own = live.submit(**body)
        other = live.submit(**body, engine="vendor")
        assert own["build_key"] != other["build_key"]
        assert (other["engine"], other["engine_version"]) == ("vendor", "1.3")
        assert live.context.builds.claim_next("qb.vendor", "w").build.id == other["build_id"]  # type: ignore[union-attr]


# health -------------------------------------------------------------------------------------


def test_health_and_metrics(live: Live) -> None:
    assert live.http.get("/healthz").json()["status"] == "ok"
    ready = live.http.get("/readyz")
    assert ready.status_code == 200
    assert {c["name"]: c["ok"] for c in ready.json()["checks"]} == {
        "database": True,
        "schema": True,
        "object_store": True,
    }
    live.parse_job(500)
    text = live.http.get("/metrics").text
    families = {f.name: f for f in text_string_to_metric_families(text)}
    states = {s.labels["state"]: s.value for s in families["qb_jobs"].samples}
    assert states["queued"] >= 1 and set(states) == {
        "queued", "running", "succeeded", "failed", "cancelled", "timed_out",
    }  # fmt: skip
    routes = {s.labels["route"] for s in families["qb_http_request_seconds"].samples}
    assert "/v1/jobs" in routes
    # ids are not label values
    assert not any(re.search("job_[0-9a-z]{26}", r) for r in routes)


def test_not_ready_says_what_is_missing_and_no_more(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down() -> None:
        raise ConnectionError("postgres://user:password@host")

    monkeypatch.setattr(live.context.db, "check", down)
    answer = live.http.get("/readyz")
    assert answer.status_code == 503
    found = {c["name"]: c for c in answer.json()["checks"]}
    assert found["database"]["detail"] == "cannot be used: ConnectionError"
    assert "password" not in answer.text


def test_a_broker_that_is_down_refuses_nothing(tmp_path: Path) -> None:
    from service.api import create_app
    from service.api.app import _context

    settings = Settings(data_dir=tmp_path, broker_url="redis://127.0.0.1:9/0")
    run_migrations(settings.effective_database_url)
    db = Database(settings.effective_database_url)
    context = _context(settings, None, db)
    assert context.broker is not None
    started = time.monotonic()
    with pytest.raises(Exception, match=r"127\.0\.0\.1:9|refused"):
        context.broker.check()
    assert time.monotonic() - started < 15
    db.close()
    assert create_app(settings) is not None


def test_messages_reach_a_real_broker(tmp_path: Path, valkey_url: str) -> None:
    import redis

    from service.broker import TASK_RUN_BUILD, CelerySender
    from service.db import Message

    sender = CelerySender(Settings(data_dir=tmp_path, broker_url=valkey_url))
    sender.check()
    sender(Message("bld_x", "qb.test", 7))
    client = redis.Redis(unix_socket_path=valkey_url.removeprefix("redis+socket://"))
    (key,) = list(client.keys("qb.test*"))  # type: ignore[arg-type]
    raw = client.lpop(key)
    assert isinstance(raw, bytes)
    message = json.loads(raw)
    assert message["headers"]["task"] == TASK_RUN_BUILD
    assert message["properties"]["priority"] == 2
    import base64

    assert json.loads(base64.b64decode(message["body"]))[0] == ["bld_x"]
    sender.close()


# the description ----------------------------------------------------------------------------


def test_the_description_is_the_one_that_is_written() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "service.api.openapi", "--check"],
        cwd=ROOT,
        env={"PATH": "/usr/bin", "QB_PORT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_description_is_whole(live: Live) -> None:
    from openapi_spec_validator import validate

    found: dict[str, Any] = live.http.get("/openapi.json").json()
    validate(found)  # type: ignore[arg-type]
    ids = []
    for path, item in found["paths"].items():
        for method, operation in item.items():
            where = f"{method} {path}"
            assert operation["summary"] and operation["operationId"], where
            ids.append(operation["operationId"])
            for status, answer in operation["responses"].items():
                assert answer["description"], where
                if status.startswith(("4", "5")) and not (path == "/readyz" and status == "503"):
                    assert list(answer["content"]) == ["application/problem+json"], where
            for parameter in operation.get("parameters", []):
                assert parameter.get("description"), f"{where} {parameter['name']}"
    assert len(ids) == len(set(ids))


def test_the_pages_load_nothing_from_elsewhere(live: Live) -> None:
    for path in ("/", "/docs"):
        answer = live.http.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        for other in ("http://", "https://", "//cdn"):
            assert other not in answer.text.replace("http://www.w3.org", "")


def test_the_api_imports_no_heavy_library() -> None:
    code = (
        "import sys, service.api; "
        "bad = {'onnx', 'onnxruntime', 'onnx_ir', 'onnxscript', 'numpy', 'scipy', 'worker'} "
        "& set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_old_schema_is_refused(tmp_path: Path, any_database_url: str) -> None:
    from service.api.app import _context

    settings = free_settings(tmp_path, database_url=any_database_url)
    db = Database(any_database_url)
    with pytest.raises(SettingsError, match="qbserver migrate"):
        _context(settings, lambda _: None, db)
    db.close()
