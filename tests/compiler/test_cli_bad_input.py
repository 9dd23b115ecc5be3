"""Bad input to the command line: a typed error, one line, the way out, and no file left behind."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qbcompiler.cli import main

from .test_cli import clean_environment, network

Compile = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bad") / "m.onnx"
    onnx.save(network(), path)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """The output folder; after the test there must be nothing in it."""
    folder = tmp_path / "out"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def compile_(
    model: Path, out: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Compile:
    """Compile; return the exit code and the error, hint and help lines."""
    for name in os.environ:
        if name.startswith("QBCOMPILER_"):
            monkeypatch.delenv(name)

    def call(*more: object, **changes: object) -> tuple[int, str]:
        options: dict[str, object] = {
            "model": model,
            "target-device": "regulus-rb",
            "output": out / "m.mxq",
            "mblt-save-path": None,
            **{k.replace("_", "-"): v for k, v in changes.items()},
        }
        args = [x for k, v in options.items() if v is not None for x in (f"--{k}", str(v))]
        code = main(["compile", *args, *map(str, more)])
        lines = capfd.readouterr().err.strip().splitlines()
        starts = [i for i, line in enumerate(lines) if line.startswith("ERROR [")]
        assert len(starts) == 1, lines
        text = "\n".join(lines[starts[0] :])
        assert "Traceback" not in text and len(lines) - starts[0] <= 3
        assert lines[-1] == "help: qbcompiler explain " + lines[starts[0]][7:].partition("]")[0]
        return code, text

    return call


def samples(folder: Path, *arrays: Any, **options: Any) -> Path:
    folder.mkdir()
    for i, array in enumerate(arrays):
        np.save(folder / f"{i}.npy", array, **options)
    return folder


GOOD = np.zeros((1, 3, 16, 16), np.float32)


# -- the model ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"not a model at all", "not an ONNX"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "PNG"),
        (b"PK\x03\x04" + bytes(100), "zip"),
    ],
)
def test_not_an_onnx_file(compile_: Compile, tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(content)
    code, text = compile_("--use-random-calib", model=path)
    assert code == 3 and text.startswith("ERROR [MODEL_LOAD_ERROR]: ")
    assert words.lower() in text.lower() and "x.onnx" in text


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_model(compile_: Compile, model: Path, tmp_path: Path, share: float) -> None:
    raw = model.read_bytes()
    path = tmp_path / "cut.onnx"
    path.write_bytes(raw[: int(len(raw) * share)])
    code, text = compile_("--use-random-calib", model=path)
    assert code == 3 and text.startswith("ERROR [MODEL_LOAD_ERROR]: ") and "cut.onnx" in text


def test_a_model_that_is_not_there_or_a_folder(compile_: Compile, tmp_path: Path) -> None:
    code, text = compile_("--use-random-calib", model=tmp_path / "no.onnx")
    assert code == 3 and "does not exist" in text
    code, text = compile_("--use-random-calib", model=tmp_path)
    assert code == 3 and "is a folder" in text


def test_open_dimensions(compile_: Compile, tmp_path: Path) -> None:
    proto = network(batch="N")
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(proto, tmp_path / "open.onnx")
    code, text = compile_("--use-random-calib", model=tmp_path / "open.onnx")
    assert code == 3 and text.startswith("ERROR [UNSUPPORTED_DYNAMIC_SHAPE]: ")
    assert "height" in text and "--input-shape" in text


# -- device, scheme, configuration ----------------------------------------------------------


def test_an_unknown_device(compile_: Compile) -> None:
    code, text = compile_("--use-random-calib", target_device="regulus")
    assert code == 2 and text.startswith("ERROR [DEVICE_SCHEME_ERROR]: unknown target device")
    assert "did you mean 'regulus-r" in text and "aries-rb" in text


@pytest.mark.parametrize("scheme", ["multi", "global4", "global8", "global", "sinlge"])
def test_a_scheme_that_the_device_lacks(compile_: Compile, scheme: str) -> None:
    code, text = compile_("--use-random-calib", inference_scheme=scheme)
    assert code == 2 and text.startswith("ERROR [DEVICE_SCHEME_ERROR]: ")
    assert "single" in text


def test_a_scheme_of_the_configuration_that_the_device_lacks(
    compile_: Compile, tmp_path: Path
) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"inferenceScheme": "multi"}')
    code, text = compile_("--use-random-calib", compile_config=path)
    assert code == 2 and text.startswith("ERROR [DEVICE_SCHEME_ERROR]: ")


def test_an_unknown_key(compile_: Compile, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("quantization:\n  calibration:\n    maxPercentil: {}\n")
    code, text = compile_("--use-random-calib", compile_config=path)
    assert code == 2 and text.startswith("ERROR [CONFIG_ERROR]: ")
    assert "/quantization/calibration/maxPercentil" in text
    assert "did you mean 'maxPercentile'?" in text


def test_an_unknown_preset_and_what_cannot_be_honoured(compile_: Compile, tmp_path: Path) -> None:
    code, text = compile_("--use-random-calib", config_preset="classificaton")
    assert code == 2 and "did you mean 'classification'?" in text
    code, text = compile_("--use-random-calib", config_preset="llm")
    assert code == 2 and "/llm" in text and "cannot honour" in text


@pytest.mark.parametrize(
    "more",
    [
        ["--input-shape", "x"],
        ["--input-shape", "x=1,0"],
        ["--input-shape", "x=a"],
        ["--input-shape", "=1"],
        ["--threads", "0"],
        ["--label", "x"],
        ["--device", "tpu"],
        ["--backend", "onyx"],
        ["--backend", "tflite"],
        ["--use-random-calb"],
    ],
)
def test_wrong_options(compile_: Compile, more: list[str]) -> None:
    code, text = compile_("--use-random-calib", *more)
    assert code == 2 and text.startswith("ERROR [ARGUMENT_ERROR]: ")
    assert "hint: " in text
    if more == ["--use-random-calb"]:
        assert "did you mean --use-random-calib?" in text


def test_an_input_shape_that_the_model_does_not_have(compile_: Compile) -> None:
    code, text = compile_("--use-random-calib", "--input-shape", "z=1,3,16,16")
    assert code == 2 and "'z'" in text
    code, text = compile_("--use-random-calib", "--input-shape", "x=1,3,17,16")
    assert code == 2 and "ARGUMENT_ERROR" in text


# -- calibration ----------------------------------------------------------------------------


def test_no_calibration(compile_: Compile) -> None:
    code, text = compile_()
    assert code == 2
    assert text.splitlines()[0] == (
        "ERROR [CALIBRATION_MISSING]: No calibration dataset is provided"
    )
    assert "--calib-data-path" in text and "--use-random-calib" in text


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ([], "no sample"),
        ([GOOD, np.zeros((1, 3, 16, 17), np.float32)], "1.npy"),
        ([GOOD, np.zeros((2, 3, 16, 16), np.float32)], "1.npy"),
        ([GOOD, np.zeros((3, 16), np.float32)], "1.npy"),
        ([GOOD.astype(np.complex64)], "complex64"),
        ([GOOD.astype("U1")], "0.npy"),
        ([GOOD, np.full_like(GOOD, np.nan)], "nan"),
        ([np.full_like(GOOD, np.inf)], "inf"),
    ],
)
def test_wrong_samples(compile_: Compile, tmp_path: Path, arrays: list[Any], words: str) -> None:
    code, text = compile_(calib_data_path=samples(tmp_path / "cal", *arrays))
    assert code == 3 and text.startswith("ERROR [CALIBRATION_DATA_ERROR]: ")
    assert words.lower() in text.lower()


def test_an_object_array_is_never_unpickled(compile_: Compile, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    folder = samples(tmp_path / "cal", np.array([Trap()], dtype=object), allow_pickle=True)
    code, text = compile_(calib_data_path=folder)
    assert code == 3 and "0.npy" in text and "object" in text
    assert not (tmp_path / "sprung").exists()


def test_missing_calibration_data_is_found_before_the_work(
    compile_: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import qbcompiler.frontend

    monkeypatch.setattr(qbcompiler.frontend, "load_model", None, raising=False)
    code, text = compile_(calib_data_path=tmp_path / "nowhere")
    assert code == 3 and "nowhere' does not exist" in text


def test_a_cut_sample_a_missing_folder_and_a_wrong_count(compile_: Compile, tmp_path: Path) -> None:
    folder = samples(tmp_path / "cut", GOOD)
    (folder / "1.npy").write_bytes((folder / "0.npy").read_bytes()[:200])
    code, text = compile_(calib_data_path=folder)
    assert code == 3 and "1.npy" in text
    code, text = compile_(calib_data_path=tmp_path / "nowhere")
    assert code == 3 and "nowhere" in text
    pair = tmp_path / "pair"
    pair.mkdir()
    np.savez(pair / "first.npz", x=GOOD, y=GOOD)
    code, text = compile_(calib_data_path=pair)
    assert code == 3 and "'y'" in text


# -- outputs --------------------------------------------------------------------------------


def test_outputs_that_cannot_be_written_are_found_before_the_work(
    compile_: Compile, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import qbcompiler.frontend

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("work has started")

    monkeypatch.setattr(qbcompiler.frontend, "load_model", never, raising=False)
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for option, path, words in (
        ("output", tmp_path / "no" / "m.mxq", "does not exist"),
        ("output", tmp_path / "file" / "m.mxq", "does not exist"),
        ("output", tmp_path / "folder", "it is a folder"),
        ("output", Path("/proc/m.mxq"), "/proc"),
        ("output", Path("/dev/null"), "not a regular file"),
        ("mblt_save_path", tmp_path / "no" / "m.mblt", "does not exist"),
        ("report_path", tmp_path / "no" / "r.json", "does not exist"),
        ("config_save_path", tmp_path / "no" / "c.json", "does not exist"),
    ):
        code, text = compile_("--use-random-calib", **{option: path})
        assert code == 4 and text.startswith("ERROR [OUTPUT_WRITE_ERROR]: "), text
        assert words in text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(compile_: Compile, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    code, text = compile_("--use-random-calib", output=folder / "m.mxq")
    assert code == 4 and "not writable" in text


def test_outputs_that_would_overwrite_something(compile_: Compile, model: Path, out: Path) -> None:
    code, text = compile_("--use-random-calib", output=model)
    assert code == 2 and "is an input too" in text
    code, text = compile_("--use-random-calib", report_path=out / "m.mxq")
    assert code == 2 and "is the output too" in text
    code, text = compile_("--use-random-calib", mblt_save_path=out / "m.mxq.provenance.json")
    assert code == 2 and "is the provenance file too" in text


@pytest.mark.parametrize("kept", [False, True])
def test_a_full_disk(
    compile_: Compile, out: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """The disk fills up while the output is on its way to it."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    path = out / "m.mblt" if kept else None
    code, text = compile_("--use-random-calib", mblt_save_path=path)
    assert code == 4 and text.startswith("ERROR [OUTPUT_WRITE_ERROR]: cannot write ")
    assert "No space left on device" in text


