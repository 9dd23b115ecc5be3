"""Step ``resize``: to a shorter side, or to a height and a width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir import Array
from .base import Step, integer, one_of
from .resample import MODES, resize

__all__ = ["Resize"]


@dataclass(frozen=True, slots=True)
class Resize(Step):
    """Resize as torchvision does.

    Attributes:
        size: the new shorter side; the longer one keeps the aspect ratio, truncated to an
            integer. Exclusive with ``height`` and ``width``.
        height, width: the new size, both.
        mode: bilinear, nearest or bicubic.
        align_corners: map corner pixel centres onto each other; no antialiasing then.
        antialias: widen the kernel when shrinking.
    """

    op: ClassVar[str] = "resize"

    size: int | None = None
    height: int | None = None
    width: int | None = None
    mode: str = "bilinear"
    align_corners: bool = False
    antialias: bool = True

    def __post_init__(self) -> None:
        one_of(self, "mode", self.mode, MODES)
        if self.size is not None:
            if self.height is not None or self.width is not None:
                raise self.refuse("give size, or height and width, not both")
            integer(self, "size", self.size)
        elif self.height is None or self.width is None:
            raise self.refuse("give size, or height and width")
        else:
            integer(self, "height", self.height)
            integer(self, "width", self.width)

    def target(self, height: int, width: int) -> tuple[int, int]:
        """Return the new (height, width) of an image of that size."""
        if self.size is None:
            assert self.height is not None and self.width is not None
            return self.height, self.width
        if height <= width:
            return self.size, max(1, int(self.size * width / height))
        return max(1, int(self.size * height / width)), self.size

    def apply(self, image: Array) -> Array:
        """Return the image at the new size."""
        height, width = self.target(*image.shape[:2])
        return resize(
            image,
            height,
            width,
            self.mode,
            antialias=self.antialias,
            align_corners=self.align_corners,
        )
