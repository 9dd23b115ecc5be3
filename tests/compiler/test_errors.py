"""What every error does to the text and data that it is given."""

from __future__ import annotations

import json

import numpy as np

from qbcompiler.errors import ArgumentError


def test_a_message_is_one_bounded_printable_line() -> None:
    error = ArgumentError("layer 'a\x1b[2J\nb\ud800' is wrong")
    assert error.message == r"layer 'a\x1b[2J\nb\ud800' is wrong" == str(error)
    long = ArgumentError("begin " + "x" * 100_000 + " end").message
    assert len(long) < 2100 and long.startswith("begin") and long.endswith("end")
    assert ArgumentError("größer als 한국어").message == "größer als 한국어"


def test_details_are_json() -> None:
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    error = ArgumentError(
        "x",
        details={
            "nan": float("nan"), "numpy": np.float32(0.5), "shape": (1, np.int64(2)), 3: {"a", },
            "lone": "\ud800", "deep": deep, "bytes": b"x", "whole": {"a": [1, None, True]},
        },
    )  # fmt: skip
    data = json.loads(json.dumps(error.as_dict(), allow_nan=False, ensure_ascii=False).encode())
    details = data["details"]
    assert details["nan"] == "nan" and details["numpy"] == 0.5 and details["shape"] == [1, 2]
    assert details["3"] == ["a"] and details["whole"] == {"a": [1, None, True]}
    assert details["lone"] == r"\ud800" and details["bytes"] == "b'x'"