def test_a_file_size_limit(model: Path, out: Path) -> None:
    """A real write that the kernel cuts short, in a process of its own."""
    done = limited(model, out, resource.RLIMIT_FSIZE, 4096)
    assert done.returncode == 4, done.stderr
    assert "ERROR [OUTPUT_WRITE_ERROR]: cannot write" in done.stderr
    assert "File too large" in done.stderr


def limited(model: Path, out: Path, which: int, limit: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "qbcompiler", "compile", "--model", str(model)),
            *("--use-random-calib", "--target-device", "regulus-rb", "--threads", "1"),
            *("--output", str(out / "m.mxq")),
        ],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(which, (limit, limit + 10)),
    )


def test_a_memory_limit(out: Path, tmp_path: Path) -> None:
    """Enough for the libraries, too little for the activations."""
    onnx.save(network(size=1500), tmp_path / "m.onnx")
    done = limited(tmp_path / "m.onnx", out, resource.RLIMIT_AS, 500 << 20)
    assert done.returncode == 5, done.stderr
    assert "ERROR [RESOURCE_LIMIT]: " in done.stderr and "Traceback" not in done.stderr


def test_a_limit_on_processor_time(out: Path, tmp_path: Path) -> None:
    big = network(size=512)
    onnx.save(big, tmp_path / "big.onnx")
    done = limited(tmp_path / "big.onnx", out, resource.RLIMIT_CPU, 2)
    assert done.returncode == 5, done.stderr
    assert "ERROR [RESOURCE_LIMIT]: the limit on processor time was met" in done.stderr


