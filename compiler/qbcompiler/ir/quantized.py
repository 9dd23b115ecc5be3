"""The integer graph: what an MXQ holds and the integer runtime executes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .types import Array, DType, TensorType

__all__ = ["IntGraph", "IntLayer", "IntValue", "QuantParams"]


@dataclass(frozen=True, slots=True)
class QuantParams:
    """The tie between a real ``x`` and an integer ``q``: ``x = scale * (q - zero_point)``.

    Attributes:
        scales: one float32 value, or one for each channel along ``axis``.
        zero_point: integer; 0 for symmetric schemes.
        bits: 8 or 16 (signed).
        axis: the channel axis of ``scales`` in the logical shape; None for one scale.
    """

    scales: tuple[float, ...]
    zero_point: int = 0
    bits: int = 8
    axis: int | None = None

    @property
    def scale(self) -> float:
        """The single scale; ValueError where there is one for each channel."""
        if self.axis is not None:
            raise ValueError("scales are per channel")
        return self.scales[0]

    @property
    def qmin(self) -> int:
        """Smallest integer of an activation."""
        return -(1 << (self.bits - 1))

    @property
    def qmax(self) -> int:
        """Largest integer of an activation."""
        return (1 << (self.bits - 1)) - 1

    @property
    def dtype(self) -> DType:
        """Storage type: int8 or int16."""
        return DType.INT8 if self.bits <= 8 else DType.INT16

    def scale_array(self, rank: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the scales as float32, shaped to broadcast over a tensor of ``rank``."""
        scales = np.asarray(self.scales, dtype=np.float32)
        if self.axis is None:
            return scales.reshape(())
        shape = [1] * rank
        shape[self.axis] = len(self.scales)
        return scales.reshape(shape)


@dataclass(frozen=True, slots=True)
class IntValue:
    """A tensor of the integer graph.

    Attributes:
        name: as in the float graph.
        type: storage element type and logical shape.
        quant: the tie to real values; None for tensors that are integers (or bools) themselves.
        storage: permutation from logical to stored (channel-last) dimension order.
    """

    name: str
    type: TensorType
    quant: QuantParams | None = None
    storage: tuple[int, ...] = ()

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in stored order."""
        order = self.storage or tuple(range(self.type.rank))
        return tuple(self.type.shape[i] for i in order)


@dataclass(slots=True, eq=False)
class IntLayer:
    """One layer of the integer graph.

    Attributes:
        name, op, inputs, outputs, source: as for a float node ("" = absent input); constants
            are not inputs, they are in ``tensors``.
        attrs: plain JSON attributes: ints, bools, strings, lists of ints, None. Never floats
            that decide an output bit.
        tensors: integer arrays by role: ``weight``, ``bias``, ``multiplier``, ``shift``,
            ``table`` …
        real: the attributes of the float layer that it was made from, as JSON data. They decide
            no output bit: export and people read them.
    """

    name: str
    op: str
    inputs: list[str]
    outputs: list[str]
    attrs: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Array] = field(default_factory=dict)
    source: tuple[str, ...] = ()
    real: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class IntGraph:
    """Layers in execution order over named integer values.

    ``inputs`` and ``outputs`` name values with ``quant``: the runtime quantizes float inputs
    on entry and dequantizes on exit, unless the device's I/O stays integer.
    """

    name: str
    inputs: list[str]
    outputs: list[str]
    values: dict[str, IntValue]
    layers: list[IntLayer]
