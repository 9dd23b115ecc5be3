"""MXQ: the integer graph for one target device, and the record of how it was made."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from ..ir import Graph, IntGraph, TensorType
from ..ir.program import Program
from ..ops import Registry
from .formats import MAX_NAME, MBLT_FORMAT, MXQ_FORMAT
from .graph_json import graph_tensors, graph_to_json, read_graph, read_type
from .identity import compiler_identity
from .int_graph_json import (
    int_graph_tensors,
    int_graph_to_json,
    quant_to_json,
    read_int_graph,
)
from .json_io import Fields, dump_json, parse_json
from .mblt import MAX_GRAPH
from .program_json import program_to_json, read_program
from .reader import Container
from .safetensors_io import TensorsReader, tensors_section
from .writer import MANIFEST, Section, Written, write_container

__all__ = ["MXQ_FORMAT", "CalibrationRecord", "Mxq", "MxqContents", "read_mxq", "write_mxq"]

GRAPH = "graph.json"
WEIGHTS = "weights.safetensors"
OFFLOAD_WEIGHTS = "offload.safetensors"
_BODY = "body"
_OFFLOADED = ("head", "tail")
_MAX_SCHEMES = 16
_MAX_PORTS = 65_536


@dataclass(frozen=True)
class CalibrationRecord:
    """What the calibration was made from.

    Attributes:
        digest: SHA-256 over each sample's canonical bytes, in order.
        samples: their number.
        shapes: shape of each input's samples, by input name.
        random: whether they are random numbers; such a build is not for release.
    """

    digest: str
    samples: int
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    random: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the manifest's entry."""
        return {
            "digest": self.digest,
            "samples": self.samples,
            "shapes": {k: [int(d) for d in v] for k, v in self.shapes.items()},
            "random": self.random,
        }


@dataclass(frozen=True)
class MxqContents:
    """Everything that an MXQ holds.

    Attributes:
        mblt: the MBLT's manifest for ``device``, whole (:func:`~.mblt.mblt_manifest` or
            :func:`~.mblt.retarget_manifest`).
        device: the target device string.
        schemes: inference schemes that it holds.
        config: the resolved ``CompileConfig`` as JSON data, without what differs between
            callers of one build (paths, threads).
        preset: the preset's name, or None.
        calibration: what it was calibrated with.
        layers: the quantization summary, one object a layer.
        accuracy: against the float model on the validation samples; {} where none was measured.
        estimate: memory plan and cycles by scheme, in sum; {} where nothing was estimated.
        body: the integer graph.
        head, tail: float graphs that run on the CPU; None without offloading.
        programs: the device's program of each scheme.
        integer_io: whether the device's interface is made of integers: what the body reads and
            makes is then int8 at the package's border, with the grid in the manifest.
    """

    mblt: Mapping[str, Any]
    device: str
    schemes: Sequence[str]
    config: Mapping[str, Any]
    preset: str | None
    calibration: CalibrationRecord
    layers: Sequence[Mapping[str, Any]]
    accuracy: Mapping[str, Any]
    body: IntGraph
    head: Graph | None = None
    tail: Graph | None = None
    estimate: Mapping[str, Any] = field(default_factory=dict)
    programs: Mapping[str, Program] = field(default_factory=dict)
    integer_io: bool = False


def write_mxq(path: str | os.PathLike[str], contents: MxqContents) -> Written:
    """Write an MXQ; the bytes depend on ``contents`` and the compiler's version alone.

    Raises:
        OutputWriteError: the file cannot be written.
    """
    identity = compiler_identity()
    manifest = {
        "format": MXQ_FORMAT.as_dict(),
        "engine": {"name": identity["name"], "version": identity["version"]},
        "compiler": identity,
        "device": contents.device,
        "schemes": list(contents.schemes),
        "preset": contents.preset,
        "config": dict(contents.config),
        "calibration": contents.calibration.as_dict(),
        "io": {"integer": contents.integer_io},
        "inputs": [_port(p, contents, contents.body.inputs) for p in contents.mblt["inputs"]],
        "outputs": [_port(p, contents, contents.body.outputs) for p in contents.mblt["outputs"]],
        "layers": [dict(layer) for layer in contents.layers],
        "accuracy": dict(contents.accuracy),
        "estimate": dict(contents.estimate),
        "mblt": dict(contents.mblt),
    }
    return write_container(path, manifest, _sections(contents))


def _port(port: Mapping[str, Any], contents: MxqContents, border: Sequence[str]) -> dict[str, Any]:
    """Return a port of the package: the MBLT's, as integers where the device wants that."""
    value = contents.body.values.get(port["name"])
    if not contents.integer_io or value is None or value.quant is None or value.name not in border:
        return {**port, "quant": None}
    return {**port, "dtype": value.type.dtype.value, "quant": quant_to_json(value.quant)}


