"""A program as JSON: short rows of integers, boxes and names in tables.

Every instruction is one row; the first number tells its kind. An operand is four numbers: tensor,
box, buffer (-1 for external memory), frame. The form is specified in ``docs/formats.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.boxes import Box
from ..ir.program import (
    EXTERNAL,
    Copy,
    Fetch,
    Instruction,
    Load,
    Operand,
    Place,
    Program,
    Store,
    Sync,
    Tile,
)
from .formats import MAX_DIMENSION, MAX_ITEMS, MAX_NAME, MAX_RANK
from .json_io import Fields

__all__ = ["program_to_json", "read_program"]

SYNC, LOAD, STORE, COPY, FETCH, TILE = range(6)
_NONE = -1
_MAX_BYTES = 1 << 48
_MAX_CORES = 1024
_SPLITS = ("none", "rows", "channels")


class _Tables:
    """Names and boxes by number, in the order of first use."""

    def __init__(self) -> None:
        self.tensors: dict[str, int] = {}
        self.boxes: dict[Box, int] = {}
        self.parts: dict[tuple[int, int, int, int], int] = {}

    def operand(self, x: Operand) -> list[int]:
        tensor = self.tensors.setdefault(x.tensor, len(self.tensors))
        return [tensor, self.box(x.box), x.buffer, self.box(x.frame)]

    def box(self, box: Box) -> int:
        return self.boxes.setdefault(box, len(self.boxes))

    def part(self, part: tuple[int, int, int, int] | None) -> int:
        return _NONE if part is None else self.parts.setdefault(part, len(self.parts))

    def row(self, x: Instruction) -> list[int]:
        """Return an instruction as a row."""
        if isinstance(x, Sync):
            return [SYNC]
        if isinstance(x, Load):
            return [LOAD, x.layer, int(x.shared), *self.operand(x.target)]
        if isinstance(x, Store):
            return [STORE, x.layer, *self.operand(x.source)]
        if isinstance(x, Copy):
            return [COPY, x.layer, x.core, x.buffer, self.box(x.frame), *self.operand(x.target)]
        if isinstance(x, Fetch):
            return [FETCH, x.layer, int(x.shared), self.part(x.part), x.buffer, x.size]
        sums = _NONE if x.sums is None else x.sums
        flags = int(x.first) + 2 * int(x.last)
        row = [TILE, x.layer, x.cycles, self.box(x.box), x.weights, self.part(x.part), sums, flags]
        row.append(len(x.inputs))
        for operand in x.inputs:
            row += [_NONE] * 4 if operand is None else self.operand(operand)
        for operand in x.outputs:
            row += self.operand(operand)
        return row


def program_to_json(program: Program) -> dict[str, Any]:
    """Return the JSON form of a program."""
    tables = _Tables()
    for name in program.external:
        tables.tensors.setdefault(name, len(tables.tensors))
    streams = [[tables.row(x) for x in stream] for stream in program.streams]
    return {
        "scheme": program.scheme,
        "cores": program.cores,
        "batch": program.batch,
        "on_chip_bytes": program.on_chip,
        "alignment_bytes": program.alignment,
        "channel_alignment": program.channel_alignment,
        "external_bytes": program.external_size,
        "chip_bound": program.chip_bound,
        "external_bound": program.external_bound,
        "layers": list(program.layers),
        "splits": [_SPLITS.index(s) for s in program.splits],
        "aliases": dict(program.aliases),
        "external": [[n, *_place(p)] for n, p in program.external.items()],
        "chip": [_place(p) for p in program.chip],
        "tensors": list(tables.tensors),
        "boxes": [[v for span in box for v in span] for box in tables.boxes],
        "parts": [list(p) for p in tables.parts],
        "streams": streams,
    }


def _place(place: Place) -> list[int]:
    return [place.offset, place.size, place.first, place.last]


def read_program(fields: Fields) -> Program:
    """Rebuild a program from its JSON form.

    Only its form is checked; :func:`~qbcompiler.ir.verify_program.verify_program` tells whether it
    is a program of a graph.

    Raises:
        FormatError: anything is not as it must be.
    """
    reader = _Reader(fields)
    external: dict[str, Place] = {}
    for row in fields.array("external", MAX_ITEMS):
        if not isinstance(row, list) or len(row) != 5 or not isinstance(row[0], str):
            fields.fail("'external' must hold rows of a name and four integers")
        if row[0] in external:
            fields.fail(f"tensor {row[0][:200]!r} has two places")
        external[row[0]] = reader.place(row[1:])
    aliases = fields.mapping("aliases")
    for name, root in aliases.items():
        if not isinstance(root, str) or root in aliases:
            fields.fail(f"{name[:200]!r} is another name of nothing that has a place")
    splits = fields.integers("splits", MAX_ITEMS, 0, len(_SPLITS) - 1)
    layers = fields.texts("layers", MAX_ITEMS, MAX_NAME)
    if len(splits) != len(layers):
        fields.fail("'splits' must have a number for each layer")
    program = Program(
        scheme=fields.text("scheme", 64),
        cores=fields.integer("cores", 1, _MAX_CORES),
        batch=fields.integer("batch", 1, _MAX_CORES),
        on_chip=fields.integer("on_chip_bytes", 1, _MAX_BYTES),
        alignment=fields.integer("alignment_bytes", 1, 1 << 20),
        channel_alignment=fields.integer("channel_alignment", 1, 1 << 20),
        layers=layers,
        external_size=fields.integer("external_bytes", 0, _MAX_BYTES),
        external=external,
        aliases=aliases,
        chip=[reader.place(row) for row in fields.array("chip", MAX_ITEMS)],
        streams=reader.streams(),
        chip_bound=fields.integer("chip_bound", 0, _MAX_BYTES),
        external_bound=fields.integer("external_bound", 0, _MAX_BYTES),
        splits=[_SPLITS[i] for i in splits],
    )
    streams = 1 if program.batch > 1 else program.cores
    if program.batch not in (1, program.cores) or len(program.streams) != streams:
        fields.fail("cores, batch and streams do not fit one another")
    return program


class _Reader:
    """Rows of integers as instructions."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._tensors = fields.texts("tensors", MAX_ITEMS, MAX_NAME)
        self._boxes = [self._box(row) for row in fields.array("boxes", MAX_ITEMS)]
        self._parts = [self._part(row) for row in fields.array("parts", MAX_ITEMS)]
        self._layers = len(fields.array("layers", MAX_ITEMS))
        self._chip = len(fields.array("chip", MAX_ITEMS))

    def _numbers(self, row: Any, count: int | None, limit: int) -> list[int]:
        if not isinstance(row, list) or (count is not None and len(row) != count):
            self._fields.fail("a row has a wrong number of integers")
        for v in row:
            if not isinstance(v, int) or isinstance(v, bool) or not -1 <= v <= limit:
                self._fields.fail("a row holds something else than integers of its range")
        return row

    def place(self, row: Any) -> Place:
        """Return a buffer's place."""
        numbers = self._numbers(row, 4, _MAX_BYTES)
        if min(numbers) < 0 or numbers[1] == 0:
            self._fields.fail("a buffer is empty or begins before memory")
        return Place(*numbers)

    def _box(self, row: Any) -> Box:
        numbers = self._numbers(row, None, MAX_DIMENSION)
        if len(numbers) % 2 or len(numbers) > 2 * MAX_RANK:
            self._fields.fail("a box has a wrong number of integers")
        pairs = tuple(zip(numbers[::2], numbers[1::2], strict=True))
        if any(a < 0 or b <= a for a, b in pairs):
            self._fields.fail("a box is empty")
        return pairs

    def _part(self, row: Any) -> tuple[int, int, int, int]:
        a, b, c, d = self._numbers(row, 4, MAX_DIMENSION)
        if not (0 <= a < b and 0 <= c < d):
            self._fields.fail("a part of weights is empty")
        return (a, b, c, d)

    def _pick(self, table: Sequence[Any], index: int) -> Any:
        if not 0 <= index < len(table):
            self._fields.fail("a row points outside its table")
        return table[index]

    def _layer(self, index: int) -> int:
        if not 0 <= index < self._layers:
            self._fields.fail("a row names no layer")
        return index

    def _buffer(self, index: int, *, external: bool = False) -> int:
        if not (0 if not external else EXTERNAL) <= index < self._chip:
            self._fields.fail("a row names no buffer")
        return index

    def _operand(self, row: Sequence[int], *, external: bool = False) -> Operand:
        tensor, box, buffer, frame = row
        return Operand(
            self._pick(self._tensors, tensor),
            self._pick(self._boxes, box),
            self._buffer(buffer, external=external),
            self._pick(self._boxes, frame),
        )

    def streams(self) -> list[list[Instruction]]:
        """Return the instructions of each core."""
        found: list[list[Instruction]] = []
        for stream in self._fields.array("streams", _MAX_CORES):
            if not isinstance(stream, list):
                self._fields.fail("a stream is not a list")
            found.append([self._instruction(self._numbers(r, None, _MAX_BYTES)) for r in stream])
        return found

    def _instruction(self, row: list[int]) -> Instruction:
        kind, rest = (row[0], row[1:]) if row else (_NONE, [])
        if kind == TILE and len(rest) >= 8:
            return self._tile(rest)
        if len(rest) != {SYNC: 0, LOAD: 6, STORE: 5, COPY: 8, FETCH: 5}.get(kind, -1):
            self._fields.fail("a row is no instruction")
        if kind == SYNC:
            return Sync()
        layer = self._layer(rest[0])
        if kind == LOAD:
            return Load(layer, self._operand(rest[2:]), rest[1] == 1)
        if kind == STORE:
            return Store(layer, self._operand(rest[1:]))
        if kind == COPY:
            frame = self._pick(self._boxes, rest[3])
            target = self._operand(rest[4:])
            return Copy(layer, target, max(rest[1], 0), self._buffer(rest[2]), frame)
        part = None if rest[2] == _NONE else self._pick(self._parts, rest[2])
        return Fetch(layer, part, self._buffer(rest[3]), max(rest[4], 0), rest[1] == 1)

    def _tile(self, rest: list[int]) -> Tile:
        layer, cycles, box, weights, part, sums, flags, count = rest[:8]
        operands = rest[8:]
        if count < 0 or len(operands) % 4 or 4 * count > len(operands):
            self._fields.fail("a tile has a wrong number of operands")
        rows = [operands[i : i + 4] for i in range(0, len(operands), 4)]
        inputs = tuple(
            None if row[0] == _NONE else self._operand(row, external=True) for row in rows[:count]
        )
        outputs = tuple(self._operand(row, external=True) for row in rows[count:])
        return Tile(
            self._layer(layer),
            max(cycles, 0),
            self._pick(self._boxes, box),
            inputs,
            outputs,
            self._buffer(weights, external=True),
            None if part == _NONE else self._pick(self._parts, part),
            None if sums == _NONE else self._buffer(sums),
            bool(flags & 1),
            bool(flags & 2),
        )
