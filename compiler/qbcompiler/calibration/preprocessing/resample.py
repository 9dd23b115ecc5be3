"""Resizing of images [height, width, channels].

With antialiasing, Pillow's convolution resampling (a triangle or Keys kernel with a = -0.5,
widened when shrinking), which is what torchvision does to PIL images; eight-bit images stay
eight-bit with Pillow's rounding. Without it, two- or four-tap interpolation at half-pixel centres
(Keys kernel with a = -0.75), as ``torch.nn.functional.interpolate`` and OpenCV's ``INTER_LINEAR``
define it; ``align_corners`` maps corner pixel centres onto each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...ir import Array

__all__ = ["MODES", "resize"]

MODES = ("bilinear", "nearest", "bicubic")

_PIL = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "nearest": Image.Resampling.NEAREST,
}
_CUBIC_A = -0.75


def resize(
    image: Array,
    height: int,
    width: int,
    mode: str,
    *,
    antialias: bool = True,
    align_corners: bool = False,
) -> Array:
    """Return the image at another size.

    Args:
        image: [height, width, channels] of uint8 or float32.
        height, width: the new size.
        mode: one of :data:`MODES`. ``nearest`` takes the pixel under each new pixel's centre.
        antialias: widen the kernel when shrinking; not for ``nearest``.
        align_corners: map corner centres onto corner centres; implies no antialiasing.

    Returns:
        The image in the same element type; uint8 is rounded to nearest.
    """
    if image.shape[:2] == (height, width):
        return image
    if mode == "nearest" or (antialias and not align_corners):
        return _pillow(image, height, width, mode)
    result = _axis(image, 0, height, mode, align_corners)
    result = _axis(result, 1, width, mode, align_corners)
    if image.dtype == np.uint8:
        return np.clip(np.floor(result + 0.5), 0, 255).astype(np.uint8)
    return result.astype(image.dtype)


def _pillow(image: Array, height: int, width: int, mode: str) -> Array:
    channels = image.shape[2]
    # Pillow would premultiply a fourth channel; planes one by one give each its own filter
    if image.dtype == np.uint8 and channels == 3:
        picture = Image.fromarray(np.ascontiguousarray(image))
        return np.asarray(picture.resize((width, height), _PIL[mode]))
    planes = []
    for c in range(channels):
        plane = np.ascontiguousarray(image[..., c])
        if plane.dtype != np.uint8:
            plane = plane.astype(np.float32)
        planes.append(np.asarray(Image.fromarray(plane).resize((width, height), _PIL[mode])))
    return np.stack(planes, axis=2).astype(image.dtype, copy=False)


def _axis(x: Array, axis: int, size: int, mode: str, align: bool) -> NDArray[np.float64]:
    """Interpolate along one axis; only the lines that are used become float64."""
    old = x.shape[axis]
    at = np.arange(size, dtype=np.float64)
    if align:
        position = at * ((old - 1) / (size - 1)) if size > 1 else np.zeros(1)
    else:
        position = (at + 0.5) * (old / size) - 0.5
        if mode == "bilinear":
            position = np.maximum(position, 0.0)
    base = np.floor(position).astype(np.int64)
    t = position - base
    if mode == "bilinear":
        taps = [(0, 1.0 - t), (1, t)]
    else:
        taps = [(o, _cubic(np.abs(t - o))) for o in (-1, 0, 1, 2)]
    shape = [1] * x.ndim
    shape[axis] = size
    result: NDArray[np.float64] | None = None
    for offset, weight in taps:
        index = np.clip(base + offset, 0, old - 1)
        term = np.take(x, index, axis=axis).astype(np.float64) * weight.reshape(shape)
        result = term if result is None else result + term
    assert result is not None
    return result


def _cubic(d: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keys' cubic convolution kernel (IEEE Trans. ASSP 29, 1981) for distances 0 to 2."""
    a = _CUBIC_A
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return np.where(d <= 1, near, far)
