"""Fixtures that several test folders share: the real models and real calibration data."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

from .support.fetch_models import MODELS, missing  # noqa: E402  (after the path is set)


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
def ocr_calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 16 real text lines as ``.npy`` [1, 3, 48, 192]."""
    from ocr_lines import write_calibration

    folder = tmp_path_factory.mktemp("ocr_calibration")
    write_calibration(folder, 16)
    return folder


@pytest.fixture(scope="session")
def ocr_held_out() -> tuple[np.ndarray, np.ndarray]:
    """Held-out text lines [N, 3, 48, 192] and their labels."""
    from ocr_lines import held_out

    return held_out(32)
