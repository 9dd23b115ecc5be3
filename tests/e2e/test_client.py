"""`qbcompiler … --server`: the same command, made by the server, with the same files."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from qbcompiler import mblt_compile, mxq_compile
from qbcompiler.errors import UnsupportedDynamicShapeError

from .server import Server, serving, stand_in_engine


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("client") / "data") as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, digits_cnn: Path, digits) -> Path:
    """``model.onnx`` and ``calibration/NNN.npy``."""
    shutil.copy(digits_cnn, tmp_path / "model.onnx")
    (tmp_path / "calibration").mkdir()
    for i, image in enumerate(digits.train_images[:8]):
        np.save(tmp_path / "calibration" / f"{i:03}.npy", image.transpose(1, 2, 0))
    return tmp_path


def environment(server: Server | None = None, **more: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("QB_", "QBCOMPILER_"))}
    if server is not None:
        env["QB_SERVER"] = server.url
    return {**env, **more}


def qbcompiler(folder: Path, env: dict[str, str], *args: str, code: int = 0):
    done = subprocess.run(
        [sys.executable, "-m", "qbcompiler", *args],
        cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


COMPILE = (
    "compile", "--model", "model.onnx", "--target-device", "regulus-rb",
    "--config-preset", "classification", "--calib-data-path", "calibration",
    "--source-revision", "9fceb02", "--label", "team=vision",
)  # fmt: skip


def test_a_compile_on_the_server_writes_the_files_of_a_local_one(server, folder):
    for name, env in (("here", environment()), ("there", environment(server))):
        qbcompiler(
            folder, env, *COMPILE, "--output", f"{name}.mxq", "--mblt-save-path", f"{name}.mblt",
            "--report-path", f"{name}.json", "--validation-save-path", f"{name}.npz",
            "--config-save-path", f"{name}.config.json",
        )  # fmt: skip
    for ending in ("mxq", "mblt", "config.json"):
        here, there = folder / f"here.{ending}", folder / f"there.{ending}"
        assert here.read_bytes() == there.read_bytes(), ending
    reports = [json.loads((folder / f"{n}.json").read_text()) for n in ("here", "there")]
    assert reports[0]["layers"] == reports[1]["layers"]
    notes = [
        json.loads((folder / f"{n}.mxq.provenance.json").read_text()) for n in ("here", "there")
    ]
    assert notes[1]["source_revision"] == "9fceb02" and notes[1]["labels"] == {"team": "vision"}
    for note in notes:
        note["output"].pop("name")
    assert notes[0] == notes[1]
    with np.load(folder / "here.npz") as one, np.load(folder / "there.npz") as two:
        assert sorted(one) == sorted(two) and all((one[k] == two[k]).all() for k in one)


def test_a_report_that_ends_in_html_is_a_page_and_a_trace_is_refused_first(server, folder):
    env = environment(server)
    done = qbcompiler(folder, env, *COMPILE, "--output", "m.mxq", "--report-path", "report.html")
    page = (folder / "report.html").read_bytes()
    assert page.startswith(b"<!doctype html>") and b"What to try next" in page
    assert f"report.html  {len(page):,} bytes" in done.stdout
    more = ("--trace-path", "trace.json", "--config-save-path", "config.yaml")
    refused = qbcompiler(folder, env, *COMPILE, "--output", "n.mxq", *more, code=2)
    assert "a server writes no trace" in refused.stderr
    assert not list(folder.glob("n.mxq*")) and not (folder / "config.yaml").exists()


def test_what_the_server_holds_is_not_sent_again_and_an_equal_build_is_a_hit(server, folder):
    env = environment(server, QBCOMPILER_JSONL="1")
    qbcompiler(folder, env, *COMPILE, "--output", "one.mxq")
    second = qbcompiler(folder, env, *COMPILE, "--output", "two.mxq")
    lines = [json.loads(x) for x in second.stdout.splitlines()]
    assert not [x for x in lines if x["type"] == "progress" and x["phase"] == "upload"]
    (result,) = [x for x in lines if x["type"] == "result"]
    assert result["summary"]["cache"] == "hit" and result["summary"]["job"].startswith("job_")
    assert (folder / "one.mxq").read_bytes() == (folder / "two.mxq").read_bytes()
    held = server.http.get("/v1/models", params={"name": "model.onnx"}).json()["items"]
    assert len({m["digest"] for m in held}) == len(held)


def test_parse_then_quantize_gives_the_bytes_of_compile(server, folder):
    env = environment(server)
    qbcompiler(folder, env, *COMPILE, "--output", "whole.mxq")
    qbcompiler(
        folder, env, "parse", "--model", "model.onnx", "--output", "model.mblt",
        "--target-device", "regulus-rb", "--config-preset", "classification",
    )  # fmt: skip
    qbcompiler(
        folder, env, "quantize", "--mblt", "model.mblt", "--output", "apart.mxq",
        "--config-preset", "classification", "--calib-data-path", "calibration",
    )  # fmt: skip
    assert (folder / "whole.mxq").read_bytes() == (folder / "apart.mxq").read_bytes()


def test_lists_and_several_sources_are_the_samples_of_a_local_build(server, folder):
    samples = sorted((folder / "calibration").iterdir())
    (folder / "some.txt").write_text("".join(f"{p.relative_to(folder)}\n" for p in samples[5:]))
    more = ["--calib-data-path", "some.txt", "--calib-data-path", str(samples[0])]
    for name, env in (("here", environment()), ("there", environment(server))):
        qbcompiler(folder, env, *COMPILE, *more, "--output", f"{name}.mxq")
    assert (folder / "here.mxq").read_bytes() == (folder / "there.mxq").read_bytes()


def test_external_data_goes_along(server, folder):
    import onnx

    model = onnx.load(folder / "model.onnx")
    (folder / "weights").mkdir()
    onnx.save_model(
        model, folder / "apart.onnx", save_as_external_data=True, location="weights/w.bin",
        size_threshold=0,
    )  # fmt: skip
    mblt_compile(folder / "apart.onnx", folder / "here.mblt")
    for name in ("one", "two"):
        mblt_compile(folder / "apart.onnx", folder / f"{name}.mblt", server=server.url)
    for name in ("one", "two"):
        assert (folder / f"{name}.mblt").read_bytes() == (folder / "here.mblt").read_bytes()


def test_a_model_in_memory_is_compiled_from_python(server, folder):
    options = {"target_device": "regulus-rb", "use_random_calib": True}
    data = (folder / "model.onnx").read_bytes()
    there = mxq_compile(data, save_path=folder / "there.mxq", server=server.url, **options)
    mxq_compile(data, save_path=folder / "here.mxq", **options)
    assert (folder / "here.mxq").read_bytes() == (folder / "there.mxq").read_bytes()
    assert there.summary["accuracy"]["samples"] == 8


def test_failures_have_the_code_message_and_exit_code_of_a_local_build(server, folder, ocr_cls):
    args = ["compile", "--model", str(ocr_cls), "--target-device", "regulus-rb",
            "--use-random-calib", "--output", "x.mxq"]  # fmt: skip
    here = qbcompiler(folder, environment(), *args, code=3)
    there = qbcompiler(folder, environment(server), *args, code=3)
    last = [x for x in here.stderr.splitlines() if x.startswith(("ERROR", "hint"))]
    assert last and last == [
        x for x in there.stderr.splitlines() if x.startswith(("ERROR", "hint"))
    ]
    with pytest.raises(UnsupportedDynamicShapeError) as caught:
        mxq_compile(
            ocr_cls, target_device="regulus-rb", use_random_calib=True, server=server.url,
            save_path=folder / "x.mxq",
        )  # fmt: skip
    assert caught.value.details["job"].startswith("job_")
    assert not (folder / "x.mxq").exists()


def test_jobs_are_listed_attached_to_and_fetched(server, folder):
    env = environment(server)
    qbcompiler(folder, env, *COMPILE, "--output", "model.mxq")
    listed = json.loads(qbcompiler(folder, env, "jobs", "--json", "--limit", "1").stdout)
    job = listed[0]["id"]
    table = qbcompiler(folder, env, "jobs", "--label", "team=vision", "--state", "succeeded")
    assert job in table.stdout and max(len(x) for x in table.stdout.splitlines()) <= 80
    assert job in qbcompiler(folder, env, "attach", job).stdout
    qbcompiler(folder, env, "fetch", job, "--output", "again.mxq")
    assert (folder / "again.mxq").read_bytes() == (folder / "model.mxq").read_bytes()
    qbcompiler(folder, env, "fetch", job, "--output-dir", "all")
    assert {"model.mxq", "model.mblt", "report.json"} <= {
        p.name for p in (folder / "all").iterdir()
    }
    unknown = "job_" + "0" * 26
    failed = qbcompiler(folder, env, "fetch", unknown, code=2)
    assert "NOT_FOUND" in failed.stderr and unknown in failed.stderr


@pytest.fixture
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose default engine says hello and then waits."""
    env = {
        "QB_ENGINES": json.dumps({"slow": stand_in_engine("hang")}),
        "QB_DEFAULT_ENGINE": "slow",
    }
    with serving(tmp_path_factory.mktemp("slow") / "data", env) as server:
        yield server


