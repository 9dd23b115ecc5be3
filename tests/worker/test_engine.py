"""The engine boundary against engines that behave and engines that do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from service.domain import BuildSpec, JobKind, ModelFormat, ModelInput, Phase
from worker.engine import Control, Ending, Inputs, Outcome, build_command, run_engine
from worker.engine.command import engine_env
from worker.engine.protocol import Lines, Progress, Result, Said, read_line

STAND_IN = Path(__file__).with_name("stand_in.py")


class Heard:
    def __init__(self) -> None:
        self.steps: list[tuple[Phase, int | None, int | None]] = []
        self.lines: list[str] = []
        self.ticks = 0

    def progress(
        self, phase: Phase, current: int | None, total: int | None, message: str | None
    ) -> None:
        self.steps.append((phase, current, total))

    def log(self, line: str) -> None:
        self.lines.append(line)

    def tick(self) -> None:
        self.ticks += 1


def spec(kind: JobKind = JobKind.COMPILE, **more: object) -> BuildSpec:
    return BuildSpec(
        kind=kind,
        engine="stand-in",
        engine_version="1",
        model=ModelInput(ModelFormat.ONNX, "0" * 64, ()),
        target_device="regulus-rb",
        inference_scheme="single",
        **more,  # type: ignore[arg-type]
    )


def run(
    behaviour: str, folder: Path, control: Control | None = None
) -> tuple[Outcome, Heard, Path]:
    scratch = folder / "scratch"
    output = scratch / "out"
    output.mkdir(parents=True)
    model = scratch / "model.onnx"
    model.write_bytes(b"a model")
    command = build_command(
        [sys.executable, str(STAND_IN), behaviour], spec(), Inputs(model, None, output), scratch
    )
    heard = Heard()
    outcome = run_engine(
        command,
        scratch=scratch,
        output=output,
        env=engine_env(scratch, 1),
        control=control or Control(),
        sink=heard,
    )
    return outcome, heard, output


def test_a_good_run_brings_files_progress_log_and_usage(tmp_path: Path) -> None:
    outcome, heard, output = run("good", tmp_path)
    assert outcome.ending is Ending.SUCCEEDED and outcome.exit_code == 0
    assert {f.kind: f.path.name for f in outcome.files} == {
        "mblt": "model.mblt",
        "mxq": "model.mxq",
        "report": "report.json",
    }
    assert all(f.path.parent == output for f in outcome.files)
    assert outcome.summary == {"made_by": "stand-in"}
    assert (Phase.PARSE, 3, 3) in heard.steps
    assert {"a plain line", "a line on standard error", "warning: beware"} <= set(heard.lines)
    assert outcome.usage.peak_memory_bytes and outcome.usage.peak_memory_bytes > 5 << 20
    assert outcome.usage.cpu_seconds is not None


def test_unknown_messages_and_broken_lines_do_no_harm(tmp_path: Path) -> None:
    outcome, heard, _ = run("unknown_fields", tmp_path)
    assert outcome.ending is Ending.SUCCEEDED
    assert (Phase.QUANTIZE, None, None) in heard.steps
    assert '{"type": "progress"' in heard.lines


@pytest.mark.parametrize(
    ("behaviour", "code", "said"),
    [
        ("no_result", "INTERNAL_ERROR", "without a result"),
        ("fault", "MODEL_LOAD_ERROR", "not a model"),
        ("bare_exit", "INTERNAL_ERROR", "exit code 9"),
        ("crash", "INTERNAL_ERROR", "crashed (SIGSEGV)"),
        ("wrong_digest", "INTERNAL_ERROR", "not what the engine said"),
        ("outside", "INTERNAL_ERROR", "not in the output folder"),
    ],
)
def test_failures_have_a_code_and_a_reason(
    behaviour: str, code: str, said: str, tmp_path: Path
) -> None:
    outcome, _, _ = run(behaviour, tmp_path)
    assert outcome.ending is Ending.FAILED and outcome.failure is not None
    assert outcome.failure.code == code
    assert said in outcome.failure.message


def test_an_engine_fault_keeps_its_details_and_hint(tmp_path: Path) -> None:
    outcome, _, _ = run("fault", tmp_path)
    assert outcome.failure is not None and outcome.failure.is_input_fault
    assert outcome.failure.hint == "give a model"
    assert outcome.failure.details == {"path": "model.onnx"}


def test_a_kill_from_outside_is_not_the_inputs_fault(tmp_path: Path) -> None:
    outcome, _, _ = run("killed", tmp_path)
    assert outcome.ending is Ending.LOST and outcome.failure is not None
    assert outcome.failure.code == "WORKER_LOST"


@pytest.mark.parametrize("behaviour", ["hang", "ignore_sigterm"])
def test_cancel_ends_it_within_two_seconds(behaviour: str, tmp_path: Path) -> None:
    control = Control()
    at: list[float] = []

    def cancel() -> None:
        at.append(time.monotonic())
        control.cancel.set()

    timer = threading.Timer(0.5, cancel)
    timer.start()
    outcome, _, _ = run(behaviour, tmp_path, control)
    assert outcome.ending is Ending.CANCELLED
    assert time.monotonic() - at[0] < 2.0


def test_a_stopping_worker_gives_the_build_back(tmp_path: Path) -> None:
    control = Control()
    control.stop.set()
    outcome, _, _ = run("hang", tmp_path, control)
    assert outcome.ending is Ending.LOST and outcome.failure is None


def test_the_run_limit_is_named(tmp_path: Path) -> None:
    outcome, _, _ = run("hang", tmp_path, Control(run_limit_s=0.4))
    assert outcome.ending is Ending.TIMED_OUT and outcome.failure is not None
    assert outcome.failure.code == "JOB_TIMEOUT"
    assert "limit of 0.4 s" in outcome.failure.message


def test_the_memory_limit_names_limit_and_peak(tmp_path: Path) -> None:
    outcome, _, _ = run("eat_memory", tmp_path, Control(memory_limit_mb=120))
    assert outcome.ending is Ending.FAILED and outcome.failure is not None
    assert outcome.failure.code == "RESOURCE_LIMIT"
    assert outcome.failure.details["limit_mb"] == 120
    assert outcome.failure.details["peak_mb"] > 120


def test_the_disk_limit_ends_it(tmp_path: Path) -> None:
    outcome, _, _ = run("eat_disk", tmp_path, Control(disk_limit_mb=40))
    assert outcome.ending is Ending.FAILED and outcome.failure is not None
    assert outcome.failure.code == "RESOURCE_LIMIT" and "scratch" in outcome.failure.message


def test_one_file_beyond_the_disk_limit_cannot_be_written(tmp_path: Path) -> None:
    outcome, _, output = run("big_file", tmp_path, Control(disk_limit_mb=16))
    assert outcome.failure is not None and outcome.failure.code == "OUTPUT_WRITE_ERROR"
    assert (output / "model.mxq").stat().st_size <= 16 << 20


def test_a_flood_of_lines_is_passed_on_and_ends(tmp_path: Path) -> None:
    outcome, heard, _ = run("flood", tmp_path)
    assert outcome.ending is Ending.SUCCEEDED
    assert len(heard.lines) >= 30_000


def test_an_endless_line_is_cut(tmp_path: Path) -> None:
    outcome, heard, _ = run("long_line", tmp_path)
    assert outcome.ending is Ending.SUCCEEDED
    assert max(map(len, heard.lines)) <= (1 << 20) + 2


def test_children_are_not_left_behind(tmp_path: Path) -> None:
    outcome, heard, _ = run("children", tmp_path)
    assert outcome.ending is Ending.SUCCEEDED
    line = next(x for x in heard.lines if "children" in x)
    pids = [int(p) for p in line.split("children ")[1].split()]
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline and any(map(_running, pids)):
        time.sleep(0.05)
    assert not any(map(_running, pids))


def _running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_engine_that_is_not_there_is_a_clear_failure(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    outcome = run_engine(
        ["/no/such/engine", "compile"],
        scratch=tmp_path,
        output=tmp_path / "out",
        env={},
        control=Control(),
        sink=Heard(),
    )
    assert outcome.ending is Ending.FAILED and outcome.failure is not None
    assert "exit code 127" in outcome.failure.message


def test_the_engine_dies_with_its_worker(tmp_path: Path) -> None:
    """A worker that is killed outright takes its compiler along."""
    program = f"""
