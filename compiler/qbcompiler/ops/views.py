"""Moves that have a name: each is a reshape, a transpose and a reshape, and one layer here.

``HeaderView`` and ``HeaderViewRevert`` split attention's heads and merge them again,
``PixelShuffle`` and ``OrderedPatchify`` turn channels into pixels and back. All copy elements, so
their integers are those of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..ir import Array, Attrs, DType, Graph, IntLayer, NoAttrs, Node, TensorType, Value
from .common import require
from .move import Move
from .spec import Case, Lowering, OnnxEmitter, Refusal, SourceNode

__all__ = [
    "BlockAttrs",
    "HeaderView",
    "HeaderViewAttrs",
    "HeaderViewRevert",
    "OrderedPatchify",
    "PixelShuffle",
    "Regroup",
    "patches",
    "shuffled",
]

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Regroup:
    """A reshape, a transpose and a reshape.

    Attributes:
        apart: the shape between the reshape and the transpose.
        perm: the transpose.
        final: the shape at the end.
    """

    apart: Shape
    perm: Shape
    final: Shape

    def of(self, x: Array) -> Array:
        """Return ``x`` regrouped."""
        moved = x.reshape(self.apart).transpose(self.perm)
        return np.ascontiguousarray(moved).reshape(self.final)

    def export(self, x: str, output: str, to: OnnxEmitter) -> None:
        """Write the three operators; a reshape that changes nothing is left out."""
        moved = tuple(self.apart[p] for p in self.perm)
        apart = to.temp("apart")
        to.emit("Reshape", [x, to.const(np.asarray(self.apart, np.int64), "shape")], [apart])
        last = output if moved == self.final else to.temp("moved")
        to.emit("Transpose", [apart], [last], perm=list(self.perm))
        if last != output:
            final = to.const(np.asarray(self.final, np.int64), "shape")
            to.emit("Reshape", [last, final], [output])


def _act(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


# -- attention's heads --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeaderViewAttrs(Attrs):
    """How features are split among heads.

    Attributes:
        heads: how many; they divide the features.
        transposed: whether each head comes out as [features, tokens], as keys are read.
    """

    heads: int
    transposed: bool = False


class HeaderView(Move[HeaderViewAttrs]):
    """[N, tokens, heads * features] to [N, heads, tokens, features], or features before tokens."""

    name = "HeaderView"
    attrs_type = HeaderViewAttrs

    def infer(self, attrs: HeaderViewAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        return [x.type.with_shape(_heads(attrs, x.shape).final)]

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        shape = graph.values[node.inputs[0]].shape
        _heads(self.attrs_of(node), shape).export(node.inputs[0], node.outputs[0], to)

    def move(self, layer: IntLayer, x: Array) -> Array:
        return _heads(HeaderViewAttrs.from_dict(layer.attrs), x.shape).of(x)

    def cases(self) -> Sequence[Case]:
        return [
            Case(
                "query",
                HeaderViewAttrs(3),
                [_act(1, 5, 12)],
                bound=0.0,
                reference=lambda x: x.reshape(1, 5, 3, 4).transpose(0, 2, 1, 3),
            ),
            Case(
                "key",
                HeaderViewAttrs(3, transposed=True),
                [_act(2, 5, 12)],
                bound=0.0,
                reference=lambda x: x.reshape(2, 5, 3, 4).transpose(0, 2, 3, 1),
            ),
        ]


def _heads(attrs: HeaderViewAttrs, shape: Shape) -> Regroup:
    if len(shape) != 3 or attrs.heads < 1 or shape[2] % attrs.heads:
        raise ValueError(f"cannot split {list(shape)} into {attrs.heads} heads")
    n, tokens, features = shape
    apart = (n, tokens, attrs.heads, features // attrs.heads)
    perm = (0, 2, 3, 1) if attrs.transposed else (0, 2, 1, 3)
    return Regroup(apart, perm, tuple(apart[p] for p in perm))


class HeaderViewRevert(Move[NoAttrs]):
    """[N, heads, tokens, features] to [N, tokens, heads * features]."""

    name = "HeaderViewRevert"
    attrs_type = NoAttrs

    def infer(self, attrs: NoAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        return [x.type.with_shape(_merged(x.shape).final)]

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        shape = graph.values[node.inputs[0]].shape
        _merged(shape).export(node.inputs[0], node.outputs[0], to)

    def move(self, layer: IntLayer, x: Array) -> Array:
        return _merged(x.shape).of(x)

    def cases(self) -> Sequence[Case]:
        return [
            Case(
                "merge",
                NoAttrs(),
                [_act(1, 3, 5, 4)],
                bound=0.0,
                reference=lambda x: x.transpose(0, 2, 1, 3).reshape(1, 5, 12),
            )
        ]


def _merged(shape: Shape) -> Regroup:
    if len(shape) != 4:
        raise ValueError(f"{list(shape)} is not [N, heads, tokens, features]")
    n, heads, tokens, features = shape
    return Regroup(shape, (0, 2, 1, 3), (n, tokens, heads * features))


# -- channels and pixels ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockAttrs(Attrs):
    """A block of pixels that is kept in channels.

    Attributes:
        block: its height and width.
        block_first: whether a pixel's place in the block is the slow part of the channel number
            (ONNX ``DCR``); else the image's channel is (``CRD``, as ``torch.nn.PixelShuffle``).
    """

    block: tuple[int, int]
    block_first: bool = False


def shuffled(attrs: BlockAttrs, shape: Shape) -> Regroup:
    """Return the moves of ``PixelShuffle`` on a [N, C, H, W] shape.

    Raises:
        ValueError: the block does not divide the channels.
    """
    bh, bw = attrs.block
    if len(shape) != 4 or min(bh, bw) < 1 or shape[1] % (bh * bw):
        raise ValueError(f"cannot make pixels of {bh} x {bw} channels of {list(shape)}")
    n, c, h, w = shape
    rest = c // (bh * bw)
    final = (n, rest, h * bh, w * bw)
    if attrs.block_first:
        return Regroup((n, bh, bw, rest, h, w), (0, 3, 4, 1, 5, 2), final)
    return Regroup((n, rest, bh, bw, h, w), (0, 1, 4, 2, 5, 3), final)


def patches(attrs: BlockAttrs, shape: Shape) -> Regroup:
    """Return the moves of ``OrderedPatchify`` on a [N, C, H, W] shape.

    Raises:
        ValueError: the block does not divide the image.
    """
    bh, bw = attrs.block
    if len(shape) != 4 or min(bh, bw) < 1 or shape[2] % bh or shape[3] % bw:
        raise ValueError(f"cannot cut {list(shape)} into blocks of {bh} x {bw}")
    n, c, h, w = shape
    perm = (0, 3, 5, 1, 2, 4) if attrs.block_first else (0, 1, 3, 5, 2, 4)
    return Regroup((n, c, h // bh, bh, w // bw, bw), perm, (n, c * bh * bw, h // bh, w // bw))


class _Blocks(Move[BlockAttrs]):
    attrs_type = BlockAttrs
    channel_first = True

    def regroup(self, attrs: BlockAttrs, shape: Shape) -> Regroup:
        """Return the moves on an input shape."""
        raise TypeError(f"{self.name} does not say how it moves elements")

    def infer(self, attrs: BlockAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        x = require(inputs, 0)
        return [x.type.with_shape(self.regroup(attrs, x.shape).final)]

    def lower(self, node: SourceNode, to: Lowering) -> list[Value] | Refusal:
        x = node.input(0)
        if x is None or x.type.rank != 4:
            return Refusal("its input is not an image")
        size = int(node.attrs.get("blocksize", 1))
        first = str(node.attrs.get("mode", "DCR")) == "DCR"
        return to.emit(self.name, BlockAttrs((size, size), first), [x])

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        shape = graph.values[node.inputs[0]].shape
        moves = self.regroup(self.attrs_of(node), shape)
        moves.export(node.inputs[0], node.outputs[0], to)

    def move(self, layer: IntLayer, x: Array) -> Array:
        return self.regroup(BlockAttrs.from_dict(layer.attrs), x.shape).of(x)


class PixelShuffle(_Blocks):
    """Channels to pixels: [N, C * h * w, H, W] to [N, C, H * h, W * w].

    Shi et al., "Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel
    Convolutional Neural Network" (CVPR 2016); ONNX ``DepthToSpace``.
    """

    name = "PixelShuffle"
    onnx = ("DepthToSpace",)

    def regroup(self, attrs: BlockAttrs, shape: Shape) -> Regroup:
        return shuffled(attrs, shape)

    def cases(self) -> Sequence[Case]:
        return [
            Case(
                "crd",
                BlockAttrs((2, 2)),
                [_act(1, 12, 3, 4)],
                bound=0.0,
                reference=lambda x: (
                    x.reshape(1, 3, 2, 2, 3, 4).transpose(0, 1, 4, 2, 5, 3).reshape(1, 3, 6, 8)
                ),
            ),
            Case(
                "dcr",
                BlockAttrs((2, 3), block_first=True),
                [_act(1, 12, 3, 4)],
                bound=0.0,
                reference=lambda x: (
                    x.reshape(1, 2, 3, 2, 3, 4).transpose(0, 3, 4, 1, 5, 2).reshape(1, 2, 6, 12)
                ),
            ),
        ]


class OrderedPatchify(_Blocks):
    """Pixels to channels: [N, C, H * h, W * w] to [N, C * h * w, H, W]; ONNX ``SpaceToDepth``."""

    name = "OrderedPatchify"
    onnx = ("SpaceToDepth",)

    def regroup(self, attrs: BlockAttrs, shape: Shape) -> Regroup:
        return patches(attrs, shape)

    def cases(self) -> Sequence[Case]:
        return [
            Case(
                "space_to_depth",
                BlockAttrs((2, 2), block_first=True),
                [_act(1, 3, 4, 6)],
                bound=0.0,
                reference=lambda x: (
                    x.reshape(1, 3, 2, 2, 3, 2).transpose(0, 3, 5, 1, 2, 4).reshape(1, 12, 2, 3)
                ),
            ),
            Case(
                "unshuffle",
                BlockAttrs((2, 3)),
                [_act(1, 3, 4, 6)],
                bound=0.0,
                reference=lambda x: (
                    x.reshape(1, 3, 2, 2, 2, 3).transpose(0, 1, 3, 5, 2, 4).reshape(1, 18, 2, 2)
                ),
            ),
        ]
