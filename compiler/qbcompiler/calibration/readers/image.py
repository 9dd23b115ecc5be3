"""Pictures through Pillow: size bounded before decoding, truncation an error, EXIF ignored.

The result is what ``PIL.Image.open(path).convert(mode)`` gives, as torchvision loads it: the
first frame, in storage orientation, alpha dropped when three channels are asked for.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...ir import Array
from ..spec import data_error
from .base import Content, ReadContext, opening

__all__ = ["ImageReader"]

_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_EIGHT_BIT = frozenset(
    ["1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"]
)


class ImageReader:
    """Reads pictures as [height, width, channels] of uint8."""

    name = "image"
    extensions = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")

    def read(self, path: Path, context: ReadContext) -> Content:
        """Return the picture, converted to ``context.channels`` channels."""
        channels = context.channels
        if channels is not None and channels not in _MODES:
            raise data_error(
                f"an image cannot feed an input of {channels} channels",
                sample=context.sample,
                expected="1, 3 or 4 channels",
                got=channels,
                hint="give the samples as .npy arrays, or set imageChannels",
            )
        with opening(path, context, "image"), warnings.catch_warnings():
            # the bound below decides; Pillow's own warning would come before it
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            try:
                image = Image.open(path, formats=_FORMATS)
            except Image.DecompressionBombError as exc:
                raise data_error(
                    f"the image is too large ({exc})",
                    sample=context.sample,
                    expected=f"at most {context.limits.max_pixels} pixels",
                    hint="scale the image down",
                ) from None
            with image:
                self._check(image, context)
                array = _decode(image, channels)
        return Content({None: array}, is_image=True)

    def _check(self, image: Image.Image, context: ReadContext) -> None:
        pixels = image.width * image.height
        if pixels > context.limits.max_pixels:
            raise data_error(
                f"the image has {image.width}x{image.height} pixels, above the bound",
                sample=context.sample,
                expected=f"at most {context.limits.max_pixels} pixels",
                got=f"{image.width}x{image.height}",
                hint="scale the image down",
            )
        if image.mode not in _EIGHT_BIT:
            raise data_error(
                f"the image has pixels of mode {image.mode}, more than 8 bits a channel",
                sample=context.sample,
                expected="8 bits a channel",
                got=image.mode,
                hint="convert it to 8 bits, or save it as a float32 .npy array",
            )


def _decode(image: Image.Image, channels: int | None) -> Array:
    if channels is None:
        mode = "L" if image.mode in ("1", "L") else "RGB"
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            mode = "RGBA"
    else:
        mode = _MODES[channels]
    # always decode, also when no conversion is needed, so that truncation shows here
    image.load()
    converted: Any = image if image.mode == mode else image.convert(mode)
    array: Array = np.array(converted, dtype=np.uint8)
    return array.reshape(*array.shape[:2], -1)
