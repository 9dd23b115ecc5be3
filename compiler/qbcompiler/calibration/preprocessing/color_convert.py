"""Step ``colorConvert``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir import Array
from ..spec import data_error
from .base import Step, one_of

__all__ = ["ColorConvert"]

_ORDERS = ("RGB", "BGR")


@dataclass(frozen=True, slots=True)
class ColorConvert(Step):
    """Reverse the colour channels when source and target differ; an alpha channel stays last.

    Attributes:
        source: order of the image; images are read as RGB.
        target: order that the model takes.
    """

    op: ClassVar[str] = "colorConvert"
    spatial: ClassVar[bool] = False

    source: str = "RGB"
    target: str = "BGR"

    def __post_init__(self) -> None:
        one_of(self, "source", self.source, _ORDERS)
        one_of(self, "target", self.target, _ORDERS)

    def apply(self, image: Array) -> Array:
        """Return the image in the target order."""
        channels = image.shape[2]
        if channels not in (3, 4):
            raise data_error(
                f"colorConvert on an image of {channels} channels",
                expected="3 or 4 channels",
                got=channels,
                hint="set imageChannels to 3, or remove the step",
            )
        if self.source == self.target:
            return image
        return image[..., [2, 1, 0, *range(3, channels)]]
