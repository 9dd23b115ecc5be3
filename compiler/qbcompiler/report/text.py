"""Plain-text tables, safe to print."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["clean", "table"]

_WIDEST = 80


def clean(value: object) -> str:
    """Return one printable line: control characters of a model's names stay out of terminals."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a left-aligned table; long cells are cut in the middle."""
    cells = [[_cut(clean(c)) for c in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in cells]
    lines.insert(1, "  ".join("-" * w for w in widths))
    return lines


def _cut(text: str) -> str:
    if len(text) <= _WIDEST:
        return text
    half = (_WIDEST - 1) // 2
    return f"{text[:half]}…{text[-half:]}"
