"""A report as one HTML page: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .svg import choice_plot, error_plot, histogram
from .timeline import device_section

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
nav{font-size:.86rem}nav a{margin-right:1rem}a{color:var(--own)}
.pair{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:0 1.5rem}
.pair h3{grid-column:1/-1;font-size:.95rem;margin:1rem 0 0;overflow-wrap:anywhere}
li{margin:.35rem 0}svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
figcaption,.soft{color:var(--soft)}figure{margin:1rem 0}svg{width:100%;height:auto}
"""

_SHOWN = 30
_DEFAULT = "8 is the default"


def report_html(report: Mapping[str, Any]) -> str:
    """Return the page for a report of :func:`~qbcompiler.report.build_report`."""
    title = f"Build for {report['device']}"
    measured = [x for x in report["layers"] if x["sqnr_db"] is not None]
    away = [x for x in report["support"] if x["device"] == "cpu"]
    sections = [
        ("Accuracy", _accuracy(report["accuracy"])),
        ("What to try next", _advice(report["advice"])),
        ("Error along the graph", error_plot(measured) if measured else ""),
        ("Worst layers", _worst_layers(report["worst_layers"]) if measured else ""),
        ("What the worst layers hold", _histograms(report["histograms"])),
        ("Layers chosen for 16 bits", _auto_bits(report["auto_bits"])),
        ("Weights improved", _refined(report["refined"])),
        ("Calibration", _coverage(report)),
        ("Estimate", device_section(report["estimate"]) if report["estimate"] else ""),
        ("Layers", _layers(report["layers"])),
        ("On the CPU", _support(away) if away else ""),
    ]
    kept = [(name, name.lower().replace(" ", "-"), text) for name, text in sections if text]
    parts = [f"<h1>{escape(title)}</h1>", _facts(report)]
    parts += [f'<p class="warn">{escape(str(w))}</p>' for w in report["warnings"]]
    links = "".join(f'<a href="#{key}">{escape(name)}</a>' for name, key, _ in kept)
    parts.append(f"<nav>{links}</nav>")
    parts += [f'<h2 id="{key}">{escape(name)}</h2>\n{text}' for name, key, text in kept]
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


def _advice(rows: Sequence[Mapping[str, str]]) -> str:
    if not rows:
        return '<p class="soft">Nothing: the numbers give no reason.</p>'
    items = "".join(
        f"<li>{escape(row['try'])}"
        f'<span class="soft"> - because {escape(row["because"])}</span></li>'
        for row in rows
    )
    return f"<ol>{items}</ol>"


def _worst_layers(worst: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    parts = []
    for key, column, text in (
        ("own", "own_sqnr_db", "By the error of their own, on exact inputs:"),
        ("accumulated", "sqnr_db", "By all error up to there:"),
    ):
        rows = [[r["name"], r["op"], r[column]] for r in worst[key]]
        table = _table(["layer", "operator", "SQNR, dB"], rows)
        parts.append(f'<div><p class="soft">{text}</p>{table}</div>')
    return f'<div class="pair">{"".join(parts)}</div>'


def _histograms(rows: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for row in rows:
        parts.append(f"<h3>{escape(row['name'])} ({escape(row['op'])})</h3>")
        parts.append(histogram(row["activation"], "output of a sample", row["activation"]["grid"]))
        if row["weight"] is not None:
            parts.append(histogram(row["weight"], "weights, as integers"))
    if not parts:
        return ""
    note = "Heights are logarithmic. Dashed lines: the ends of the output's integer grid."
    return f'<p class="soft">{note}</p><div class="pair">{"".join(parts)}</div>'


def _auto_bits(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    target = "none" if found["target_sqnr"] is None else f"{found['target_sqnr']:g} dB"
    budget = "none" if found["budget"] is None else f"{found['budget']:.1%}"
    raised = sum(row["bits"] == 16 for row in found["sensitivity"])
    text = (
        f"Target {target}, budget {budget}: {raised} of {len(found['sensitivity'])} candidates"
        f" have 16 bits, {found['share']:.1%} of the multiply-adds, and the outputs went from"
        f" {found['sqnr_db']['before']} to {found['sqnr_db']['after']} dB on"
        f" {found['samples']} samples."
    )
    rows = [
        [r["name"], r["kind"], r["sqnr_db"], f"{r['share']:.2%}", r["bits"]]
        for r in found["sensitivity"][:_SHOWN]
    ]
    head = ["layer", "what", "alone, dB", "of the multiply-adds", "bits"]
    note = "Alone: SQNR of the outputs when nothing but this is rounded to 8 bits."
    more = len(found["sensitivity"]) - len(rows)
    if more > 0:
        note += f" {more} more have less effect; report.json lists them."
    return (
        f"<p>{escape(text)}</p>{choice_plot(found)}{_table(head, rows)}"
        f'<p class="soft">{escape(note)}</p>'
    )


def _refined(refined: Mapping[str, Any]) -> str:
    rows = refined.get("weights") or []
    if not rows:
        return ""
    keys = list(rows[0])
    return _table(keys, [[row.get(key) for key in keys] for row in rows])


def _coverage(report: Mapping[str, Any]) -> str:
    coverage = report["coverage"]
    rows: list[list[Any]] = [
        [f"range of input {name}", f"{low:.6g} to {high:.6g}"]
        for name, (low, high) in coverage["inputs"].items()
    ]
    if coverage["measured"]:
        rows += [
            ["share of its grid that a layer uses, median", f"{coverage['median_used']:.0%}"],
            [
                "layers that use less than a quarter",
                f"{coverage['barely_used']} of {coverage['measured']}",
            ],
            ["layers with more than 1% at their limits", str(coverage["at_limits"])],
        ]
    reused = report["reuse"].get("statistics")
    if reused:
        rows.append(
            [
                "tensors known from an earlier build",
                f"{reused['reused']} (new: {reused['observed']})",
            ]
        )
    return _table(["on validation samples", ""], rows)


def _layers(layers: Sequence[Mapping[str, Any]]) -> str:
    head = ["layer", "operator", "low", "high", "scale", "weights", "bits", "why"]
    head += ["SQNR, dB", "own, dB", "saturated", "used"]
    rows = []
    for layer in layers:
        port = layer["outputs"][0] if layer["outputs"] else {}
        low, high = port.get("range", (None, None))
        weights, bits = layer["weights"] or {}, layer["bits"]
        row = [layer["name"], layer["op"], low, high, port.get("scale"), weights.get("count")]
        shown = [str(b) for b in (bits["activation"], bits["weight"]) if b is not None]
        row += ["/".join(shown), "" if bits["why"] == _DEFAULT else bits["why"]]
        rows.append([*row, *(layer[k] for k in ("sqnr_db", "own_sqnr_db", "saturated", "used"))])
    note = "Bits are those of the output, then of the weights; where none is said why, 8 is usual."
    return f'{_table(head, rows)}<p class="soft">{note}</p>'


def _support(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["layer", "operator", "place", "why not on the NPU"]
    found = [[r["name"], r["op"], r["place"], r["reason"] or "because of its place"] for r in rows]
    return _table(head, found)
