"""Reads a source model: from a path, bytes or a ``ModelProto``, with or without external data.

Weights are not copied: they stay views of the file's bytes (of its memory map, for large files
and external data) until something asks for them.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto, helper

from ..errors import ModelLoadError
from ..ir import Array
from . import wire
from .external import ExternalFiles
from .sniff import looks_like

__all__ = ["OLDEST_OPSET", "SourceModel", "load_model"]

OLDEST_OPSET = 6
"""Models of older opsets are refused: too many of their operators have another form."""

MAP_BYTES = 256 << 10
"""Files of at least this size are memory-mapped, smaller ones read."""


@dataclass(frozen=True, eq=False)
class SourceModel:
    """A source model that has been read and found to be ONNX.

    Attributes:
        proto: the model without the payload of large initializers.
        tensors: those payloads as read-only arrays by initializer name.
        sha256: of the file; with external data, of the file's SHA-256 followed by the name and
            SHA-256 of each external file in order of name.
        size: bytes of the file and its external data.
        producer: name and version of the exporter, "" when the model does not say.
        opsets: opset by domain ("" for the default domain).
        name: the graph's name.
        external_files: locations of the external data, sorted.
        mapped: the bytes of the file and of each external file.
    """

    proto: onnx.ModelProto
    tensors: Mapping[str, Array]
    sha256: str
    size: int
    producer: str
    opsets: Mapping[str, int]
    name: str
    external_files: tuple[str, ...] = field(default=())
    mapped: tuple[memoryview, ...] = field(default=(), repr=False)

    def let_go(self) -> None:
        """Tell the system that the pages of mapped files need not stay; they can be reread."""
        for data in self.mapped:
            if isinstance(data.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
                data.obj.madvise(mmap.MADV_DONTNEED)


def load_model(
    source: str | Path | bytes | onnx.ModelProto | SourceModel,
    *,
    external_data_dir: str | Path | None = None,
) -> SourceModel:
    """Read a source model.

    Args:
        source: a path, the file's bytes, or a model in memory.
        external_data_dir: folder of the external data; a path's own folder by default.

    Raises:
        ModelLoadError: the file is missing, empty, truncated, not ONNX, of an opset that is too
            old or unknown, or its external data is missing, too short or outside its folder.
    """
    if isinstance(source, SourceModel):
        return source
    base = None if external_data_dir is None else Path(external_data_dir)
    if isinstance(source, onnx.ModelProto):
        try:
            data: bytes | memoryview = source.SerializeToString(deterministic=True)
        except (ValueError, DecodeError) as exc:
            raise ModelLoadError(
                f"the model in memory cannot be serialized: {exc}",
                hint="save it with external data and give its path",
            ) from exc
        label = "the model in memory"
    elif isinstance(source, bytes):
        data, label = source, "the model"
    else:
        path = Path(source)
        data, label = _read(path), str(path)
        base = path.parent if base is None else base
    return _load(memoryview(data), label, base)


def _load(data: memoryview, label: str, base: Path | None) -> SourceModel:
    proto, payloads = _parse(data, label)
    opsets = _check_header(proto, data, label)
    digest = hashlib.sha256(data).hexdigest()
    tensors: dict[str, Array] = {}
    files = ExternalFiles(base, label)
    for index, tensor in enumerate(proto.graph.initializer):
        if index in payloads:
            tensors[tensor.name] = _view(tensor, payloads[index], label)
        elif tensor.data_location == TensorProto.EXTERNAL:
            tensors[tensor.name] = _view(tensor, files.view(tensor), label)
            del tensor.external_data[:]
            tensor.data_location = TensorProto.DEFAULT
    for tensor in _inner_tensors(proto):
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.raw_data = bytes(files.view(tensor))
            del tensor.external_data[:]
            tensor.data_location = TensorProto.DEFAULT
    source = SourceModel(
        proto=proto,
        tensors=tensors,
        sha256=files.digest(digest),
        size=len(data) + files.size,
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        opsets=opsets,
        name=proto.graph.name,
        external_files=files.names,
        mapped=(data, *files.views),
    )
    source.let_go()
    return source


def _read(path: Path) -> bytes | memoryview:
    try:
        if path.is_dir():
            raise ModelLoadError(
                f"{path} is a folder, not a model file", details={"path": str(path)}
            )
        size = path.stat().st_size
        if size < MAP_BYTES:
            return path.read_bytes()
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError as exc:
        raise ModelLoadError(f"{path} does not exist", details={"path": str(path)}) from exc
    except OSError as exc:
        raise ModelLoadError(
            f"{path} cannot be read: {exc.strerror}", details={"path": str(path)}
        ) from exc


def _parse(data: memoryview, label: str) -> tuple[onnx.ModelProto, dict[int, memoryview]]:
    if not data:
        raise ModelLoadError(f"{label} is empty", details={"path": label, "got": 0})
    head = bytes(data[:1024])
    # an ONNX file starts with a field of ModelProto; every magic of sniff starts otherwise, or
    # is decided by the structure below
    likeness = looks_like(head, data)
    if likeness is not None:
        raise ModelLoadError(
            f"{label} is not an ONNX model: it looks like {likeness}",
            details={"path": label, "expected": "an ONNX model", "got": likeness},
        )
    try:
        split = wire.split_model(data)
        proto = onnx.ModelProto.FromString(split.skeleton)
        if not _names_stand(proto, split.lifted):
            # the interpreter says what is wrong, of the model as it is written
            split = wire.split_model(data, lift=False)
            proto = onnx.ModelProto.FromString(split.skeleton)
    except wire.WireError as exc:
        if exc.truncated and _starts_like_onnx(data):
            raise ModelLoadError(
                f"{label} is truncated: its content needs at least {exc.claimed} bytes,"
                f" the file has {len(data)}",
                details={"path": label, "expected": exc.claimed, "got": len(data)},
                hint="copy or download it again",
            ) from exc
        raise _not_onnx(label, str(exc)) from exc
    except DecodeError as exc:
        raise _not_onnx(label, "its protobuf does not decode") from exc
    except RecursionError as exc:
        raise _not_onnx(label, "it is nested too deeply") from exc
    if split.graphs > 1:
        # protobuf merges repeated messages; the initializer numbering would be off
        try:
            return onnx.ModelProto.FromString(bytes(data)), {}
        except DecodeError as exc:
            raise _not_onnx(label, "its protobuf does not decode") from exc
    return proto, split.payloads


def _names_stand(proto: onnx.ModelProto, lifted: list[str]) -> bool:
    """Whether nothing else in the graph has the name of a constant that became a weight."""
    if not lifted:
        return True
    graph = proto.graph
    others = {n for node in graph.node for n in node.output}
    others.update(i.name for i in graph.input)
    count = len(graph.initializer) - len(lifted)
    others.update(t.name for t in graph.initializer[:count])
    others.update(s.values.name for s in graph.sparse_initializer)
    return len(set(lifted)) == len(lifted) and others.isdisjoint(lifted)


def _starts_like_onnx(data: memoryview) -> bool:
    """Whether the first field is one that ONNX writers put first, with a plausible value."""
    first = data[0]
    if first == 0x08:  # ir_version, a small varint
        return len(data) < 2 or data[1] < 0x40
    # producer name, domain, doc string or graph first; some writers order fields otherwise
    return first in (0x12, 0x22, 0x32, 0x3A, 0x42)


def _not_onnx(label: str, why: str) -> ModelLoadError:
    return ModelLoadError(
        f"{label} is not an ONNX model: {why}",
        details={"path": label, "expected": "an ONNX model"},
    )


def _check_header(proto: onnx.ModelProto, data: memoryview, label: str) -> dict[str, int]:
    """Return the opsets of a model that has a graph and only opsets that are known."""
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise _not_onnx(label, "it is a protobuf without a graph")
    if proto.ir_version == 0 and not proto.opset_import:
        raise _not_onnx(label, "it is a protobuf that states neither IR version nor opset")
    _check_names(proto, label)
    opsets: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        opsets[domain] = max(opsets.get(domain, 0), entry.version)
    opsets.setdefault("", 1)
    newest = onnx.defs.onnx_opset_version()
    if opsets[""] > newest:
        raise ModelLoadError(
            f"{label} uses opset {opsets['']}, the newest one known here is {newest}",
            details={"path": label, "expected": newest, "got": opsets[""]},
            hint=f"export the model with opset {newest} or older",
        )
    needs_old = any(n.domain in ("", "ai.onnx") for n in proto.graph.node)
    if needs_old and opsets[""] < OLDEST_OPSET:
        raise ModelLoadError(
            f"{label} uses opset {opsets['']}, the oldest one read here is {OLDEST_OPSET}",
            details={"path": label, "expected": OLDEST_OPSET, "got": opsets[""]},
            hint="export the model again, or update it with onnx.version_converter",
        )
    return opsets


def _check_names(proto: onnx.ModelProto, label: str) -> None:
    """Refuse names that are not UTF-8: protobuf returns them as bytes, which nothing expects."""
    work: list[Any] = [proto.graph, *proto.functions]
    while work:
        owner = work.pop()
        names: list[Any] = [owner.name]
        if isinstance(owner, onnx.GraphProto):
            names += [t.name for t in owner.initializer]
            names += [t.values.name for t in owner.sparse_initializer]
            names += [v.name for v in (*owner.input, *owner.output)]
        else:
            names += [owner.domain, *owner.input, *owner.output]
        for node in owner.node:
            names += (node.name, node.op_type, node.domain, *node.input, *node.output)
            for attribute in node.attribute:
                names += (attribute.name, attribute.ref_attr_name)
                if attribute.type == onnx.AttributeProto.GRAPH:
                    work.append(attribute.g)
                elif attribute.type == onnx.AttributeProto.GRAPHS:
                    work.extend(attribute.graphs)
            wrong = next((n for n in names if not isinstance(n, str)), None)
            if wrong is not None:
                raise _not_onnx(label, f"the name {bytes(wrong)[:100]!r} is not UTF-8 text")
            names.clear()
        if any(not isinstance(n, str) for n in names):
            raise _not_onnx(label, "a name is not UTF-8 text")


def _view(tensor: TensorProto, payload: memoryview, label: str) -> Array:
    """Return the payload of an initializer as an array, without copying."""
    dims = tuple(tensor.dims)
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except KeyError as exc:
        raise ModelLoadError(
            f"weight {tensor.name!r} of {label} has the unknown element type {tensor.data_type}",
            details={"path": label, "tensor": tensor.name},
        ) from exc
    count = 1
    for dim in dims:
        count *= dim
    packed_types = (TensorProto.UINT4, TensorProto.INT4)
    bits = 4 if tensor.data_type in packed_types else dtype.itemsize * 8
    expected = (count * bits + 7) // 8
    if any(d < 0 for d in dims) or expected != len(payload):
        raise ModelLoadError(
            f"weight {tensor.name!r} of {label} has {len(payload)} bytes,"
            f" its shape {list(dims)} needs {expected}",
            details={
                "path": label,
                "tensor": tensor.name,
                "expected": expected,
                "got": len(payload),
            },
        )
    if bits == 4:
        whole = TensorProto()
        whole.CopyFrom(tensor)
        whole.raw_data = bytes(payload)
        packed: Array = onnx.numpy_helper.to_array(whole)
        return packed
    array: Any = np.frombuffer(payload, dtype=dtype).reshape(dims)
    array.flags.writeable = False
    return array  # type: ignore[no-any-return]


def _inner_tensors(proto: onnx.ModelProto) -> list[TensorProto]:
    """Return the tensors in node attributes, sub-graphs and functions."""
    found: list[TensorProto] = []
    work: list[Any] = [proto.graph, *proto.functions]
    while work:
        owner = work.pop()
        for node in owner.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.TENSOR:
                    found.append(attribute.t)
                elif attribute.type == onnx.AttributeProto.TENSORS:
                    found.extend(attribute.tensors)
                elif attribute.type == onnx.AttributeProto.GRAPH:
                    work.append(attribute.g)
                    found.extend(attribute.g.initializer)
                elif attribute.type == onnx.AttributeProto.GRAPHS:
                    work.extend(attribute.graphs)
                    for graph in attribute.graphs:
                        found.extend(graph.initializer)
    return found
