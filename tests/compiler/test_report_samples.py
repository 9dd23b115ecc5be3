"""Validation samples: readable by NumPy, equal bytes for equal builds, never half there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qbcompiler import mxq_compile
from qbcompiler.errors import OutputWriteError
from qbcompiler.report import SampleWriter, samples
from qbcompiler.runtime import Accelerator, Model


def test_a_build_keeps_samples_that_the_runtime_repeats(
    ocr_cls: Path, ocr_calibration: Path, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        mxq_compile(
            model=str(ocr_cls),
            calib_data_path=str(ocr_calibration),
            target_device="regulus-rb",
            input_shape_dict={"x": (1, 3, 48, 192)},
            save_path=str(tmp_path / f"{name}.mxq"),
            validation_save_path=str(tmp_path / f"{name}.npz"),
        )
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    kept = np.load(tmp_path / "a.npz", allow_pickle=False)
    inputs = [n for n in kept.files if "/input/" in n]
    assert len(inputs) == 8
    model = Model(str(tmp_path / "a.mxq"))
    model.launch(Accelerator("regulus-rb"))
    for name in inputs:
        number = name.split("/")[0]
        (integer,) = [n for n in kept.files if n.startswith(f"{number}/integer/")]
        (real,) = [n for n in kept.files if n.startswith(f"{number}/float/")]
        got = model.infer_chw(kept[name])[0]
        np.testing.assert_array_equal(np.asarray(got).reshape(kept[integer].shape), kept[integer])
        assert np.abs(kept[integer] - kept[real]).max() < 0.3
    model.dispose()


def test_the_file_is_bounded_but_never_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MAX_SAMPLE_BYTES", 100)
    array = np.zeros(50, np.float32)
    with SampleWriter(tmp_path / "v.npz") as writer:
        assert writer.add({"a/b": array}, {"y": array}, {"y": array})
        assert not writer.add({"a/b": array}, {"y": array}, {"y": array})
    assert np.load(tmp_path / "v.npz").files == ["000/input/a%2Fb", "000/float/y", "000/integer/y"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="midway"), SampleWriter(tmp_path / "v.npz") as writer:
        writer.add({"x": np.zeros(1)}, {}, {})
        raise RuntimeError("midway")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OutputWriteError, match="cannot be written"):
        SampleWriter(tmp_path / "none" / "v.npz")
