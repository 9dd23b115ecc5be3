"""The command line as its users meet it: as a process."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qbcompiler.cli import main

Run = Callable[..., subprocess.CompletedProcess[str]]

COMMANDS = [
    "compile",
    "parse",
    "quantize",
    "compare",
    "dump-config",
    "presets",
    "devices",
    "info",
    "validate",
    "extract-body",
    "export",
    "run",
    "check",
    "explain",
    "jobs",
    "attach",
    "fetch",
    "cancel",
    "login",
    "logout",
]


def network(*, batch: int | str = 1, odd: bool = False, size: int = 16) -> onnx.ModelProto:
    """A small classifier; ``odd`` adds a layer in the tail that no NPU has."""
    rng = np.random.default_rng(7)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="conv2", strides=[2, 2]),
        helper.make_node("Sigmoid", ["c2"], ["s2"], name="sigmoid2"),
        helper.make_node("GlobalAveragePool", ["s2"], ["g"], name="gap"),
        helper.make_node("Flatten", ["g"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "w3"], ["y"], name="fc"),
    ]
    output = ("y", TensorProto.FLOAT, [batch, 10])
    if odd:
        nodes.append(helper.make_node("NonZero", ["y"], ["z"], name="nonzero"))
        output = ("z", TensorProto.INT64, [2, "found"])
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, size, size])],
        [helper.make_tensor_value_info(*output)],
        [weight("w1", 8, 3, 3, 3), weight("b1", 8), weight("w2", 8, 8, 3, 3), weight("w3", 8, 10)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and calibration samples."""
    folder = tmp_path_factory.mktemp("cli")
    onnx.save(network(), folder / "m.onnx")
    (folder / "cal").mkdir()
    rng = np.random.default_rng(3)
    for i in range(5):
        np.save(folder / "cal" / f"{i}.npy", rng.normal(0, 1, (1, 3, 16, 16)).astype(np.float32))
    return folder


