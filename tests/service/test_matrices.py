from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from service.db import MatrixStore
from service.domain import ArtifactKind, Failure, ServiceError

from .conftest import Bench, in_threads
from .live import Live, problem


@pytest.fixture(scope="module")
def inputs(live: Live) -> dict[str, Any]:
    return {
        "type": "compile",
        "model_id": live.upload()["id"],
        "calibration_id": live.calibrate()["id"],
    }


def submit(live: Live, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    answer = live.http.post("/v1/jobs/matrix", json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/v1/matrices/{answer.json()['id']}"
    return dict(answer.json())


def finish(live: Live, row: dict[str, Any], sqnr: float, top1: float | None, size: int) -> None:
    claim = live.claim(row)
    summary = {
        "accuracy": {
            "outputs": [
                {"name": "a", "sqnr_db": sqnr, "top1_agreement": top1},
                {"name": "b", "sqnr_db": sqnr + 9, "top1_agreement": None},
            ]
        },
        "estimate": {"schemes": [{"latency_ms": size / 10}, {"latency_ms": 0.1}]},
    }
    file = live.put(b"x" * size, ArtifactKind.MXQ, "m.mxq")
    live.context.builds.succeed(claim, [file], summary)


def test_a_matrix_makes_a_job_each_and_compares_them(live: Live, inputs: dict[str, Any]) -> None:
    body = {
        **inputs,
        "target_devices": ["regulus-rb", "aries-rb"],
        "compile_configs": [{"calibration": {"method": 1}}, {"calibration": {"method": 2}}],
        "labels": {"sweep": "1"},
        "name": "sweep",
    }
    made = submit(live, body)
    asked = [(r["target_device"], r["compile_config"]["calibration"]["method"])
             for r in made["rows"]]  # fmt: skip
    assert asked == [("regulus-rb", 1), ("regulus-rb", 2), ("aries-rb", 1), ("aries-rb", 2)]
    assert made["counts"] == {"queued": 4} and not made["finished"]
    assert len({r["build_id"] for r in made["rows"]}) == 4
    listed = live.http.get("/v1/jobs", params={"label": "sweep=1"}).json()["items"]
    assert {j["id"] for j in listed} == {r["job_id"] for r in made["rows"]}
    deadline = time.monotonic() + 10
    while not {r["build_id"] for r in made["rows"]} <= {m.build_id for m in live.sent}:
        assert time.monotonic() < deadline
        time.sleep(0.01)

    one, two, three, four = made["rows"]
    finish(live, one, 30.0, 0.9, 40)
    finish(live, two, 35.0, 0.9, 60)
    live.context.builds.fail(live.claim(three), Failure("UNSUPPORTED_OPERATOR", "no Foo"))
    shown = live.http.get(f"/v1/matrices/{made['id']}").json()
    assert shown["counts"] == {"succeeded": 2, "failed": 1, "queued": 1}
    assert not shown["finished"]
    live.http.post(f"/v1/jobs/{four['job_id']}/cancel")
    shown = live.http.get(f"/v1/matrices/{made['id']}").json()
    assert shown["finished"]
    rows = {r["job_id"]: r for r in shown["rows"]}
    figures = rows[one["job_id"]]["figures"]
    # the worst output counts
    assert figures.pop("run_s") >= 0
    assert figures == {
        "sqnr_db": 30.0, "top1_agreement": 0.9, "latency_ms": 4.0, "package_bytes": 40,
    }  # fmt: skip
    assert rows[three["job_id"]]["error"]["code"] == "UNSUPPORTED_OPERATOR"
    assert rows[three["job_id"]]["figures"] is rows[four["job_id"]]["figures"] is None
    best = shown["best"]
    assert best["sqnr_db"] == [two["job_id"]]
    assert best["top1_agreement"] == [one["job_id"], two["job_id"]]
    assert best["latency_ms"] == best["package_bytes"] == [one["job_id"]]
    content = live.http.get(f"/v1/artifacts/{rows[two['job_id']]['mxq_id']}/content").content
    assert content == b"x" * 60

    # the same again is answered from the finished builds
    again = submit(live, {**body, "name": "again"})
    assert [r["cache"] for r in again["rows"]] == ["hit", "hit", "hit", "miss"]
    names = [m["name"] for m in live.http.get("/v1/matrices").json()["items"]]
    assert names[:2] == ["again", "sweep"]


def test_one_wrong_combination_refuses_all(live: Live, inputs: dict[str, Any]) -> None:
    def jobs() -> list[str]:
        items = live.http.get("/v1/jobs", params={"limit": 200}).json()["items"]
        return [j["id"] for j in items]

    before = jobs()
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"target_devices": ["regulus-rb", "regulus-rc"]}, "DEVICE_SCHEME_ERROR",
         "/target_devices/1"),
        ({"target_device": "aries-rb", "inference_schemes": ["single", "trio"]},
         "DEVICE_SCHEME_ERROR", "/inference_schemes/1"),
        ({"target_device": "aries-rb", "config_presets": [None, "detectoin"]}, "CONFIG_ERROR",
         "/config_presets/1"),
        ({"target_device": "aries-rb",
          "compile_configs": [None, {"calibration": {"modee": 1}}]}, "CONFIG_ERROR",
         "/compile_configs/1/calibration/modee"),
        ({"target_devices": ["aries-rb", "aries-rb"]}, "ARGUMENT_ERROR", "/target_devices"),
        ({"target_devices": ["aries-rb"], "target_device": "aries-rb"}, "ARGUMENT_ERROR",
         "/target_devices"),
        ({"target_device": "aries-rb"}, "ARGUMENT_ERROR", "/target_devices"),
        ({"target_devices": ["aries-rb"], "validate_only": True}, "ARGUMENT_ERROR",
         "/validate_only"),
    ]  # fmt: skip
    for change, code, pointer in cases:
        answer = live.http.post("/v1/jobs/matrix", json={**inputs, **change})
        assert problem(answer, 422, code)["errors"][0]["pointer"] == pointer, change
    many = [{"calibration": {"percentile": 0.9 + i / 1000}} for i in range(33)]
    answer = live.http.post(
        "/v1/jobs/matrix",
        json={**inputs, "target_devices": ["aries-rb", "regulus-rb"], "compile_configs": many},
    )
    assert "66 combinations" in problem(answer, 422, "ARGUMENT_ERROR")["detail"]
    assert jobs() == before


