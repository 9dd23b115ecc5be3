"""Kept graphs: a model is parsed once for all devices, and a bad entry is parsed anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qbcompiler.frontend
from qbcompiler import mblt_compile, reuse


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one with each parse."""
    seen: list[Any] = []
    plain = qbcompiler.frontend.parse

    def parse(*args: Any, **options: Any) -> Any:
        seen.append(args)
        return plain(*args, **options)

    monkeypatch.setattr(qbcompiler.frontend, "parse", parse)
    return seen


def build(model: Path, output: Path, cache: Path | None, device: str = "regulus-rb", **more: Any):
    mblt_compile(
        str(model), str(output), device, cache_dir=None if cache is None else str(cache), **more
    )
    return output.read_bytes()


def test_one_parse_serves_every_device(digits_cnn: Path, tmp_path: Path, parses) -> None:
    kept = tmp_path / "cache"
    devices = ("regulus-rb", "aries-rb", "regulus-rb")
    plain = [build(digits_cnn, tmp_path / "a.mblt", None, d) for d in devices]
    assert len(parses) == 3
    cached = [build(digits_cnn, tmp_path / "b.mblt", kept, d) for d in devices]
    assert len(parses) == 4
    assert cached == plain
    assert len(list(kept.iterdir())) == 1


def test_other_weights_or_options_are_parsed(digits_cnn: Path, tmp_path: Path, parses) -> None:
    kept = tmp_path / "cache"
    build(digits_cnn, tmp_path / "a.mblt", kept)
    model = onnx.load(str(digits_cnn))
    weight = model.graph.initializer[0]
    array = onnx.numpy_helper.to_array(weight)
    weight.CopyFrom(onnx.numpy_helper.from_array(array + np.float32(1), weight.name))
    other = tmp_path / "other.onnx"
    onnx.save(model, str(other))
    changed = build(other, tmp_path / "b.mblt", kept)
    assert len(parses) == 2 and changed != (tmp_path / "a.mblt").read_bytes()
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    shape[0] = 1
    build(
        digits_cnn, tmp_path / "c.mblt", kept,
        input_shape_dict={model.graph.input[0].name: tuple(shape)},
    )  # fmt: skip
    assert len(parses) == 3


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "folder"])
def test_a_damaged_entry_is_parsed_anew(
    digits_cnn: Path, tmp_path: Path, parses, damage: str
) -> None:
    kept = tmp_path / "cache"
    plain = build(digits_cnn, tmp_path / "a.mblt", kept)
    (entry,) = kept.iterdir()
    data = bytearray(entry.read_bytes())
    entry.unlink()
    if damage == "folder":
        entry.mkdir()
    elif damage == "flip":
        data[len(data) // 2] ^= 1
        entry.write_bytes(data)
    else:
        entry.write_bytes(data[: len(data) // 2] if damage == "cut" else b"")
    assert build(digits_cnn, tmp_path / "b.mblt", kept) == plain
    assert len(parses) == 2
    if damage != "folder":
        assert build(digits_cnn, tmp_path / "c.mblt", kept) == plain
        assert len(parses) == 2


def test_a_folder_that_cannot_be_made_keeps_nothing(
    digits_cnn: Path, tmp_path: Path, parses
) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name in ("a", "b"):
        build(digits_cnn, tmp_path / f"{name}.mblt", tmp_path / "file" / "cache")
    assert len(parses) == 2


def test_what_was_not_used_for_longest_goes(
    digits_cnn: Path, tmp_path: Path, parses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse, "MAX_GRAPHS", 1)
    kept = tmp_path / "cache"
    model = onnx.load(str(digits_cnn))
    model.producer_version = "other"
    other = tmp_path / "other.onnx"
    onnx.save(model, str(other))
    build(digits_cnn, tmp_path / "a.mblt", kept)
    build(other, tmp_path / "b.mblt", kept)
    assert len(list(kept.iterdir())) == 1
    build(other, tmp_path / "c.mblt", kept)
    assert len(parses) == 2
    build(digits_cnn, tmp_path / "d.mblt", kept)
    assert len(parses) == 3
