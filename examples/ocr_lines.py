"""Real text lines for PP-OCR's text-direction classifier, upright and upside down.

The lines are cut from the photographed page that scikit-image ships; the preparation is
PP-OCR's own: height 48, width at most 192 with the ratio kept, BGR,
``(x / 255 - 0.5) / 0.5``, padded with zeros on the right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

HEIGHT, WIDTH = 48, 192
LABELS = ("0", "180")

Image8 = NDArray[np.uint8]
Float32 = NDArray[np.float32]


def _package_image(name: str) -> Image8:
    import skimage.data

    path = Path(skimage.data.__file__).parent / name
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def cut_lines(page: Image8, *, shortest: int = 8) -> list[Image8]:
    """Cut a scanned page [H, W, 3] into its text lines by the ink in each row.

    The light on the pages is uneven, so ink is what is darker than its neighbourhood.
    """
    from skimage.filters import threshold_local

    grey = page.astype(np.float32).mean(axis=2)
    ink = (grey < threshold_local(grey, 35, offset=12)).mean(axis=1)
    inked = ink > 0.25 * np.percentile(ink, 90)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], inked.view(np.int8), [0]))))
    lines = []
    for top, bottom in edges.reshape(-1, 2):
        if bottom - top >= shortest:
            top, bottom = max(0, top - 2), min(page.shape[0], bottom + 2)
            lines.append(page[top:bottom])
    return lines


def cut_words(line: Image8, ratio: float = 4.0) -> list[Image8]:
    """Cut a line into half-overlapping pieces ``ratio`` times as wide as high."""
    width = int(line.shape[0] * ratio)
    if line.shape[1] <= width:
        return [line]
    starts = range(0, line.shape[1] - width + 1, max(1, width // 2))
    pieces = [line[:, s : s + width] for s in starts]
    return [p for p in pieces if p.astype(np.float32).mean(axis=2).std() > 20]


def text_pieces() -> list[Image8]:
    """Return all upright pieces [h, w, 3], uint8 RGB, in a fixed order."""
    pieces: list[Image8] = []
    for line in cut_lines(_package_image("page.png")):
        pieces += cut_words(line)
    return pieces


def prepare(piece: Image8) -> Float32:
    """Return the classifier's input [3, 48, 192] for an RGB piece [h, w, 3]."""
    height, width = piece.shape[:2]
    new_width = min(WIDTH, max(1, int(np.ceil(HEIGHT * width / height))))
    resized = Image.fromarray(piece).resize((new_width, HEIGHT), Image.Resampling.BILINEAR)
    bgr = np.asarray(resized, dtype=np.float32)[:, :, ::-1]
    out = np.zeros((3, HEIGHT, WIDTH), np.float32)
    out[:, :, :new_width] = ((bgr / 255.0 - 0.5) / 0.5).transpose(2, 0, 1)
    return out


def samples() -> tuple[Float32, NDArray[np.int64]]:
    """Return all samples [N, 3, 48, 192] and labels [N]: 0 upright, 1 upside down."""
    images: list[Any] = []
    labels: list[int] = []
    for piece in text_pieces():
        images += [prepare(piece), prepare(piece[::-1, ::-1])]
        labels += [0, 1]
    return np.stack(images), np.asarray(labels)


def write_calibration(folder: Path, count: int = 48) -> int:
    """Write every second sample, at most ``count``, as ``NNN.npy``; return how many.

    The other half is held out: :func:`held_out` returns it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    images, _ = samples()
    chosen = _halves(images)[0][:count]
    for i, image in enumerate(chosen):
        np.save(folder / f"{i:03d}.npy", image[None])
    return len(chosen)


def held_out(count: int = 48) -> tuple[Float32, NDArray[np.int64]]:
    """Return samples and labels that :func:`write_calibration` does not write."""
    images, labels = samples()
    return _halves(images)[1][:count], _halves(labels)[1][:count]


def _halves(array: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    # pairs (upright, upside down) stay together; neighbours overlap, so cut in the middle
    middle = len(array) // 4 * 2
    return array[:middle], array[middle:]
