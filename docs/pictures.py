"""Draw the pictures of docs/calibration-data.md from a photograph that scikit-image brings along.

    python docs/pictures.py [FOLDER]

The photograph is ``chelsea.png`` (Stefan van der Walt, CC0).
"""

from __future__ import annotations

import importlib.resources
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

HERE = Path(__file__).resolve().parent
SIDE, GAP, TITLE = 224, 16, 44
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
INK, QUIET, GOOD, BAD = "#1f2328", "#59636e", "#1a7f37", "#b3261e"

Pixels = NDArray[np.uint8]


def photograph() -> Pixels:
    """Return the photograph as SIDE x SIDE x 3, RGB."""
    file = importlib.resources.files("skimage") / "data" / "chelsea.png"
    with importlib.resources.as_file(file) as path, Image.open(path) as image:
        square = image.convert("RGB").crop((75, 0, 375, 300))
        return np.asarray(square.resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def row(panels: Sequence[tuple[str, str, Image.Image]]) -> Image.Image:
    """Return panels side by side, each under its title and whether it is right."""
    width = len(panels) * (SIDE + GAP) + GAP
    sheet = Image.new("RGB", (width, TITLE + SIDE + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for i, (title, below, panel) in enumerate(panels):
        left = GAP + i * (SIDE + GAP)
        colour = GOOD if below.startswith("right") else BAD
        draw.text((left, 4), title, fill=INK, font=ImageFont.load_default(16))
        draw.text((left, 24), below, fill=colour, font=ImageFont.load_default(13))
        sheet.paste(panel, (left, TITLE))
    return sheet


def histogram(values: NDArray[np.float64], low: float, high: float) -> Image.Image:
    """Return the distribution of a sample's values, per channel, over low..high."""
    panel = Image.new("RGB", (SIDE, SIDE), "#f6f8fa")
    draw = ImageDraw.Draw(panel)
    foot = SIDE - 24
    for channel, colour in enumerate(("#c0362c", "#2c8c3c", "#2c50c0")):
        counts, _ = np.histogram(values[..., channel], bins=SIDE // 2, range=(low, high))
        tops = foot - (foot - 12) * counts / max(1, counts.max())
        points = [(2 * x, float(y)) for x, y in enumerate(tops)]
        draw.line(points, fill=colour, width=2)
    draw.line([(0, foot), (SIDE, foot)], fill=QUIET)
    font = ImageFont.load_default(13)
    for share in (0.0, 0.5, 1.0):
        text = f"{low + share * (high - low):g}"
        at = share * SIDE - share * draw.textlength(text, font)
        draw.text((at, foot + 4), text, fill=QUIET, font=font)
    return panel


def colours(image: Pixels) -> Image.Image:
    """RGB against BGR."""
    return row(
        [
            ("RGB", "right, for most models", Image.fromarray(image)),
            ("BGR", "as cv2.imread gives it", Image.fromarray(image[..., ::-1].copy())),
        ]
    )


def layouts(image: Pixels) -> Image.Image:
    """Transposing against reshaping."""
    chw = image.transpose(2, 0, 1)
    mixed = image.reshape(3, SIDE, SIDE)
    first = Image.fromarray(np.ascontiguousarray(chw.transpose(1, 2, 0)))
    return row(
        [
            ("transpose(2, 0, 1)", "right: each channel is a picture", first),
            ("reshape(3, 224, 224)", "wrong: rows become channels",
             Image.fromarray(np.ascontiguousarray(mixed.transpose(1, 2, 0)))),
        ]
    )  # fmt: skip


def values(image: Pixels) -> Image.Image:
    """The distribution of values after three kinds of preprocessing."""
    x = image.astype(np.float64)
    return row(
        [
            ("(x / 255 - mean) / std", "right: what this model was trained on",
             histogram((x / 255 - MEAN) / STD, -3, 3)),
            ("x / 255", "wrong: no mean, no deviation", histogram(x / 255, -3, 3)),
            ("x", "wrong: far outside", histogram(x, -255, 255)),
        ]
    )  # fmt: skip


def main() -> int:
    """Write the pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "pictures"
    folder.mkdir(exist_ok=True)
    image = photograph()
    for name, draw in (("colours", colours), ("layouts", layouts), ("values", values)):
        draw(image).quantize(192).save(folder / f"{name}.png", optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
