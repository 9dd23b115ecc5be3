"""``compare``: several settings on one calibration pass."""

from __future__ import annotations

import shutil
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from ..compare import compare_settings, settings_of
from ..errors import ArgumentError
from ..progress import JsonlReporter, Reporter
from ..report.text import table, wrapped
from .info import print_json

__all__ = ["run_compare"]


def run_compare(args: Namespace, reporter: Reporter) -> int:
    """Build each setting and print a table."""
    if args.input_shape and len({n for n, _ in args.input_shape}) < len(args.input_shape):
        raise ArgumentError("--input-shape gives an input twice")
    rows = compare_settings(
        args.mblt or args.model,
        settings_of(args.target_device, args.config_preset or (), args.compile_config or ()),
        calib_data_path=args.calib_data_path,
        use_random_calib=args.use_random_calib,
        cpu_offload=args.cpu_offload,
        input_shape_dict=dict(args.input_shape) if args.input_shape else None,
        threads=args.threads,
        cache_dir=args.cache_dir,
        reporter=reporter,
    )
    reporter.close()
    if isinstance(reporter, JsonlReporter):
        reporter.result([], {"settings": rows})
    elif args.json:
        print_json({"settings": rows})
    else:
        sys.stdout.write(compare_text(rows))
    return 0


def compare_text(rows: Sequence[Mapping[str, Any]], *, width: int | None = None) -> str:
    """Return the table for a terminal of ``width`` columns (its own by default)."""
    width = width or shutil.get_terminal_size((100, 24)).columns
    head = ["setting", "device", "SQNR dB", "cosine", "top-1", "16 bits", "KiB", "est. ms", "s"]
    lines = table(
        head,
        [_cells(row) for row in rows],
        width=width,
        right=range(2, len(head)),
        shrink=(0, 1),
    )
    for row in rows:
        if row["error"] is not None:
            text = f"[{row['error']['code']}] {row['error']['message']}"
            lines += wrapped(f"{row['setting']} on {row['target_device']}: ", text, width)
    lines += wrapped(
        "",
        "SQNR, cosine and top-1 agreement are those of the worst output on calibration samples;"
        " latency is an estimate.",
        width,
    )
    return "\n".join(lines) + "\n"


def _cells(row: Mapping[str, Any]) -> list[str]:
    cells = [row["setting"], row["target_device"]]
    if row["error"] is not None:
        return [*cells, "fails", "", "", "", "", "", ""]
    top1 = row["top1_agreement"]
    return [
        *cells,
        f"{row['sqnr_db']:.2f}",
        f"{row['cosine']:.5f}",
        "" if top1 is None else f"{top1:.3f}",
        f"{row['wide_share']:.1%}",
        f"{row['size'] / 1024:,.0f}",
        f"{row['latency_ms']:.3f}",
        f"{row['seconds']:.1f}",
    ]
