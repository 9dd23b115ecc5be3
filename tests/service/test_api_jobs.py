from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from service.domain import ArtifactKind, Failure, Phase

from .live import Live, events, problem


def test_a_job_from_submission_to_download(live: Live) -> None:
    model = live.upload(name="net", labels='{"team": "vision"}', source_revision="abc")
    calibration = live.calibrate()
    answer = live.http.post(
        "/v1/jobs",
        json={
            "type": "compile",
            "model_id": model["id"],
            "calibration_id": calibration["id"],
            "target_device": "regulus-rb",
            "config_preset": "classification",
            "compile_config": {"calibration": {"method": 1}},
            "input_shapes": {"x": [1, 3, 8, 8]},
            "labels": {"ci": "42"},
            "name": "nightly",
            "source_revision": "abc",
            "priority": 7,
            "limits": {"run_s": 60},
        },
    )
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert answer.headers["retry-after"] == "1"
    assert (job["state"], job["cache"], job["queue_position"]) == ("queued", "miss", 0)
    assert job["inference_scheme"] == "single"
    assert job["limits"]["run_s"] == 60
    _eventually(lambda: [m for m in live.sent if m.build_id == job["build_id"]])
    (message,) = [m for m in live.sent if m.build_id == job["build_id"]]
    assert (message.queue, message.priority) == ("qb.qbcompiler", 7)

    claim = live.claim(job)
    spec = claim.build.spec
    assert spec.model.files[0].sha256 == model["digest"]
    assert spec.calibration is not None and spec.calibration.digest == calibration["digest"]
    assert spec.compile_config == {"calibration": {"method": 1}}
    assert spec.resolved_config["calibration"]["method"] == 1
    assert spec.resolved_config["calibration"]["mode"] == 1  # the preset's
    assert "modelPaths" not in spec.resolved_config
    live.context.builds.progress(claim, phase=Phase.CALIBRATE, current=3, total=8)
    shown = live.job(job["id"])
    assert (shown["state"], shown["phase"]) == ("running", "calibrate")
    assert shown["progress"] == {"current": 3, "total": 8}
    assert shown["request"]["config_preset"] == "classification"
    live.context.builds.append_log(claim, "hello\nworld\n")
    assert live.http.get(f"/v1/jobs/{job['id']}/log").text == "hello\nworld\n"
    live.context.builds.succeed(
        claim,
        [live.put(b"MXQ!", ArtifactKind.MXQ, "net.mxq")],
        {"accuracy": {"sqnr_db": 30.5}},
    )
    shown = live.job(job["id"])
    assert shown["state"] == "succeeded"
    assert shown["summary"] == {"accuracy": {"sqnr_db": 30.5}}
    assert shown["timings"]["run_s"] >= 0
    (artifact,) = shown["artifacts"]
    assert live.http.get(artifact["content_url"]).content == b"MXQ!"
    detail = live.http.get(f"/v1/artifacts/{artifact['id']}").json()
    assert detail["made_by"]["job_id"] == job["id"]
    assert detail["made_by"]["target_device"] == "regulus-rb"

    hit = live.http.post("/v1/jobs", json={**shown["request"], "labels": {}, "name": "again"})
    assert hit.headers["retry-after"] == "0"
    assert (hit.json()["cache"], hit.json()["state"]) == ("hit", "succeeded")
    assert hit.json()["artifacts"][0]["id"] == artifact["id"]


