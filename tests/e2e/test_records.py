"""Building again from what is kept: provenance, bundle, reproduce, and why the cache missed."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from .server import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("records") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def job(server: Server, digits_cnn: Path, digits: Any, tmp_path_factory: Any) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("calibration")
    for i, image in enumerate(digits.train_images[:8]):
        np.save(folder / f"{i:03}.npy", image.transpose(1, 2, 0))
    model = server.upload_model(digits_cnn.read_bytes(), "digits & cnn.onnx")
    calibration = server.upload_calibration(folder)
    job = server.submit(
        model_id=model["id"], calibration_id=calibration["id"], target_device="regulus-rb",
        config_preset="classification", compile_config={"calibration": {"method": 2}},
        source_revision="9fceb02", labels={"team": "vision"},
    )  # fmt: skip
    job = server.wait(job["id"])
    assert job["state"] == "succeeded", job["error"]
    return job


def get(server: Server, path: str, **query: Any) -> Any:
    answer = server.http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def qbserver(server: Server, *args: str, code: int = 0) -> str:
    env = {**os.environ, "QB_DATA_DIR": str(server.data_dir)}
    done = subprocess.run(
        [sys.executable, "-m", "worker.cli", *args], env=env, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_checklist_is_whole(server, job):
    found = get(server, f"/v1/jobs/{job['id']}/checklist")
    assert all(found[k] for k in ("mxq", "mblt", "npu_body", "validation", "report"))
    assert found["source_model"]["sha256"] == job["model_digest"]
    assert found["calibration"]["sha256"] == job["calibration_digest"]
    assert found["calibration"]["samples"] == 8
    assert found["source_revision"] == "9fceb02" and found["config_preset"] == "classification"
    assert found["config"] == {"calibration": {"method": 2}}
    assert found["resolved_config"]["calibration"]["mode"] == 1
    assert (found["target_device"], found["inference_scheme"]) == ("regulus-rb", "single")
    assert found["engine"]["name"] == "qbcompiler" and found["build_key"] == job["build_key"]


def test_the_statement_is_about_the_packages(server, job):
    found = get(server, f"/v1/jobs/{job['id']}/provenance")
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["predicateType"] == "https://slsa.dev/provenance/v1"
    made = server.artifacts(job)
    digests = {s["name"]: s["digest"]["sha256"] for s in found["subject"]}
    assert digests == {
        "model.mxq": made["mxq"]["sha256"], "model.mblt": made["mblt"]["sha256"]
    }  # fmt: skip
    definition = found["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["source_revision"] == "9fceb02"
    names = {d["name"]: d for d in definition["resolvedDependencies"]}
    assert names["digits & cnn.onnx"]["digest"]["sha256"] == job["model_digest"]
    assert names["calibration.tar"]["annotations"]["manifest_sha256"] == job["calibration_digest"]


def test_the_envelope_is_verified_here_and_by_a_few_lines(server, job, tmp_path):
    answer = server.http.get(f"/v1/jobs/{job['id']}/provenance", params={"format": "dsse"})
    (tmp_path / "p.json").write_bytes(answer.content)
    made = server.artifacts(job)
    (tmp_path / "model.mxq").write_bytes(server.download(made["mxq"]))
    (tmp_path / "model.mblt").write_bytes(server.download(made["mblt"]))
    files = [str(tmp_path / "model.mxq"), str(tmp_path / "model.mblt")]
    said = qbserver(server, "verify", "--envelope", str(tmp_path / "p.json"), *files)
    assert said.count("verified: ") == 2 and '"source_revision": "9fceb02"' in said
    # without this project: what docs/reproducibility.md shows
    envelope = answer.json()
    (key,) = get(server, "/v1/keys")
    assert envelope["signatures"][0]["keyid"] == key["keyid"]
    body, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"].encode()
    signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(body), body)
    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    load_pem_public_key(key["pem"].encode()).verify(signature, signed)
    assert json.loads(body) == get(server, f"/v1/jobs/{job['id']}/provenance")
    # an altered file, an altered statement, another key
    with Path(files[0]).open("ab") as stream:
        stream.write(b"!")
    said = qbserver(server, "verify", "--envelope", str(tmp_path / "p.json"), files[0], code=1)
    assert "is no subject of it" in said
    envelope["payload"] = base64.b64encode(body.replace(b"9fceb02", b"0000000")).decode()
    (tmp_path / "forged.json").write_text(json.dumps(envelope))
    said = qbserver(server, "verify", "--envelope", str(tmp_path / "forged.json"), *files, code=1)
    assert "not signed by the key" in said
    other = qbserver(server, "keys", "--new", str(tmp_path / "other.pem"))
    assert (tmp_path / "other.pem").stat().st_mode & 0o777 == 0o600
    (tmp_path / "other.pub").write_text(other[other.index("-----BEGIN") :].split("set QB")[0])
    said = qbserver(
        server, "verify", "--envelope", str(tmp_path / "p.json"),
        "--key", str(tmp_path / "other.pub"), files[1], code=1,
    )  # fmt: skip
    assert "not signed by the key" in said


def test_a_bundle_alone_gives_the_same_bytes(server, job, tmp_path):
    answers = [server.http.get(f"/v1/jobs/{job['id']}/bundle") for _ in range(2)]
    assert answers[0].status_code == 200 and answers[0].content == answers[1].content
    assert int(answers[0].headers["content-length"]) == len(answers[0].content)
    (tmp_path / "b.tar").write_bytes(answers[0].content)
    with tarfile.open(tmp_path / "b.tar") as tar:
        assert {m.mtime for m in tar} == {0} and {m.uid for m in tar} == {0}
        tar.extractall(tmp_path, filter="data")
    bundle = tmp_path / "bundle"
    for line in (bundle / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ", 1)
        assert hashlib.sha256((bundle / name).read_bytes()).hexdigest() == digest
    listed = {line.split("  ", 1)[1] for line in (bundle / "SHA256SUMS").read_text().splitlines()}
    assert {
        "checklist.json", "rebuild.sh", "calibration.tar", "source/digits & cnn.onnx",
        "output/model.mxq", "output/model.mblt", "output/body.mblt", "output/validation.npz",
        "output/report.json", "provenance.json", "provenance.dsse.json", "compile-config.json",
        "resolved-config.json", "README.txt",
    } <= listed  # fmt: skip
    env = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
           "HOME": str(tmp_path), "QBCOMPILER": f"{sys.executable} -m qbcompiler",
           **{k: v for k, v in os.environ.items() if k == "PYTHONPATH"}}  # fmt: skip
    done = subprocess.run(
        ["sh", str(bundle / "rebuild.sh")], cwd="/", env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "model.mxq: every byte agrees" in done.stdout
    assert "model.mblt: every byte agrees" in done.stdout


def test_reproduce_says_whether_the_bytes_agree(server, job):
    answer = server.http.post(f"/v1/jobs/{job['id']}/reproduce")
    assert answer.status_code == 202, answer.text
    again = server.wait(answer.json()["id"])
    assert again["state"] == "succeeded" and again["retry_of"] == job["id"]
    assert again["summary"]["refresh"] == {
        "build_id": job["build_id"], "bytes_agree": True, "differs": []
    }  # fmt: skip
    assert again["build_id"] != job["build_id"]


def test_cache_explain_names_what_differs(server, job):
    request = job["request"]
    other = server.submit(
        **{k: v for k, v in request.items() if k not in ("type", "compile_config")},
        compile_config={"calibration": {"method": 0}},
    )
    assert other["cache"] == "miss"
    found = get(server, f"/v1/jobs/{other['id']}/cache-explain")
    assert [d["pointer"] for d in found["differences"]] == ["/config/calibration/method"]
    assert (found["differences"][0]["this"], found["differences"][0]["other"]) == (0, 2)
    assert found["nearest"]["build_key"] == job["build_key"]
    server.wait(other["id"])


def test_a_job_that_has_not_succeeded_has_no_record(server, job):
    failed = server.submit(
        model_id=job["model_id"], target_device="regulus-rb", use_random_calib=True,
        input_shapes={"image": [1, 1, 9, 9]},
    )  # fmt: skip
    assert server.wait(failed["id"])["state"] == "failed"
    for path in ("provenance", "bundle", "checklist"):
        answer = server.http.get(f"/v1/jobs/{failed['id']}/{path}")
        assert answer.status_code == 409 and answer.json()["code"] == "CONFLICT"
    unknown = server.http.get("/v1/jobs/job_" + "0" * 26 + "/bundle")
    assert unknown.status_code == 404


def test_graph_and_report_are_sent_by_the_service_itself(server, job):
    graph = get(server, f"/v1/jobs/{job['id']}/graph")
    assert graph["inputs"] == ["image"] and graph["outputs"] == ["logits"]
    made = {"image"}
    for layer in graph["layers"]:
        # in order, and without weights: each input was made before
        assert layer["inputs"] and set(layer["inputs"]) <= made, layer["name"]
        made |= set(layer["outputs"])
        assert (layer["device"], layer["place"]) == ("npu", "body")
        assert len(layer["shapes"]) == len(layer["outputs"])
    assert "logits" in made
    convolution = next(x for x in graph["layers"] if x["op"] == "Convolution")
    assert convolution["attributes"]["strides"] == [1, 1] and convolution["macs"] > 0
    report = get(server, f"/v1/jobs/{job['id']}/report")
    (artifact,) = (a for a in job["artifacts"] if a["kind"] == "report")
    assert report == json.loads(server.download(artifact))
    assert [x["name"] for x in report["support"]] == [x["name"] for x in graph["layers"]]


def test_a_quantize_job_shows_the_graph_of_its_mblt(server, job):
    quantize = server.submit(
        type="quantize", mblt_id=server.artifacts(job)["mblt"]["id"],
        calibration_id=job["calibration_id"], target_device="regulus-rb",
    )  # fmt: skip
    assert server.wait(quantize["id"])["state"] == "succeeded"
    theirs = get(server, f"/v1/jobs/{quantize['id']}/graph")
    assert theirs == get(server, f"/v1/jobs/{job['id']}/graph")
