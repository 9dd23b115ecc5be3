"""Plain text for a terminal, safe to print."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

__all__ = ["clean", "table", "wrapped"]

_WIDEST = 80
_NARROWEST = 8


def clean(value: object) -> str:
    """Return one printable line: control characters of a model's names stay out of terminals."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    width: int | None = None,
    right: Sequence[int] = (),
    shrink: Sequence[int] = (0,),
) -> list[str]:
    """Return the lines of a table; long cells are cut in the middle.

    Args:
        head, rows: cells.
        width: columns to fit into; None for any number.
        right: columns of numbers, aligned to the right.
        shrink: columns that are cut where the table is too wide, the first one first.
    """
    cells = [[_cut(clean(c), _WIDEST) for c in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    excess = sum(widths) + 2 * (len(widths) - 1) - width if width is not None else 0
    for column in shrink:
        least = max(min(widths[column], _NARROWEST), len(head[column]))
        taken = min(max(excess, 0), widths[column] - least)
        widths[column] -= taken
        excess -= taken
    lines = []
    for row in cells:
        parts = [
            _cut(c, w).rjust(w) if i in right else _cut(c, w).ljust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(parts).rstrip())
    lines.insert(1, "  ".join("-" * w for w in widths))
    return lines


def wrapped(lead: str, text: object, width: int = 80) -> list[str]:
    """Return ``text`` in lines after ``lead``, the further ones indented as far."""
    return textwrap.wrap(
        clean(text),
        width=max(width, len(lead) + 20),
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_on_hyphens=False,
    ) or [lead.rstrip()]


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    first = width // 2
    return f"{text[:first]}…{text[len(text) - (width - 1 - first) :]}"