def _eventually(check: object, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not check():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


# what is refused ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(live: Live) -> dict[str, object]:
    return {
        "type": "compile",
        "model_id": live.upload()["id"],
        "calibration_id": live.calibrate()["id"],
        "target_device": "regulus-rb",
        "validate_only": True,
    }


@pytest.mark.parametrize(
    ("change", "status", "code", "pointer", "nearest", "says"),
    [
        ({"target_device": "regulus-rc"}, 422, "DEVICE_SCHEME_ERROR", "/target_device",
         "regulus-rb", "regulus-rc"),
        ({"target_device": None}, 422, "DEVICE_SCHEME_ERROR", "/target_device", None, "needs"),
        ({"inference_scheme": "multi"}, 422, "DEVICE_SCHEME_ERROR", "/inference_scheme", None,
         "single"),
        ({"inference_scheme": "global"}, 422, "DEVICE_SCHEME_ERROR", "/inference_scheme", None,
         "global4"),
        ({"compile_config": {"inferenceScheme": "multi"}}, 422, "DEVICE_SCHEME_ERROR",
         "/compile_config/inferenceScheme", None, "single"),
        ({"config_preset": "classificaton"}, 422, "CONFIG_ERROR", "/config_preset",
         "classification", "classificaton"),
        ({"compile_config": {"calibration": {"modee": 1}}}, 422, "CONFIG_ERROR",
         "/compile_config/calibration/modee", "mode", "modee"),
        ({"compile_config": {"calibration": {"mode": 7}}}, 422, "CONFIG_ERROR",
         "/compile_config/calibration/mode", None, "7"),
        ({"compile_config": {"llm": {"apply": True}}}, 422, "CONFIG_ERROR",
         "/compile_config/llm", None, "language models"),
        ({"compile_config": {"calibDataPaths": ["/etc"]}}, 422, "CONFIG_ERROR",
         "/compile_config/calibDataPaths", None, "on the server"),
        ({"compile_config": {"load_scale": {"apply": True, "path": "/etc/passwd"}}}, 422,
         "CONFIG_ERROR", "/compile_config/loadScale/path", None, "on the server"),
        ({"calibration_id": None}, 422, "CALIBRATION_MISSING", "/calibration_id", None,
         "No calibration dataset is provided"),
        ({"use_random_calib": True}, 422, "ARGUMENT_ERROR", "/use_random_calib", None, "exclude"),
        ({"model_id": None}, 422, "ARGUMENT_ERROR", "/model_id", None, "needs model_id"),
        ({"model_id": "mdl_" + "0" * 26}, 404, "NOT_FOUND", "/model_id", None, "no model"),
        ({"calibration_id": "cal_" + "0" * 26}, 404, "NOT_FOUND", "/calibration_id", None,
         "no calibration"),
        ({"model_id": "hello"}, 422, "ARGUMENT_ERROR", "/model_id", None, "pattern"),
        ({"mblt_id": "art_" + "0" * 26}, 422, "ARGUMENT_ERROR", "/mblt_id", None, "takes model_id"),
        ({"engine": "qbcompile"}, 422, "ARGUMENT_ERROR", "/engine", "qbcompiler", "no engine"),
        ({"type": "compil"}, 422, "ARGUMENT_ERROR", "/type", "compile", "compil"),
        ({"target_devise": "x"}, 422, "ARGUMENT_ERROR", "/target_devise", "target_device",
         "no such field"),
        ({"limits": {"runs": 5}}, 422, "ARGUMENT_ERROR", "/limits/runs", "run_s", "no such field"),
        ({"limits": {"run_s": 0}}, 422, "ARGUMENT_ERROR", "/limits/run_s", None, "greater"),
        ({"priority": "high"}, 422, "ARGUMENT_ERROR", "/priority", None, "integer"),
        ({"labels": {"a b": "c"}}, 422, "ARGUMENT_ERROR", None, None, "pattern"),
        ({"input_shapes": {"x": [1, 0]}}, 422, "ARGUMENT_ERROR", "/input_shapes/x/1", None,
         "greater"),
        ({"type": "parse"}, 422, "ARGUMENT_ERROR", "/calibration_id", None, "no calibration"),
        ({"type": "quantize"}, 422, "ARGUMENT_ERROR", "/model_id", None, "takes mblt_id"),
    ],
)  # fmt: skip
def test_what_can_be_refused_is_refused_at_once(
    live: Live,
    good: dict[str, object],
    change: dict[str, object],
    status: int,
    code: str,
    pointer: str | None,
    nearest: str | None,
    says: str,
) -> None:
    body = {k: v for k, v in {**good, **change}.items() if v is not None}
    for validate_only in (True, False):
        answer = live.http.post("/v1/jobs", json={**body, "validate_only": validate_only})
        found = problem(answer, status, code)
        assert says in answer.text
        if pointer is not None:
            assert pointer in [e.get("pointer") for e in found["errors"]]
        if nearest is not None:
            assert nearest in [e.get("nearest") for e in found["errors"]]
            assert f"did you mean '{nearest}'" in found["detail"]


def test_validate_only_says_what_would_happen_and_makes_nothing(
    live: Live, good: dict[str, object]
) -> None:
    before = len(live.http.get("/v1/jobs?limit=200").json()["items"])
    answer = live.http.post(
        "/v1/jobs", json={**good, "compile_config": {"saveSample": {"apply": True}}}
    )
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["valid"] and found["cache"] == "miss" and found["build_id"] is None
    assert any("/saveSample" in w for w in found["warnings"])
    assert len(live.http.get("/v1/jobs?limit=200").json()["items"]) == before
    real = live.submit(**{**good, "validate_only": False})
    again = live.http.post("/v1/jobs", json=good).json()
    assert (again["cache"], again["build_id"]) == ("joined", real["build_id"])
    assert again["build_key"] == real["build_key"]


@pytest.mark.parametrize(
    ("body", "status", "code", "says"),
    [
        (b"{", 400, "BAD_REQUEST", "not JSON"),
        (b'{"type": NaN}', 400, "BAD_REQUEST", "NaN"),
        (b'{"type": "parse", "type": "compile"}', 400, "BAD_REQUEST", "twice"),
        (b'{"compile_config": ' + b"[" * 100 + b"]" * 100 + b"}", 400, "BAD_REQUEST", "deeper"),
        (b'{"name": "' + b"x" * 30_000 + b'"}', 413, "PAYLOAD_TOO_LARGE", "20000"),
        (b'{"name": "\\u0000"}', 400, "BAD_REQUEST", "NUL"),
        (b'{"name": "\\ud800"}', 400, "BAD_REQUEST", "Unicode"),
        (b'{"name": "\xff"}', 400, "BAD_REQUEST", "UTF-8"),
        (b'{"priority": ' + b"9" * 5000 + b"}", 400, "BAD_REQUEST", "number"),
        (b"[1, 2]", 422, "ARGUMENT_ERROR", "dictionary"),
        (b"", 422, "ARGUMENT_ERROR", "JSON object is required"),
    ],
)
def test_bodies_that_are_not_as_they_must_be(
    live: Live, body: bytes, status: int, code: str, says: str
) -> None:
    answer = live.http.post("/v1/jobs", content=body, headers={"content-type": "application/json"})
    problem(answer, status, code)
    assert says in answer.text


def test_a_large_body_without_a_length_is_refused(live: Live) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(50):
            yield b" " * 1000

    answer = live.http.post(
        "/v1/jobs", content=chunks(), headers={"content-type": "application/json"}
    )
    problem(answer, 413, "PAYLOAD_TOO_LARGE")


def test_idempotency(live: Live) -> None:
    body = {"type": "parse", "model_id": live.upload()["id"], "input_shapes": {"x": [1, 3, 8, 70]}}
    first = live.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k1"})
    second = live.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k1"})
    assert first.status_code == second.status_code == 202
    assert first.json()["id"] == second.json()["id"]
    assert second.headers["idempotency-replayed"] == "true"
    third = live.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k2"})
    assert third.json()["id"] != first.json()["id"]
    assert third.json()["cache"] == "joined"
    other = live.http.post(
        "/v1/jobs", json={**body, "priority": 1}, headers={"Idempotency-Key": "k1"}
    )
    found = problem(other, 422, "IDEMPOTENCY_MISMATCH")
    assert found["details"]["job_id"] == first.json()["id"]
    # its inputs may be gone by then
    live.http.post(f"/v1/jobs/{first.json()['id']}/cancel")
    live.http.post(f"/v1/jobs/{third.json()['id']}/cancel")
    assert live.http.delete(f"/v1/models/{body['model_id']}").status_code == 204
    again = live.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k1"})
    assert again.json()["id"] == first.json()["id"]
    problem(live.http.post("/v1/jobs", json=body), 404, "NOT_FOUND")


def test_a_retried_submission_at_once_makes_one_job(live: Live) -> None:
    body = {"type": "parse", "model_id": live.upload()["id"], "input_shapes": {"x": [1, 3, 8, 71]}}
    answers: list[httpx.Response] = []

    def post() -> None:
        with httpx.Client(base_url=live.url, timeout=60) as http:
            answers.append(http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k3"}))

    threads = [threading.Thread(target=post) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {a.status_code for a in answers} == {202}
    assert len({a.json()["id"] for a in answers}) == 1


# states -------------------------------------------------------------------------------------


def test_wait_holds_the_answer_until_the_state_changes(live: Live) -> None:
    job = live.parse_job(1)
    started = time.monotonic()
    assert live.http.get(f"/v1/jobs/{job['id']}?wait=0.3").json()["state"] == "queued"
    assert time.monotonic() - started >= 0.3

    def later() -> None:
        time.sleep(0.3)
        live.finish(job)

    thread = threading.Thread(target=later)
    thread.start()
    started = time.monotonic()
    shown = live.http.get(f"/v1/jobs/{job['id']}?wait=30").json()
    assert shown["state"] in ("running", "succeeded")
    assert time.monotonic() - started < 10
    thread.join()
    started = time.monotonic()
    assert live.http.get(f"/v1/jobs/{job['id']}?wait=30").json()["state"] == "succeeded"
    assert time.monotonic() - started < 5


def test_cancel_and_retry(live: Live) -> None:
    job = live.parse_job(2, name="n", labels={"a": "b"})
    problem(live.http.post(f"/v1/jobs/{job['id']}/retry"), 409, "JOB_NOT_FINISHED")
    answer = live.http.post(f"/v1/jobs/{job['id']}/cancel")
    assert answer.status_code == 200
    assert answer.json()["state"] == "cancelled"
    assert live.http.post(f"/v1/jobs/{job['id']}/cancel").json()["state"] == "cancelled"
    again = live.http.post(f"/v1/jobs/{job['id']}/retry")
    assert again.status_code == 202
    retried = again.json()
    assert retried["retry_of"] == job["id"]
    assert (retried["name"], retried["labels"], retried["cache"]) == ("n", {"a": "b"}, "miss")
    live.finish(retried)
    problem(live.http.post(f"/v1/jobs/{retried['id']}/cancel"), 409, "CONFLICT")
    problem(live.http.post(f"/v1/jobs/{retried['id']}/retry"), 409, "CONFLICT")
    problem(live.http.post(f"/v1/jobs/job_{'0' * 26}/cancel"), 404, "NOT_FOUND")


def test_a_failure_is_shown_as_it_is_and_a_retry_builds(live: Live) -> None:
    job = live.parse_job(3)
    failure = Failure("UNSUPPORTED_OPERATOR", "layer n1: Foo", {"layer": "n1"}, "use offload")
    claim = live.claim(job)
    live.context.builds.progress(claim, phase=Phase.PARSE)
    live.context.builds.fail(claim, failure)
    shown = live.job(job["id"])
    assert (shown["state"], shown["phase"]) == ("failed", "parse")
    assert shown["error"] == {
        "code": "UNSUPPORTED_OPERATOR",
        "detail": "layer n1: Foo",
        "hint": "use offload",
        "help": "/errors/UNSUPPORTED_OPERATOR",
        "retryable": False,
        "details": {"layer": "n1"},
    }
    assert shown["artifacts"] == []
    # the same request again is answered by the failure, a retry is not
    same = live.submit(**shown["request"])
    assert (same["cache"], same["state"]) == ("hit", "failed")
    retried = live.http.post(f"/v1/jobs/{job['id']}/retry").json()
    assert (retried["cache"], retried["state"]) == ("miss", "queued")
    live.finish(retried)
    assert live.submit(**shown["request"])["state"] == "succeeded"


def test_a_build_whose_file_is_gone_answers_no_more(live: Live) -> None:
    job = live.parse_job(6)
    artifact = live.finish(job, b"will be gone")
    body = live.job(job["id"])["request"]
    assert live.submit(**body)["cache"] == "hit"
    assert live.context.store.delete(artifact["sha256"])
    again = live.submit(**body)
    assert (again["cache"], again["state"]) == ("miss", "queued")
    live.finish(again, b"will be gone")
    assert live.submit(**body)["build_id"] == again["build_id"]


def test_quantize_takes_an_artifact_and_its_device(live: Live) -> None:
    parse = live.parse_job(4, target_device="regulus-ra", cpu_offload=True)
    mblt = live.finish(parse)
    job = live.submit(type="quantize", mblt_id=mblt["id"], calibration_id=live.calibrate()["id"])
    assert job["target_device"] == "regulus-ra"
    assert job["cpu_offload"] is True
    spec = live.claim(job).build.spec
    assert spec.model.digest == mblt["sha256"]
    assert spec.model.format.value == "mblt"
    free = live.finish(live.parse_job(5), b"another", "free.mblt")
    body = {"type": "quantize", "mblt_id": free["id"], "use_random_calib": True}
    found = problem(live.http.post("/v1/jobs", json=body), 422, "DEVICE_SCHEME_ERROR")
    assert "parsed for none" in found["detail"]
    assert (
        live.submit(**body, target_device="aries-rb", inference_scheme="all")["state"] == "queued"
    )


# lists --------------------------------------------------------------------------------------


def test_lists_are_pages_with_filters(live: Live) -> None:
    model = live.upload()["id"]
    made = [
        live.parse_job(100 + i, model_id=model, labels={"batch": "pages", "n": str(i % 2)})["id"]
        for i in range(7)
    ]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": 3, "label": "batch=pages"} | ({"cursor": cursor} if cursor else {})
        page = live.http.get("/v1/jobs", params=params).json()
        assert len(page["items"]) <= 3
        seen += [j["id"] for j in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == made[::-1]
    odd = live.http.get("/v1/jobs", params={"label": ["batch=pages", "n=1"], "limit": 200}).json()
    assert [j["id"] for j in odd["items"]] == made[::-1][1::2]
    assert odd["next_cursor"] is None
    live.http.post(f"/v1/jobs/{made[0]}/cancel")
    count = lambda **p: len(  # noqa: E731
        live.http.get("/v1/jobs", params={"model_id": model, "limit": 200, **p}).json()["items"]
    )
    assert count() == 7
    assert count(state="cancelled") == 1
    assert count(state=["cancelled", "queued"]) == 7
    assert count(type="compile") == 0
    assert count(target_device="regulus-rb") == 0
    assert count(created_after="2020-01-01T00:00:00Z") == 7
    assert count(created_before="2020-01-01T00:00:00Z") == 0


@pytest.mark.parametrize(
    "query",
    ["cursor=abc", "cursor=W10", "limit=0", "limit=201", "limit=x", "state=bad", "label=novalue",
     "label=a%00b=c", "created_after=yesterday", "created_after=0.5",
     "created_after=2020-01-01T00:00:00", "created_after=0001-01-01T00:00:00%2B14:00",
     "model_id=x", "target_device=%00"],
)  # fmt: skip
def test_list_parameters_that_are_wrong(live: Live, query: str) -> None:
    found = problem(live.http.get(f"/v1/jobs?{query}"), 422, "ARGUMENT_ERROR")
    if "created" not in query:
        assert found["errors"][0]["parameter"] == query.partition("=")[0]


# events -------------------------------------------------------------------------------------


def test_events_follow_a_job_to_its_end(live: Live) -> None:
    job = live.parse_job(20)
    seen: list[dict[str, object]] = []

    def follow() -> None:
        with live.http.stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            seen.extend(events(answer.iter_lines()))

    thread = threading.Thread(target=follow)
    thread.start()
    _eventually(lambda: any("comment" in e for e in seen))  # idle: keep-alive
    claim = live.claim(job)
    live.context.builds.progress(claim, phase=Phase.PARSE, current=1, total=2)
    live.context.builds.append_log(claim, "line ä\n")
    _eventually(lambda: any(e.get("event") == "log" for e in seen))
    live.context.builds.succeed(claim, [])
    thread.join(20)
    assert not thread.is_alive(), "the stream ends with the job"
    real = [e for e in seen if "comment" not in e]
    assert [(e["event"], e["data"].get("state") or e["data"].get("phase")) for e in real] == [  # type: ignore[attr-defined]
        ("state", "queued"), ("state", "running"), ("phase", "fetch"), ("phase", "parse"),
        ("progress", "parse"), ("log", None), ("state", "succeeded"),
    ]  # fmt: skip
    numbers = [int(str(e["id"])) for e in real]
    assert numbers == sorted(set(numbers))
    assert all(str(e["data"]["at"]).endswith("Z") for e in real)  # type: ignore[index]

    # a client that lost its connection after the log line
    log = next(e for e in real if e["event"] == "log")
    headers = {"Last-Event-ID": str(log["id"])}
    with live.http.stream("GET", f"/v1/jobs/{job['id']}/events", headers=headers) as answer:
        rest = list(events(answer.iter_lines()))
    assert [e["data"]["state"] for e in rest] == ["succeeded"]
    # one that saw the end is told not to come back
    done = live.http.get(
        f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": str(real[-1]["id"])}
    )
    assert done.status_code == 204
    assert live.http.get(f"/v1/jobs/{job['id']}/events?after={real[-1]['id']}").status_code == 204
    _eventually(lambda: live.context.watcher.count == 0)


def test_streams_free_their_places_and_are_bounded(live: Live) -> None:
    job = live.parse_job(21)
    url = f"/v1/jobs/{job['id']}/events"
    limit, live.context.watcher._limit = live.context.watcher._limit, 2
    try:
        with live.http.stream("GET", url) as one, live.http.stream("GET", url) as two:
            # kept: a generator that is dropped closes its stream
            lines = one.iter_lines(), two.iter_lines()
            assert [next(line) for line in lines] == ["retry: 2000"] * 2
            found = problem(live.http.get(url), 429, "RATE_LIMITED")
            assert found["retryable"]
            problem(live.http.get(f"/v1/jobs/{job['id']}?wait=5"), 429, "RATE_LIMITED")
        _eventually(lambda: live.context.watcher.count == 0)
        with live.http.stream("GET", url) as three:
            assert next(three.iter_lines()).startswith("retry")
    finally:
        live.context.watcher._limit = limit
    live.http.post(f"/v1/jobs/{job['id']}/cancel")


def test_a_cancelled_job_ends_its_stream_while_its_build_goes_on(live: Live) -> None:
    model = live.upload()["id"]
    one = live.parse_job(22, model_id=model)
    two = live.parse_job(22, model_id=model)
    assert two["build_id"] == one["build_id"]
    claim = live.claim(one)
    live.http.post(f"/v1/jobs/{one['id']}/cancel")
    with live.http.stream("GET", f"/v1/jobs/{one['id']}/events") as answer:
        states = [e["data"]["state"] for e in events(answer.iter_lines()) if e["event"] == "state"]
    assert states == ["queued", "running", "cancelled"]
    live.context.builds.append_log(claim, "for the other\n")
    live.context.builds.succeed(claim, [])
    with live.http.stream("GET", f"/v1/jobs/{one['id']}/events") as answer:
        assert "for the other" not in "".join(answer.iter_lines())
    with live.http.stream("GET", f"/v1/jobs/{two['id']}/events") as answer:
        states = [e["data"]["state"] for e in events(answer.iter_lines()) if e["event"] == "state"]
    assert states == ["queued", "running", "succeeded"]


def test_the_log_is_there_whole_and_can_be_followed(live: Live) -> None:
    job = live.parse_job(23)
    assert live.http.get(f"/v1/jobs/{job['id']}/log").text == ""
    claim = live.claim(job)
    for n in range(450):
        live.context.builds.append_log(claim, f"{n}\n")
    answer = live.http.get(f"/v1/jobs/{job['id']}/log")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text == "".join(f"{n}\n" for n in range(450))
    live.context.builds.release(claim)
    claim = live.claim(job)
    text: list[str] = []

    def follow() -> None:
        with live.http.stream("GET", f"/v1/jobs/{job['id']}/log?follow=true") as stream:
            text.extend(stream.iter_text())

    thread = threading.Thread(target=follow)
    thread.start()
    time.sleep(0.2)
    live.context.builds.append_log(claim, "second\n")
    live.context.builds.succeed(claim, [])
    thread.join(20)
    assert not thread.is_alive()
    assert "".join(text) == "".join(f"{n}\n" for n in range(450)) + "--- attempt 2 ---\nsecond\n"
