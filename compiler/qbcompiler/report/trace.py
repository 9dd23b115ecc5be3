"""A program's timeline as a file of the Chrome trace event format, which Perfetto opens."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..codegen import Compiled
from ..package.json_io import dump_json
from ..paths import write_bytes

__all__ = ["trace_events", "write_trace"]

_LANES = {"constants": 0, "in": 1, "compute": 2, "out": 3, "wait": 4}
_NAMES = ("constants", "loads", "arithmetic", "stores", "barriers")


def trace_events(compiled: Compiled) -> dict[str, Any]:
    """Return the trace: a process for each core of each scheme, a thread for each engine.

    Times are microseconds at the device's clock; ``otherData`` says what is assumed.

    Args:
        compiled: programs with their timings.
    """
    events: list[dict[str, Any]] = []
    process = 0
    for scheme, timing in compiled.timings.items():
        program = compiled.programs[scheme]
        for core in range(program.cores):
            process += 1
            name = f"{scheme} core {core} (estimate)"
            events.append(_named("process_name", process, 0, name))
            events += [_named("thread_name", process, i, n) for i, n in enumerate(_NAMES)]
            events += _spans(timing.spans, core, process, program.layers, compiled.cost.clock)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "device": compiled.cost.device,
            "estimate": "rests on assumptions about the device",
            "assumptions": dict(compiled.cost.assumptions),
        },
    }


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _spans(
    spans: Sequence[Any], core: int, process: int, layers: Sequence[str], clock: int
) -> list[dict[str, Any]]:
    scale = 1e6 / clock
    found: list[dict[str, Any]] = []
    for span in spans:
        if span.core != core:
            continue
        args: Mapping[str, Any] = {"kind": span.kind, "bytes": span.size}
        found.append(
            {
                "name": layers[span.layer] if span.layer >= 0 else "barrier",
                "cat": span.kind,
                "ph": "X",
                "pid": process,
                "tid": _LANES[span.engine],
                "ts": round(span.start * scale, 4),
                "dur": round((span.end - span.start) * scale, 4),
                "args": args,
            }
        )
    return found


def write_trace(path: str | os.PathLike[str], compiled: Compiled) -> Path:
    """Write the trace; the file appears under its name only when it is complete.

    Raises:
        OutputWriteError: it cannot be written.
    """
    write_bytes(path, dump_json(trace_events(compiled)))
    return Path(path)
