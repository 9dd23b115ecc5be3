"""The settings that decide a quantization's numbers, read from the configuration once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ..ir import Graph, Node
from ..ops import Registry
from .roles import find_roles

if TYPE_CHECKING:
    from ..config import CompileConfig, Section

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
        elementwise_bits: bits of tensors that no multiply-add reads.
        role_activations, role_weights: bits by part of a transformer block, where not 8; see
            :meth:`for_graph`.
    """

    method: int = 0
    methods: Mapping[str, int] = field(default_factory=dict)
    weight_bits: Sequence[tuple[int, Sequence[str]]] = ()
    wide_activations: Sequence[str] = ()
    inner_bits: int = 8
    elementwise_bits: int = 8
    role_activations: Mapping[str, int] = field(default_factory=dict)
    role_weights: Mapping[str, int] = field(default_factory=dict)

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
            elementwise_bits=config.bit.elementwise_activations,
            role_activations=_by_role(config.bit.transformer.activation),
            role_weights=_by_role(config.bit.transformer.weight),
        )

    def for_graph(self, graph: Graph, registry: Registry | None = None) -> QuantSettings:
        """Return the settings with the bits of transformer parts given to a graph's layers.

        A layer of several roles gets the most bits of them; bits by layer name come first.
        """
        if not self.role_activations and not self.role_weights:
            return self
        roles = find_roles(graph, registry)
        weights: dict[int, list[str]] = {}
        wide: list[str] = []
        for name, own in roles.items():
            if max(self.role_activations.get(r, 8) for r in own) > 8:
                wide.append(name)
            bits = max(self.role_weights.get(r, 8) for r in own)
            if bits != 8:
                weights.setdefault(bits, []).append(name)
        return replace(
            self,
            wide_activations=(*self.wide_activations, *wide),
            weight_bits=(*self.weight_bits, *((b, tuple(n)) for b, n in weights.items())),
            role_activations={},
            role_weights={},
        )

    def unmet_roles(self, graph: Graph, registry: Registry | None = None) -> list[str]:
        """Return the parts that have bits of their own and that the graph lacks.

        A feed-forward block without a gate is whole.
        """
        wanted = {*self.role_activations, *self.role_weights} - {"router"}
        if not wanted:
            return []
        held = {role for own in find_roles(graph, registry).values() for role in own}
        if "ffn/down" in held:
            held.add("ffn/gate")
        return sorted(wanted - held)

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


def _by_role(section: Section) -> dict[str, int]:
    """Return a table of bits by role, 8 left out."""
    found: dict[str, int] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        parts = {name: value}
        if not isinstance(value, int):
            parts = {f"{name}/{part}": getattr(value, part) for part in type(value).model_fields}
        found.update((role, bits) for role, bits in parts.items() if bits != 8)
    return found
