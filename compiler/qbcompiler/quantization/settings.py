"""The settings that decide a quantization's numbers, read from the configuration once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ..ir import Node

if TYPE_CHECKING:
    from ..config import CompileConfig

__all__ = ["QuantSettings", "matches"]


def matches(node: Node, pattern: str) -> bool:
    """Whether ``pattern`` names the layer or one of the source nodes that it stands for.

    A pattern is a name, or a glob (``*``, ``?``, ``[…]``) over one.
    """
    names = (node.name, *node.source)
    return pattern in names or any(fnmatchcase(n, pattern) for n in names)


@dataclass(frozen=True)
class QuantSettings:
    """Methods and bits, for the whole model and for single layers.

    Attributes:
        method: calibration method.
        methods: other methods by layer name or glob; the last that matches counts.
        weight_bits: ``(bits, names or globs)``; the most bits that match count, else 8.
    """

    method: int = 0
    methods: Mapping[str, int] = field(default_factory=dict)
    weight_bits: Sequence[tuple[int, Sequence[str]]] = ()

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
