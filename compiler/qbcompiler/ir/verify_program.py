"""Check a program: is every byte that is read the one that was meant to be there?

The instructions are followed as the device does them, each memory's contents by name: which box of
which tensor lies where. Between two barriers cores run in any order, so there no core may touch
what another one writes. The checker knows nothing of how a program was made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .boxes import Box, contains, covers, intersect, whole
from .program import (
    EXTERNAL,
    Copy,
    Fetch,
    Instruction,
    Layouts,
    Load,
    Operand,
    Place,
    Program,
    Store,
    Sync,
    Tile,
    layouts_of,
)
from .quantized import IntGraph

__all__ = ["Fault", "verify_program"]

_MOST = 100


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with a program.

    Attributes:
        kind: ``out of bounds``, ``read before written``, ``overwritten while live``, ``missing
            synchronisation`` or ``incomplete``.
        core, index: where: the instruction of a core's stream; -1 for the program as a whole.
        text: what.
    """

    kind: str
    core: int
    index: int
    text: str

    def __str__(self) -> str:
        where = "" if self.index < 0 else f"core {self.core}, instruction {self.index}: "
        return f"{where}{self.kind}: {self.text}"


@dataclass(slots=True)
class _Content:
    """What a buffer holds."""

    what: object
    frame: Box | None
    boxes: list[Box] = field(default_factory=list)
    lost: str = ""


Key = tuple[int, int | str]
"""A core and its buffer, or -1 and a tensor in external memory."""


def verify_program(program: Program, graph: IntGraph) -> list[Fault]:
    """Return the faults of a program for a graph; none where it computes what the graph says.

    At most 100 are returned, those of the earliest instructions.
    """
    return _Checker(program, graph).run()


