"""The same inputs give the same bytes, whatever is around them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np


def test_ten_builds_in_ten_surroundings_have_one_digest(
    tmp_path: Path, digits_cnn: Path, digits: Any
) -> None:
    """Folders, file times, order of creation, threads, hash seeds, locale and time zone differ."""
    images = [image.transpose(1, 2, 0) for image in digits.train_images[:6]]
    digests: dict[str, set[str]] = {"mxq": set(), "mblt": set()}
    for number in range(10):
        folder = tmp_path / ("deeper/" * (number % 3)) / f"build {number}"
        (folder / "samples").mkdir(parents=True)
        for index in range(6) if number % 2 else reversed(range(6)):
            sample = folder / "samples" / f"{index}.npy"
            np.save(sample, images[index])
            os.utime(sample, (number * 1e6, 1.7e9 - number * 1e6))
        model = folder / f"model{number}.onnx"
        model.write_bytes(digits_cnn.read_bytes())
        env = {
            **os.environ,
            "PYTHONHASHSEED": str(number),
            "OMP_NUM_THREADS": str(1 + number % 4),
            "TZ": ("UTC", "Asia/Seoul")[number % 2],
            "LC_ALL": "C",
        }
        done = subprocess.run(
            [
                sys.executable, "-m", "qbcompiler", "compile", "--model", str(model),
                "--target-device", "aries-rb", "--inference-scheme", "all",
                "--config-preset", "classification",
                "--calib-data-path", "samples", "--output", "out.mxq",
                "--mblt-save-path", "out.mblt", "--threads", str(1 + number % 4), "-q",
            ],
            cwd=folder, env=env, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        for kind, found in digests.items():
            found.add(hashlib.sha256((folder / f"out.{kind}").read_bytes()).hexdigest())
    assert {kind: len(found) for kind, found in digests.items()} == {"mxq": 1, "mblt": 1}


def test_one_element_of_one_sample_changes_the_package(
    tmp_path: Path, ocr_cls: Path, ocr_data: Path
) -> None:
    """What the digest is about: it does change when the data do."""
    from qbcompiler import mxq_compile

    digests = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        for index, sample in enumerate(sorted((ocr_data / "calibration").iterdir())[:2]):
            data = np.load(sample)
            if number and not index:
                data[0, 0, 0] += 0.25
            np.save(folder / sample.name, data)
        result = mxq_compile(
            ocr_cls, save_path=tmp_path / f"{number}.mxq", target_device="regulus-rb",
            calib_data_path=folder, input_shape_dict={"x": [1, 3, 48, 192]},
        )  # fmt: skip
        digests.append(result.files[0]["sha256"])
    assert digests[0] != digests[1]
