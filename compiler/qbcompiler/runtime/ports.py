"""The inputs and outputs of a package: names, types, and the shapes that a caller may give."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import ArgumentError
from ..ir import Array, DType, QuantParams, channel_last, layout_name
from ..ops.fixedpoint import dequantize
from ..package.graph_json import MAX_NAME, read_type
from ..package.int_graph_json import read_quant
from ..package.json_io import Fields

__all__ = ["Port", "read_ports"]

_MAX_PORTS = 65_536


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output.

    Attributes:
        name: as in the model.
        shape: logical shape, batch included.
        dtype: element type.
        layout: ``NCHW`` and the like for images, None for anything else.
        quant: the grid of its integers, where the device's interface is made of integers.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    layout: str | None
    quant: QuantParams | None = None

    @property
    def batched(self) -> bool:
        """Whether the first dimension is a batch of one."""
        return len(self.shape) >= 2 and self.shape[0] == 1

    def given_shape(self, *, channel_last: bool) -> tuple[int, ...]:
        """Return the shape, batch included, that a caller of this convention gives."""
        if channel_last and self.layout is not None:
            return tuple(self.shape[i] for i in _last(len(self.shape)))
        return self.shape

    def accept(self, x: Array, *, channel_last: bool) -> Array:
        """Return ``x`` as [samples, *shape] in the model's own layout and element type.

        Raises:
            ArgumentError: shape or element type are not what the input takes.
        """
        x = self._typed(x)
        whole = self.given_shape(channel_last=channel_last)
        if x.shape == whole:
            batch = x[np.newaxis]
        elif self.batched and x.shape == whole[1:]:
            batch = x[np.newaxis, np.newaxis]
        elif self.batched and x.ndim == len(whole) and x.shape[1:] == whole[1:] and len(x) > 0:
            batch = x[:, np.newaxis]
        else:
            raise self._wrong_shape(x, whole, channel_last)
        if channel_last and self.layout is not None:
            back = np.argsort(_last(len(whole)))
            batch = batch.transpose(0, *(int(i) + 1 for i in back))
        return batch

    def to_real(self, q: Array) -> Array:
        """Return the real values of an integer output; floats pass as they are."""
        return q if self.quant is None else dequantize(q, self.quant)

    def to_channel_last(self, x: Array) -> Array:
        """Return an output in the channel-last convention."""
        if self.layout is None or x.ndim != len(self.shape):
            return x
        return np.ascontiguousarray(x.transpose(_last(x.ndim)))

    def _typed(self, x: Array) -> Array:
        wanted = self.dtype.numpy
        if x.dtype == wanted:
            return x
        if self.dtype.is_float and x.dtype.kind == "f":
            return x.astype(wanted)
        if self.quant is not None and x.dtype.kind == "f":
            return x  # the runtime quantizes it, as the host of such a device does
        hint = None
        if self.dtype.is_float:
            hint = (
                f"preprocess it as for the float model and convert it to {wanted};"
                " uint8 is taken by a package that was built with uint8Input"
            )
        raise ArgumentError(
            f"input {self.name!r} takes {wanted}, got {x.dtype}",
            details={"input": self.name, "expected": str(wanted), "got": str(x.dtype)},
            hint=hint,
        )

    def _wrong_shape(self, x: Array, whole: tuple[int, ...], channel_last: bool) -> ArgumentError:
        other = self.given_shape(channel_last=not channel_last)
        hint = None
        if self.layout is not None and x.shape in (other, other[1:]):
            hint = (
                "use infer_chw for channel-first arrays"
                if channel_last
                else ("use infer for channel-last arrays")
            )
        elif x.size == math.prod(whole):
            hint = "the number of elements fits: transpose or reshape it"
        shapes = [list(whole)]
        if self.batched:
            shapes.append(list(whole[1:]))
        return ArgumentError(
            f"input {self.name!r} takes shape {' or '.join(map(str, shapes))}, got {list(x.shape)}",
            details={"input": self.name, "expected": shapes, "got": list(x.shape)},
            hint=hint,
        )


def _last(rank: int) -> tuple[int, ...]:
    return channel_last(rank)


def read_ports(fields: Fields, key: str) -> tuple[Port, ...]:
    """Read the ports that a manifest lists under ``key``.

    Raises:
        FormatError: an entry is not as it must be.
    """
    ports = []
    for item in fields.nested_list(key, _MAX_PORTS):
        type_ = read_type(item)
        layout = item.optional_text("layout", 16)
        if layout is not None and (
            type_.rank < 3 or layout != layout_name(channel_last(type_.rank))
        ):
            item.fail("its layout does not fit its shape")
        quant = None
        if "quant" in item and item.raw("quant") is not None:
            quant = read_quant(item.nested("quant"), type_)
        ports.append(Port(item.text("name", MAX_NAME), type_.shape, type_.dtype, layout, quant))
    return tuple(ports)