class _Checker:
    def __init__(self, program: Program, graph: IntGraph) -> None:
        self.p, self.graph = program, graph
        self.layouts: Layouts = layouts_of(graph)
        self.faults: list[Fault] = []
        self.contents: dict[Key, _Content] = {}
        self.core = self.index = 0
        self._near: list[list[int]] = [
            [j for j, b in enumerate(program.chip) if j != i and _overlap(a, b)]
            for i, a in enumerate(program.chip)
        ]
        self._near_outside = {
            n: [m for m, b in program.external.items() if m != n and _overlap(a, b)]
            for n, a in program.external.items()
        }
        # since the last barrier: place -> core, box or None for all of it, whether written
        self._epoch: dict[Key, list[tuple[int, str, Box | None, bool]]] = {}

    def run(self) -> list[Fault]:
        """Follow all instructions."""
        if not self._places():
            return self.faults
        for name in self.graph.inputs:
            root = self.p.root(name)
            self.contents[EXTERNAL, root] = _Content(root, None, [whole(self._shape(root))])
        for epoch in self._epochs():
            self._epoch = {}
            for core, index, x in epoch:
                self.core, self.index = core, index
                self._instruction(x)
                if len(self.faults) >= _MOST:
                    return self.faults
        self.core = self.index = -1
        self._epoch = {}  # the host reads when all cores are done
        for name in self.graph.outputs:
            self._outside_read(name, whole(self._shape(name)))
        return self.faults

    def _places(self) -> bool:
        p = self.p
        if [layer.name for layer in self.graph.layers] != p.layers:
            self._fault("incomplete", "its layers are not those of the graph", whole=True)
            return False
        for i, b in enumerate(p.chip):
            if b.offset + b.size > p.on_chip:
                self._fault("out of bounds", f"buffer {i} ends behind on-chip memory", whole=True)
        for name, b in p.external.items():
            if name not in self.layouts:
                self._fault("incomplete", f"{name!r} is not a tensor of the graph", whole=True)
                return False
            if b.offset + b.size > p.external_size:
                self._fault("out of bounds", f"{name!r} ends behind external memory", whole=True)
            if self._bytes(name, whole(self._shape(name))) > b.size:
                self._fault("out of bounds", f"{name!r} does not fit its place", whole=True)
        for name, root in p.aliases.items():
            if name not in self.layouts or root not in self.layouts:
                self._fault("incomplete", f"{name!r} is not a tensor of the graph", whole=True)
                return False
        for name in (*self.graph.inputs, *self.graph.outputs):
            if p.root(name) not in p.external:
                self._fault("incomplete", f"{name!r} has no place outside", whole=True)
                return False
        return not self.faults

    def _epochs(self) -> Iterator[list[tuple[int, int, Instruction]]]:
        marks = [[i for i, x in enumerate(s) if isinstance(x, Sync)] for s in self.p.streams]
        if len({len(m) for m in marks}) > 1:
            self._fault("missing synchronisation", "cores have different numbers of barriers",
                        whole=True)  # fmt: skip
            return
        for k in range(len(marks[0]) + 1):
            epoch = []
            for core, (stream, at) in enumerate(zip(self.p.streams, marks, strict=True)):
                first = at[k - 1] + 1 if k else 0
                last = at[k] if k < len(at) else len(stream)
                epoch += [(core, i, stream[i]) for i in range(first, last)]
            yield epoch

    # -- instructions ----------------------------------------------------------------------

    def _instruction(self, x: Instruction) -> None:
        if isinstance(x, Load):
            self._outside_read(x.target.tensor, x.target.box)
            self._write(x.target)
        elif isinstance(x, Store):
            self._read(x.source)
            self._outside_write(x.source.tensor, x.source.box)
        elif isinstance(x, Copy):
            source = Operand(x.target.tensor, x.target.box, x.buffer, x.frame)
            if x.core >= len(self.p.streams):
                self._fault("out of bounds", f"there is no core {x.core}")
                return
            self._read(source, x.core)
            self._write(x.target)
        elif isinstance(x, Fetch):
            if x.size > self.p.chip[x.buffer].size:
                self._fault("out of bounds", f"{x.size} bytes do not fit buffer {x.buffer}")
            self._fill(x.buffer, _Content((x.layer, x.part), None))
        elif isinstance(x, Tile):
            self._tile(x)

    def _tile(self, x: Tile) -> None:
        layer = self.graph.layers[x.layer]
        names = [n for n in layer.inputs if n]
        outputs = [n for n in layer.outputs if n] if x.last else []
        if [None if o is None else o.tensor for o in x.inputs] != [
            None if o is None else n for n, o in zip(names, x.inputs, strict=False)
        ] or len(names) != len(x.inputs):
            self._fault("incomplete", f"the inputs are not those of layer {layer.name!r}")
            return
        if [o.tensor for o in x.outputs] != outputs:
            self._fault("incomplete", f"the outputs are not those of layer {layer.name!r}")
            return
        if x.outputs and x.outputs[0].box != x.box:
            self._fault("incomplete", f"a tile of layer {layer.name!r} makes another box")
        for operand in x.inputs:
            if operand is not None:
                self._read(operand)
        if x.weights != EXTERNAL:
            found = self._content(x.weights, self.core, f"the constants of layer {layer.name!r}")
            if found is not None and found.what != (x.layer, x.part):
                self._fault("read before written", f"buffer {x.weights} holds other constants")
        if x.sums is not None:
            what = ("sums", x.layer, x.part and x.part[:2])
            if x.first:
                self._fill(x.sums, _Content(what, None))
            else:
                found = self._content(x.sums, self.core, f"the sums of layer {layer.name!r}")
                if found is not None and found.what != what:
                    self._fault("read before written", f"buffer {x.sums} holds other sums")
        for operand in x.outputs:
            self._write(operand)

    # -- contents --------------------------------------------------------------------------

    def _read(self, x: Operand, core: int | None = None) -> None:
        if x.buffer == EXTERNAL:
            self._outside_read(x.tensor, x.box)
            return
        owner = self.core if core is None else core
        if not self._in_bounds(x):
            return
        self._touch((owner, x.buffer), x.tensor, x.box, written=False)
        found = self._content(x.buffer, owner, f"{x.tensor!r}")
        if found is None:
            return
        if found.what == x.tensor:
            fits, box = found.frame == x.frame, x.box
        else:
            # under another name a tensor is read whole, for the boxes are not the same
            name = found.what if isinstance(found.what, str) else ""
            fits = name in self.layouts and self.p.root(name) == self.p.root(x.tensor)
            box = whole(self._shape(name)) if fits else x.box
            fits = fits and found.frame == box
        if not fits:
            self._fault("read before written", f"buffer {x.buffer} does not hold {x.tensor!r}")
        elif not covers(found.boxes, box):
            self._fault("read before written", f"part of {x.tensor!r} in buffer {x.buffer}")

    def _write(self, x: Operand) -> None:
        if x.buffer == EXTERNAL:
            self._outside_write(x.tensor, x.box)
            return
        if not self._in_bounds(x):
            return
        found = self.contents.get((self.core, x.buffer))
        same = found is not None and not found.lost
        if found is not None and same and found.what == x.tensor and found.frame == x.frame:
            self._touch((self.core, x.buffer), x.tensor, x.box, written=True)
            found.boxes.append(x.box)
            return
        self._fill(x.buffer, _Content(x.tensor, x.frame, [x.box]), x)

    def _fill(self, buffer: int, content: _Content, x: Operand | None = None) -> None:
        self._touch((self.core, buffer), x.tensor if x else "", x.box if x else None, written=True)
        self.contents[self.core, buffer] = content
        for other in self._near[buffer]:
            held = self.contents.get((self.core, other))
            if held is not None:
                held.lost = f"buffer {buffer}"
                self._touch((self.core, other), "", None, written=True)

    def _content(self, buffer: int, core: int, what: str) -> _Content | None:
        found = self.contents.get((core, buffer))
        if found is None:
            self._fault("read before written", f"{what} in buffer {buffer}")
        elif found.lost:
            self._fault("overwritten while live", f"{what} in buffer {buffer}, by {found.lost}")
            return None
        return found

    def _outside_read(self, tensor: str, box: Box) -> None:
        root = self.p.root(tensor)
        if root not in self.p.external or not self._in_tensor(tensor, box):
            self._fault("out of bounds", f"{tensor!r} has no such place outside")
            return
        self._touch((EXTERNAL, root), tensor, box, written=False)
        found = self.contents.get((EXTERNAL, root))
        if found is None:
            self._fault("read before written", f"{tensor!r} in external memory")
        elif found.lost:
            self._fault("overwritten while live", f"{tensor!r} outside, by {found.lost!r}")
        elif not covers(found.boxes, box if tensor == root else whole(self._shape(root))):
            self._fault("read before written", f"part of {tensor!r} in external memory")

    def _outside_write(self, tensor: str, box: Box) -> None:
        if tensor not in self.p.external or not self._in_tensor(tensor, box):
            self._fault("out of bounds", f"{tensor!r} has no such place outside")
            return
        self._touch((EXTERNAL, tensor), tensor, box, written=True)
        found = self.contents.setdefault((EXTERNAL, tensor), _Content(tensor, None))
        if found.lost:
            found = self.contents[EXTERNAL, tensor] = _Content(tensor, None)
        found.boxes.append(box)
        for other in self._near_outside[tensor]:
            held = self.contents.get((EXTERNAL, other))
            if held is not None and not held.lost:
                held.lost = tensor
            self._touch((EXTERNAL, other), "", None, written=True)

    # -- bounds and barriers ---------------------------------------------------------------

    def _in_bounds(self, x: Operand) -> bool:
        fits = (
            self._in_tensor(x.tensor, x.frame)
            and len(x.box) == len(x.frame)
            and contains(x.frame, x.box)
            and self._bytes(x.tensor, x.frame) <= self.p.chip[x.buffer].size
        )
        if not fits:
            self._fault("out of bounds", f"{x.tensor!r} in buffer {x.buffer}")
        return fits

    def _in_tensor(self, tensor: str, box: Box) -> bool:
        if tensor not in self.layouts:
            return False
        shape = self._shape(tensor)
        return len(box) == len(shape) and contains(whole(shape), box)

    def _shape(self, tensor: str) -> tuple[int, ...]:
        return self.layouts[tensor].shape

    def _bytes(self, tensor: str, frame: Box) -> int:
        return self.layouts[tensor].size(frame, self.p.channel_alignment)

    def _touch(self, key: Key, tensor: str, box: Box | None, *, written: bool) -> None:
        """Note an access, and whether another core's conflicts with it."""
        if len(self.p.streams) == 1:
            return
        seen = self._epoch.setdefault(key, [])
        for core, tensor2, box2, written2 in seen:
            if core == self.core or not (written or written2):
                continue
            if not tensor and not tensor2:
                continue  # both write over what lies there: they are compared as neighbours
            apart = (
                box is not None
                and box2 is not None
                and tensor == tensor2
                and intersect(box, box2) is None
            )
            if not apart:
                place = f"core {key[0]}'s buffer {key[1]}" if key[0] >= 0 else f"{key[1]!r} outside"
                self._fault("missing synchronisation", f"core {core} uses {place} at that time")
                break
        entry = (self.core, tensor, box, written)
        if entry not in seen[-4:]:
            seen.append(entry)

    def _fault(self, kind: str, text: str, *, whole: bool = False) -> None:
        core, index = (-1, -1) if whole else (self.core, self.index)
        self.faults.append(Fault(kind, core, index, text))


def _overlap(a: Place, b: Place) -> bool:
    return a.offset < b.offset + b.size and b.offset < a.offset + a.size
