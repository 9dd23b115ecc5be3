"""The models and samples of ``benchmarks.quantization``: real data, apart for calibration.

Every sample is real: crops and lines of scikit-image's photographed book page for the text models,
its other photographs and scikit-learn's for the detector and the classifiers, scikit-learn's
handwritten digits for the digit networks, sentences of Python's own documentation for the sentence
encoder. Calibration and evaluation never see the same part of a picture or text.
"""

from __future__ import annotations

import importlib.resources
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks import settled_models
from examples import prepare_ocr_calibration as ocr

__all__ = ["MODELS", "Task"]

ROOT = Path(__file__).resolve().parents[1]
Floats = NDArray[np.float32]

_DETECTOR_SIZE = 320
_TEXT_HEIGHT, _TEXT_WIDTH = 48, 320
_MEAN, _STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
_PICTURES = ("page.png", "text.png", "brick.png", "coins.png", "camera.png")
_PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png")
_WORDS = 64
_BUILT = Path(tempfile.gettempdir()) / "qbcompiler-benchmarks"

Sample = Mapping[str, NDArray[Any]]
Outputs = list[NDArray[Any]]


@dataclass(frozen=True)
class Task:
    """A model and what it is measured on.

    Attributes:
        model: ONNX file.
        preset: the preset that fits it.
        calibration, held_out: samples by input name, all of one shape.
        labels: class of each held-out sample, where there are classes.
        agreement: share of the held-out samples for which the quantized outputs come to the same
            as the float ones: (float, quantized) to 0..1.
        metric: what ``agreement`` compares.
    """

    model: Path
    preset: str
    calibration: list[Sample]
    held_out: list[Sample]
    labels: NDArray[np.int64] | None = None
    agreement: Callable[[list[Outputs], list[Outputs]], float] | None = None
    metric: str = ""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """What the inputs are bound to."""
        return {name: x.shape for name, x in self.calibration[0].items()}


def _same_class(expected: list[Outputs], got: list[Outputs]) -> float:
    same = [
        int(np.argmax(e[0])) == int(np.argmax(g[0])) for e, g in zip(expected, got, strict=True)
    ]
    return float(np.mean(same))


def _same_text(expected: list[Outputs], got: list[Outputs]) -> float:
    """Compare what is read: the best class of each column, repeats and blanks (0) left out."""

    def read(outputs: Outputs) -> list[int]:
        best = np.argmax(outputs[0], axis=-1).reshape(-1)
        kept = np.flatnonzero(np.diff(best, prepend=-1))
        return [int(c) for c in best[kept] if c]

    return float(np.mean([read(e) == read(g) for e, g in zip(expected, got, strict=True)]))


def _same_pixels(expected: list[Outputs], got: list[Outputs]) -> float:
    """Compare which pixels are text, as intersection over union."""
    both = either = 0
    for e, g in zip(expected, got, strict=True):
        a, b = e[0] > 0.3, g[0] > 0.3
        both, either = both + int((a & b).sum()), either + int((a | b).sum())
    return both / max(either, 1)


def _ocr_cls() -> Task:
    """PP-OCRv4's text-direction classifier on crops of the page."""
    calibration = ocr.samples(ocr.CALIBRATION_LINES, 32)
    held_out = ocr.samples(ocr.HELD_OUT_LINES, 32)
    return Task(
        ROOT / "models" / "ppocrv4_cls.onnx",
        "classification",
        [{"x": s.pixels.transpose(2, 0, 1)[None]} for s in calibration],
        [{"x": s.pixels.transpose(2, 0, 1)[None]} for s in held_out],
        np.array([s.label for s in held_out]),
        _same_class,
        "class",
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
        "classification",
        [{"x": x} for x in _lines(ocr.CALIBRATION_LINES, 32)],
        [{"x": x} for x in _lines(ocr.HELD_OUT_LINES, 16)],
        agreement=_same_text,
        metric="text",
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
        "detection",
        [{"x": x} for x in _pictures(0, 20)],
        [{"x": x} for x in _pictures(1, 10)],
        agreement=_same_pixels,
        metric="text pixels",
    )


def _digits(name: str, preset: str) -> Task:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data: Any = load_digits()
    images = (data.images / 16.0).astype(np.float32)[:, None]
    train, test, _, labels = train_test_split(images, data.target, test_size=0.25, random_state=0)
    return Task(
        ROOT / "tests" / "data" / name,
        preset,
        [{"image": x[None]} for x in train[:32]],
        [{"image": x[None]} for x in test],
        np.asarray(labels, dtype=np.int64),
        _same_class,
        "class",
    )


def _digits_cnn() -> Task:
    """The digits CNN, with labels."""
    return _digits("digits_cnn.onnx", "classification")


def _digits_vit() -> Task:
    """The digits vision transformer, with labels."""
    return _digits("digits_vit.onnx", "vision_transformer")


