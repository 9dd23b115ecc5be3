"""The settings that decide a quantization's numbers, read from the configuration once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ..ir import Graph, Node

if TYPE_CHECKING:
    from ..config import CompileConfig

__all__ = ["QuantSettings", "matches", "named"]


def matches(node: Node, pattern: str) -> bool:
    """Whether ``pattern`` names the layer or one of the source nodes that it stands for.

    A pattern is a name, or a glob (``*``, ``?``, ``[…]``) over one.
    """
    return any(named(n, pattern) for n in (node.name, *node.source))


def named(name: str, pattern: str) -> bool:
    """Whether ``pattern``, a name or a glob, is or fits ``name``."""
    return name == pattern or fnmatchcase(name, pattern)


@dataclass(frozen=True)
class QuantSettings:
    """Methods and bits, for the whole model and for single layers.

    Attributes:
        method: calibration method.
        methods: other methods by layer name or glob; the last that matches counts.
        weight_bits: ``(bits, names or globs)``; the most bits that match count, else 8.
        wide_activations: names or globs of layers whose outputs have 16 bits; a model input of
            such a name has 16 bits too.
        inner_bits: bits of tensors that one elementwise function alone reads.
    """

    method: int = 0
    methods: Mapping[str, int] = field(default_factory=dict)
    weight_bits: Sequence[tuple[int, Sequence[str]]] = ()
    wide_activations: Sequence[str] = ()
    inner_bits: int = 8

    @classmethod
    def from_config(cls, config: CompileConfig) -> QuantSettings:
        """Read the settings."""
        overrides = config.bit.layer_overrides
        return cls(
            method=config.calibration.method,
            methods=dict(config.calibration.layer_overrides.method),
            weight_bits=(
                (16, tuple(overrides.weight_16bits)),
                (8, tuple(overrides.weight_8bits)),
                (4, tuple(overrides.weight_4bits)),
            ),
            wide_activations=tuple(overrides.activation_16bits),
            inner_bits=config.bit.inner_activations,
        )

    def method_of(self, node: Node) -> int:
        """Return the calibration method of a layer."""
        found = self.method
        for pattern in sorted(self.methods):
            if matches(node, pattern):
                found = self.methods[pattern]
        return found

    def weight_bits_of(self, node: Node) -> int:
        """Return the bits of a layer's weights."""
        for bits, patterns in self.weight_bits:
            if any(matches(node, p) for p in patterns):
                return bits
        return 8

    def activation_bits(self, graph: Graph) -> dict[str, int]:
        """Return the bits of those float values that do not have 8."""
        wide = [n for n in graph.inputs if any(named(n, p) for p in self.wide_activations)]
        for node in graph.nodes:
            if any(matches(node, p) for p in self.wide_activations):
                wide += [o for o in node.outputs if o and graph.values[o].type.dtype.is_float]
        return {name: 16 for name in wide if graph.values[name].type.dtype.is_float}
