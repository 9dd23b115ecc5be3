"""Step ``normalize``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...ir import Array
from ..spec import data_error
from .base import Step, numbers

__all__ = ["Normalize"]


@dataclass(frozen=True, slots=True)
class Normalize(Step):
    """``(x / 255 - mean) / std`` in float32, channel by channel.

    Attributes:
        mean, std: one value, or one for each channel, in the units after the scaling.
        scale_to_uint8: divide by 255 first: the image is 0..255, mean and std are 0..1.
        fuse_into_first_layer: the compiled model takes the image before this step. It says
            where the step is done on the device; the calibration tensor is the same either way.
    """

    op: ClassVar[str] = "normalize"
    spatial: ClassVar[bool] = False

    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0
    scale_to_uint8: bool = False
    fuse_into_first_layer: bool = False

    def __post_init__(self) -> None:
        numbers(self, "mean", self.mean)
        if any(v == 0 for v in numbers(self, "std", self.std)):
            raise self.refuse("std must not be zero", got=self.std)

    def apply(self, image: Array) -> Array:
        """Return the normalized image, float32."""
        x = image.astype(np.float32)
        if self.scale_to_uint8:
            x /= np.float32(255)
        for values, subtract in ((self.mean, True), (self.std, False)):
            row = np.asarray(numbers(self, "mean", values), dtype=np.float32)
            if len(row) not in (1, image.shape[2]):
                raise data_error(
                    f"normalize has {len(row)} values for an image of {image.shape[2]} channels",
                    expected=f"1 or {image.shape[2]} values",
                    got=len(row),
                    hint="set imageChannels to the number of channels that the model takes",
                )
            if subtract:
                x -= row
            else:
                x /= row
        return x
