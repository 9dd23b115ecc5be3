"""Uploads in parts over real HTTP, into a folder and into a bucket."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sqlalchemy import update

from service.db.tables import UploadRow
from service.domain import Role
from service.settings import Settings
from service.storage import HeldStore, LocalStore

from .live import Live, npy, problem, serving, tar, tiny_onnx

PART = 5 << 20


@pytest.fixture(scope="module", params=["folder", "bucket"])
def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Live]:
    values: dict[str, Any] = {}
    if request.param == "bucket":
        from ..support.servers import new_bucket

        made = new_bucket(request.getfixturevalue("s3_endpoint"))
        values = {name.removeprefix("QB_").lower(): value for name, value in made.items()}
        values["s3_prefix"] = "team"
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("data"), upload_part_bytes=PART, log_level="warning",
        max_open_uploads=20, **values,
    )  # fmt: skip
    with serving(settings) as found:
        yield found


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def announce(live: Live, data: bytes, expect: int = 201, **more: Any) -> dict[str, Any]:
    body = {"size": len(data), "sha256": sha(data), **more}
    answer = live.http.post("/v1/uploads", json=body)
    assert answer.status_code == expect, answer.text
    return dict(answer.json())


def send(live: Live, upload: dict[str, Any], data: bytes, numbers: list[int]) -> None:
    answer = live.http.post(f"/v1/uploads/{upload['id']}/parts", json={"numbers": numbers})
    assert answer.status_code == 200, answer.text
    for target in answer.json()["items"]:
        start = target["offset"]
        piece = data[start : start + target["size"]]
        assert len(piece) == target["size"]
        url = target["url"] if target["signed"] else live.url + target["url"]
        sent = httpx.put(url, content=piece, timeout=30)
        assert sent.status_code == 200, sent.text


def complete(live: Live, upload: dict[str, Any]) -> httpx.Response:
    return live.http.post(f"/v1/uploads/{upload['id']}/complete", timeout=60)


def show(live: Live, upload: dict[str, Any]) -> dict[str, Any]:
    answer = live.http.get(f"/v1/uploads/{upload['id']}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def leftovers(live: Live) -> list[str]:
    """Name what unfinished uploads keep in the store."""
    held = live.context.store
    assert isinstance(held, HeldStore)
    store = held.inner
    if isinstance(store, LocalStore):
        folder = live.context.settings.uploads_dir
        return sorted(p.name for p in folder.iterdir()) if folder.exists() else []
    client, bucket = store.client, store.bucket  # type: ignore[attr-defined]
    parts = client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    joined = client.list_objects_v2(Bucket=bucket, Prefix="team/uploads/").get("Contents", [])
    return [p["Key"].rsplit("/", 1)[-1] for p in [*parts, *joined]]


def test_parts_in_any_order_become_the_file(live: Live) -> None:
    data = os.urandom(2 * PART + 12345)
    upload = announce(live, data, name="big.bin")
    assert upload["state"] == "open" and upload["parts"] == [] and upload["part_count"] == 3
    send(live, upload, data, [3])
    send(live, upload, data, [1])
    assert [p["number"] for p in show(live, upload)["parts"]] == [1, 3]
    body = problem(complete(live, upload), 409, "CONFLICT")
    assert body["details"]["missing"] == [2] and body["retryable"] is False
    send(live, upload, data, [2])
    done = complete(live, upload)
    assert done.status_code == 200 and done.json()["state"] == "complete"
    assert complete(live, upload).json()["state"] == "complete"
    assert b"".join(live.context.store.read(sha(data))) == data
    assert upload["id"] not in leftovers(live)
    problem(
        live.http.put(f"/v1/uploads/{upload['id']}/parts/1", content=data[:PART]), 409, "CONFLICT"
    )


def test_a_second_client_goes_on_where_the_first_one_died(live: Live) -> None:
    data = os.urandom(PART + 1)
    first = announce(live, data)
    send(live, first, data, [1])
    again = announce(live, data, 200)
    assert again["id"] == first["id"] and [p["number"] for p in again["parts"]] == [1]
    send(live, again, data, [2])
    assert complete(live, again).status_code == 200


def test_bytes_that_the_project_has_are_not_sent(live: Live) -> None:
    model = tiny_onnx(width=77)
    live.upload(model)
    upload = announce(live, model)
    assert upload["already_present"] and upload["state"] == "complete"
    answer = live.http.post("/v1/models", json={"upload_id": upload["id"], "name": "again.onnx"})
    assert answer.status_code == 201, answer.text
    assert answer.json()["digest"] == sha(model) and answer.json()["inputs"][0]["name"] == "x"


def test_bytes_that_only_the_store_has_are_sent(live: Live, tmp_path: Path) -> None:
    """Another project's file must not be found by its digest."""
    data = os.urandom(3000)
    path = tmp_path / "x"
    path.write_bytes(data)
    live.context.store.put_file(path, sha(data))
    upload = announce(live, data)
    assert not upload["already_present"] and upload["state"] == "open"
    problem(complete(live, upload), 409, "CONFLICT")
    send(live, upload, data, [1])
    assert complete(live, upload).status_code == 200


