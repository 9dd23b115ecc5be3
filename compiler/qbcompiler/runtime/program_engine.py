"""Runs a program as the device does: tile by tile, core by core, over memories of bytes.

Each tile does the integer arithmetic of its layer on a part of it, so the result is the integer
graph's, bit for bit. Constants are not copied into on-chip memory; that they were fetched is
checked by :func:`~qbcompiler.ir.verify_program.verify_program`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError, InternalError
from ..ir import Array, IntGraph, IntLayer
from ..ir.boxes import shifted, slices, whole
from ..ir.program import (
    EXTERNAL,
    Copy,
    Instruction,
    Load,
    Operand,
    Program,
    Store,
    Sync,
    Tile,
    layouts_of,
)
from ..ir.verify_program import verify_program
from ..ops import Registry, default_registry
from .integer_engine import IntegerEngine, Visit, to_real
from .kernels import ExactKernels

__all__ = ["ProgramEngine"]

Bytes = NDArray[np.uint8]


class ProgramEngine(IntegerEngine):
    """Executes a program of an integer graph.

    The result is that of :class:`IntegerEngine`, whatever the scheme. A program of a batch is run
    for one input: its cores do the same, each on an input of its own.

    Args:
        graph: a checked integer graph.
        program: a program of it.
        threads: threads for one tile.
        registry: operators; the built-in ones by default.
        backwards: run the cores in the reverse order between two barriers, which changes nothing
            where no barrier is missing; for tests.

    Raises:
        FormatError: the program is not one of the graph, or has a fault.
    """

    def __init__(
        self,
        graph: IntGraph,
        program: Program,
        threads: int = 1,
        *,
        registry: Registry | None = None,
        backwards: bool = False,
    ) -> None:
        super().__init__(graph, threads, registry=registry)
        faults = verify_program(program, graph)
        if faults:
            raise FormatError(
                f"the program {program.scheme!r} has a fault: {faults[0]}",
                details={"section": f"programs/{program.scheme}.json", "faults": len(faults)},
            )
        self.program = program
        self._threads = threads
        self._layouts = layouts_of(graph)
        self._specs = registry or default_registry()
        self._parts: dict[tuple[Any, ...], tuple[IntLayer, ExactKernels]] = {}
        self._kernels_of: dict[tuple[int, object], ExactKernels] = {}
        self._params = [
            {n: graph.values[n].quant for n in (*layer.inputs, *layer.outputs) if n}
            for layer in graph.layers
        ]
        self._order = _order(program.streams, backwards)

    def run(
        self,
        inputs: Mapping[str, Array],
        *,
        outputs: Sequence[str] | None = None,
        integers: bool = False,
        visit: Visit | None = None,
    ) -> dict[str, Array]:
        """Execute the program once; see :meth:`IntegerEngine.run`.

        Inner values have no place where they could be looked at when all is done: where other
        values than the outputs, or visits, are asked for, the integer graph is executed.
        """
        wanted = list(self.graph.outputs if outputs is None else outputs)
        if visit is not None or not set(wanted) <= set(self.graph.outputs):
            return super().run(inputs, outputs=outputs, integers=integers, visit=visit)
        memory = _Memory(self.program, self._layouts, self.graph)
        for name, data in self._enter(inputs).items():
            memory.whole(name)[...] = data
        for core, x in self._order:
            if isinstance(x, Tile):
                self._tile(core, x, memory)
            else:
                _move(core, x, memory)
        made = {n: np.ascontiguousarray(memory.whole(n)) for n in wanted}
        if integers:
            return made
        return {n: to_real(made[n], self.graph.values[n]) for n in wanted}

    def _tile(self, core: int, x: Tile, memory: _Memory) -> None:
        layer = self.graph.layers[x.layer]
        arrays = [memory.view(core, o) for o in x.inputs if o is not None]
        part, kernels = self._part(x, layer)
        spec, params = self._specs[layer.op], self._params[x.layer]
        where = {"layer": layer.name, "operator": layer.op}
        try:
            if x.sums is None:
                results = spec.run(part, [np.ascontiguousarray(a) for a in arrays], params, kernels)
            else:
                acc = spec.accumulate(part, arrays, params, kernels)
                place = memory.sums(core, x.sums, acc.shape, layer)
                if not x.first:
                    acc += place
                if not x.last:
                    place[...] = acc
                    return
                results = spec.finish(part, acc, params)
        except MemoryError:
            raise
        except Exception as exc:
            raise InternalError(
                f"a tile of layer {layer.name!r} ({layer.op}) failed: {exc}", details=where
            ) from exc
        for operand, result in zip(x.outputs, results, strict=False):
            held = memory.view(core, operand)
            if held.shape != result.shape:
                raise InternalError(
                    f"a tile of layer {layer.name!r} ({layer.op}) makes {list(result.shape)},"
                    f" its place holds {list(held.shape)}",
                    details=where,
                )
            held[...] = result

    def _part(self, x: Tile, layer: IntLayer) -> tuple[IntLayer, ExactKernels]:
        """Return the layer that computes a tile, and the kernels that know its weights."""
        values = self.graph.values
        reads = tuple(
            tuple((0, 0) for _ in values[n].type.shape) if o is None else o.box
            for n, o in zip(layer.inputs, x.inputs, strict=True)
        )
        box = x.box
        key = (x.layer, box, reads)
        found = self._parts.get(key)
        if found is None:
            shapes = {n: values[n].type.shape for n in (*layer.inputs, *layer.outputs) if n}
            all_of = box == whole(shapes[layer.outputs[0]]) and all(
                r == whole(shapes[n]) for n, r in zip(layer.inputs, reads, strict=True)
            )
            part = layer
            if not all_of:
                part = self._specs[layer.op].part(layer, box, reads, shapes)
                self._share_weights(part, layer, x)
            same = (x.layer, x.part)
            kernels = self._kernels_of.setdefault(same, ExactKernels(self._threads))
            found = self._parts[key] = (part, kernels)
        return found

    def _share_weights(self, part: IntLayer, layer: IntLayer, x: Tile) -> None:
        """Let tiles of one part of the weights share it."""
        weight = part.tensors.get("weight")
        if weight is None:
            return
        if weight.shape == layer.tensors["weight"].shape:
            part.tensors["weight"] = layer.tensors["weight"]
            return
        for (index, *_), (other, _) in self._parts.items():
            if index != x.layer or other.tensors["weight"].shape != weight.shape:
                continue
            if np.array_equal(other.tensors["weight"], weight):
                part.tensors["weight"] = other.tensors["weight"]
                return


class _Memory:
    """External memory and each core's own, for one inference."""

    def __init__(self, program: Program, layouts: Mapping[str, Any], graph: IntGraph) -> None:
        self._program, self._layouts, self._graph = program, layouts, graph
        self._external: Bytes = np.zeros(max(1, program.external_size), dtype=np.uint8)
        self._chip: list[Bytes] = [
            np.zeros(max(1, program.chip_size), dtype=np.uint8) for _ in program.streams
        ]

    def whole(self, tensor: str) -> Array:
        """Return all of a tensor in external memory, in logical order."""
        box = whole(self._layouts[tensor].shape)
        return self.view(0, Operand(tensor, box, EXTERNAL, box))

    def view(self, core: int, x: Operand) -> Array:
        """Return an operand's elements in logical order, as a view of memory."""
        layout = self._layouts[x.tensor]
        if x.buffer == EXTERNAL:
            memory, frame = self._external, whole(layout.shape)
            offset = self._program.external[self._program.root(x.tensor)].offset
        else:
            memory, frame = self._chip[core], x.frame
            offset = self._program.chip[x.buffer].offset
        alignment = self._program.channel_alignment
        stored: Array = np.ndarray(
            layout.stored(frame),
            self._graph.values[x.tensor].type.dtype.numpy,
            memory.data,
            offset,
            layout.strides(frame, alignment),
        )
        order = np.argsort(layout.storage) if layout.storage else ()
        return stored.transpose(order)[slices(shifted(x.box, frame))]

    def sums(
        self, core: int, buffer: int, shape: tuple[int, ...], layer: IntLayer
    ) -> NDArray[np.signedinteger[Any]]:
        """Return partial sums as a view of memory."""
        wide = layer.tensors["bias"].dtype.itemsize > 4
        offset = self._program.chip[buffer].offset
        dtype = np.dtype(np.int64 if wide else np.int32)
        return np.ndarray(shape, dtype, self._chip[core].data, offset)


