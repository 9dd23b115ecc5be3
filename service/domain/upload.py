"""Uploads in parts: a large file on its way in, resumable after either side died."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

__all__ = ["MAX_PARTS", "Upload", "UploadState", "part_size_of"]

MAX_PARTS = 10_000
"""Most parts of one upload; S3's own bound."""

_MIB = 1 << 20


class UploadState(StrEnum):
    """Where an upload is. The last two are final."""

    OPEN = "open"
    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that is announced by size and digest, and comes in parts of equal size.

    ``parts`` maps the numbers of the parts held, from 1, to their sizes; ``marks`` to texts that
    are others each time that a part is written. Both only of parts that the database lists.
    """

    id: str
    project: str
    name: str | None
    size: int
    sha256: str
    part_size: int
    state: UploadState
    staging: str | None
    """What the object store calls the unfinished file, if it has a name of its own for it."""
    already_present: bool
    created_at: datetime
    expires_at: datetime
    finished_at: datetime | None
    parts: Mapping[int, int]
    marks: Mapping[int, str]

    @property
    def part_count(self) -> int:
        """How many parts there are."""
        return max(1, -(-self.size // self.part_size))

    def size_of(self, number: int) -> int:
        """Return the size of a part, counted from 1; every one but the last is ``part_size``."""
        return min(self.part_size, self.size - (number - 1) * self.part_size)

    def missing(self, held: Mapping[int, int]) -> list[int]:
        """Return the numbers of the parts that are not held whole."""
        return [n for n in range(1, self.part_count + 1) if held.get(n) != self.size_of(n)]


def part_size_of(size: int, least: int) -> int:
    """Return the part size for a file: ``least``, or whole MiB so that the parts are few enough."""
    if size <= least * MAX_PARTS:
        return least
    return -(-size // (MAX_PARTS * _MIB)) * _MIB
