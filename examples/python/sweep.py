"""Compile a model with several presets on a server, all at once, and print how they compare.

    python sweep.py --server http://127.0.0.1:8000 model.onnx calibration \\
        --preset default --preset classification --target-device regulus-rb --target-device aries-rb

The server builds as many at a time as it has workers; equal parts of the work are done once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from qbcompiler import mxq_compile
from qbcompiler.errors import QbCompilerError

COLUMNS = ("device", "preset", "SQNR dB", "cosine", "top-1", "estimated ms", "bytes", "cache")


def row(args: argparse.Namespace, folder: Path, device: str, preset: str) -> tuple[str, ...]:
    """Build one setting; return its line of the table, or the error's code in its place."""
    output, report = (folder / f"{device}.{preset}.{kind}" for kind in ("mxq", "json"))
    try:
        result = mxq_compile(
            model=args.model,
            calib_data_path=args.calibration,
            target_device=device,
            config_preset=None if preset == "default" else preset,
            save_path=output,
            report_path=report,
            server=args.server,
        )
    except QbCompilerError as error:
        return device, preset, error.code, "", "", "", "", ""
    latency = json.loads(report.read_text("utf-8"))["estimate"]["schemes"][0]["latency_ms"]
    worst = min(result.summary["accuracy"]["outputs"], key=lambda o: float(o["sqnr_db"]))
    agreement = worst.get("top1_agreement")
    return (
        device,
        preset,
        f"{worst['sqnr_db']:.1f}",
        f"{worst['cosine']:.5f}",
        "" if agreement is None else f"{agreement:.3f}",
        f"{latency:.4f}",
        f"{output.stat().st_size:,}",
        result.summary["cache"],
    )


def main() -> int:
    """Build every preset on every device and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("--server", default=os.environ.get("QB_SERVER"))
    parser.add_argument("--preset", action="append", help="repeatable; default: no preset")
    parser.add_argument("--target-device", action="append", help="repeatable")
    parser.add_argument("--output-dir", type=Path, help="keep the files there")
    args = parser.parse_args()
    if not args.server:
        parser.error("give --server, or set QB_SERVER")
    settings = list(
        itertools.product(args.target_device or ["regulus-rb"], args.preset or ["default"])
    )
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(8) as pool:
        folder = args.output_dir or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        # the first alone: it sends the model and the samples, which the others then need not
        first = row(args, folder, *settings[0])
        rest = pool.map(lambda setting: row(args, folder, *setting), settings[1:])
        table = [COLUMNS, first, *rest]
    widths = [max(len(line[i]) for line in table) for i in range(len(COLUMNS))]
    for line in table:
        print(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        )
    return 1 if any(len(line[3]) == 0 for line in table) else 0


if __name__ == "__main__":
    sys.exit(main())
