"""The device's program: for each core the ordered tiles and transfers over buffers in memory.

A program is for one inference scheme. Its tensors and layers are those of the integer graph that it
executes. On-chip buffers are numbered and lie at the same places on every core; in external memory
each tensor has one place. A buffer holds a *frame*, a box of a tensor, and instructions name the
box inside it that they read or write.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .boxes import Box, box_shape, whole
from .quantized import IntGraph

Layouts = Mapping[str, "TensorLayout"]

__all__ = [
    "EXTERNAL",
    "Copy",
    "Fetch",
    "Instruction",
    "Layouts",
    "Load",
    "Operand",
    "Place",
    "Program",
    "Store",
    "Sync",
    "TensorLayout",
    "Tile",
    "layouts_of",
    "padded",
    "same_bytes",
]

EXTERNAL = -1
"""In place of a buffer's number: the tensor's place in external memory."""

Part = tuple[int, int, int, int]
"""Output channels ``first:last`` and inputs ``first:last`` of each sum, of a layer's weights."""


def padded(channels: int, alignment: int) -> int:
    """Return how many elements a row of channels takes: a multiple of the alignment, or for fewer
    than that the next power of two."""
    if channels >= alignment:
        return -(-channels // alignment) * alignment
    return 1 << max(channels - 1, 0).bit_length()


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """How a tensor lies in memory: row-major in stored order, the last dimension padded.

    Attributes:
        shape: logical.
        storage: logical dimensions in stored order.
        itemsize: bytes of an element.
    """

    shape: tuple[int, ...]
    storage: tuple[int, ...]
    itemsize: int

    def stored(self, frame: Box) -> tuple[int, ...]:
        """Return the lengths of a frame in stored order."""
        shape = box_shape(frame)
        return tuple(shape[i] for i in self.storage)

    def strides(self, frame: Box, alignment: int) -> tuple[int, ...]:
        """Return the bytes between neighbours along each stored dimension of a frame."""
        found: list[int] = []
        step = self.itemsize
        for i, d in enumerate(reversed(self.stored(frame))):
            found.append(step)
            step *= padded(d, alignment) if i == 0 else d
        return tuple(reversed(found))

    def size(self, frame: Box, alignment: int) -> int:
        """Return the bytes that a frame takes."""
        stored = self.stored(frame)
        if not stored:
            return self.itemsize
        return math.prod(stored[:-1]) * padded(stored[-1], alignment) * self.itemsize


def layouts_of(graph: IntGraph) -> dict[str, TensorLayout]:
    """Return the layout of every tensor of an integer graph."""
    return {
        n: TensorLayout(v.type.shape, v.storage or tuple(range(v.type.rank)), v.type.dtype.itemsize)
        for n, v in graph.values.items()
    }


@dataclass(frozen=True, slots=True)
class Place:
    """A buffer.

    Attributes:
        offset, size: bytes.
        first, last: steps of the program between which it is in use.
    """

    offset: int
    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Operand:
    """A box of a tensor in a buffer.

    Attributes:
        tensor: its name.
        box: the elements meant.
        buffer: number of an on-chip buffer, or :data:`EXTERNAL`.
        frame: the box of the tensor that the buffer holds.
    """

    tensor: str
    box: Box
    buffer: int
    frame: Box


@dataclass(frozen=True, slots=True)
class Sync:
    """All cores of the program wait for each other."""


@dataclass(frozen=True, slots=True)
class Load:
    """From external memory into an on-chip buffer.

    Attributes:
        layer: index of the layer that it serves.
        target: what is filled.
        shared: one transfer serves all cores, which have this instruction at the same place.
    """

    layer: int
    target: Operand
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """From an on-chip buffer to external memory."""

    layer: int
    source: Operand


@dataclass(frozen=True, slots=True)
class Copy:
    """From a buffer of a core, another one or the same, into a buffer of this one.

    Attributes:
        layer: index of the layer that it serves.
        target: what is filled.
        core: whose buffer is read.
        buffer, frame: which, and what it holds.
    """

    layer: int
    target: Operand
    core: int
    buffer: int
    frame: Box


@dataclass(frozen=True, slots=True)
class Fetch:
    """A layer's constants, or a part of its weights, into an on-chip buffer.

    Attributes:
        layer: index of the layer.
        part: which weights; None for all.
        buffer: where to.
        size: bytes.
        shared: as for :class:`Load`.
    """

    layer: int
    part: Part | None
    buffer: int
    size: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Tile:
    """Part of a layer.

    Attributes:
        layer: index of the layer.
        cycles: what it takes, by the model of the device.
        box: of output 0.
        inputs: one for each input of the layer; None where the part reads nothing of it.
        outputs: one for each output; none before the last part of a sum.
        weights: buffer of its constants; :data:`EXTERNAL` where they stream, or it has none.
        part: which weights; None for all.
        sums: buffer of the partial sums; None where the sum is taken at once.
        first, last: whether it begins the sums, whether it makes the output of them.
    """

    layer: int
    cycles: int
    box: Box
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    weights: int = EXTERNAL
    part: Part | None = None
    sums: int | None = None
    first: bool = True
    last: bool = True


Instruction = Sync | Load | Store | Copy | Fetch | Tile


@dataclass(eq=False)
class Program:
    """The program of one inference scheme.

    Attributes:
        scheme: its name.
        cores: cores that work together.
        batch: inputs that they take at a time, one each, or 1 where they share one input.
        on_chip: bytes of on-chip memory of a core.
        alignment: of buffers, in bytes.
        channel_alignment: to which stored rows are padded, in elements.
        layers: names of the integer graph's layers, in its order.
        external_size: bytes of external memory for the tensors of one input.
        external: places in external memory, by tensor.
        aliases: tensors that are another name of a place: the tensor that has it.
        chip: on-chip buffers.
        streams: instructions of each core; one stream that every core follows on its own input
            where ``batch`` is not 1.
        chip_bound, external_bound: the largest sum of live buffers, below which no placement is.
        splits: for each layer how cores share it: ``rows``, ``channels`` or ``none``.
    """

    scheme: str
    cores: int
    batch: int
    on_chip: int
    alignment: int
    channel_alignment: int
    layers: list[str]
    external_size: int
    external: dict[str, Place]
    aliases: dict[str, str]
    chip: list[Place]
    streams: list[list[Instruction]]
    chip_bound: int = 0
    external_bound: int = 0
    splits: list[str] = field(default_factory=list)

    def root(self, tensor: str) -> str:
        """Return the tensor whose place in external memory ``tensor`` has."""
        return self.aliases.get(tensor, tensor)

    @property
    def chip_size(self) -> int:
        """The end of the last on-chip buffer, in bytes."""
        return max((b.offset + b.size for b in self.chip), default=0)


def same_bytes(a: TensorLayout, b: TensorLayout, alignment: int) -> bool:
    """Whether a reshape from ``a`` to ``b`` leaves every byte where it is."""
    if a == b:
        return True
    if a.itemsize != b.itemsize or not _plain(a) or not _plain(b):
        return False
    left, right = a.stored(whole(a.shape)), b.stored(whole(b.shape))
    if not left or not right:
        return False
    if left[-1] == right[-1]:
        return True
    return all(padded(d, alignment) == d for d in (left[-1], right[-1]))


def _plain(layout: TensorLayout) -> bool:
    """Whether the elements lie in the logical order."""
    order: Sequence[int] = [i for i in layout.storage if layout.shape[i] != 1]
    return list(order) == sorted(order)