def test_other_bytes_than_announced_end_the_upload_and_are_nowhere(live: Live) -> None:
    data, other = os.urandom(2000), os.urandom(2000)
    upload = announce(live, data)
    send(live, upload, other, [1])
    body = problem(complete(live, upload), 422, "DIGEST_MISMATCH")
    assert body["details"] == {"announced": sha(data), "found": sha(other)}
    assert live.context.store.size(sha(data)) is None
    assert live.context.store.size(sha(other)) is None
    assert upload["id"] not in leftovers(live)
    assert show(live, upload)["state"] == "failed"
    problem(complete(live, upload), 422, "DIGEST_MISMATCH")
    problem(live.http.post("/v1/models", json={"upload_id": upload["id"]}), 409, "CONFLICT")
    fresh = announce(live, data)
    assert fresh["id"] != upload["id"]
    send(live, fresh, data, [1])
    assert complete(live, fresh).status_code == 200


def test_a_part_that_is_sent_again_counts_as_it_was_sent_last(live: Live) -> None:
    """Also where its first bytes were right, and hashed already."""
    data = os.urandom(PART + 10)
    upload = announce(live, data)
    send(live, upload, data, [1, 2])
    live.context.hashing.submit(lambda: None).result(30)
    send(live, upload, os.urandom(PART) + data[PART:], [1])
    problem(complete(live, upload), 422, "DIGEST_MISMATCH")
    assert live.context.store.size(sha(data)) is None

    upload = announce(live, data)
    send(live, upload, os.urandom(PART) + data[PART:], [1, 2])
    send(live, upload, data, [1])
    assert complete(live, upload).status_code == 200


def test_a_model_with_external_data(live: Live) -> None:
    weights = np.ones(1, np.float32).tobytes()
    model = tiny_onnx(width=5, external="weights.bin")
    uploads = []
    for data in (model, weights):
        upload = announce(live, data, 201)
        if not upload["already_present"]:
            send(live, upload, data, [1])
            assert complete(live, upload).status_code == 200
        uploads.append(upload["id"])
    body: dict[str, Any] = {"upload_id": uploads[0], "name": "m.onnx", "labels": {"a": "b"}}
    missing = problem(live.http.post("/v1/models", json=body), 422, "MODEL_LOAD_ERROR")
    assert missing["details"]["missing"] == ["weights.bin"]
    body["external_data"] = {"weights.bin": uploads[1]}
    answer = live.http.post("/v1/models", json=body)
    assert answer.status_code == 201, answer.text
    assert [f["path"] for f in answer.json()["files"]] == ["m.onnx", "weights.bin"]
    assert answer.json()["labels"] == {"a": "b"}
    files = {"file": ("m.onnx", model), "external_data": ("weights.bin", weights)}
    assert live.http.post("/v1/models", files=files).json()["digest"] == answer.json()["digest"]


