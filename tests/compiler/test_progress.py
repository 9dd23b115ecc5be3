"""What a running build says, in each of its voices."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from qbcompiler.errors import CalibrationMissingError
from qbcompiler.progress import (
    CallbackReporter,
    JsonlReporter,
    PlainReporter,
    Reporter,
    TerminalReporter,
    jsonl_wanted,
)


def talk(reporter: Reporter) -> None:
    reporter.status("started", message="Compiling m.onnx")
    with reporter.phase("parse"):
        pass
    with reporter.phase("calibrate"):
        step = reporter.step("calibrate")
        for i in range(1, 41):
            step(i, 40)
    reporter.info("a detail")
    reporter.warning("a doubt")
    reporter.status("finished")
    reporter.result([{"kind": "mxq", "path": "m.mxq"}], {"sqnr": float("inf"), "n": 1})
    reporter.close()


def test_phases_are_timed_and_warnings_kept() -> None:
    reporter = Reporter()
    talk(reporter)
    assert list(reporter.seconds) == ["parse", "calibrate"]
    assert all(v >= 0 for v in reporter.seconds.values())
    assert reporter.warnings == ["a doubt"]


def test_a_phase_that_fails_is_timed_too() -> None:
    reporter = Reporter()
    with pytest.raises(ZeroDivisionError), reporter.phase("quantize"):
        raise ZeroDivisionError
    assert list(reporter.seconds) == ["quantize"]


def test_the_protocol() -> None:
    stream = io.StringIO()
    reporter = JsonlReporter(stream, interval=3600)
    talk(reporter)
    reporter.error(CalibrationMissingError("No calibration dataset is provided", hint="give it"))
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [m["type"] for m in found] == [
        "status",
        "status",
        "status",
        "progress",
        "progress",
        "log",
        "log",
        "status",
        "result",
        "error",
    ]
    progress = [m for m in found if m["type"] == "progress"]
    assert [(m["current"], m["total"]) for m in progress] == [(1, 40), (40, 40)]
    assert found[1] == {"type": "status", "state": "phase", "phase": "parse"}
    assert found[-2]["summary"] == {"sqnr": None, "n": 1}  # JSON has no infinity
    assert found[-1] == {
        "type": "error",
        "code": "CALIBRATION_MISSING",
        "message": "No calibration dataset is provided",
        "details": {},
        "hint": "give it",
    }


def test_the_callback_gets_every_message() -> None:
    found: list[Any] = []
    talk(CallbackReporter(found.append))
    assert sum(m["type"] == "progress" for m in found) == 40


def test_plain_lines_for_a_pipe() -> None:
    stream = io.StringIO()
    talk(PlainReporter(stream))
    assert stream.getvalue().splitlines() == ["Parsing", "Calibrating", "WARNING: a doubt"]
    stream = io.StringIO()
    talk(PlainReporter(stream, interval=0.0))
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["Parsing", "Calibrating"]
    assert lines[-1] == "WARNING: a doubt"
    assert 9 <= sum("of 40" in line for line in lines) <= 11
    assert "a detail" not in lines
    stream = io.StringIO()
    talk(PlainReporter(stream, verbose=True))
    assert "a detail" in stream.getvalue().splitlines()
    stream = io.StringIO()
    talk(PlainReporter(stream, quiet=True))
    assert stream.getvalue() == "WARNING: a doubt\n"


def test_a_terminal_gets_a_bar_and_warnings_above_it() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    talk(TerminalReporter(stream))
    text = stream.getvalue()
    assert "Calibrating" in text and "40/40" in text and "WARNING: a doubt" in text
    assert "a detail" not in text


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("1", True), ("true", True), ("Yes", True), (" on ", True), ("0", False), ("", False)],
)
def test_what_asks_for_the_protocol(value: str, wanted: bool) -> None:
    assert jsonl_wanted({"QBCOMPILER_JSONL": value}) is wanted
    assert jsonl_wanted({}) is False