# -- faults of ours and of the machine ------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "code", "name"),
    [
        (MemoryError(), 5, "RESOURCE_LIMIT"),
        (ImportError("libx.so: failed to map segment from shared object"), 5, "RESOURCE_LIMIT"),
        (RuntimeError("can't start new thread"), 5, "RESOURCE_LIMIT"),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), 4, "OUTPUT_WRITE_ERROR"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 4, "OUTPUT_WRITE_ERROR"),
        (ZeroDivisionError("oh"), 70, "INTERNAL_ERROR"),
    ],
)
def test_faults(
    compile_: Compile,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
    code: int,
    name: str,
) -> None:
    import qbcompiler.frontend

    def fail(*args: object, **kwargs: object) -> None:
        raise fault

    monkeypatch.setattr(qbcompiler.frontend, "load_model", fail, raising=False)
    got, text = compile_("--use-random-calib")
    assert got == code and text.startswith(f"ERROR [{name}]: ")
    if code == 70:
        assert "ZeroDivisionError: oh" in text and "QBCOMPILER_TRACE" in text


def test_a_traceback_only_when_asked_for(
    model: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    import qbcompiler.frontend

    def fail(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(qbcompiler.frontend, "load_model", fail, raising=False)
    args = [
        *("compile", "--model", str(model), "--use-random-calib"),
        *("--target-device", "regulus-rb", "--output", str(out / "m.mxq")),
    ]
    monkeypatch.setenv("QBCOMPILER_TRACE", "1")
    assert main(args) == 70
    assert "Traceback" in capfd.readouterr().err
    monkeypatch.delenv("QBCOMPILER_TRACE")
    assert main([*args, "--verbose"]) == 70
    assert "Traceback" in capfd.readouterr().err


def test_names_that_are_hostile_to_terminals(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    proto = network()
    proto.graph.node[3].name = "evil\x1b[2J\nname"
    onnx.save(proto, tmp_path / "m.onnx")
    args = ["--model", str(tmp_path / "m.onnx"), "--target-device", "regulus-ra"]
    assert main(["validate", *args]) == 3
    done = capfd.readouterr()
    assert "\x1b" not in done.out + done.err
    assert len([x for x in done.err.splitlines() if "ERROR" in x or "hint" in x]) == 2


def test_errors_are_json_in_the_protocol(
    model: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QBCOMPILER_JSONL", "1")
    args = ["--model", str(model), "--output", str(out / "m.mxq"), "--use-random-calib"]
    assert main(["compile", *args, "--target-device", "regulus-ra"]) == 3
    last = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert last["code"] == "UNSUPPORTED_OPERATOR"
    (layer,) = last["details"]["layers"]
    assert layer["name"] == "sigmoid2" and layer["op"] == "Sigmoid" and layer["reason"]