import sys
sys.path.insert(0, {str(STAND_IN.parents[2])!r})
from pathlib import Path
from tests.worker.test_engine import run
run("ignore_sigterm", Path({str(tmp_path)!r}))
"""
    worker = subprocess.Popen([sys.executable, "-c", program])
    try:
        engine = None
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline and engine is None:
            for child in psutil.Process(worker.pid).children(recursive=True):
                if "ignore_sigterm" in " ".join(child.cmdline()) and "-I" not in child.cmdline():
                    engine = child
            time.sleep(0.05)
        assert engine is not None
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        assert engine.wait(timeout=5) is None or not _running(engine.pid)
    finally:
        if worker.poll() is None:
            worker.kill()


def test_the_environment_has_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QB_SIGNING_SECRET", "s" * 40)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    env = engine_env(tmp_path, 2)
    assert not [k for k in env if k.startswith(("QB_", "AWS_"))]
    assert env["QBCOMPILER_JSONL"] == "1" and env["PATH"] == os.environ["PATH"]


def test_the_command_says_what_the_request_said(tmp_path: Path) -> None:
    inputs = Inputs(tmp_path / "m.onnx", tmp_path / "cal", tmp_path / "out")
    inputs.output.mkdir()
    full = build_command(
        ["qbc"],
        spec(
            config_preset="classification",
            compile_config={"calibration": {"mode": 1}},
            cpu_offload=True,
            input_shapes={"x": (1, 3, 8, 8)},
        ),
        inputs,
        tmp_path,
    )
    text = " ".join(full)
    assert text.startswith("qbc compile --model m.onnx --backend onnx")
    for part in (
        "--target-device regulus-rb",
        "--inference-scheme single",
        "--config-preset classification",
        "--input-shape x=1,3,8,8",
        "--cpu-offload",
        "--calib-data-path cal",
        "--mblt-save-path out/model.mblt",
    ):
        assert part in text
    assert (tmp_path / "out" / "request-config.json").read_text() == '{"calibration": {"mode": 1}}'
    parse = " ".join(build_command(["qbc"], spec(JobKind.PARSE), inputs, tmp_path))
    assert "--calib" not in parse and "--inference-scheme" not in parse
    quantize = " ".join(build_command(["qbc"], spec(JobKind.QUANTIZE, use_random_calib=True),
                                      inputs, tmp_path))  # fmt: skip
    assert "--mblt " in quantize and "--use-random-calib" in quantize
    assert "--cpu-offload" not in quantize


def test_lines_are_cut_at_any_boundary() -> None:
    data = b"one\r\ntwo\n\nthree"
    for size in range(1, len(data) + 1):
        lines = Lines()
        found = []
        for start in range(0, len(data), size):
            found += lines.feed(data[start : start + size])
        assert found + lines.close() == ["one", "two", "", "three"]


def test_messages_are_read_leniently() -> None:
    assert read_line('{"type":"progress","phase":"parse","current":3.0,"total":-1}') == Progress(
        Phase.PARSE, 3, 0
    )
    assert read_line('{"type":"progress","phase":"parse","current":1e999}') == Progress(Phase.PARSE)
    assert read_line("plain") == Said("plain")
    assert read_line("   ") is None
    assert read_line('{"type":"result","files":7}') == Result((), {})
