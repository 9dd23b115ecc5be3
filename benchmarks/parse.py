"""Time and peak memory of ``qbcompiler parse``, beside OnnxSlim and onnxsim.

    python -m benchmarks.parse [--runs N] [--only NAME …] [--json FILE]

Each figure is a whole process, from start to the file written: the median time of the runs and the
largest peak memory. The tools take turns within a run, so that what else the machine does meets
all of them alike. Memory is what a model adds: the peak of the process less the peak of the same
tool on a model of one node.

OnnxSlim and onnxsim (benchmarks/requirements.in) are measured where they can be imported.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path
from typing import Any

from qbcompiler import __version__

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Subject:
    """A model to parse.

    Attributes:
        name: as in the table.
        path: a model that is there; None for one that :mod:`benchmarks.models` makes.
        maker: the function there, and its arguments after the path.
        shapes: shapes of inputs that the model leaves open.
        tools: the tools that are compared on it; None for all.
    """

    name: str
    path: Path | None = None
    maker: tuple[Any, ...] = ()
    shapes: dict[str, str] = field(default_factory=dict)
    tools: tuple[str, ...] | None = None

    def model(self, folder: Path) -> Path:
        """Return the model's path; write it first where it is to be made."""
        if self.path is not None:
            return self.path
        path = folder / f"{self.name}.onnx"
        function, *arguments = self.maker
        code = "from benchmarks import models; from pathlib import Path; "
        code += f"models.{function}(Path({str(path)!r}), *{arguments!r})"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
        return path


@dataclass(frozen=True)
class Measured:
    """One run: seconds, and peak bytes of the process."""

    seconds: float
    peak: int


def subjects() -> list[Subject]:
    """Return the models, the real ones where they are there (``make models``)."""
    real = {
        "ppocrv4_cls": "1,3,48,192",
        "ppocrv5_cls": "1,3,80,160",
        "ppocrv4_rec": "1,3,48,320",
        "ppocrv4_det": "1,3,640,640",
    }
    paths = {name: ROOT / "models" / f"{name}.onnx" for name in real}
    chains = (5_000, 10_000, 20_000)
    return [
        *(Subject(n, paths[n], shapes={"x": real[n]}) for n in real if paths[n].is_file()),
        Subject("resnet50", maker=("resnet50",)),
        Subject("encoder", maker=("encoder",)),
        *(
            Subject(
                f"chain_{n}",
                maker=("chain", n),
                tools=None if n == 10_000 else ("qbcompiler",),
            )
            for n in chains
        ),
        Subject("large_2gb", maker=("large",)),
    ]


def commands(model: Path, shapes: dict[str, str], folder: Path) -> dict[str, list[str]]:
    """Return each tool's command on a model."""
    out = folder / "out"
    found = {
        "qbcompiler": ["-m", "qbcompiler", "parse", "-q", "--model", str(model)]
        + ["--output", f"{out}.mblt"]
        + [a for n, s in shapes.items() for a in ("--input-shape", f"{n}={s}")]
    }
    if util.find_spec("onnxslim"):
        found["onnxslim"] = ["-m", "onnxslim", str(model), f"{out}.slim.onnx"]
        found["onnxslim"] += ["--save-as-external-data"] * (_size(model) > 2**31)
        if shapes:
            found["onnxslim"] += ["--input-shapes", *(f"{n}:{s}" for n, s in shapes.items())]
    if util.find_spec("onnxsim"):
        found["onnxsim"] = ["-m", "onnxsim", str(model), f"{out}.sim.onnx"]
        found["onnxsim"] += ["--save-as-external-data"] * (_size(model) > 2**31)
        if shapes:
            found["onnxsim"] += [
                "--overwrite-input-shape",
                *(f"{n}:{s}" for n, s in shapes.items()),
            ]
    return found


# A process's peak counts what its parent had when it was started. So a small one starts each tool
# and prints seconds, kilobytes and the exit status.
_LAUNCHER = """
import os, sys, time
start = time.perf_counter()
pid = os.posix_spawn(sys.executable, [sys.executable, *sys.argv[1:]], os.environ)
_, status, usage = os.wait4(pid, 0)
print(time.perf_counter() - start, usage.ru_maxrss, os.waitstatus_to_exitcode(status))
"""


