"""Fixtures that several test folders share: the real models and real calibration data."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from examples import prepare_ocr_calibration

from .support.fetch_models import MODELS, missing

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The folder of the real models; ``make models`` (and so ``make test``) fills it."""
    folder = ROOT / "models"
    absent = missing(folder)
    if absent:
        pytest.fail(f"{', '.join(absent)} not in {folder}: run `make models`")
    return folder


@pytest.fixture(scope="session", params=sorted(MODELS))
def real_model(request: pytest.FixtureRequest, models_dir: Path) -> Path:
    """Each real model in turn."""
    return models_dir / str(request.param)


@pytest.fixture(scope="session")
def ocr_cls(models_dir: Path) -> Path:
    """PP-OCRv4's text-direction classifier: input ``x`` [N, 3, H, W], bind to 1,3,48,192."""
    return models_dir / "ppocrv4_cls.onnx"


@pytest.fixture(scope="session")
def ocr_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``calibration`` and ``held_out``, 64 text crops each, ``.npy`` (48, 192, 3)."""
    folder = tmp_path_factory.mktemp("ocr")
    prepare_ocr_calibration.write(folder)
    return folder


@pytest.fixture(scope="session")
def ocr_calibration(ocr_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 16 real text crops, ``.npy`` [48, 192, 3]: enough where only the way matters."""
    folder = tmp_path_factory.mktemp("ocr_calibration")
    for path in sorted((ocr_data / "calibration").iterdir())[::4]:
        shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="session")
def ocr_held_out() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """64 held-out text crops [N, 3, 48, 192] and their labels, 0 upright and 1 upside down."""
    samples = prepare_ocr_calibration.samples(
        prepare_ocr_calibration.HELD_OUT_LINES, prepare_ocr_calibration.HELD_OUT_SAMPLES
    )
    images = np.stack([sample.pixels.transpose(2, 0, 1) for sample in samples])
    return images, np.array([sample.label for sample in samples])