def test_a_calibration_set(live: Live) -> None:
    files = {f"{i}.npy": npy(np.full((1, 3, 8, 8), i + 40, np.float32)) for i in range(3)}
    archive = tar(files)
    upload = announce(live, archive, name="c.tar")
    send(live, upload, archive, [1])
    assert complete(live, upload).status_code == 200
    answer = live.http.post("/v1/calibrations", json={"upload_id": upload["id"]})
    assert answer.status_code == 201, answer.text
    assert answer.json()["name"] == "c.tar" and answer.json()["sample_count"] == 3
    assert answer.json()["digest"] == live.calibrate(files)["digest"]


def test_what_is_not_a_model_is_refused(live: Live) -> None:
    data = os.urandom(100)
    upload = announce(live, data)
    send(live, upload, data, [1])
    assert complete(live, upload).status_code == 200
    problem(live.http.post("/v1/models", json={"upload_id": upload["id"]}), 422, "MODEL_LOAD_ERROR")
    problem(
        live.http.post("/v1/calibrations", json={"upload_id": upload["id"]}),
        422,
        "CALIBRATION_DATA_ERROR",
    )


def test_bad_requests_name_the_field(live: Live) -> None:
    body = problem(
        live.http.post("/v1/uploads", json={"size": 0, "sha256": "x"}), 422, "ARGUMENT_ERROR"
    )
    assert {e["pointer"] for e in body["errors"]} == {"/size", "/sha256"}
    body = problem(live.http.post("/v1/models", json={"upload": "x"}), 422, "ARGUMENT_ERROR")
    assert {e["pointer"] for e in body["errors"]} == {"/upload", "/upload_id"}
    assert {"upload_id", None} == {e.get("nearest") for e in body["errors"]}
    problem(
        live.http.post("/v1/models", content=b"{", headers={"Content-Type": "application/json"}),
        400,
        "BAD_REQUEST",
    )
    problem(
        live.http.post("/v1/uploads", json={"size": 1 << 45, "sha256": "a" * 64}),
        413,
        "PAYLOAD_TOO_LARGE",
    )
    unknown = f"upl_{'0' * 26}"
    for method, path in (
        ("GET", unknown),
        ("DELETE", unknown),
        ("POST", f"{unknown}/complete"),
        ("PUT", f"{unknown}/parts/1"),
    ):
        problem(live.http.request(method, f"/v1/uploads/{path}"), 404, "NOT_FOUND")
    problem(live.http.post("/v1/models", json={"upload_id": unknown}), 404, "NOT_FOUND")


def test_a_part_of_the_wrong_length_is_not_held(live: Live) -> None:
    data = os.urandom(1000)
    upload = announce(live, data)
    path = f"/v1/uploads/{upload['id']}/parts"
    problem(live.http.put(f"{path}/1", content=data[:999]), 422, "ARGUMENT_ERROR")
    problem(live.http.put(f"{path}/1", content=data + b"x"), 413, "PAYLOAD_TOO_LARGE")
    chunked = live.http.put(f"{path}/1", content=iter([data, b"x"]))
    problem(chunked, 422, "ARGUMENT_ERROR")
    problem(live.http.put(f"{path}/2", content=data), 422, "ARGUMENT_ERROR")
    problem(live.http.post(path, json={"numbers": [2]}), 422, "ARGUMENT_ERROR")
    assert show(live, upload)["parts"] == []
    assert live.http.put(f"{path}/1", content=data).json() == {"number": 1, "size": 1000}
    assert complete(live, upload).status_code == 200


def test_what_expires_or_is_given_up_leaves_nothing(live: Live) -> None:
    data = os.urandom(4000)
    upload = announce(live, data)
    send(live, upload, data, [1])
    assert upload["id"] in leftovers(live)
    assert live.http.delete(f"/v1/uploads/{upload['id']}").status_code == 204
    assert upload["id"] not in leftovers(live)
    problem(live.http.get(f"/v1/uploads/{upload['id']}"), 404, "NOT_FOUND")

    upload = announce(live, data)
    send(live, upload, data, [1])
    with live.context.db.write() as session:
        past = live.context.db.now(session) - timedelta(seconds=1)
        session.execute(
            update(UploadRow).where(UploadRow.id == upload["id"]).values(expires_at=past)
        )
    problem(live.http.get(f"/v1/uploads/{upload['id']}"), 404, "NOT_FOUND")
    problem(complete(live, upload), 404, "NOT_FOUND")
    assert live.context.sweep.run_once() == 1
    assert upload["id"] not in leftovers(live)
    assert live.context.sweep.run_once() == 0
    assert announce(live, data)["parts"] == []