def test_schemes_that_a_device_lacks_can_be_left_out(live: Live, inputs: dict[str, Any]) -> None:
    made = submit(
        live,
        {
            **inputs,
            "target_devices": ["regulus-rb", "aries-rb"],
            "inference_schemes": ["single", "global4"],
            "skip_unsupported": True,
        },
    )
    assert [(r["target_device"], r["inference_scheme"]) for r in made["rows"]] == [
        ("regulus-rb", "single"), ("aries-rb", "single"), ("aries-rb", "global4"),
    ]  # fmt: skip
    (skipped,) = made["skipped"]
    assert (skipped["target_device"], skipped["inference_scheme"]) == ("regulus-rb", "global4")
    assert "global4" in skipped["reason"]
    answer = live.http.post(
        "/v1/jobs/matrix",
        json={**inputs, "target_device": "regulus-rb", "inference_schemes": ["multi"],
              "skip_unsupported": True},
    )  # fmt: skip
    problem(answer, 422, "ARGUMENT_ERROR")


def test_a_key_makes_a_matrix_once(live: Live, inputs: dict[str, Any]) -> None:
    body = {**inputs, "target_devices": ["aries-rb"], "source_revision": "k"}
    first = submit(live, body, **{"Idempotency-Key": "m-1"})
    assert submit(live, body, **{"Idempotency-Key": "m-1"})["id"] == first["id"]
    for path, other in (("/v1/jobs/matrix", {**body, "name": "x"}),
                        ("/v1/jobs", {**inputs, "target_device": "aries-rb"})):  # fmt: skip
        answer = live.http.post(path, json=other, headers={"Idempotency-Key": "m-1"})
        problem(answer, 422, "IDEMPOTENCY_MISMATCH")


def test_a_matrix_is_of_its_project(live: Live) -> None:
    answer = live.http.get("/v1/jobs/matrix")
    problem(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "POST"
    missing = "mtx_" + "0" * 26
    problem(live.http.get(f"/v1/matrices/{missing}"), 404, "NOT_FOUND")
    assert MatrixStore(live.context.db).get("other", missing) is None


def test_matrices_at_the_same_time_share_builds(bench: Bench, tmp_path: Path) -> None:
    store = MatrixStore(bench.db)
    orders = [range(6), range(5, -1, -1)] * 2

    def work(index: int) -> object:
        jobs = [bench.new(v) for v in orders[index]]
        return store.submit("default", {}, jobs, [])[0].id

    ids = in_threads(4, work)
    assert all(isinstance(i, str) for i in ids), ids
    views = []
    for identifier in ids:
        found = store.get("default", str(identifier))
        assert found is not None
        assert len(found[1]) == 6
        views += found[1]
    assert len({v.build.id for v in views}) == 6
    assert store.get("other", str(ids[0])) is None


def test_a_matrix_is_made_whole_or_not_at_all(bench: Bench) -> None:
    store = MatrixStore(bench.db)
    bench.models.delete("default", bench.model.id)
    with pytest.raises(ServiceError, match="no model"):
        store.submit("default", {}, [bench.new(1), bench.new(2)], [])
    assert store.page("default", limit=5, cursor=None).items == []
