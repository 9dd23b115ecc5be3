"""ONNX's own back-end test cases, as plain data.

The node cases are made by the ``onnx`` package when they are asked for; the others lie in its
wheel as files.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper


@dataclass(frozen=True)
class SuiteCase:
    """One model with one or more (inputs, expected outputs)."""

    name: str
    kind: str
    model: onnx.ModelProto
    data: tuple[tuple[list[Any], list[Any]], ...]
    rtol: float
    atol: float

    @property
    def tensors_only(self) -> bool:
        """Whether all inputs and outputs are tensors, not sequences or optionals."""
        return all(
            v.type.WhichOneof("value") == "tensor_type"
            for v in (*self.model.graph.input, *self.model.graph.output)
        )


@lru_cache(maxsize=1)
def node_cases() -> dict[str, SuiteCase]:
    """Every node case by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        loaded = load_model_tests(kind="node")
    return {
        c.name: SuiteCase(c.name, "node", c.model, tuple(c.data_sets or ()), c.rtol, c.atol)
        for c in loaded
    }


def file_case(kind: str, folder: Path) -> SuiteCase:
    """Read a case of the simple, pytorch-operator or pytorch-converted kind."""
    model = onnx.load(str(folder / "model.onnx"))
    data = []
    for data_set in sorted(folder.glob("test_data_set_*")):
        data.append(
            (
                list(_tensors(data_set, "input", model.graph.input)),
                list(_tensors(data_set, "output", model.graph.output)),
            )
        )
    return SuiteCase(folder.name, kind, model, tuple(data), 1e-3, 1e-7)


def _tensors(folder: Path, role: str, infos: Any) -> Iterator[Any]:
    for i, info in enumerate(infos):
        path = folder / f"{role}_{i}.pb"
        if not path.exists():
            return
        kind = info.type.WhichOneof("value")
        if kind == "tensor_type":
            yield numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))
        else:
            yield None


@lru_cache(maxsize=1)
def file_cases() -> dict[str, SuiteCase]:
    """The cases that lie in the wheel: simple, pytorch-operator, pytorch-converted."""
    import onnx.backend.test

    root = Path(onnx.backend.test.__file__).parent / "data"
    return {
        folder.name: file_case(kind, folder)
        for kind in ("simple", "pytorch-operator", "pytorch-converted")
        for folder in sorted((root / kind).iterdir())
        if (folder / "model.onnx").exists()
    }


def light_models() -> dict[str, Path]:
    """The zoo models of the ``light`` kind, whose weights are computed in the graph."""
    import onnx.backend.test

    root = Path(onnx.backend.test.__file__).parent / "data" / "light"
    return {p.stem: p for p in sorted(root.glob("light_*.onnx"))}


def max_error(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> str:
    """Describe the largest difference of two tensors."""
    if got.shape != want.shape:
        return f"shape {got.shape}, expected {want.shape}"
    with np.errstate(all="ignore"):
        diff = np.abs(got.astype(np.float64) - want.astype(np.float64))
    return f"largest difference {np.nanmax(diff) if diff.size else 0:.3g}"
