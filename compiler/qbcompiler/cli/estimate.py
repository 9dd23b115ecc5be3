"""``compile --estimate-only``: what a model costs on a device, as text."""

from __future__ import annotations

import shutil

from ..codegen import Estimate, SchemeEstimate
from ..report.text import table, wrapped

__all__ = ["estimate_text"]

_SHOWN = 10


def estimate_text(estimate: Estimate, *, width: int | None = None) -> str:
    """Return the estimate for a terminal of ``width`` columns (its own by default)."""
    width = width or shutil.get_terminal_size((80, 24)).columns
    lines = [
        f"ESTIMATE for {estimate.device}: {estimate.macs / 1e9:.3f} G multiply-adds,"
        f" weights {_bytes(estimate.weight_bytes)}",
        f"activations: {_bytes(estimate.activation_bytes)} in external memory"
        f" ({estimate.activation_ratio:.2f} x the lower bound),",
        f"             at most {_bytes(estimate.on_chip_bytes)} on chip, tiles included",
        "",
    ]
    lines += table(
        ("scheme", "cores", "batch", "latency ms", "inputs/s", "used", "moved", "waits for memory"),
        [_row(s) for s in estimate.schemes],
        width=width,
        right=(1, 2, 3, 4, 5, 6, 7),
    )
    for s in estimate.schemes:
        if s.note:
            lines += ["", *wrapped(f"{s.scheme}: ", s.note, width)]
    first = estimate.schemes[0]
    costly = sorted(first.layers, key=lambda x: -x.cycles)[:_SHOWN]
    lines += ["", f"The layers that take longest under {first.scheme}:"]
    lines += table(
        ("layer", "operator", "compute", "transfer", "share", "bound"),
        [
            (
                x.name,
                x.op,
                f"{x.compute:,}",
                f"{x.transfer:,}",
                f"{100 * x.cycles / max(1, first.cycles):.1f} %",
                x.bound,
            )
            for x in costly
        ],
        width=width,
        right=(2, 3, 4),
    )
    lines.append("")
    names = ", ".join(estimate.assumptions)
    lines += wrapped(
        "",
        f"These are estimates: {names} of the device are not public but assumed; `qbcompiler "
        "devices --json` has the reasoning.",
        width,
    )
    return "\n".join(lines) + "\n"


def _row(scheme: SchemeEstimate) -> tuple[str, ...]:
    waiting = sum(x.cycles for x in scheme.layers if x.bound == "memory")
    share = waiting / max(1, sum(x.cycles for x in scheme.layers))
    return (
        scheme.scheme,
        str(scheme.cores),
        str(scheme.batch),
        f"{scheme.latency_ms:.3f}",
        f"{scheme.inputs_per_s:,.0f}",
        f"{100 * scheme.utilisation:.1f} %",
        _bytes(scheme.external_bytes),
        f"{100 * share:.0f} %",
    )


def _bytes(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB" if count >= 1 << 20 else f"{count / 1024:.1f} KiB"
