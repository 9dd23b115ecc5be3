"""Pictures of an estimate: the roofline of the layers, and a timeline with one lane a core.

Inline SVG that needs nothing from elsewhere. Both say that they rest on what is assumed of the
device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["ENGINES", "device_section", "lanes_of", "roofline_svg", "timeline_svg"]

ENGINES = ("in", "compute", "out", "wait", "constants")
"""What a lane's spans are about, in the order of a span's second number."""

_WIDTH, _MARGIN = 960, 56
_LANE, _GAP = 34, 10
_MOST_SPANS = 4000
_ROWS = {4: (0, 6), 0: (7, 6), 1: (14, 13), 2: (28, 6)}
"""Of a lane, by engine: from where and how high; what is not named fills the lane."""
_LEGEND = ("loads", "arithmetic", "stores", "waiting", "constants")
_COLOURS = ("#4c8dd6", "#3f9b63", "#c98a2b", "#b9554f", "#7d6bc4")


def lanes_of(spans: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """Return what the engines of each core do, as JSON data.

    Spans of one engine and layer that follow one another become one.

    Args:
        spans: :class:`~qbcompiler.codegen.timing.Span` objects.
        names: of the layers.
    """
    lanes: dict[int, dict[int, list[list[int]]]] = {}
    for span in sorted(spans, key=lambda s: (s.core, s.start, s.end)):
        engine = ENGINES.index(span.engine)
        row = lanes.setdefault(span.core, {}).setdefault(engine, [])
        start, end = round(span.start), round(span.end)
        if row and row[-1][2] == span.layer and start <= row[-1][1] + 1:
            row[-1][1] = max(row[-1][1], end)
        elif end > start:
            row.append([start, end, span.layer])
    return {
        "layers": list(names),
        "cores": [
            [[engine, *x] for engine, row in sorted(lanes[core].items()) for x in row]
            for core in sorted(lanes)
        ],
    }


def timeline_svg(lanes: Mapping[str, Any], cycles: int, title: str) -> str:
    """Return the timeline of a scheme: a lane a core, transfers above and below its arithmetic.

    Args:
        lanes: as :func:`lanes_of` gives them.
        cycles: of the whole.
        title: what it shows.
    """
    inner = _WIDTH - 2 * _MARGIN
    height = _MARGIN + len(lanes["cores"]) * (_LANE + _GAP)
    shapes = []
    names = lanes["layers"]
    share = max(1, math.ceil(sum(map(len, lanes["cores"])) / _MOST_SPANS))
    least = cycles / inner / 4 * share  # what is narrower than that would not be seen
    for core, spans in enumerate(lanes["cores"]):
        top = 20 + core * (_LANE + _GAP)
        shapes.append(
            f'<text x="{_MARGIN - 6}" y="{top + _LANE / 2 + 4:.0f}" font-size="11" '
            f'text-anchor="end" fill="var(--soft)">core {core}</text>'
            f'<line x1="{_MARGIN}" x2="{_WIDTH - _MARGIN}" y1="{top + _LANE}" y2="{top + _LANE}" '
            'stroke="var(--line)"/>'
        )
        for engine, start, end, layer in spans:
            if end - start < least:
                continue
            y, tall = _ROWS.get(engine, (0, _LANE))
            y += top
            x, wide = _MARGIN + inner * start / cycles, inner * (end - start) / cycles
            what = escape(names[layer], quote=True) if layer >= 0 else "all cores wait"
            opacity = ".35" if engine == 3 else ".85"
            shapes.append(
                f'<rect x="{x:.2f}" y="{y}" width="{max(wide, 0.2):.2f}" height="{tall}" '
                f'fill="{_COLOURS[engine]}" opacity="{opacity}"><title>{what}: '
                f"{ENGINES[engine]}, {end - start:,} cycles</title></rect>"
            )
    for i in range(5):
        x = _MARGIN + inner * i / 4
        shapes.append(
            f'<text x="{x:.0f}" y="{height - 12}" font-size="11" text-anchor="middle" '
            f'fill="var(--soft)">{cycles * i // 4:,}</text>'
        )
    legend = ", ".join(
        f'<span style="color:{c}">{n}</span>' for c, n in zip(_COLOURS, _LEGEND, strict=True)
    )
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="Timeline of {escape(title, quote=True)}">{"".join(shapes)}</svg>'
        f"<figcaption>{escape(title)}, in cycles: {legend}. An estimate that rests on assumptions "
        "about the device.</figcaption></figure>"
    )


def roofline_svg(layers: Sequence[Mapping[str, Any]], peak: float, bandwidth: float) -> str:
    """Return the roofline of a scheme's layers on one core.

    Args:
        layers: an estimate's, with ``macs``, ``external_bytes``, ``compute_cycles`` and
            ``transfer_cycles``.
        peak: multiply-adds in a cycle.
        bandwidth: bytes of external memory in a cycle.
    """
    shown = [
        (x, x["macs"] / max(1, x["external_bytes"]), x["macs"] / cycles)
        for x in layers
        if x["macs"] and (cycles := max(x["compute_cycles"], x["transfer_cycles"]))
    ]
    if not shown:
        return ""
    ridge = peak / bandwidth
    low = math.floor(math.log10(max(1e-2, min(ridge, *(i for _, i, _ in shown)))))
    high = math.ceil(math.log10(max(ridge * 10, *(min(i, 1e7) for _, i, _ in shown))))
    floor = math.floor(math.log10(max(1e-2, min(p for _, _, p in shown))))
    ceiling = math.log10(peak) + 0.2
    height = 320
    inner, base = _WIDTH - 2 * _MARGIN, height - 40

    def x(intensity: float) -> float:
        value = math.log10(min(max(intensity, 10.0**low), 10.0**high))
        return _MARGIN + inner * (value - low) / max(1e-9, high - low)

    def y(rate: float) -> float:
        value = math.log10(max(rate, 10.0**floor))
        return base - (base - 16) * (value - floor) / max(1e-9, ceiling - floor)

    start = max(10.0**low, 10.0**floor / bandwidth)
    shapes = [
        f'<polyline points="{x(start):.1f},{y(start * bandwidth):.1f} {x(ridge):.1f},{y(peak):.1f} '
        f'{x(10.0**high):.1f},{y(peak):.1f}" fill="none" stroke="var(--all)" stroke-width="2"/>'
    ]
    for power in range(low, high + 1):
        shapes.append(
            f'<text x="{x(10.0**power):.0f}" y="{base + 16}" font-size="11" text-anchor="middle" '
            f'fill="var(--soft)">10^{power}</text>'
        )
    for layer, intensity, rate in shown:
        colour = _COLOURS[1] if layer["compute_cycles"] >= layer["transfer_cycles"] else _COLOURS[0]
        name = escape(str(layer["name"]), quote=True)
        shapes.append(
            f'<circle cx="{x(intensity):.1f}" cy="{y(rate):.1f}" r="4" fill="{colour}" '
            f'opacity=".75"><title>{name}: {intensity:.1f} multiply-adds a byte, {rate:.0f} a cycle'
            "</title></circle>"
        )
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="Roofline">'
        f"{''.join(shapes)}</svg><figcaption>Roofline: multiply-adds a cycle over multiply-adds a "
        "byte of external memory, both logarithmic. Green layers wait for arithmetic, blue ones "
        "for memory. An estimate that rests on assumptions about the device.</figcaption></figure>"
    )


def device_section(estimate: Mapping[str, Any]) -> str:
    """Return what a report's page says of the device: each scheme's figures and pictures.

    Args:
        estimate: as a report has it, ``timelines`` by scheme among it or not.
    """
    head = ("scheme", "cores", "batch", "latency, ms", "inputs/s", "used", "on chip", "outside")
    rows = []
    for s in estimate["schemes"]:
        cells = (
            s["scheme"],
            s["cores"],
            s["batch"],
            f"{s['latency_ms']:.3f}",
            f"{s['inputs_per_s']:,.0f}",
            f"{100 * s['utilisation']:.1f} %",
            f"{s['on_chip_bytes'] / 1024:,.0f} KiB",
            f"{s['activation_bytes'] / 1024:,.0f} KiB",
        )
        rows.append("".join(f"<td>{escape(str(c))}</td>" for c in cells))
    parts = [
        '<div class="wide"><table><thead><tr>'
        + "".join(f"<th>{escape(h)}</th>" for h in head)
        + "</tr></thead><tbody>"
        + "".join(f"<tr>{r}</tr>" for r in rows)
        + "</tbody></table></div>"
    ]
    parts += [
        f'<p class="soft">{escape(s["scheme"])}: {escape(s["note"])}.</p>'
        for s in estimate["schemes"]
        if s.get("note")
    ]
    assumed = ", ".join(map(str, estimate["assumed"]))
    parts.append(
        f'<p class="soft">Estimates: {escape(assumed)} of the device are not public but assumed. '
        "What a scheme needs in external memory is beside the weights.</p>"
    )
    first = estimate["schemes"][0]
    if first.get("layers") and estimate.get("cycle"):
        cycle = estimate["cycle"]
        parts.append(roofline_svg(first["layers"], cycle["macs"], cycle["bytes"]))
    for s in estimate["schemes"]:
        lanes = estimate.get("timelines", {}).get(s["scheme"])
        if lanes:
            parts.append(timeline_svg(lanes, s["cycles"], f"{s['scheme']} on {estimate['device']}"))
    return "\n".join(parts)