@pytest.fixture
def run(data: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in the data folder, in this process (a new one costs a second)."""

    def call(
        *args: str | Path, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patch:
            patch.chdir(data)
            for name in os.environ:
                if name.startswith("QBCOMPILER_"):
                    patch.delenv(name)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            capfd.readouterr()
            try:
                code = main([str(a) for a in args])
            except SystemExit as exc:  # --help
                code = int(exc.code or 0)
            out, err = capfd.readouterr()
        return subprocess.CompletedProcess(args, code, out, err)

    return call


@pytest.fixture
def spawn(data: Path) -> Run:
    """Run the command line in the data folder, as a process of its own."""

    def call(
        *args: str | Path, env: dict[str, str] | None = None, **kwargs: Any
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "qbcompiler", *map(str, args)],
            cwd=data,
            env={**clean_environment(), **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
            **kwargs,
        )

    return call


def clean_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("QBCOMPILER_")}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def messages(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def failed(done: subprocess.CompletedProcess[str], code: int, name: str) -> str:
    """Check the form of a failure and return its message."""
    lines = done.stderr.strip().splitlines()
    errors = [line for line in lines if line.startswith("ERROR [")]
    assert done.returncode == code, done.stderr
    assert len(errors) == 1, done.stderr
    assert errors[0].startswith(f"ERROR [{name}]: ")
    assert "Traceback" not in done.stderr
    return "\n".join(lines[lines.index(errors[0]) :])


BUILD = ["--calib-data-path", "cal", "--target-device", "regulus-rb"]


# -- the main job ---------------------------------------------------------------------------


def test_compile_as_the_manual_has_it(spawn: Run, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "model.mxq"
    done = spawn(
        "compile",
        *("--model", "m.onnx", "--backend", "onnx", "--calib-data-path", "cal"),
        *("--target-device", "regulus-rb", "--output", output),
    )
    assert done.returncode == 0, done.stderr
    assert sha256(output) in done.stdout and "SQNR" in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.mxq", "model.mxq.provenance.json"]
    record = json.loads((tmp_path / "model.mxq.provenance.json").read_text())
    assert record["output"]["sha256"] == sha256(output)
    assert record["model"] == "m.onnx" and record["calibration"] == ["cal"]


def test_parse_and_quantize_give_the_bytes_of_compile(run: Run, data: Path, tmp_path: Path) -> None:
    preset = ["--config-preset", "classification"]
    whole = tmp_path / "whole.mxq"
    kept = tmp_path / "kept.mblt"
    first = run(
        *("compile", "--model", "m.onnx", *BUILD, *preset, "--output", whole),
        *("--mblt-save-path", kept, "--threads", "2"),
    )
    assert first.returncode == 0, first.stderr
    for name, target in (("for-it", ["--target-device", "regulus-rb"]), ("for-any", [])):
        mblt, mxq = tmp_path / f"{name}.mblt", tmp_path / f"{name}.mxq"
        parsed = run("parse", "--model", data / "m.onnx", *target, *preset, "--output", mblt)
        assert parsed.returncode == 0, parsed.stderr
        done = run(
            *("quantize", "--mblt", mblt, "--output", mxq, *BUILD, *preset, "--threads", "1")
        )
        assert done.returncode == 0, done.stderr
        assert sha256(mxq) == sha256(whole)
    assert sha256(tmp_path / "for-it.mblt") == sha256(kept)


def test_quantize_takes_the_device_of_the_mblt(run: Run, tmp_path: Path) -> None:
    mblt, mxq = tmp_path / "a.mblt", tmp_path / "a.mxq"
    run("parse", "--model", "m.onnx", "--target-device", "aries-rb", "--output", mblt)
    done = run("quantize", "--mblt", mblt, "--output", mxq, "--use-random-calib")
    assert done.returncode == 0, done.stderr
    assert "not for release" in done.stderr
    found = json.loads(run("info", "--mxq", mxq).stdout)
    assert found["device"] == "aries-rb" and found["calibration"]["random"] is True
    bare = tmp_path / "bare.mblt"
    run("parse", "--model", "m.onnx", "--output", bare)
    done = run("quantize", "--mblt", bare, "--output", mxq, "--use-random-calib")
    assert "no target device" in failed(done, 2, "ARGUMENT_ERROR")


def test_what_the_parse_settled_need_not_be_repeated(run: Run, tmp_path: Path) -> None:
    onnx.save(network(batch="N", size=16), tmp_path / "open.onnx")
    shape = ["--input-shape", "x=1,3,16,16"]
    mblt, two, one = tmp_path / "o.mblt", tmp_path / "two.mxq", tmp_path / "one.mxq"
    source = ["--model", tmp_path / "open.onnx", *shape]
    assert run("parse", *source, "--output", mblt).returncode == 0
    assert run("quantize", "--mblt", mblt, *BUILD, "--output", two).returncode == 0
    assert run("compile", *source, *BUILD, "--output", one).returncode == 0
    assert sha256(one) == sha256(two)
    other = tmp_path / "c.json"
    other.write_text(json.dumps({"inputShapeDict": {"x": [1, 3, 8, 8]}}))
    done = run(*("quantize", "--mblt", mblt, *BUILD, "--output", two, "--compile-config", other))
    assert "not those that the MBLT was parsed with" in failed(done, 2, "ARGUMENT_ERROR")


def test_offloading(run: Run, tmp_path: Path) -> None:
    onnx.save(network(odd=True), tmp_path / "odd.onnx")
    model = ["--model", tmp_path / "odd.onnx"]
    one, two, mblt = tmp_path / "one.mxq", tmp_path / "two.mxq", tmp_path / "o.mblt"
    text = failed(run("compile", *model, *BUILD, "--output", one), 3, "UNSUPPORTED_OPERATOR")
    assert "nonzero" in text and "tail" in text and "--cpu-offload" in text
    done = run("compile", *model, *BUILD, "--output", one, "--cpu-offload")
    assert done.returncode == 0, done.stderr
    assert run("parse", *model, "--cpu-offload", "--output", mblt).returncode == 0
    assert run("quantize", "--mblt", mblt, *BUILD, "--output", two).returncode == 0
    assert sha256(one) == sha256(two)
    found = json.loads(run("info", "--mxq", one).stdout)
    assert {row["place"] for row in found["layers"]} == {"body", "tail"}
    done = run("run", "--mxq", one, "--input", "cal/0.npy", "--output", tmp_path / "o.npz")
    assert done.returncode == 0, done.stderr


def test_the_report_and_the_configuration(run: Run, tmp_path: Path) -> None:
    files = [tmp_path / n for n in ("m.mxq", "r.json", "c.json", "again.mxq")]
    mxq, report, config, again = files
    unheeded = tmp_path / "unheeded.json"
    unheeded.write_text('{"calibration": {"output": 2}}')
    done = run(
        *("compile", "--model", "m.onnx", *BUILD, "--output", mxq, "--report-path", report),
        *("--config-save-path", config, "--config-preset", "detection"),
        *("--compile-config", unheeded),
        *("--source-revision", "abc123", "--label", "team=vision", "--label", "run=4"),
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING: /calibration/output has no effect" in done.stderr
    written = json.loads(report.read_text())
    assert any("/calibration/output" in w for w in written["warnings"])
    phases = ["parse", "calibrate", "quantize", "codegen", "verify", "store"]
    assert list(written["phases"]) == phases
    record = json.loads((tmp_path / "m.mxq.provenance.json").read_text())
    assert record["source_revision"] == "abc123"
    assert record["labels"] == {"run": "4", "team": "vision"}
    # the saved configuration makes the same build again; only the preset's name is not in it
    done = run(
        *("compile", "--model", "m.onnx", *BUILD, "--output", again, "--compile-config", config),
        *("--config-preset", "detection"),
    )
    assert done.returncode == 0, done.stderr
    assert sha256(again) == sha256(mxq)


def test_the_configuration_file_may_name_everything(run: Run, data: Path, tmp_path: Path) -> None:
    config = tmp_path / "all.yaml"
    config.write_text(
        f"modelPaths: [{data / 'm.onnx'}]\ncalibDataPaths: [{data / 'cal'}]\n"
        f"savePaths: [{tmp_path / 'all.mxq'}]\n"
    )
    done = run("compile", "--compile-config", config, "--target-device", "regulus-rb")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "all.mxq").is_file()


def test_all_narrows_on_one_core(run: Run, tmp_path: Path) -> None:
    paths = [tmp_path / "all.mxq", tmp_path / "single.mxq"]
    for path in paths:
        done = run(
            *("compile", "--model", "m.onnx", *BUILD, "--output", path),
            *("--inference-scheme", path.stem),
        )
        assert done.returncode == 0, done.stderr
    assert sha256(paths[0]) == sha256(paths[1])


def test_compile_for_every_device(run: Run, tmp_path: Path) -> None:
    for device, code in (("aries-rb", 0), ("regulus-rb-usb", 0), ("regulus-ra", 3)):
        done = run(
            *("compile", "--model", "m.onnx", "--calib-data-path", "cal"),
            *("--target-device", device, "--output", tmp_path / f"{device}.mxq"),
            *("--inference-scheme", "all"),
        )
        assert done.returncode == code, done.stderr
        if code:
            assert "sigmoid2" in failed(done, 3, "UNSUPPORTED_OPERATOR")
    found = json.loads(run("info", "--mxq", tmp_path / "aries-rb.mxq").stdout)
    assert found["schemes"] == ["single", "multi", "global4", "global8"]


# -- the protocol ---------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
def test_each_way_to_ask_for_the_protocol(run: Run, value: str) -> None:
    (message,) = messages(run("presets", env={"QBCOMPILER_JSONL": value}))
    assert message["type"] == "result"


@pytest.mark.parametrize("value", ["0", "", "off"])
def test_each_way_not_to(run: Run, value: str) -> None:
    assert "yolo_640 (extends" in run("presets", env={"QBCOMPILER_JSONL": value}).stdout


def test_the_protocol_has_standard_output_to_itself(spawn: Run, tmp_path: Path) -> None:
    output = tmp_path / "m.mxq"
    done = spawn(
        *("compile", "--model", "m.onnx", *BUILD, "--output", output),
        *("--mblt-save-path", tmp_path / "m.mblt", "--report-path", tmp_path / "r.json"),
        env={"QBCOMPILER_JSONL": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = messages(done)
    assert found[0]["type"] == "status" and found[0]["state"] == "started"
    phases = [m["phase"] for m in found if m["type"] == "status" and m["state"] == "phase"]
    assert phases == ["parse", "calibrate", "quantize", "codegen", "verify", "store"]
    last = [m for m in found if m["type"] == "progress" and m["phase"] == "calibrate"][-1]
    assert (last["current"], last["total"]) == (5, 5)
    result = found[-1]
    assert result["type"] == "result"
    assert {f["kind"] for f in result["files"]} == {"mxq", "mblt", "report", "provenance"}
    for entry in result["files"]:
        path = Path(entry["path"])
        assert (entry["sha256"], entry["size"]) == (sha256(path), path.stat().st_size)
    summary = result["summary"]
    assert summary["target_device"] == "regulus-rb" and summary["inference_scheme"] == "single"
    assert summary["accuracy"]["outputs"][0]["sqnr_db"] > 20
    assert set(summary["phase_seconds"]) == set(phases)


def test_the_protocol_carries_the_error(run: Run, tmp_path: Path) -> None:
    done = run(
        *("compile", "--model", "m.onnx", "--output", tmp_path / "m.mxq"),
        *("--target-device", "regulus-rb"),
        env={"QBCOMPILER_JSONL": "1"},
    )
    failed(done, 2, "CALIBRATION_MISSING")
    error = messages(done)[-1]
    assert error["type"] == "error" and error["code"] == "CALIBRATION_MISSING"
    assert error["message"] == "No calibration dataset is provided"
    assert "--use-random-calib" in error["hint"]
    bad = run("compile", "--modle", "m.onnx", env={"QBCOMPILER_JSONL": "1"})
    assert [m["code"] for m in messages(bad)] == ["ARGUMENT_ERROR"]


def test_nothing_else_reaches_standard_output_under_the_protocol(data: Path) -> None:
    """A print, a write to descriptor 1 and a child's output all land on standard error."""
    code = (
        "import os, subprocess, sys\n"
        "from qbcompiler.cli.streams import protocol_stream\n"
        "with protocol_stream() as out:\n"
        "    print('from print')\n"
        "    os.write(1, b'from the descriptor\\n')\n"
        "    subprocess.run([sys.executable, '-c', 'print(\"from a child\")'], check=True)\n"
        "    out.write('{}\\n')\n"
        "print('after')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{}\nafter\n"
    for line in ("from print", "from the descriptor", "from a child"):
        assert line in done.stderr


@pytest.mark.parametrize("command", [["devices"], ["presets"], ["check"]])
def test_commands_that_tell_answer_in_the_protocol_too(run: Run, command: Sequence[str]) -> None:
    (message,) = messages(run(*command, env={"QBCOMPILER_JSONL": "1"}))
    assert message["type"] == "result"
    plain = json.loads(run(*command, "--json").stdout)
    assert message["summary"].keys() == plain.keys()


# -- commands that tell ---------------------------------------------------------------------


@pytest.mark.parametrize("command", [[], *[[c] for c in COMMANDS]])
def test_help_fits_eighty_columns(run: Run, command: Sequence[str]) -> None:
    done = run(*command, "--help", env={"COLUMNS": "200"})
    assert done.returncode == 0 and done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    if not command:
        assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("no_color", ["", "1"])
def test_an_error_is_red_on_a_terminal_alone(
    no_color: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, red in ((Terminal(), not no_color), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("NO_COLOR", no_color)
        assert main(["info", "--mxq", "absent.mxq"]) == 3
        head = "ERROR [MODEL_LOAD_ERROR]:"
        first = stream.getvalue().splitlines()[0]
        assert first.startswith(f"\x1b[1;31m{head}\x1b[0m " if red else f"{head} ")


def test_devices_and_presets(run: Run) -> None:
    text = run("devices").stdout
    assert "aries-rb" in text and "single, multi, global4, global8, all" in text
    assert max(map(len, text.splitlines())) <= 90
    assert "yolo_640 (extends detection)" in run("presets").stdout


def test_dump_config(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    assert run("dump-config", "--preset", "yolo_640", "--output", path).returncode == 0
    assert "padValue" in path.read_text() and "# " in path.read_text()
    done = run("dump-config", "--preset", "yolo", "--output", path)
    assert "did you mean 'yolo_640'?" in failed(done, 2, "CONFIG_ERROR")
    failed(run("dump-config", "--output", tmp_path / "c.toml"), 2, "CONFIG_ERROR")
    failed(run("dump-config", "--output", tmp_path / "no" / "c.yaml"), 4, "OUTPUT_WRITE_ERROR")


def test_validate_says_what_was_not_fused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "padded.onnx"
    nodes = [helper.make_node("Relu", ["x"], ["r0"], name="start")]
    weights = []
    for i in range(5):
        # a shift before zero padding must stay a layer of its own
        value = np.full((1, 3, 1, 1), 0.5 + i, np.float32)
        weights.append(numpy_helper.from_array(value, f"shift{i}"))
        weights.append(numpy_helper.from_array(np.ones((3, 3, 3, 3), np.float32), f"w{i}"))
        nodes += [
            helper.make_node("Add", [f"r{i}", f"shift{i}"], [f"a{i}"], name=f"add{i}"),
            helper.make_node("Conv", [f"a{i}", f"w{i}"], [f"c{i}"], name=f"conv{i}", pads=[1] * 4),
            helper.make_node("Relu", [f"c{i}"], [f"r{i + 1}"], name=f"relu{i}"),
        ]
    graph = helper.make_graph(
        nodes,
        "padded",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("r5", TensorProto.FLOAT, [1, 3, 8, 8])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    done = run("validate", "--model", path)
    assert done.returncode == 0, done.stderr
    section = " ".join(done.stdout.partition("Not fused:")[2].split())
    assert section == (
        "fold_affine_before: it pads with zeros, which the shift before it does not reach "
        "(conv0, conv1, conv2 and 2 more)"
    )
    found = json.loads(run("validate", "--model", path, "--json").stdout)
    assert found["not_fused"][4] == {
        "pass": "fold_affine_before",
        "layer": "conv4",
        "reason": "it pads with zeros, which the shift before it does not reach",
    }
    assert "Not fused" not in run("validate", "--model", "m.onnx").stdout


def test_info_validate_extract_export_run_check(run: Run, data: Path, tmp_path: Path) -> None:
    mblt, mxq = tmp_path / "m.mblt", tmp_path / "m.mxq"
    done = run(*("compile", "--model", "m.onnx", *BUILD, "--output", mxq, "--mblt-save-path", mblt))
    assert done.returncode == 0, done.stderr

    found = json.loads(run("info", "--mblt", mblt).stdout)
    assert found["inputs"] == [
        {"name": "x", "shape": [1, 3, 16, 16], "dtype": "float32", "layout": "NCHW"}
    ]
    assert "SHA-256" in run("info", "--mxq", mxq, "--table").stdout
    assert "give it as --mblt" in failed(run("info", "--mxq", mblt), 3, "FORMAT_ERROR")
    failed(run("info", "--mblt", data / "m.onnx"), 3, "FORMAT_ERROR")
    failed(run("info", "--mblt", tmp_path / "no.mblt"), 3, "MODEL_LOAD_ERROR")

    done = run("validate", "--model", "m.onnx", "--target-device", "regulus-ra")
    assert "sigmoid2" in done.stdout
    assert "sigmoid2" in failed(done, 3, "UNSUPPORTED_OPERATOR")
    assert run("validate", "--model", "m.onnx", "--target-device", "regulus-rb").returncode == 0
    assert json.loads(run("validate", "--model", "m.onnx", "--json").stdout)["layers"]

    body = tmp_path / "body.mblt"
    assert run("extract-body", "--mblt", mblt, "--output", body).returncode == 0
    again = run("quantize", "--mblt", body, *BUILD, "--output", tmp_path / "body.mxq")
    assert again.returncode == 0, again.stderr

    exported = tmp_path / "float.onnx"
    assert run("export", "--mblt", mblt, "--output", exported).returncode == 0
    onnx.checker.check_model(str(exported), full_check=True)
    quantized = tmp_path / "quantized.onnx"
    assert run("export", "--mxq", mxq, "--output", quantized).returncode == 0
    onnx.checker.check_model(str(quantized), full_check=True)
    assert "QuantizeLinear" in {n.op_type for n in onnx.load(quantized).graph.node}
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]

    outputs = {}
    for kind, path in (("--mxq", mxq), ("--mblt", mblt)):
        out = tmp_path / f"out{kind}.npz"
        done = run("run", kind, path, "--input", "cal", "--output", out)
        assert done.returncode == 0, done.stderr
        outputs[kind] = np.load(out)["y"]
        assert outputs[kind].shape == (5, 10)
    scale = np.abs(outputs["--mblt"]).max()
    assert np.abs(outputs["--mxq"] - outputs["--mblt"]).max() < 0.05 * scale
    single = tmp_path / "one.npy"
    assert run("run", "--mxq", mxq, "--input", "cal/3.npy", "--output", single).returncode == 0
    np.testing.assert_array_equal(np.load(single)[0], outputs["--mxq"][3])
    failed(
        run("run", "--mxq", mxq, "--input", "cal", "--core-mode", "multi"), 2, "DEVICE_SCHEME_ERROR"
    )
    failed(run("run", "--mxq", mxq, "--input", "nowhere"), 2, "ARGUMENT_ERROR")

    done = run("check", "--mxq", mxq)
    assert done.returncode == 0 and "the same bits" in done.stdout
    blob = bytearray(mxq.read_bytes())
    blob[len(blob) // 2] ^= 0xFF
    (tmp_path / "bad.mxq").write_bytes(blob)
    failed(run("check", "--mxq", tmp_path / "bad.mxq"), 3, "FORMAT_ERROR")


def test_estimate_only_needs_no_calibration_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    done = run(
        *("compile", "--model", "m.onnx", "--target-device", "aries-rb"),
        *("--inference-scheme", "all", "--output", tmp_path / "m.mxq", "--estimate-only"),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ESTIMATE for aries-rb")
    schemes = [line.split()[0] for line in lines[6:10]]
    assert schemes == ["single", "multi", "global4", "global8"]
    assert "These are estimates" in done.stdout and "not public" in " ".join(lines)
    assert max(map(len, lines)) <= 80
    assert not list(tmp_path.glob("*.mxq*"))
    failed(run("compile", "--model", "m.onnx", "--estimate-only"), 2, "ARGUMENT_ERROR")


def test_a_gpu_falls_back_with_one_line(run: Run, tmp_path: Path) -> None:
    done = run(
        *("compile", "--model", "m.onnx", *BUILD, "--output", tmp_path / "m.mxq"),
        *("--device", "gpu", "--quiet"),
    )
    assert done.returncode == 0
    assert done.stderr == "WARNING: no GPU is used by this compiler: the CPU compiles\n"
    assert done.stdout == ""


def test_a_reader_that_leaves_is_no_fault(data: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "qbcompiler", "devices", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(60) in (0, 141)
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()


# -- ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_cleanly(data: Path, tmp_path: Path, number: signal.Signals) -> None:
    many = tmp_path / "many"
    many.mkdir()
    sample = np.load(data / "cal" / "0.npy")
    for i in range(2000):
        np.save(many / f"{i}.npy", sample)
    output = tmp_path / "out"
    output.mkdir()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "qbcompiler", "compile", "--model", "m.onnx"),
            *("--calib-data-path", str(many), "--target-device", "regulus-rb"),
            *("--output", str(output / "m.mxq"), "--mblt-save-path", str(output / "m.mblt")),
        ],
        cwd=data,
        env={**clean_environment(), "QBCOMPILER_JSONL": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a process begun in the background ignores Ctrl-C, and so would what it begins
        preexec_fn=functools.partial(signal.signal, number, signal.SIG_DFL),
    )
    assert process.stdout is not None and process.stderr is not None
    for line in process.stdout:
        message = json.loads(line)
        if message["type"] == "progress" and message["phase"] == "calibrate":
            break
    sent = time.monotonic()
    process.send_signal(number)
    code = process.wait(30)
    assert time.monotonic() - sent < 5
    assert code == (130 if number == signal.SIGINT else -number)
    assert "Traceback" not in process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    assert [p.name for p in output.iterdir()] == ["m.mblt"]
