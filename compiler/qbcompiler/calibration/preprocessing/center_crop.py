"""Step ``centerCrop``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...ir import Array
from .base import Step, integer

__all__ = ["CenterCrop"]


@dataclass(frozen=True, slots=True)
class CenterCrop(Step):
    """Cut the middle out as torchvision does.

    An odd gap is split as ``round(gap / 2)``, ties to even. An image that is smaller is padded
    with zeros first, the odd pixel after it.
    """

    op: ClassVar[str] = "centerCrop"

    height: int
    width: int

    def __post_init__(self) -> None:
        integer(self, "height", self.height)
        integer(self, "width", self.width)

    def apply(self, image: Array) -> Array:
        """Return the middle of the image."""
        pads = []
        for have, want in zip(image.shape[:2], (self.height, self.width), strict=True):
            missing = max(0, want - have)
            pads.append((missing // 2, (missing + 1) // 2))
        if any(sum(p) for p in pads):
            image = np.pad(image, [*pads, (0, 0)])
        top = round((image.shape[0] - self.height) / 2)
        left = round((image.shape[1] - self.width) / 2)
        return image[top : top + self.height, left : left + self.width]