def _sections(contents: MxqContents) -> list[Section]:
    body = dump_json(int_graph_to_json(contents.body, _BODY))
    sections = [
        Section.of_bytes(GRAPH, "graph", body),
        tensors_section(WEIGHTS, int_graph_tensors(contents.body, _BODY)),
    ]
    for scheme, program in contents.programs.items():
        text = dump_json(program_to_json(program))
        sections.append(Section.of_bytes(_program(scheme), "program", text))
    offloaded = {p: g for p in _OFFLOADED if (g := getattr(contents, p)) is not None}
    tensors = {}
    for place, graph in offloaded.items():
        text = dump_json(graph_to_json(graph, place))
        sections.append(Section.of_bytes(f"{place}.json", "cpu-graph", text))
        tensors.update(graph_tensors(graph, place))
    if offloaded:
        sections.append(tensors_section(OFFLOAD_WEIGHTS, tensors))
    return sections


def _program(scheme: str) -> str:
    return f"programs/{scheme}.json"


class Mxq:
    """An open MXQ. Only the manifest is read until the graphs are asked for.

    Weights are read-only views of the memory-mapped file; they stay valid after :meth:`close`.

    Attributes:
        device: the target device string.
        schemes: the inference schemes that it holds.
        integer_io: whether its inputs and outputs are integers at the border.
    """

    def __init__(self, path: str | os.PathLike[str], *, registry: Registry | None = None) -> None:
        """Open ``path``.

        Raises:
            ArgumentError: it cannot be opened.
            FormatError: it is not an MXQ, is damaged, or of a newer major version.
        """
        self._registry = registry
        self.container = Container(path, MXQ_FORMAT)
        try:
            fields = Fields(self.manifest, MANIFEST)
            self.device = fields.text("device", 200)
            self.schemes = tuple(fields.texts("schemes", _MAX_SCHEMES, 64))
            self.preset = fields.optional_text("preset", 200)
            self.integer_io = fields.nested("io").boolean("integer")
            fields.mapping("config")
            inner = fields.nested("mblt").nested("format")
            if inner.text("name", 64) != MBLT_FORMAT.name:
                inner.fail("it is not an MBLT's manifest")
        except BaseException:
            self.container.close()
            raise

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest as it is in the file."""
        return self.container.manifest

    @property
    def mblt_manifest(self) -> dict[str, Any]:
        """The manifest of the MBLT that this MXQ was made from."""
        return Fields(self.manifest, MANIFEST).mapping("mblt")

    @property
    def inputs(self) -> dict[str, TensorType]:
        """The package's inputs, in order: element type and shape at the border by name.

        Raises:
            FormatError: the manifest does not tell.
        """
        return self._ports("inputs")

    @property
    def outputs(self) -> dict[str, TensorType]:
        """The package's outputs, as :attr:`inputs`."""
        return self._ports("outputs")

    def _ports(self, key: str) -> dict[str, TensorType]:
        ports = Fields(self.manifest, MANIFEST).nested_list(key, _MAX_PORTS)
        return {port.text("name", MAX_NAME): read_type(port) for port in ports}

    @cached_property
    def body(self) -> IntGraph:
        """The integer graph.

        Raises:
            FormatError: a section is damaged or does not hold what it must.
        """
        data = parse_json(self.container.read(GRAPH, MAX_GRAPH), GRAPH)
        tensors = TensorsReader(self.container.map(WEIGHTS), WEIGHTS)
        return read_int_graph(Fields(data, GRAPH), tensors, self._registry)

    def program(self, scheme: str) -> Program | None:
        """Return the device's program of a scheme, or None where the file has none.

        Raises:
            FormatError: its section is damaged or does not hold what it must.
        """
        section = _program(scheme)
        if section not in self.container.sections:
            return None
        data = parse_json(self.container.read(section, MAX_GRAPH), section)
        return read_program(Fields(data, section))

    @cached_property
    def head(self) -> Graph | None:
        """The float graph that runs on the CPU before the body, or None."""
        return self._offloaded("head")

    @cached_property
    def tail(self) -> Graph | None:
        """The float graph that runs on the CPU after the body, or None."""
        return self._offloaded("tail")

    def _offloaded(self, place: str) -> Graph | None:
        section = f"{place}.json"
        if section not in self.container.sections:
            return None
        data = parse_json(self.container.read(section, MAX_GRAPH), section)
        tensors = TensorsReader(self.container.map(OFFLOAD_WEIGHTS), OFFLOAD_WEIGHTS)
        return read_graph(Fields(data, section), tensors, self._registry)

    def verify(self) -> None:
        """Check the hash of every section."""
        self.container.verify()

    def close(self) -> None:
        """Close the file."""
        self.container.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_mxq(path: str | os.PathLike[str], *, registry: Registry | None = None) -> Mxq:
    """Open an MXQ; see :class:`Mxq`."""
    return Mxq(path, registry=registry)