def measure(command: Sequence[str], cwd: Path) -> Measured | str:
    """Run ``python COMMAND``; return its figures, or why it failed, in a few words."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", _LAUNCHER, *command],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"over {TIMEOUT_S:.0f} s"
    *log, last = said.strip().splitlines()
    seconds, peak, code = last.split()
    if code != "0":
        return f"failed ({code}): {' '.join(log[-1:])[:120]}"
    return Measured(float(seconds), int(peak) * 1024)


def _size(model: Path) -> int:
    data = model.with_name(model.name + ".data")
    return model.stat().st_size + (data.stat().st_size if data.exists() else 0)


def run(subject: Subject, runs: int, idle: dict[str, int], folder: Path) -> dict[str, Any]:
    """Measure one model; return its row."""
    model = subject.model(folder)
    size = _size(model)
    done: dict[str, list[Measured]] = {}
    failures: dict[str, str] = {}
    for _ in range(runs):
        for tool, command in commands(model, subject.shapes, folder).items():
            if tool in failures or (subject.tools is not None and tool not in subject.tools):
                continue
            found = measure(command, ROOT)
            if isinstance(found, str):
                failures[tool] = found
            else:
                done.setdefault(tool, []).append(found)
            for leftover in folder.glob("out*"):
                leftover.unlink()
    if folder in model.parents:
        for file in folder.glob(f"{model.name}*"):
            file.unlink()
    row: dict[str, Any] = {"model": subject.name, "bytes": size, "tools": {}, "failed": failures}
    for tool, results in done.items():
        peak = max(r.peak for r in results)
        row["tools"][tool] = {
            "seconds": statistics.median(r.seconds for r in results),
            "fastest": min(r.seconds for r in results),
            "peak_bytes": peak,
            "added_bytes": max(peak - idle.get(tool, 0), 0),
        }
    return row


def idle_peaks(folder: Path, runs: int) -> dict[str, dict[str, float]]:
    """Return what each tool takes for a model of one node."""
    row = run(Subject("one_node", maker=("one_node",)), runs, {}, folder)
    return dict(row["tools"])


def render(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table for people."""
    head = f"{'model':<13}{'MB':>8}  {'tool':<11}{'seconds':>8}{'ratio':>7}"
    head += f"{'added MB':>10}{'/size':>7}"
    lines = [head, "-" * len(head)]
    for row in rows:
        ours = row["tools"].get("qbcompiler", {}).get("seconds")
        for index, (tool, found) in enumerate(row["tools"].items()):
            label = f"{row['model']:<13}{row['bytes'] / 1e6:>8.1f}" if not index else " " * 21
            ratio = f"{found['seconds'] / ours:.2f}" if ours else ""
            lines.append(
                f"{label}  {tool:<11}{found['seconds']:>8.2f}{ratio:>7}"
                f"{found['added_bytes'] / 1e6:>10.1f}{found['added_bytes'] / row['bytes']:>7.2f}"
            )
        lines += [f"{'':21}  {tool:<11}{why}" for tool, why in row["failed"].items()]
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """Return what the figures were measured on."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    versions = {"qbcompiler": __version__}
    for tool in ("onnx", "onnxslim", "onnxsim"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[tool] = metadata.version(tool)
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": versions,
        "load": os.getloadavg()[0],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parse", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each tool (default: 5)")
    parser.add_argument("--only", nargs="*", help="names of models, or their beginnings")
    parser.add_argument("--json", type=Path, help="write the figures")
    args = parser.parse_args(argv)
    about = machine()
    print(json.dumps(about))
    rows = []
    with tempfile.TemporaryDirectory(prefix="parse-benchmark-") as name:
        folder = Path(name)
        idle = idle_peaks(folder, args.runs)
        for tool, found in idle.items():
            print(f"one node: {tool} {found['seconds']:.2f} s, {found['peak_bytes'] / 1e6:.0f} MB")
        peaks = {tool: int(found["peak_bytes"]) for tool, found in idle.items()}
        for subject in subjects():
            if args.only and not any(subject.name.startswith(p) for p in args.only):
                continue
            rows.append(run(subject, args.runs, peaks, folder))
            print(render(rows[-1:]).splitlines()[2:][0], flush=True)
    print(render(rows))
    if args.json:
        args.json.write_text(json.dumps({"machine": about, "idle": idle, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
