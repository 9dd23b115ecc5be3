"""The examples, run as they lie in ``examples/`` against a server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from .server import Server, serving, write_project

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("examples") / "data") as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, digits_cnn: Path, digits) -> Path:
    """A project: ``model.onnx`` and ``calibration/NNN.npy``."""
    folder = tmp_path / "project"
    write_project(folder, digits_cnn, digits.train_images[:8])
    return folder


@pytest.fixture
def run(folder: Path, server: Server):
    """Run a command in the project; return its standard output."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("QB_", "QBCOMPILER_"))}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    env["QB_SERVER"] = server.url

    def call(*command: str, code: int = 0, **more: str) -> str:
        done = subprocess.run(
            command, cwd=folder, env={**env, **more}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return call


@pytest.fixture
def expected(folder: Path, run) -> bytes:
    """What the command line makes of the project on this machine."""
    run("qbcompiler", "compile", "--local", "-q", "--model", "model.onnx",
        "--calib-data-path", "calibration", "--target-device", "regulus-rb",
        "--output", "expected.mxq")  # fmt: skip
    return (folder / "expected.mxq").read_bytes()


def needs(*tools: str) -> pytest.MarkDecorator:
    missing = [tool for tool in tools if not shutil.which(tool)]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def jobs(server: Server) -> int:
    return len(server.http.get("/v1/jobs", params={"limit": 200}).json()["items"])


def age(path: Path) -> int:
    return path.stat().st_mtime_ns


def later(path: Path, other: Path) -> None:
    """Give a file a time after another's, as an editor would."""
    seconds = other.stat().st_mtime + 1
    os.utime(path, (seconds, seconds))


@needs("curl", "jq")
def test_curl_from_upload_to_download(folder, run, expected):
    script = EXAMPLES / "curl" / "compile.sh"
    code = [x for x in script.read_text("utf-8").splitlines() if not x.startswith("#")]
    assert len(code) <= 12
    run(str(script), "model.onnx", "calibration", "regulus-rb", "model.mxq")
    assert (folder / "model.mxq").read_bytes() == expected
    # a job that fails: the reason, and no file
    np.save(folder / "calibration" / "000.npy", np.full((8, 8, 1), 3e38, np.float32))
    said = run(str(script), "model.onnx", "calibration", "regulus-rb", "other.mxq", code=1)
    assert "QUANTIZATION_ERROR" in said and not list(folder.glob("other.mxq*"))


@needs("make")
def test_make_compiles_when_an_input_or_option_changes(folder, run, expected, server):
    shutil.copytree(EXAMPLES / "make", folder, dirs_exist_ok=True)
    before = jobs(server)
    run("make")
    mxq = folder / "build" / "digits.mxq"
    assert mxq.read_bytes() == expected and jobs(server) == before + 1
    made = age(mxq)
    run("make")
    assert age(mxq) == made, "nothing has changed"
    later(folder / "calibration" / "003.npy", mxq)
    run("make")
    assert age(mxq) != made
    flags = "QB_FLAGS=--target-device aries-rb --calib-data-path calibration"
    run("make", flags)
    other = mxq.read_bytes()
    assert other != expected
    later(folder / "model.onnx", mxq)
    (folder / "model.onnx").write_bytes(b"no model")
    later(folder / "model.onnx", mxq)
    assert "MODEL_LOAD_ERROR" in run("make", flags, code=2)
    assert mxq.read_bytes() == other, "a build that fails leaves the last one as it was"


@needs("cmake", "make")
def test_cmake_compiles_when_an_input_or_option_changes(folder, run, expected, server):
    shutil.copytree(EXAMPLES / "cmake", folder, dirs_exist_ok=True)
    make = ("cmake", "--build", "build")
    before = jobs(server)
    run("cmake", "-S", ".", "-B", "build", "-G", "Unix Makefiles")
    run(*make)
    mxq = folder / "build" / "digits.mxq"
    assert mxq.read_bytes() == expected and jobs(server) == before + 1
    made = age(mxq)
    run(*make)
    assert age(mxq) == made and jobs(server) == before + 1, "nothing has changed"
    np.save(folder / "calibration" / "100.npy", np.zeros((8, 8, 1), np.float32))
    later(folder / "calibration" / "100.npy", mxq)
    run(*make)
    assert age(mxq) != made and jobs(server) == before + 2, "a sample more"
    lists = folder / "CMakeLists.txt"
    lists.write_text(lists.read_text().replace("regulus-rb", "aries-rb"))
    second = mxq.read_bytes()
    run(*make)
    assert mxq.read_bytes() != second, "another device"
    lists.write_text(lists.read_text().replace("  MODEL model.onnx\n", ""))
    assert "MODEL is missing" in run(*make, code=2)


def test_the_bazel_rule_names_every_input_and_its_command_works(folder, run, expected):
    # Starlark is close enough to Python to run the macro with stand-ins for what Bazel gives it
    rules: list[dict[str, Any]] = []
    names: dict[str, Any] = {
        "native": SimpleNamespace(genrule=lambda **rule: rules.append(rule)),
        "load": lambda *_args: None,
        "glob": lambda patterns: sorted(
            str(p.relative_to(folder)) for x in patterns for p in folder.glob(x)
        ),
    }
    for file in ("qb.bzl", "BUILD.bazel"):
        exec(compile((EXAMPLES / "bazel" / file).read_text("utf-8"), file, "exec"), names)
    (rule,) = rules
    used = re.findall(r"\$\(location ([^)]*)\)", rule["cmd"])
    assert sorted(used) == sorted(rule["srcs"]) and len(used) == 9
    command = re.sub(r"\$\(location ([^)]*)\)", r"\1", rule["cmd"]).replace("$@", rule["outs"][0])
    run("bash", "-euo", "pipefail", "-c", command)
    assert (folder / "digits.mxq").read_bytes() == expected


def test_the_workflow_step_compiles(folder, run, expected):
    text = (EXAMPLES / "github-actions" / "compile-model.yml").read_text("utf-8")
    workflow = yaml.safe_load(text)
    (job,) = workflow["jobs"].values()
    (step,) = (s for s in job["steps"] if "run" in s)
    assert set(job["env"]) == {"QB_SERVER", "QB_TOKEN"}
    run("bash", "-euo", "pipefail", "-c", step["run"], GITHUB_SHA="9fceb02", GITHUB_RUN_ID="17")
    assert (folder / "model.mxq").read_bytes() == expected
    (kept,) = (s for s in job["steps"] if "upload-artifact" in s.get("uses", ""))
    assert kept["with"]["path"] == "model.mxq"


def test_the_python_client_compiles_and_runs_the_model(folder, run, expected, server):
    script = str(EXAMPLES / "python" / "client.py")
    said = run(sys.executable, script, "--server", server.url, "model.onnx", "calibration", "m.mxq")
    assert (folder / "m.mxq").read_bytes() == expected
    assert "SQNR" in said and re.search(r"^002\.npy \(1, 10\) largest at \d$", said, re.MULTILINE)
    gone = [sys.executable, script, "--server", server.url, "absent.onnx", "calibration", "n.mxq"]
    assert "MODEL_LOAD_ERROR: " in run(*gone, code=3)


def test_a_sweep_prints_how_presets_compare(run):
    said = run(
        sys.executable, str(EXAMPLES / "python" / "sweep.py"), "model.onnx", "calibration",
        "--preset", "default", "--preset", "classification", "--preset", "nonsense",
        "--target-device", "regulus-rb", "--target-device", "aries-rb", code=1,
    )  # fmt: skip
    head, *rows = said.splitlines()
    assert head.split("  ")[0] == "device" and len(rows) == 6
    found = {tuple(row.split()[:2]): row.split()[2] for row in rows}
    for device in ("regulus-rb", "aries-rb"):
        assert float(found[device, "classification"]) > float(found[device, "default"]) > 10
        assert found[device, "nonsense"] == "CONFIG_ERROR"
