"""4-bit integers, two in a byte."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..ir import Array

__all__ = ["pack", "unpack"]


def pack(data: Array) -> NDArray[np.uint8]:
    """Return integers from -7 to 7 as two's complement nibbles.

    They follow each other in C order, the first of a pair in the low half of its byte; the high
    half of a last single one is 0.

    Raises:
        ValueError: a number is out of range.
    """
    flat = np.ascontiguousarray(data).reshape(-1)
    if flat.size and (flat.min() < -7 or flat.max() > 7):
        raise ValueError("4-bit weights reach from -7 to 7")
    nibbles = np.zeros(flat.size + flat.size % 2, dtype=np.uint8)
    nibbles[: flat.size] = flat.astype(np.int8).view(np.uint8) & 15
    result: NDArray[np.uint8] = nibbles[::2] | (nibbles[1::2] << np.uint8(4))
    return result


def unpack(data: Array, shape: Sequence[int]) -> NDArray[np.int8]:
    """Return the int8 tensor of a shape that :func:`pack` has packed.

    Raises:
        ValueError: the bytes do not hold such a tensor.
    """
    count = math.prod(shape)
    if data.dtype != np.uint8 or data.shape != ((count + 1) // 2,):
        raise ValueError(f"{data.dtype}{list(data.shape)} does not hold {count} 4-bit numbers")
    stored: NDArray[np.uint8] = data.view(np.uint8)
    nibbles = np.empty(2 * stored.size, dtype=np.uint8)
    nibbles[::2], nibbles[1::2] = stored & np.uint8(15), stored >> np.uint8(4)
    if nibbles[count:].any():
        raise ValueError("a byte holds a number behind the last one")
    signed = ((nibbles[:count] ^ 8).astype(np.int8)) - np.int8(8)
    if (signed == -8).any():
        raise ValueError("4-bit weights reach from -7 to 7")
    result: NDArray[np.int8] = signed.reshape(tuple(shape))
    return result
