"""What a build and a file tell a person: ``report.json``, ``info``.

The names load on first use: ``info`` needs a manifest alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .build import REPORT_VERSION, build_report, warnings_of, write_report
    from .describe import info, info_text
    from .histograms import histograms
    from .html import report_html
    from .samples import MAX_SAMPLE_BYTES, SampleWriter
    from .timeline import lanes_of
    from .trace import write_trace

__all__ = [
    "MAX_SAMPLE_BYTES",
    "REPORT_VERSION",
    "SampleWriter",
    "build_report",
    "histograms",
    "info",
    "info_text",
    "lanes_of",
    "report_html",
    "warnings_of",
    "write_report",
    "write_trace",
]

_HOMES = {
    "REPORT_VERSION": "build",
    "build_report": "build",
    "warnings_of": "build",
    "write_report": "build",
    "report_html": "html",
    "histograms": "histograms",
    "info": "describe",
    "info_text": "describe",
    "MAX_SAMPLE_BYTES": "samples",
    "SampleWriter": "samples",
    "lanes_of": "timeline",
    "write_trace": "trace",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