def heed_control_c() -> None:
    """A process begun in the background ignores Ctrl-C, and so would what it begins."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_control_c_without_a_terminal_leaves_the_job_and_says_how_to_come_back(slow, folder):
    process = subprocess.Popen(
        [sys.executable, "-m", "qbcompiler", *COMPILE, "--output", "model.mxq", "-v"],
        cwd=folder, env=environment(slow), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_control_c,
    )  # fmt: skip
    assert process.stderr is not None
    while not (found := re.search(r"job_\w{26}", process.stderr.readline())):
        assert process.poll() is None
    job = found[0]
    slow.wait(job, lambda job: job["state"] == "running")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"qbcompiler attach {job}" in errors and slow.job(job)["state"] == "running"
    qbcompiler(folder, environment(slow), "cancel", job)
    assert slow.wait(job)["state"] == "cancelled"
    gone = qbcompiler(folder, environment(slow), "attach", job, code=130)
    assert "was cancelled" in gone.stderr and not (folder / "model.mxq").exists()


def test_control_c_on_a_terminal_asks_and_cancels(slow, folder):
    pid, terminal = pty.fork()
    if pid == 0:
        heed_control_c()
        os.chdir(folder)
        command = [sys.executable, "-m", "qbcompiler", *COMPILE, "--output", "model.mxq", "-v"]
        os.execve(sys.executable, command, environment(slow, TERM="dumb"))
    text = b""
    while not (found := re.search(rb"job (job_\w{26}) on ", text)):
        text += os.read(terminal, 4096)
    job = found[1].decode()
    slow.wait(job, lambda job: job["state"] == "running")
    os.write(terminal, b"\x03")
    while b"[c]ancel" not in text:
        text += os.read(terminal, 4096)
    os.write(terminal, b"c\n")
    with_rest = text
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:
            break
        if not data:
            break
        with_rest += data
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130, with_rest
    assert re.search(rb"ERROR \[CANCELLED\]", with_rest)
    assert slow.job(job)["state"] == "cancelled"
