"""Sliding windows: output sizes and ONNX's ways of stating padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "check_window",
    "conv_output",
    "ints",
    "pool_output",
    "resolve_pads",
    "transpose_output",
    "transpose_pads",
]

Ints = tuple[int, ...]


def ints(attrs: Mapping[str, Any], name: str, default: Sequence[int]) -> Ints:
    """Return an attribute that is a list of ints, or its default where it is absent or empty."""
    value = attrs.get(name)
    return tuple(int(v) for v in (value if value else default))


def check_window(spatial: int, strides: Ints, pads: Ints, dilations: Ints, kernel: Ints) -> None:
    """ValueError where the parts of a window do not fit ``spatial`` dimensions."""
    for name, value, count in (
        ("strides", strides, spatial),
        ("dilations", dilations, spatial),
        ("kernel", kernel, spatial),
        ("pads", pads, 2 * spatial),
    ):
        if len(value) != count:
            raise ValueError(f"{name} has {len(value)} numbers, expected {count}")
    if min((*strides, *dilations, *kernel), default=1) < 1:
        raise ValueError("strides, dilations and kernel sizes must be at least 1")
    if min(pads, default=0) < 0:
        raise ValueError("pads must not be negative")


def resolve_pads(
    attrs: Mapping[str, Any],
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Ints:
    """Return the pads (begin.. end..) that ``pads`` or ``auto_pad`` stand for.

    ``SAME_*`` pads so that the output has ``ceil(size / stride)`` elements; of an odd total the
    larger half goes to the end for ``SAME_UPPER`` and to the begin for ``SAME_LOWER``.

    Raises:
        ValueError: an unknown ``auto_pad``.
    """
    mode = str(attrs.get("auto_pad") or "NOTSET")
    n = len(size)
    if mode == "NOTSET":
        return ints(attrs, "pads", [0] * (2 * n))
    if mode == "VALID":
        return (0,) * (2 * n)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"unknown auto_pad {mode!r}")
    begin, end = [], []
    for length, k, s, d in zip(size, kernel, strides, dilations, strict=True):
        out = -(-length // s)
        total = max((out - 1) * s + d * (k - 1) + 1 - length, 0)
        small, large = total // 2, total - total // 2
        begin.append(small if mode == "SAME_UPPER" else large)
        end.append(large if mode == "SAME_UPPER" else small)
    return (*begin, *end)


def conv_output(
    size: Sequence[int], kernel: Ints, strides: Ints, pads: Ints, dilations: Ints
) -> Ints:
    """Return the spatial output sizes of a convolution; ValueError where there is none."""
    return _output(size, kernel, strides, pads, dilations, ceil_mode=False)


def pool_output(
    size: Sequence[int],
    kernel: Ints,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    ceil_mode: bool,
) -> Ints:
    """Return the spatial output sizes of a pooling.

    With ``ceil_mode`` a last window may overhang the end, but must not start behind it.
    """
    return _output(size, kernel, strides, pads, dilations, ceil_mode=ceil_mode)


def _output(
    size: Sequence[int],
    kernel: Ints,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    *,
    ceil_mode: bool,
) -> Ints:
    n = len(kernel)
    found = []
    for i, length in enumerate(size):
        room = length + pads[i] + pads[n + i] - dilations[i] * (kernel[i] - 1) - 1
        if room < 0:
            raise ValueError(
                f"a window of {dilations[i] * (kernel[i] - 1) + 1} is larger than the"
                f" padded size {length + pads[i] + pads[n + i]}"
            )
        out = (-(-room // strides[i]) if ceil_mode else room // strides[i]) + 1
        if ceil_mode and (out - 1) * strides[i] >= length + pads[i]:
            out -= 1
        found.append(out)
    return tuple(found)


def transpose_output(
    size: Sequence[int],
    kernel: Ints,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    output_padding: Ints,
) -> Ints:
    """Return the spatial output sizes of a transposed convolution."""
    n = len(kernel)
    found = tuple(
        (length - 1) * strides[i]
        + output_padding[i]
        + dilations[i] * (kernel[i] - 1)
        + 1
        - pads[i]
        - pads[n + i]
        for i, length in enumerate(size)
    )
    if min(found, default=1) < 1:
        raise ValueError(f"the output would have the size {list(found)}")
    return found


def transpose_pads(
    attrs: Mapping[str, Any],
    size: Sequence[int],
    kernel: Ints,
    strides: Ints,
    dilations: Ints,
    output_padding: Ints,
) -> tuple[Ints, Ints]:
    """Return the pads and output padding that ONNX ``ConvTranspose`` attributes stand for.

    ``output_shape`` and ``SAME_*`` fix the output's size; the total padding follows from it and
    of an odd total the larger half goes to the end for ``SAME_UPPER``, to the begin otherwise.
    Where the output is larger than the natural one, the difference becomes output padding.

    Raises:
        ValueError: an unknown ``auto_pad``.
    """
    mode = str(attrs.get("auto_pad") or "NOTSET")
    n = len(size)
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"unknown auto_pad {mode!r}")
    wanted = ints(attrs, "output_shape", ())[-n:] if n else ()
    if not wanted:
        if mode == "NOTSET":
            return ints(attrs, "pads", [0] * (2 * n)), output_padding
        if mode == "VALID":
            return (0,) * (2 * n), output_padding
        wanted = tuple(length * s for length, s in zip(size, strides, strict=True))
    begin, end, extra = [], [], []
    for i, length in enumerate(size):
        natural = (length - 1) * strides[i] + dilations[i] * (kernel[i] - 1) + 1
        total = natural + output_padding[i] - wanted[i]
        extra.append(output_padding[i] + max(-total, 0))
        total = max(total, 0)
        small, large = total // 2, total - total // 2
        begin.append(small if mode == "SAME_UPPER" else large)
        end.append(large if mode == "SAME_UPPER" else small)
    return (*begin, *end), tuple(extra)
