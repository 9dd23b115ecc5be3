"""What generating the programs of ResNet-50 costs: ``python -m benchmarks.codegen``.

Prints seconds and the process's peak memory for each inference scheme and for all of them, beside
the estimate that comes with them.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
import warnings
from pathlib import Path

from qbcompiler.codegen import compile_programs
from qbcompiler.devices import load_device
from qbcompiler.frontend import load_model, parse

from .models import resnet50


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="aries-rb")
    args = parser.parse_args()
    device = load_device(args.device)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "resnet50.onnx"
        resnet50(path)
        graph = parse(load_model(path))
    before = _peak()
    print(f"peak memory before codegen: {before:.0f} MiB (the parsed model)")
    choices = [(name, [name]) for name in device.schemes]
    if len(device.schemes) > 1:
        choices.append(("all", list(device.schemes)))
    print(f"{'scheme':<10}{'seconds':>9}{'instructions':>14}{'latency ms':>12}{'inputs/s':>10}")
    for name, schemes in choices:
        start = time.perf_counter()
        found = compile_programs(graph, device, schemes)
        seconds = time.perf_counter() - start
        count = sum(len(s) for p in found.programs.values() for s in p.streams)
        last = found.cost.schemes[-1]
        print(
            f"{name:<10}{seconds:>9.2f}{count:>14,}{last.latency_ms:>12.3f}{last.inputs_per_s:>10.0f}"
        )
    print(f"peak memory: {_peak():.0f} MiB")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
