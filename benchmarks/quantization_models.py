"""The models and samples of ``benchmarks.quantization``: real images, apart for calibration.

Every sample is real: crops and lines of scikit-image's photographed book page for the text models,
its other photographs for the detector, scikit-learn's handwritten digits for the digit networks.
Calibration and evaluation never see the same part of a picture.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from examples import prepare_ocr_calibration as ocr

__all__ = ["MODELS", "Task"]

ROOT = Path(__file__).resolve().parents[1]
Floats = NDArray[np.float32]

_DETECTOR_SIZE = 320
_TEXT_HEIGHT, _TEXT_WIDTH = 48, 320
_MEAN, _STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
_PICTURES = ("page.png", "text.png", "brick.png", "coins.png", "camera.png")


@dataclass(frozen=True)
class Task:
    """A model and what it is measured on.

    Attributes:
        model: ONNX file.
        input: name of its only input.
        shapes: what the input is bound to.
        calibration, held_out: samples, each of that shape.
        labels: class of each held-out sample, where there are classes.
    """

    model: Path
    input: str
    shapes: Mapping[str, tuple[int, ...]]
    calibration: list[Floats]
    held_out: list[Floats]
    labels: NDArray[np.int64] | None = None


def _ocr_cls() -> Task:
    """PP-OCRv4's text-direction classifier on crops of the page."""
    calibration = ocr.samples(ocr.CALIBRATION_LINES, 32)
    held_out = ocr.samples(ocr.HELD_OUT_LINES, 32)
    return Task(
        ROOT / "models" / "ppocrv4_cls.onnx",
        "x",
        {"x": (1, 3, 48, 192)},
        [s.pixels.transpose(2, 0, 1)[None] for s in calibration],
        [s.pixels.transpose(2, 0, 1)[None] for s in held_out],
        np.array([s.label for s in held_out]),
    )


def _lines(lines: tuple[ocr.Line, ...], limit: int) -> list[Floats]:
    """Return crops of one to three words, 48 pixels high, filled to 320 as the recognizer is."""
    page = ocr.load_page()
    every = [crop for line in lines for crop in ocr.crops(page, line)]
    chosen = [every[i * len(every) // limit] for i in range(limit)]
    found = []
    for index, crop in enumerate(chosen):
        gains = np.array(ocr.WHITE_BALANCES[index % len(ocr.WHITE_BALANCES)])
        rgb = np.rint(crop[:, :, np.newaxis] * gains).astype(np.uint8)
        width = min(_TEXT_WIDTH, -(-_TEXT_HEIGHT * rgb.shape[1] // rgb.shape[0]))
        image = Image.fromarray(rgb).resize((width, _TEXT_HEIGHT), Image.Resampling.BILINEAR)
        values = np.asarray(image, dtype=np.float32)[:, :, ::-1] / np.float32(127.5) - 1
        sample = np.zeros((1, 3, _TEXT_HEIGHT, _TEXT_WIDTH), np.float32)
        sample[0, :, :, :width] = values.transpose(2, 0, 1)
        found.append(sample)
    return found


def _ocr_rec() -> Task:
    """PP-OCRv4's recognizer on crops of the page, upright."""
    return Task(
        ROOT / "models" / "ppocrv4_rec.onnx",
        "x",
        {"x": (1, 3, _TEXT_HEIGHT, _TEXT_WIDTH)},
        _lines(ocr.CALIBRATION_LINES, 32),
        _lines(ocr.HELD_OUT_LINES, 16),
    )


def _pictures(half: int, limit: int) -> list[Floats]:
    """Return windows of the left (0) or right (1) halves of photographs, as the detector sees."""
    found = []
    for index in range(limit):
        name = _PICTURES[index % len(_PICTURES)]
        source = importlib.resources.files("skimage") / "data" / name
        with importlib.resources.as_file(source) as path, Image.open(path) as image:
            width, height = image.size
            middle = width // 2
            window = image.convert("RGB").crop(
                (0, 0, middle, height) if half == 0 else (middle, 0, width, height)
            )
        gains = np.array(ocr.WHITE_BALANCES[index // len(_PICTURES) % 4])
        mirrored = window.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if index % 2 else window
        size = (_DETECTOR_SIZE, _DETECTOR_SIZE)
        pixels = np.asarray(mirrored.resize(size, Image.Resampling.BILINEAR), dtype=np.float64)
        scaled = ((pixels * gains)[:, :, ::-1] / 255 - _MEAN) / _STD
        found.append(scaled.transpose(2, 0, 1)[None].astype(np.float32))
    return found


def _ocr_det() -> Task:
    """PP-OCRv4's text detector on halves of photographs."""
    return Task(
        ROOT / "models" / "ppocrv4_det.onnx",
        "x",
        {"x": (1, 3, _DETECTOR_SIZE, _DETECTOR_SIZE)},
        _pictures(0, 20),
        _pictures(1, 10),
    )


def _digits(name: str) -> Task:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data: Any = load_digits()
    images = (data.images / 16.0).astype(np.float32)[:, None]
    train, test, _, labels = train_test_split(images, data.target, test_size=0.25, random_state=0)
    return Task(
        ROOT / "tests" / "data" / name,
        "image",
        {"image": (1, 1, 8, 8)},
        [x[None] for x in train[:32]],
        [x[None] for x in test],
        np.asarray(labels, dtype=np.int64),
    )


def _digits_cnn() -> Task:
    """The digits CNN, with labels."""
    return _digits("digits_cnn.onnx")


def _digits_vit() -> Task:
    """The digits vision transformer, with labels."""
    return _digits("digits_vit.onnx")


MODELS: Mapping[str, Callable[[], Task]] = {
    "ppocrv4_cls": _ocr_cls,
    "ppocrv4_det": _ocr_det,
    "ppocrv4_rec": _ocr_rec,
    "digits_cnn": _digits_cnn,
    "digits_vit": _digits_vit,
}
"""What makes each task, by name."""
