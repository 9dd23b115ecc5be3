"""Fixtures that several test folders share: the real models and real calibration data."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from examples import prepare_ocr_calibration

from .support.fetch_models import MODELS, missing
from .support.servers import new_database, postgres_server, s3_server, valkey_server

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "tests" / "data"


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A command that a test runs in its own process sets logging up; that ends with the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


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


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A real Postgres server; make databases in it with ``new_database``."""
    with postgres_server() as url:
        yield url


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """The broker URL of a real Valkey server."""
    with valkey_server() as url:
        yield url


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The endpoint of an S3 server."""
    with s3_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def any_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'test.sqlite3'}"
    return new_database(request.getfixturevalue("postgres_url"))


@pytest.fixture(scope="session")
def digits_cnn() -> Path:
    """A trained CNN: ``image`` [batch, 1, 8, 8] in 0..1 to ``logits`` [batch, 10]."""
    return DIGITS / "digits_cnn.onnx"


@pytest.fixture(scope="session")
def digits_vit() -> Path:
    """A trained vision transformer with the CNN's input and output."""
    return DIGITS / "digits_vit.onnx"


@dataclass(frozen=True)
class Digits:
    """Images [N, 1, 8, 8] float32 in 0..1 and labels [N] of both networks."""

    train_images: NDArray[np.float32]
    test_images: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test_labels: NDArray[np.int64]


@pytest.fixture(scope="session")
def digits() -> Digits:
    """The split that the networks were trained with; see ``tests/data/README.md``."""
    data = load_digits()
    images = (data.images / 16.0).astype(np.float32)[:, None]
    return Digits(*train_test_split(images, data.target, test_size=0.25, random_state=0))