def _move(core: int, x: Instruction, memory: _Memory) -> None:
    if isinstance(x, Load):
        target = x.target
        outside = Operand(target.tensor, target.box, EXTERNAL, target.frame)
        memory.view(core, target)[...] = memory.view(core, outside)
    elif isinstance(x, Store):
        source = x.source
        outside = Operand(source.tensor, source.box, EXTERNAL, source.frame)
        memory.view(core, outside)[...] = memory.view(core, source)
    elif isinstance(x, Copy):
        target = x.target
        there = Operand(target.tensor, target.box, x.buffer, x.frame)
        memory.view(core, target)[...] = memory.view(x.core, there)


def _order(
    streams: Sequence[Sequence[Instruction]], backwards: bool
) -> list[tuple[int, Instruction]]:
    """Return all instructions in the order they are executed: up to each barrier, core by core."""
    found: list[tuple[int, Instruction]] = []
    at = [0] * len(streams)
    cores = list(range(len(streams)))
    if backwards:
        cores.reverse()
    while any(i < len(s) for i, s in zip(at, streams, strict=True)):
        for core in cores:
            stream = streams[core]
            while at[core] < len(stream) and not isinstance(stream[at[core]], Sync):
                found.append((core, stream[at[core]]))
                at[core] += 1
            at[core] += 1
    return found
