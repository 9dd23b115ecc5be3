"""Binds the dimensions of a model's inputs: all of them are numbers once a model is parsed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from ..errors import ArgumentError, ModelLoadError, UnsupportedDynamicShapeError
from ..ir import TensorType
from .dtypes import dtype_of, element_name

__all__ = ["SourceInput", "bind_inputs", "source_inputs"]


@dataclass(frozen=True, slots=True)
class SourceInput:
    """An input as the source model declares it.

    Attributes:
        name: its name.
        element: ONNX element type code; 0 when it is no tensor.
        dims: an int for a fixed dimension, a name for a symbolic one, "?" for one without a
            name; None when not even the rank is declared.
    """

    name: str
    element: int
    dims: tuple[int | str, ...] | None


def source_inputs(graph: onnx.GraphProto) -> list[SourceInput]:
    """Return the inputs that are not initializers, in order."""
    constants = {t.name for t in graph.initializer}
    constants.update(t.values.name for t in graph.sparse_initializer)
    found = []
    for info in graph.input:
        if info.name in constants:
            continue
        type_ = info.type
        if type_.WhichOneof("value") == "optional_type":
            type_ = type_.optional_type.elem_type
        if type_.WhichOneof("value") != "tensor_type":
            found.append(SourceInput(info.name, 0, None))
            continue
        tensor = type_.tensor_type
        dims: tuple[int | str, ...] | None = None
        if tensor.HasField("shape"):
            dims = tuple(_dim(d) for d in tensor.shape.dim)
        found.append(SourceInput(info.name, tensor.elem_type, dims))
    return found


def bind_inputs(
    inputs: Sequence[SourceInput], shapes: Mapping[str, Sequence[int]]
) -> dict[str, TensorType]:
    """Return the type of every input, with ``shapes`` bound over what the model declares.

    A symbol that one input binds is bound for the others too. The first dimension of an input of
    rank 2 or more is its batch and defaults to 1.

    Raises:
        ArgumentError: ``shapes`` names no input, or contradicts a fixed dimension or itself.
        UnsupportedDynamicShapeError: a dimension stays open.
        ModelLoadError: an input is not a tensor, or of an element type that is not supported.
    """
    names = [i.name for i in inputs]
    for name in shapes:
        if name not in names:
            raise _unknown(name, names)
    symbols: dict[str, tuple[int, str]] = {}
    for entry in inputs:
        if entry.name in shapes:
            _bind_symbols(entry, shapes[entry.name], symbols)
    return {i.name: _bind(i, shapes.get(i.name), symbols) for i in inputs}


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str:
    kind = dim.WhichOneof("value")
    if kind == "dim_value" and dim.dim_value > 0:
        return int(dim.dim_value)
    if kind == "dim_param" and dim.dim_param:
        text = str(dim.dim_param)
        return int(text) if text.isdecimal() and int(text) > 0 else text
    return "?"


def _unknown(name: str, names: list[str]) -> ArgumentError:
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ArgumentError(
        f"the model has no input {name!r} to give a shape to",
        details={"got": name, "expected": names},
        hint=f"{hint}its inputs are {', '.join(names) or 'none'}",
    )


def _bind_symbols(
    entry: SourceInput, shape: Sequence[int], symbols: dict[str, tuple[int, str]]
) -> None:
    given = "x".join(map(str, shape))
    if entry.dims is not None and len(shape) != len(entry.dims):
        raise ArgumentError(
            f"input {entry.name!r} has {len(entry.dims)} dimensions"
            f" ({_text(entry.dims)}), the shape {given} has {len(shape)}",
            details={"input": entry.name, "expected": _text(entry.dims), "got": list(shape)},
        )
    for axis, size in enumerate(shape):
        if size < 0:
            raise ArgumentError(
                f"the shape {given} for input {entry.name!r} has a negative dimension",
                details={"input": entry.name, "got": list(shape)},
            )
        if entry.dims is None:
            continue
        dim = entry.dims[axis]
        if isinstance(dim, int):
            if dim != size:
                raise ArgumentError(
                    f"axis {axis} of input {entry.name!r} is fixed to {dim} by the model,"
                    f" the shape {given} has {size}",
                    details={"input": entry.name, "axis": axis, "expected": dim, "got": size},
                    hint="export the model with that axis dynamic",
                )
        elif dim != "?":
            bound, where = symbols.setdefault(dim, (size, entry.name))
            if bound != size:
                raise ArgumentError(
                    f"dimension {dim!r} is {bound} for input {where!r}"
                    f" and {size} for input {entry.name!r}",
                    details={"symbol": dim, "expected": bound, "got": size},
                )


def _bind(
    entry: SourceInput, shape: Sequence[int] | None, symbols: Mapping[str, tuple[int, str]]
) -> TensorType:
    dtype = dtype_of(entry.element)
    if dtype is None:
        kind = element_name(entry.element) if entry.element else "not a tensor"
        raise ModelLoadError(
            f"input {entry.name!r} is {kind}, which is not supported",
            details={"input": entry.name, "got": kind},
            hint="export the model with plain tensors as inputs",
        )
    if shape is not None:
        return TensorType(dtype, tuple(int(d) for d in shape))
    if entry.dims is None:
        raise UnsupportedDynamicShapeError(
            f"input {entry.name!r} declares no shape",
            details={"input": entry.name},
            hint=f"give it with --input-shape {entry.name}=1,… (inputShapeDict)",
        )
    bound: list[int] = []
    for axis, dim in enumerate(entry.dims):
        if isinstance(dim, int):
            bound.append(dim)
        elif dim in symbols:
            bound.append(symbols[dim][0])
        elif axis == 0 and len(entry.dims) > 1:
            bound.append(1)
        else:
            raise _open(entry, axis, dim)
    return TensorType(dtype, tuple(bound))


def _open(entry: SourceInput, axis: int, dim: str) -> UnsupportedDynamicShapeError:
    assert entry.dims is not None
    example = ",".join(
        str(d) if isinstance(d, int) else "1" if a == 0 else _letter(a, len(entry.dims or ()))
        for a, d in enumerate(entry.dims)
    )
    symbol = "has no size" if dim == "?" else f"is the symbol {dim!r}"
    return UnsupportedDynamicShapeError(
        f"axis {axis} of input {entry.name!r} ({_text(entry.dims)}) {symbol}",
        details={"input": entry.name, "axis": axis, "symbol": dim},
        hint=f"bind it with --input-shape {entry.name}={example} (inputShapeDict in a"
        " configuration file)",
    )


def _letter(axis: int, rank: int) -> str:
    return "NCHW"[axis] if rank == 4 else f"D{axis}"


def _text(dims: Sequence[int | str]) -> str:
    return ",".join(map(str, dims))
