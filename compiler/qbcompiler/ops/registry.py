"""The operator registry: an explicit list, checked for duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from ..ir import Node, TensorType, Value
from .spec import OpSpec

__all__ = ["Registry", "default_registry"]


class Registry:
    """Operators by IR name and by the ONNX operator they claim."""

    def __init__(self, specs: Iterable[OpSpec[Any]]) -> None:
        """Index ``specs``; ValueError on a duplicate name."""
        self._by_name: dict[str, OpSpec[Any]] = {}
        self._by_onnx: dict[str, list[OpSpec[Any]]] = {}
        for spec in specs:
            if spec.name in self._by_name:
                raise ValueError(f"operator {spec.name!r} is registered twice")
            self._by_name[spec.name] = spec
            for op_type in spec.onnx:
                self._by_onnx.setdefault(op_type, []).append(spec)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> OpSpec[Any]:
        return self._by_name[name]

    @property
    def specs(self) -> list[OpSpec[Any]]:
        """All specs in registry order."""
        return list(self._by_name.values())

    def claiming(self, op_type: str, domain: str = "") -> list[OpSpec[Any]]:
        """Return the specs that may lower an ONNX operator, in order of preference."""
        return self._by_onnx.get(
            op_type if domain in ("", "ai.onnx") else f"{domain}::{op_type}", []
        )

    def onnx_types(self) -> list[str]:
        """Return every ONNX operator that some spec claims, sorted."""
        return sorted(self._by_onnx)

    def infer(self, node: Node, inputs: Sequence[Value | None]) -> list[TensorType]:
        """Apply the shape rule of the node's operator."""
        return self._by_name[node.op].infer(node.attrs, inputs)


@lru_cache(maxsize=1)
def default_registry() -> Registry:
    """Return the registry of all built-in operators."""
    from .catalogue import SPECS

    return Registry(SPECS)
