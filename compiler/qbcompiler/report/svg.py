"""The plots of a report, as SVG inside the page; colours are the page's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["choice_plot", "error_plot", "histogram"]

_WIDTH, _HEIGHT, _MARGIN = 960, 220, 36
_CEILING = 80.0


def error_plot(layers: Sequence[Mapping[str, Any]]) -> str:
    """Return the SQNR of each layer in execution order: its own as bars, accumulated as a line."""
    values = [x[k] or 0.0 for x in layers for k in ("sqnr_db", "own_sqnr_db")]
    top = max(10.0, *(min(v, _CEILING) for v in values))
    inner, base = _WIDTH - 2 * _MARGIN, _HEIGHT - _MARGIN
    step = inner / len(layers)

    def y(value: float | None) -> float:
        return base - min(max(value or 0.0, 0.0), top) / top * (base - 12)

    shapes = [_rule(y(tick), str(tick)) for tick in range(0, int(top) + 1, 20)]
    points = []
    for i, layer in enumerate(layers):
        x = _MARGIN + i * step
        own, name = y(layer["own_sqnr_db"]), escape(layer["name"], quote=True)
        label = f"{name} ({escape(layer['op'])}): {layer['sqnr_db']} dB, own {layer['own_sqnr_db']}"
        shapes.append(
            f'<rect x="{x + step * 0.1:.1f}" y="{own:.1f}" width="{max(step * 0.8, 0.5):.1f}"'
            f' height="{base - own:.1f}" fill="var(--own)" opacity=".75"><title>{label} dB</title>'
            "</rect>"
        )
        points.append(f"{x + step / 2:.1f},{y(layer['sqnr_db']):.1f}")
    shapes.append(_line(points))
    return _figure(
        shapes,
        "SQNR of each layer",
        "SQNR in dB, layers in execution order. Bars: what the layer itself adds to exact inputs."
        " Line: all error up to there.",
    )


def choice_plot(found: Mapping[str, Any]) -> str:
    """Return the accuracy that ``bit.auto`` expected and measured, over the share at 16 bits."""
    steps = found["steps"]
    if not steps:
        return ""
    measured = [
        (steps[m["steps"] - 1]["share"] if m["steps"] else 0.0, m["sqnr_db"])
        for m in found["measured"]
    ]
    dbs = [min(s["predicted_db"], _CEILING) for s in steps] + [m[1] for m in measured]
    top: float = max(10.0, *dbs, found["target_sqnr"] or 0.0)
    widest: float = max(1e-9, *(s["share"] for s in steps))
    inner, base = _WIDTH - 2 * _MARGIN, _HEIGHT - _MARGIN

    def x(share: float) -> float:
        return _MARGIN + share / widest * inner

    def y(value: float) -> float:
        return base - min(max(value, 0.0), top) / top * (base - 12)

    shapes = [_rule(y(tick), str(tick)) for tick in range(0, int(top) + 1, 10)]
    if found["target_sqnr"] is not None:
        level = y(found["target_sqnr"])
        shapes.append(
            f'<line x1="{_MARGIN}" x2="{_WIDTH - _MARGIN}" y1="{level:.1f}" y2="{level:.1f}"'
            ' stroke="var(--soft)" stroke-dasharray="5 4"/>'
        )
    shapes.append(_line([f"{x(s['share']):.1f},{y(s['predicted_db']):.1f}" for s in steps]))
    for share, value in measured:
        shapes.append(
            f'<circle cx="{x(share):.1f}" cy="{y(value):.1f}" r="5" fill="var(--own)">'
            f"<title>{share:.2%}: {value} dB measured</title></circle>"
        )
    for share in (0.0, widest / 2, widest):
        shapes.append(
            f'<text x="{x(share):.1f}" y="{base + 16}" text-anchor="middle">{share:.1%}</text>'
        )
    return _figure(
        shapes,
        "SQNR over the share of multiply-adds at 16 bits",
        "SQNR in dB over the share of multiply-adds at 16 bits. Line: predicted after each step."
        " Dots: measured. Dashed: the target.",
    )


def histogram(data: Mapping[str, Any], title: str, grid: Sequence[float] | None = None) -> str:
    """Return a histogram with logarithmic heights; ``grid`` marks the ends of a grid."""
    width, height, base = 460, 110, 90
    counts = data["counts"]
    low, high = data["low"], data["high"]
    ends = [low, high, *(v for v in grid or () if low - (high - low) <= v <= high + (high - low))]
    left, right = float(min(ends)), float(max(ends))
    span = (right - left) or 1.0

    def x(value: float) -> float:
        return 6 + (value - left) / span * (width - 12)

    top = math.log1p(max(counts, default=0)) or 1.0
    bar = (high - low) / max(1, len(counts))
    shapes = []
    for i, count in enumerate(counts):
        if count:
            tall = math.log1p(count) / top * (base - 10)
            start, stop = x(low + i * bar), x(low + (i + 1) * bar)
            shapes.append(
                f'<rect x="{start:.1f}" y="{base - tall:.1f}" width="{max(stop - start, 0.5):.1f}"'
                f' height="{tall:.1f}" fill="var(--own)"><title>{low + i * bar:.4g} to'
                f" {low + (i + 1) * bar:.4g}: {count}</title></rect>"
            )
    for end in grid or ():
        if left <= end <= right:
            shapes.append(
                f'<line x1="{x(end):.1f}" x2="{x(end):.1f}" y1="4" y2="{base}"'
                ' stroke="var(--all)" stroke-dasharray="4 3"/>'
            )
    for value, anchor in ((left, "start"), (right, "end")):
        shapes.append(
            f'<text x="{x(value):.1f}" y="{base + 14}" text-anchor="{anchor}">{value:.4g}</text>'
        )
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(shapes)}</svg><figcaption>{escape(title)}</figcaption></figure>"
    )


def _rule(y: float, text: str) -> str:
    return (
        f'<line x1="{_MARGIN}" x2="{_WIDTH - _MARGIN}" y1="{y:.1f}" y2="{y:.1f}"'
        f' stroke="var(--line)"/><text x="{_MARGIN - 6}" y="{y + 4:.1f}"'
        f' text-anchor="end">{text}</text>'
    )


def _line(points: Sequence[str]) -> str:
    return (
        f'<polyline points="{" ".join(points)}" fill="none" stroke="var(--all)" stroke-width="2"/>'
    )


def _figure(shapes: Sequence[str], label: str, caption: str) -> str:
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{''.join(shapes)}</svg><figcaption>{escape(caption)}</figcaption></figure>"
    )
