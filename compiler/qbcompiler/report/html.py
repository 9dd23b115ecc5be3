"""A report as one HTML page: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["report_html"]

_STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5b6675;--line:#d9dee5;--page:#fff;
--own:#2f6fdb;--all:#c2571a;--warn:#fff3d6}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#9aa5b4;--line:#384150;
--page:#12161c;--own:#6ea0f5;--all:#f0965a;--warn:#3a3118}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);
max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse;width:100%;font-size:.86rem}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid var(--line)}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
th{position:sticky;top:0;background:var(--page)}
.warn{background:var(--warn);padding:.5rem .8rem;border-radius:.3rem;margin:.3rem 0}
.wide{overflow-x:auto}code{overflow-wrap:anywhere}
figcaption,.soft{color:var(--soft)}figure{margin:1rem 0}svg{width:100%;height:auto}
"""

_WIDTH, _HEIGHT, _MARGIN = 960, 220, 36


def report_html(report: Mapping[str, Any]) -> str:
    """Return the page for a report of :func:`~qbcompiler.report.build_report`."""
    title = f"Build for {report['device']}"
    parts = [f"<h1>{escape(title)}</h1>", _facts(report)]
    parts += [f'<p class="warn">{escape(str(w))}</p>' for w in report["warnings"]]
    parts += ["<h2>Accuracy</h2>", _accuracy(report["accuracy"])]
    measured = [x for x in report["layers"] if x["sqnr_db"] is not None]
    if measured:
        parts += ["<h2>Error along the graph</h2>", _plot(measured)]
        parts += ["<h2>Layers with the largest error of their own</h2>"]
        parts.append(_worst(report["worst_layers"]["own"], "own_sqnr_db"))
    parts += ["<h2>Layers</h2>", _layers(report["layers"])]
    away = [x for x in report["support"] if x["device"] == "cpu"]
    if away:
        parts += ["<h2>On the CPU</h2>", _support(away)]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n"
        "</body></html>\n"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table; numbers are right-aligned."""
    number = [
        bool(rows) and all(isinstance(r[i], (int, float, type(None))) for r in rows)
        for i in range(len(head))
    ]

    def cells(tag: str, row: Sequence[Any]) -> str:
        return "".join(
            f"<{tag}{' class=n' if number[i] else ''}>{escape(_cell(value))}</{tag}>"
            for i, value in enumerate(row)
        )

    lines = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="wide"><table><thead><tr>{cells("th", head)}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def _facts(report: Mapping[str, Any]) -> str:
    calibration = report["calibration"]
    rows = [
        ["device", report["device"]],
        ["schemes", ", ".join(report["schemes"])],
        ["preset", report["preset"] or "none"],
        [
            "calibration",
            f"{calibration['samples']} {'random ' if calibration['random'] else ''}samples,"
            f" digest {calibration['digest']}",
        ],
        ["seconds", ", ".join(f"{k} {v:g}" for k, v in report["phases"].items()) or "not measured"],
    ]
    return _table(["", ""], rows)


def _accuracy(accuracy: Mapping[str, Any] | None) -> str:
    if accuracy is None:
        return '<p class="soft">Not measured: there was no validation sample.</p>'
    rows = [
        [o["name"], o["sqnr_db"], o["cosine"], o["max_abs_error"], o["top1_agreement"]]
        for o in accuracy["outputs"]
    ]
    head = ["output", "SQNR, dB", "cosine", "largest error", "top-1 agreement"]
    note = f'<p class="soft">On {accuracy["samples"]} samples, against the float model.</p>'
    return _table(head, rows) + note


def _worst(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    return _table(["layer", "operator", "SQNR, dB"], [[r["name"], r["op"], r[key]] for r in rows])


def _layers(layers: Sequence[Mapping[str, Any]]) -> str:
    head = ["layer", "operator", "low", "high", "scale", "weights", "bits"]
    head += ["SQNR, dB", "own, dB", "saturated"]
    rows = []
    for layer in layers:
        port = layer["outputs"][0] if layer["outputs"] else {}
        low, high = port.get("range", (None, None))
        weights = layer["weights"] or {}
        row = [layer["name"], layer["op"], low, high, port.get("scale")]
        row += [weights.get("count"), weights.get("bits")]
        rows.append([*row, layer["sqnr_db"], layer["own_sqnr_db"], layer["saturated"]])
    return _table(head, rows)


def _support(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["layer", "operator", "place", "why not on the NPU"]
    found = [[r["name"], r["op"], r["place"], r["reason"] or "because of its place"] for r in rows]
    return _table(head, found)


def _plot(layers: Sequence[Mapping[str, Any]]) -> str:
    """Return the SQNR of each layer in execution order: its own as bars, accumulated as a line."""
    top = max(10.0, *(min(x[k] or 0.0, 80.0) for x in layers for k in ("sqnr_db", "own_sqnr_db")))
    inner, base = _WIDTH - 2 * _MARGIN, _HEIGHT - _MARGIN
    step = inner / len(layers)

    def y(value: float | None) -> float:
        share = min(max(value or 0.0, 0.0), top) / top
        return base - share * (base - 12)

    shapes = []
    for tick in range(0, int(top) + 1, 20):
        shapes.append(
            f'<line x1="{_MARGIN}" x2="{_WIDTH - _MARGIN}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"'
            f' stroke="var(--line)"/><text x="{_MARGIN - 6}" y="{y(tick) + 4:.1f}" font-size="11"'
            f' text-anchor="end" fill="var(--soft)">{tick}</text>'
        )
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
    shapes.append(
        f'<polyline points="{" ".join(points)}" fill="none" stroke="var(--all)" stroke-width="2"/>'
    )
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="SQNR of each layer">'
        f"{''.join(shapes)}</svg><figcaption>SQNR in dB, layers in execution order. Bars: what the"
        " layer itself adds to exact inputs. Line: all error up to there.</figcaption></figure>"
    )