def _photographs(half: int, limit: int) -> NDArray[np.float32]:
    """Return 224-pixel crops of the left (0) or right (1) halves of photographs, normalized."""
    from sklearn.datasets import load_sample_image

    images = [Image.fromarray(load_sample_image(n)) for n in ("china.jpg", "flower.jpg")]
    for name in _PHOTOGRAPHS:
        with (
            importlib.resources.as_file(
                importlib.resources.files("skimage") / "data" / name
            ) as path,
            Image.open(path) as image,
        ):
            images.append(image.convert("RGB"))
    rng = np.random.default_rng(half)
    found = []
    for index in range(limit):
        image = images[index % len(images)]
        middle, height = image.width // 2, image.height
        side = int(min(middle, height) * rng.uniform(0.6, 1.0))
        left = half * middle + int(rng.integers(0, middle - side + 1))
        top = int(rng.integers(0, height - side + 1))
        crop = image.crop((left, top, left + side, top + side))
        if index % 2:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = np.asarray(crop.resize((224, 224), Image.Resampling.BILINEAR), dtype=np.float64)
        scaled = (pixels / 255 - _MEAN) / _STD
        found.append(scaled.transpose(2, 0, 1).astype(np.float32))
    return np.stack(found)


def _classifier(model: Path, name: str) -> Task:
    return Task(
        model,
        "classification",
        [{name: x[None]} for x in _photographs(0, 32)],
        [{name: x[None]} for x in _photographs(1, 64)],
        agreement=_same_class,
        metric="class",
    )


def _efficientnet() -> Task:
    """EfficientNet-Lite0 with its ImageNet weights, on photographs."""
    path = ROOT / "models" / "efficientnet_lite0.onnx"
    return _classifier(path, _input_names(path)[0])


def _built(name: str, write: Callable[[Path, NDArray[np.float32]], None]) -> Task:
    path = _BUILT / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, _photographs(0, 8))
    return _classifier(path, "image")


def _resnet50() -> Task:
    """ResNet-50 with random weights, on photographs."""
    return _built("resnet50.onnx", settled_models.resnet50)


def _mobilenet_v2() -> Task:
    """MobileNetV2 with random weights, on photographs."""
    return _built("mobilenet_v2.onnx", settled_models.mobilenet_v2)


def _input_names(path: Path) -> list[str]:
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    constants = {w.name for w in graph.initializer}
    return [i.name for i in graph.input if i.name not in constants]


def _sentences() -> list[str]:
    """Return sentences of Python's language reference, which every Python has."""
    from pydoc_data.topics import topics

    found: dict[str, None] = {}
    for text in topics.values():
        for paragraph in re.split(r"\n\s*\n", text):
            line = " ".join(paragraph.split())
            for sentence in re.findall(r"[A-Z][^.:;]{40,220}\.", line):
                if re.fullmatch(r"[A-Za-z ,'\-()]+\.", sentence):
                    found.setdefault(sentence)
    return list(found)


def _minilm() -> Task:
    """all-MiniLM-L6-v2 on sentences, each with its attention mask."""
    from tokenizers import Tokenizer

    path = ROOT / "models" / "minilm.onnx"
    tokenizer = Tokenizer.from_file(str(ROOT / "models" / "minilm_tokenizer.json"))
    tokenizer.enable_truncation(_WORDS)
    tokenizer.enable_padding(length=_WORDS)
    names = _input_names(path)
    sentences = _sentences()
    middle = len(sentences) // 2

    def samples(part: list[str], limit: int) -> list[Sample]:
        chosen = [part[i * len(part) // limit] for i in range(limit)]
        found = []
        for encoded in tokenizer.encode_batch(chosen):
            parts = {
                "input_ids": encoded.ids,
                "attention_mask": encoded.attention_mask,
                "token_type_ids": encoded.type_ids,
            }
            found.append({n: np.array([parts[n]], dtype=np.int64) for n in names})
        return found

    held_out = samples(sentences[middle:], 64)

    def embed(outputs: list[Outputs]) -> NDArray[np.float64]:
        rows = []
        for found, sample in zip(outputs, held_out, strict=True):
            row = found[0].astype(np.float64)[0]
            if row.ndim == 2:  # one row for each token: the mean of those that are words
                mask = sample["attention_mask"][0][:, None]
                row = (row * mask).sum(axis=0) / mask.sum()
            rows.append(row / np.linalg.norm(row))
        return np.array(rows)

    def same_neighbour(expected: list[Outputs], got: list[Outputs]) -> float:
        nearest = []
        for outputs in (expected, got):
            rows = embed(outputs)
            near = rows @ rows.T - 2 * np.eye(len(rows))
            nearest.append(near.argmax(axis=1))
        return float(np.mean(nearest[0] == nearest[1]))

    return Task(
        path,
        "text_encoder",
        samples(sentences[:middle], 32),
        held_out,
        agreement=same_neighbour,
        metric="nearest neighbour",
    )


MODELS: Mapping[str, Callable[[], Task]] = {
    "ppocrv4_cls": _ocr_cls,
    "ppocrv4_det": _ocr_det,
    "ppocrv4_rec": _ocr_rec,
    "digits_cnn": _digits_cnn,
    "digits_vit": _digits_vit,
    "efficientnet_lite0": _efficientnet,
    "mobilenet_v2": _mobilenet_v2,
    "resnet50": _resnet50,
    "minilm": _minilm,
}
"""What makes each task, by name."""
