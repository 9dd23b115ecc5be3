"""What a build and a file tell a person: ``report.json``, ``info``."""

from .build import REPORT_VERSION, build_report, warnings_of, write_report
from .html import report_html
from .info import info, info_text
from .samples import MAX_SAMPLE_BYTES, SampleWriter

__all__ = [
    "MAX_SAMPLE_BYTES",
    "REPORT_VERSION",
    "SampleWriter",
    "build_report",
    "info",
    "info_text",
    "report_html",
    "warnings_of",
    "write_report",
]
