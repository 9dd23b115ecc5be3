"""Parts of layers: what a box of the output reads, and the integer layer that computes it alone.

A part gives the whole layer's bits: it does the same integer arithmetic for fewer elements. Tensors
that lie along the output are cut with it; a window that reaches over the border of its part reads
margins in place of padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..ir import Array, Box, IntLayer

__all__ = [
    "along",
    "broadcast_box",
    "every_axis",
    "margins_of",
    "replaced",
    "spread",
    "window_box",
    "window_part",
]


def every_axis(shape: Sequence[int], *but: int) -> dict[int, int]:
    """Return all axes with a step of 1, except some."""
    return {i: 1 for i in range(len(shape)) if i not in but}


def broadcast_box(box: Box, shape: Sequence[int]) -> Box:
    """Return the part of an input of ``shape`` that broadcasts to ``box`` of the output."""
    tail = box[len(box) - len(shape) :]
    return tuple((0, 1) if d == 1 else cut for d, cut in zip(shape, tail, strict=True))


def along(tensor: Array, box: Box) -> Array:
    """Return the part of a tensor that broadcasts to ``box`` of the output."""
    if tensor.ndim == 0:
        return tensor
    tail = box[len(box) - tensor.ndim :]
    index = tuple(
        slice(None) if d == 1 else slice(*cut) for d, cut in zip(tensor.shape, tail, strict=True)
    )
    return np.ascontiguousarray(tensor[index])


def replaced(
    layer: IntLayer,
    *,
    attrs: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Array] | None = None,
    inputs: Sequence[str] | None = None,
) -> IntLayer:
    """Return a copy of a layer with some attributes and tensors replaced."""
    return IntLayer(
        layer.name,
        layer.op,
        list(layer.inputs if inputs is None else inputs),
        list(layer.outputs),
        {**layer.attrs, **(attrs or {})},
        {**layer.tensors, **(tensors or {})},
        layer.source,
        layer.real,
    )


def window_box(
    box: Box,
    shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> list[tuple[int, int]]:
    """Return the spatial part of the input that windows of ``box`` read, at least one element.

    Args:
        box: of the output [N, C, spatial…].
        shape: of the input.
        kernel, strides, dilations: one for each spatial dimension.
        pads: begin of each dimension, then end of each.
    """
    found = []
    for i, k in enumerate(kernel):
        start, stop = box[2 + i]
        low = start * strides[i] - pads[i]
        high = (stop - 1) * strides[i] - pads[i] + dilations[i] * (k - 1) + 1
        size = shape[2 + i]
        first = min(max(low, 0), size - 1)
        found.append((first, max(min(high, size), first + 1)))
    return found


def margins_of(
    box: Box,
    read: Box,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> list[int]:
    """Return what the windows of ``box`` see around ``read``: begin of each dimension, then ends.

    A negative margin is a part of ``read`` that no window sees.
    """
    begin, end = [], []
    for i, k in enumerate(kernel):
        start, stop = box[2 + i]
        low = start * strides[i] - pads[i]
        high = (stop - 1) * strides[i] - pads[i] + dilations[i] * (k - 1) + 1
        begin.append(read[2 + i][0] - low)
        end.append(high - read[2 + i][1])
    return begin + end


def window_part(
    layer: IntLayer, box: Box, read: Box, shapes: tuple[Sequence[int], Sequence[int]],
    kernel: Sequence[int],
) -> dict[str, Any]:  # fmt: skip
    """Return the attributes of a part of a layer with a window: no pads, but ``margins``.

    Args:
        layer: with ``strides``, ``pads`` and ``dilations``.
        box: of the output.
        read: of the input.
        shapes: of the whole input and output.
        kernel: sizes of the window.
    """
    source, target = shapes
    inside = tuple((0, d) for d in source[2:])
    if box[2:] == tuple((0, d) for d in target[2:]) and read[2:] == inside:
        return {}
    a = layer.attrs
    margins = margins_of(box, read, kernel, a["strides"], a["pads"], a["dilations"])
    return {"pads": [0] * (2 * len(kernel)), "margins": margins}


def spread(x: Array, margins: Sequence[int] | None, fill: int) -> Array:
    """Return ``x`` [N, C, spatial…] with margins of ``fill`` around it; negative ones cut."""
    if margins is None or not any(margins):
        return x
    n = len(margins) // 2
    inner = tuple(
        slice(max(-b, 0), d - max(-e, 0))
        for d, b, e in zip(x.shape[2:], margins[:n], margins[n:], strict=True)
    )
    x = x[(slice(None), slice(None), *inner)]
    grown = [max(m, 0) for m in margins]
    if not any(grown):
        return x
    shape = [*x.shape[:2]]
    shape += [d + b + e for d, b, e in zip(x.shape[2:], grown[:n], grown[n:], strict=True)]
    wide: Array = np.full(shape, fill, dtype=x.dtype)
    middle = tuple(slice(b, b + d) for b, d in zip(grown[:n], x.shape[2:], strict=True))
    wide[(slice(None), slice(None), *middle)] = x
    return wide
