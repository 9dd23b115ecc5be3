"""Where cores that share an input must wait for each other.

A barrier stands before a step that would read what another core has written since the last one, or
overwrite what another core may still be reading or writing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..ir.boxes import Box, intersect
from ..ir.program import EXTERNAL, Copy, Fetch, Instruction, Load, Operand, Place, Store, Sync, Tile

__all__ = ["with_barriers"]

Outside = tuple[int, str, str, Box, bool]
"""Core, place, tensor, box, whether it is written."""


@dataclass(slots=True)
class _Seen:
    """Accesses that another core may see."""

    outside: set[Outside] = field(default_factory=set)
    written: set[tuple[int, int]] = field(default_factory=set)  # core, buffer
    fetched: set[tuple[int, int, int]] = field(default_factory=set)  # reader, core, buffer

    def add(self, other: _Seen) -> None:
        """Take in the accesses of another step."""
        self.outside |= other.outside
        self.written |= other.written
        self.fetched |= other.fetched


def with_barriers(
    steps: Sequence[Sequence[list[Instruction]]],
    chip: Sequence[Place],
    external: Mapping[str, Place],
    aliases: Mapping[str, str],
) -> list[list[list[Instruction]]]:
    """Return the steps' instructions, by core, with a barrier before each step that needs one."""
    touching = [
        {j for j, b in enumerate(chip) if _overlap(a, b)} for a in chip
    ]  # buffers that share bytes
    since = _Seen()
    found: list[list[list[Instruction]]] = []
    for streams in steps:
        now = _Seen()
        for core, stream in enumerate(streams):
            for x in stream:
                _note(now, core, x, aliases)
        if _conflict(since, now, touching, external):
            found.append([[Sync(), *s] for s in streams])
            since = now
        else:
            found.append([list(s) for s in streams])
            since.add(now)
    return found


def _overlap(a: Place, b: Place) -> bool:
    return a.offset < b.offset + b.size and b.offset < a.offset + a.size


def _note(seen: _Seen, core: int, x: Instruction, aliases: Mapping[str, str]) -> None:
    def outside(operand: Operand, written: bool) -> None:
        root = aliases.get(operand.tensor, operand.tensor)
        seen.outside.add((core, root, operand.tensor, operand.box, written))

    if isinstance(x, Load):
        outside(x.target, False)
        seen.written.add((core, x.target.buffer))
    elif isinstance(x, Store):
        outside(x.source, True)
    elif isinstance(x, Copy):
        seen.written.add((core, x.target.buffer))
        if x.core != core:
            seen.fetched.add((core, x.core, x.buffer))
    elif isinstance(x, Fetch):
        seen.written.add((core, x.buffer))
    elif isinstance(x, Tile):
        for operand in x.inputs:
            if operand is not None and operand.buffer == EXTERNAL:
                outside(operand, False)
        for operand in x.outputs:
            if operand.buffer == EXTERNAL:
                outside(operand, True)
            else:
                seen.written.add((core, operand.buffer))
        if x.sums is not None:
            seen.written.add((core, x.sums))


def _conflict(
    since: _Seen, now: _Seen, touching: Sequence[set[int]], external: Mapping[str, Place]
) -> bool:
    for _, core, buffer in now.fetched:
        if any((core, b) in since.written for b in touching[buffer]):
            return True
    for _, core, buffer in since.fetched:
        if any((core, b) in now.written for b in touching[buffer]):
            return True
    for core, root, tensor, box, written in now.outside:
        for core2, root2, tensor2, box2, written2 in since.outside:
            if core == core2 or not (written or written2):
                continue
            if root != root2:
                if _overlap(external[root], external[root2]):
                    return True
            elif tensor != tensor2 or intersect(box, box2) is not None:
                return True
    return False
