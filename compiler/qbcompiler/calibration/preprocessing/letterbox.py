"""Step ``letterbox``: fit into a box without distortion, pad the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...ir import Array
from .base import Step, integer, numbers
from .resample import resize

__all__ = ["Letterbox"]


@dataclass(frozen=True, slots=True)
class Letterbox(Step):
    """Scale to fit ``height`` x ``width`` and pad, as YOLO detectors are trained.

    The scaled size is rounded to nearest; interpolation is bilinear at half-pixel centres without
    antialiasing (OpenCV's ``INTER_LINEAR``); an odd padding pixel goes below and to the right.

    Attributes:
        height, width: the box.
        pad_value: one value, or one for each channel.
    """

    op: ClassVar[str] = "letterbox"

    height: int
    width: int
    pad_value: float | tuple[float, ...] = 114

    def __post_init__(self) -> None:
        integer(self, "height", self.height)
        integer(self, "width", self.width)
        if any(not 0 <= v <= 255 for v in numbers(self, "padValue", self.pad_value)):
            raise self.refuse("padValue must lie in 0..255", got=self.pad_value)

    def apply(self, image: Array) -> Array:
        """Return the image in its box."""
        height, width, channels = image.shape
        fill = numbers(self, "padValue", self.pad_value)
        if len(fill) not in (1, channels):
            raise self.refuse(f"padValue has {len(fill)} values for {channels} channels")
        ratio = min(self.height / height, self.width / width)
        new_height = min(self.height, max(1, round(height * ratio)))
        new_width = min(self.width, max(1, round(width * ratio)))
        scaled = resize(image, new_height, new_width, "bilinear", antialias=False)
        top = round((self.height - new_height) / 2 - 0.1)
        left = round((self.width - new_width) / 2 - 0.1)
        box = np.empty((self.height, self.width, channels), dtype=image.dtype)
        box[...] = np.asarray(fill).astype(image.dtype)
        box[top : top + new_height, left : left + new_width] = scaled
        return box
