"""Real image data for PP-OCRv4's text-direction classifier: crops of a photographed book page.

The page is scikit-image's package image ``page.png``, a phone photograph of a printed page. Its
lines are cut into words, one to three neighbouring words make a crop, and each crop is taken
upright (label 0) and turned by half a turn (label 1), under one of four white balances. Calibration
and held-out samples come from different lines, so no letter is seen twice.

Samples are float32 NumPy files of shape (48, 192, 3), height x width x channel in BGR order, as the
classifier was trained on: height resized to 48 keeping the ratio, width cut at 192 or filled with
zeros on the right, ``(pixel / 255 - 0.5) / 0.5``.

    python examples/prepare_ocr_calibration.py FOLDER

writes ``FOLDER/calibration/*.npy``, ``FOLDER/held_out/*.npy`` and ``FOLDER/held_out.json`` (file
name to label).
"""

from __future__ import annotations

import argparse
import importlib.resources
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

HEIGHT, WIDTH = 48, 192
CALIBRATION_SAMPLES = 64
HELD_OUT_SAMPLES = 64

# a gap of this many columns without ink parts two words; letters stand closer
WORD_GAP = 3
# ink is darker than this share of the paper around it
INK = 0.72


@dataclass(frozen=True)
class Line:
    """A printed line: its extent in pixels, its middle at the page's left edge, centre, right edge.

    The page is bent, so a line's middle is a parabola through the three heights.
    """

    left: int
    right: int
    middles: tuple[float, float, float]
    height: int

    def middle(self, x: float, page_width: int) -> float:
        """Return the height of the line's middle at column ``x``."""
        a, b, c = self.middles
        t = x / (page_width - 1)
        return a * (2 * t - 1) * (t - 1) + b * 4 * t * (1 - t) + c * t * (2 * t - 1)


CALIBRATION_LINES = (
    Line(4, 296, (21.0, 22.5, 24.0), 25),  # Region-based segmentation
    Line(4, 380, (55.5, 58.0, 56.0), 16),  # Let us first determine …
    Line(4, 380, (91.0, 95.0, 91.0), 17),  # unambiguously as either …
    Line(16, 244, (171.0, 181.5, 184.0), 15),  # >>> markers = np.zeros_like(coins)
)
HELD_OUT_LINES = (
    Line(4, 380, (73.0, 76.5, 73.0), 17),  # background. These markers …
    Line(4, 380, (106.0, 112.5, 107.5), 17),  # the markers are found …
    Line(4, 174, (121.5, 130.5, 133.0), 17),  # histogram of grey values:
)

# gains for red, green, blue: daylight, lamp, shade, fluorescent
WHITE_BALANCES = ((1.0, 1.0, 1.0), (1.0, 0.93, 0.78), (0.86, 0.95, 1.0), (0.94, 1.0, 0.9))


@dataclass(frozen=True)
class Sample:
    """One network input (48, 192, 3) and its direction: 0 upright, 1 upside down."""

    name: str
    pixels: NDArray[np.float32]
    label: int


def load_page() -> NDArray[np.uint8]:
    """Return the page as grey levels, height x width."""
    source = importlib.resources.files("skimage") / "data" / "page.png"
    with importlib.resources.as_file(source) as path, Image.open(path) as image:
        return np.asarray(image.convert("L"))


def words(page: NDArray[np.uint8], line: Line) -> list[tuple[int, int]]:
    """Return the columns (first, past the last) of each word of a line."""
    inked = []
    for x in range(line.left, line.right):
        middle = line.middle(x, page.shape[1])
        rows = slice(round(middle - line.height / 2), round(middle + line.height / 2))
        near = page[rows, max(0, x - line.height) : x + line.height]
        inked.append(bool(page[rows, x].min() < INK * np.percentile(near, 90)))
    found: list[tuple[int, int]] = []
    start = end = -1
    for index, ink in enumerate(inked):
        if ink:
            if start < 0:
                start = index
            end = index + 1
        elif start >= 0 and index - end >= WORD_GAP:
            found.append((line.left + start, line.left + end))
            start = -1
    if start >= 0:
        found.append((line.left + start, line.left + end))
    return found


def crops(page: NDArray[np.uint8], line: Line) -> list[NDArray[np.uint8]]:
    """Return every run of one, two or three words of a line, cut out with a small margin."""
    spans = words(page, line)
    result = []
    for count in (1, 2, 3):
        for first in range(len(spans) - count + 1):
            left, right = spans[first][0], spans[first + count - 1][1]
            middle = line.middle((left + right) / 2, page.shape[1])
            top, bottom = round(middle - line.height / 2), round(middle + line.height / 2)
            if right - left >= line.height:  # a lone full stop shows no direction
                result.append(page[top:bottom, max(0, left - 2) : right + 2])
    return result


def to_input(rgb: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the network input (48, 192, 3) for a crop of any size, height x width x RGB."""
    height, width = rgb.shape[:2]
    resized_width = min(WIDTH, math.ceil(HEIGHT * width / height))
    image = Image.fromarray(rgb).resize((resized_width, HEIGHT), Image.Resampling.BILINEAR)
    values = np.asarray(image, dtype=np.float32)[:, :, ::-1]
    result = np.zeros((HEIGHT, WIDTH, 3), dtype=np.float32)
    result[:, :resized_width] = (values / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    return result


def samples(lines: tuple[Line, ...], limit: int) -> list[Sample]:
    """Return up to ``limit`` samples of these lines, half of them upside down, spread evenly."""
    page = load_page()
    all_crops = [crop for line in lines for crop in crops(page, line)]
    count = min(limit // 2, len(all_crops))
    chosen = [all_crops[round(i * (len(all_crops) - 1) / max(1, count - 1))] for i in range(count)]
    result = []
    for index, crop in enumerate(chosen):
        gains = np.array(WHITE_BALANCES[index % len(WHITE_BALANCES)])
        rgb = np.rint(crop[:, :, np.newaxis] * gains).astype(np.uint8)
        for label, turned in enumerate((rgb, rgb[::-1, ::-1])):
            result.append(Sample(f"{index:03}_{180 * label:03}", to_input(turned), label))
    return result


def write(folder: Path) -> tuple[list[Path], list[Path]]:
    """Write both sets; return the calibration and the held-out files."""
    written: list[list[Path]] = []
    labels: dict[str, int] = {}
    for name, lines, limit in (
        ("calibration", CALIBRATION_LINES, CALIBRATION_SAMPLES),
        ("held_out", HELD_OUT_LINES, HELD_OUT_SAMPLES),
    ):
        (folder / name).mkdir(parents=True, exist_ok=True)
        paths = []
        for sample in samples(lines, limit):
            path = folder / name / f"{sample.name}.npy"
            np.save(path, sample.pixels)
            paths.append(path)
            if name == "held_out":
                labels[path.name] = sample.label
        written.append(paths)
    (folder / "held_out.json").write_text(json.dumps(labels, indent=1) + "\n")
    return written[0], written[1]


def main() -> None:
    """Write the data set and say where."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    calibration, held_out = write(folder)
    print(f"{len(calibration)} calibration and {len(held_out)} held-out samples in {folder}")


if __name__ == "__main__":
    main()