def test_the_project_has_so_many_open_ones(live: Live) -> None:
    made = []
    while True:
        data = os.urandom(64)
        answer = live.http.post("/v1/uploads", json={"size": 64, "sha256": sha(data)})
        if answer.status_code != 201:
            break
        made.append(answer.json()["id"])
        assert len(made) <= 20
    assert problem(answer, 429, "QUOTA_EXCEEDED")["details"] == {"limit": 20}
    listed = live.http.get("/v1/uploads", params={"limit": 200}).json()["items"]
    assert set(made) <= {u["id"] for u in listed} and listed[0]["parts"] is None
    for upload_id in made:
        assert live.http.delete(f"/v1/uploads/{upload_id}").status_code == 204


def test_two_calls_that_complete_at_once_agree(live: Live) -> None:
    data = os.urandom(PART + 5)
    upload = announce(live, data)
    send(live, upload, data, [1, 2])
    answers: list[httpx.Response] = []

    def call() -> None:
        answers.append(httpx.post(f"{live.url}/v1/uploads/{upload['id']}/complete", timeout=60))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 4
    for answer in answers:
        if answer.status_code != 200:
            assert problem(answer, 409, "CONFLICT")["retryable"] is True
    assert 200 in {a.status_code for a in answers}
    assert complete(live, upload).json()["state"] == "complete"


def test_a_check_that_died_is_taken_up_again(live: Live) -> None:
    """As after a SIGKILL between the object's name and the database."""
    data = os.urandom(PART + 7)
    upload = announce(live, data)
    send(live, upload, data, [1, 2])
    taken = live.context.uploads.begin_finish("default", upload["id"])
    assert taken is not None
    from service.storage import Heartbeat

    assert live.context.staging.finish(taken[0], Heartbeat(lambda: None)) == sha(data)
    assert problem(complete(live, upload), 409, "CONFLICT")["retryable"] is True
    with live.context.db.write() as session:
        past = live.context.db.now(session) - timedelta(seconds=1)
        session.execute(
            update(UploadRow).where(UploadRow.id == upload["id"]).values(finishing_until=past)
        )
    assert not live.context.uploads.renew_finish(upload["id"], taken[1])
    answer = complete(live, upload)
    assert answer.status_code == 200 and answer.json()["state"] == "complete"
    assert b"".join(live.context.store.read(sha(data))) == data
    assert upload["id"] not in leftovers(live)


def test_projects_do_not_see_each_other(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path / "data", tokens_required=True, signing_secret=os.urandom(32).hex(),
        log_level="warning",
    )  # fmt: skip
    with serving(settings) as live:
        heads = []
        for project in ("one", "two"):
            _, token = live.context.tokens.create(project=project, name="t", role=Role.BUILDER)
            heads.append({"Authorization": f"Bearer {token}"})
        data = os.urandom(500)
        body = {"size": 500, "sha256": sha(data)}
        first = live.http.post("/v1/uploads", json=body, headers=heads[0]).json()
        path = f"/v1/uploads/{first['id']}"
        assert live.http.put(f"{path}/parts/1", content=data, headers=heads[0]).status_code == 200
        problem(live.http.get(path, headers=heads[1]), 404, "NOT_FOUND")
        problem(live.http.put(f"{path}/parts/1", content=data), 401, "UNAUTHENTICATED")
        assert live.http.post(f"{path}/complete", headers=heads[0]).status_code == 200
        second = live.http.post("/v1/uploads", json=body, headers=heads[1]).json()
        assert second["state"] == "open" and not second["already_present"]
        third = live.http.post("/v1/uploads", json=body, headers=heads[0]).json()
        assert third["state"] == "complete" and third["already_present"]
