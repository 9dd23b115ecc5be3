"""The main job as a build system does it: a real model over HTTP to an MXQ that runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from qbcompiler import mxq_compile
from qbcompiler.runtime import Accelerator, Model

from .server import Server, serving

CONFIG = {"inputShapeDict": {"x": [1, 3, 48, 192]}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("main") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def uploaded(server: Server, ocr_cls: Path, ocr_calibration: Path) -> dict[str, Any]:
    return {
        "model": server.upload_model(ocr_cls.read_bytes(), ocr_cls.name),
        "calibration": server.upload_calibration(ocr_calibration),
    }


@pytest.fixture(scope="module")
def compiled(server: Server, uploaded: dict[str, Any]) -> dict[str, Any]:
    job = server.submit(
        model_id=uploaded["model"]["id"],
        calibration_id=uploaded["calibration"]["id"],
        target_device="regulus-rb",
        config_preset="classification",
        compile_config=CONFIG,
        source_revision="abc123",
    )
    assert job["cache"] == "miss"
    events = list(server.events(job["id"]))
    job = server.job(job["id"])
    assert job["state"] == "succeeded", job["error"]
    return {"job": job, "events": events}


def test_the_upload_says_what_the_model_takes(
    uploaded: dict[str, Any], ocr_cls: Path, ocr_calibration: Path
) -> None:
    model, calibration = uploaded["model"], uploaded["calibration"]
    assert model["inputs"][0]["name"] == "x" and model["inputs"][0]["dtype"] == "float32"
    assert model["size"] == ocr_cls.stat().st_size
    assert calibration["sample_count"] == len(list(ocr_calibration.iterdir()))


def test_the_stream_tells_states_phases_and_progress(compiled: dict[str, Any]) -> None:
    events = compiled["events"]
    ids = [int(i) for i, _, _ in events if i]
    assert ids == sorted(set(ids))
    phases = [d["phase"] for _, kind, d in events if kind == "phase"]
    assert [p for p in phases if p in ("parse", "calibrate", "quantize")] == [
        "parse",
        "calibrate",
        "quantize",
    ]
    states = [d["state"] for _, kind, d in events if kind == "state"]
    assert states[-1] == "succeeded" and "running" in states
    assert any(kind == "progress" and d["current"] for _, kind, d in events)


def test_the_stream_resumes_after_an_event(server: Server, compiled: dict[str, Any]) -> None:
    whole = list(server.events(compiled["job"]["id"]))
    middle = whole[len(whole) // 2][0]
    rest = list(server.events(compiled["job"]["id"], last_id=middle))
    assert [i for i, _, _ in rest] == [i for i, _, _ in whole if int(i) > int(middle)]


def test_the_log_tells_no_path_of_the_server(server: Server, compiled: dict[str, Any]) -> None:
    text = server.http.get(f"/v1/jobs/{compiled['job']['id']}/log").text
    assert "engine qbcompiler" in text
    assert str(server.data_dir) not in text and "/tmp" not in text


def test_the_pages_load_nothing_from_elsewhere(server: Server) -> None:
    for page in ("/", "/docs"):
        answer = server.http.get(page)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assets = re.findall(r'(?:src|href)="(/web/[^"]+)"', answer.text)
        assert len(assets) >= 2 and "://" not in answer.text
        seen: set[str] = set()
        while assets:
            asset = assets.pop()
            if asset not in seen:
                seen.add(asset)
                found = server.http.get(asset)
                assert found.status_code == 200 and found.text, asset
                modules = re.findall(r'from ["\']\./([^"\']+)["\']', found.text)
                assets += [f"{asset.rpartition('/')[0]}/{module}" for module in modules]


def test_the_bytes_are_those_of_a_local_build(
    server: Server,
    compiled: dict[str, Any],
    ocr_cls: Path,
    ocr_calibration: Path,
    tmp_path: Path,
) -> None:
    mxq_compile(
        model=str(ocr_cls),
        calib_data_path=str(ocr_calibration),
        target_device="regulus-rb",
        config_preset="classification",
        input_shape_dict={"x": (1, 3, 48, 192)},
        save_path=str(tmp_path / "local.mxq"),
    )
    local = hashlib.sha256((tmp_path / "local.mxq").read_bytes()).hexdigest()
    assert server.artifacts(compiled["job"])["mxq"]["sha256"] == local


def test_the_download_runs_and_agrees_with_the_labels(
    server: Server,
    compiled: dict[str, Any],
    ocr_held_out: tuple[NDArray[np.float32], NDArray[np.int64]],
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.mxq"
    path.write_bytes(server.download(server.artifacts(compiled["job"])["mxq"]))
    images, labels = ocr_held_out
    model = Model(str(path))
    model.launch(Accelerator("regulus-rb"))
    found = [int(np.argmax(model.infer_chw(image)[0])) for image in images[:24]]
    model.dispose()
    assert np.mean(np.array(found) == labels[:24]) >= 0.8


def test_ranges_and_etags(server: Server, compiled: dict[str, Any]) -> None:
    artifact = server.artifacts(compiled["job"])["mxq"]
    url = f"/v1/artifacts/{artifact['id']}/content"
    whole = server.http.get(url)
    assert whole.headers["accept-ranges"] == "bytes"
    part = server.http.get(url, headers={"Range": "bytes=10-19"})
    assert part.status_code == 206 and part.content == whole.content[10:20]
    assert part.headers["content-range"] == f"bytes 10-19/{artifact['size']}"
    tail = server.http.get(url, headers={"Range": "bytes=-7"})
    assert tail.content == whole.content[-7:]
    beyond = server.http.get(url, headers={"Range": f"bytes={artifact['size']}-"})
    assert beyond.status_code == 416
    same = server.http.get(url, headers={"If-None-Match": whole.headers["etag"]})
    assert same.status_code == 304
    head = server.http.head(url)
    assert head.headers["content-length"] == str(artifact["size"]) and not head.content


def test_a_signed_link_needs_nothing_else_and_can_be_revoked(
    server: Server, compiled: dict[str, Any]
) -> None:
    artifact = server.artifacts(compiled["job"])["mxq"]
    links = f"/v1/artifacts/{artifact['id']}/links"
    link = server.http.post(links, json={"expires_in": 60}).json()
    with httpx.Client() as stranger:
        answer = stranger.get(link["url"], follow_redirects=True)
        assert hashlib.sha256(answer.content).hexdigest() == artifact["sha256"]
        # one character of the signature changed
        last = "0" if link["url"][-1] != "0" else "1"
        assert stranger.get(link["url"][:-1] + last).status_code in (403, 404)
        assert server.http.delete(f"{links}/{link['id']}").status_code == 204
        assert stranger.get(link["url"]).status_code in (403, 404, 410)


def test_parse_then_quantize_gives_the_same_bytes(
    server: Server, uploaded: dict[str, Any], compiled: dict[str, Any]
) -> None:
    parsed = server.submit(
        type="parse",
        model_id=uploaded["model"]["id"],
        target_device="regulus-rb",
        compile_config=CONFIG,
    )
    parsed = server.wait(parsed["id"])
    assert parsed["state"] == "succeeded", parsed["error"]
    mblt = server.download(server.artifacts(parsed)["mblt"])
    assert hashlib.sha256(mblt).hexdigest() == server.artifacts(compiled["job"])["mblt"]["sha256"]
    again = server.upload_model(mblt, "model.mblt")
    quantized = server.submit(
        type="quantize",
        mblt_id=again["id"],
        calibration_id=uploaded["calibration"]["id"],
        target_device="regulus-rb",
        config_preset="classification",
        compile_config=CONFIG,
    )
    quantized = server.wait(quantized["id"])
    assert quantized["state"] == "succeeded", quantized["error"]
    assert (
        server.artifacts(quantized)["mxq"]["sha256"]
        == server.artifacts(compiled["job"])["mxq"]["sha256"]
    )


def test_the_same_request_is_a_hit(
    server: Server, uploaded: dict[str, Any], compiled: dict[str, Any]
) -> None:
    job = server.submit(
        model_id=uploaded["model"]["id"],
        calibration_id=uploaded["calibration"]["id"],
        target_device="regulus-rb",
        config_preset="classification",
        compile_config=CONFIG,
        source_revision="another",
    )
    assert (job["cache"], job["state"]) == ("hit", "succeeded")
    assert job["build_id"] == compiled["job"]["build_id"]


def test_the_compilers_refusal_is_the_jobs_error(server: Server, uploaded: dict[str, Any]) -> None:
    job = server.submit(
        model_id=uploaded["model"]["id"],
        calibration_id=uploaded["calibration"]["id"],
        target_device="regulus-rb",
    )
    job = server.wait(job["id"])
    assert job["state"] == "failed"
    assert job["error"]["code"] == "UNSUPPORTED_DYNAMIC_SHAPE"
    assert "'x'" in job["error"]["detail"]
    assert "UNSUPPORTED_DYNAMIC_SHAPE" in server.http.get(f"/v1/jobs/{job['id']}/log").text


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"target_device": "regulus-rx"}, "DEVICE_SCHEME_ERROR"),
        ({"inference_scheme": "global8"}, "DEVICE_SCHEME_ERROR"),
        ({"config_preset": "clasification"}, "CONFIG_ERROR"),
        ({"compile_config": {"calibraton": {}}}, "CONFIG_ERROR"),
        ({"calibration_id": None}, "CALIBRATION_MISSING"),
    ],
)
def test_what_can_be_refused_is_refused_before_queueing(
    change: dict[str, Any], code: str, server: Server, uploaded: dict[str, Any]
) -> None:
    body = {
        "type": "compile",
        "model_id": uploaded["model"]["id"],
        "calibration_id": uploaded["calibration"]["id"],
        "target_device": "regulus-rb",
        **change,
    }
    answer = server.http.post("/v1/jobs", json={k: v for k, v in body.items() if v is not None})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == code and problem["hint"]


def test_not_a_model_is_refused_on_upload(server: Server) -> None:
    for data in (b"", b"<html>not a model</html>", b"PK\x03\x04 not a model"):
        answer = server.http.post("/v1/models", files={"file": ("model.onnx", data)})
        assert answer.status_code == 422 and answer.json()["code"] == "MODEL_LOAD_ERROR"
