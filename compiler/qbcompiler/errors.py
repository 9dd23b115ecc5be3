"""The typed errors that every stage raises.

One class per stable code. Each carries ``code``, ``message``, ``details`` (layer, operator,
sample, path, expected, got) and ``hint``, the way out. The command line maps a class to an
exit code; the service puts the same code into its problem documents.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any, ClassVar

__all__ = [
    "ERROR_CLASSES",
    "RUN_HINT",
    "ArgumentError",
    "CalibrationDataError",
    "CalibrationMissingError",
    "ConfigError",
    "DeviceSchemeError",
    "FormatError",
    "InternalError",
    "ModelLoadError",
    "OutputWriteError",
    "QbCompilerError",
    "QuantizationError",
    "ResourceLimitError",
    "UnsupportedDynamicShapeError",
    "UnsupportedOperatorError",
    "error_page",
    "explained_codes",
]


_MAX_DEPTH = 8
_MAX_SHOWN = 200
_MAX_TEXT = 2000


class QbCompilerError(Exception):
    """Base of every error that the compiler raises on purpose.

    Args:
        message: one line for a person; names the culprit.
        details: machine-readable facts (``layer``, ``operator``, ``sample``, ``path``,
            ``expected``, ``got`` …); JSON-serialisable.
        hint: what to do about it, one line, or None.
    """

    code: ClassVar[str] = "INTERNAL_ERROR"
    exit_code: ClassVar[int] = 70

    def __init__(
        self,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        hint: str | None = None,
    ) -> None:
        self.message = _line(message)
        super().__init__(self.message)
        self.details: dict[str, Any] = {str(k): _plain(v) for k, v in (details or {}).items()}
        self.hint = hint

    def __str__(self) -> str:
        return self.message

    def as_dict(self) -> dict[str, Any]:
        """Return the error as the JSON object that the JSONL protocol and the service use."""
        return {
            "code": self.code,
            "message": self.message,
            "details": self.details,
            "hint": self.hint,
        }


def _line(text: str) -> str:
    """Return a message as one line of bounded length that a terminal and a log can take.

    Names in it come from files of strangers: control characters and lone surrogates are shown as
    escapes, and a text that is too long loses its middle.
    """
    if len(text) > _MAX_TEXT:
        text = f"{text[: _MAX_TEXT - 400]} … {text[-390:]}"
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON data; what JSON has no form for as text, as are values too deep."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        # lone surrogates are no text to anyone who reads it
        return value.encode("utf-8", "backslashreplace").decode()[:_MAX_TEXT]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return {str(k): _plain(v, depth + 1) for k, v in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [_plain(v, depth + 1) for v in value]
        # a NumPy scalar
        if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
            return _plain(value.item(), _MAX_DEPTH)
    return str(value)[:_MAX_SHOWN]


class ArgumentError(QbCompilerError):
    """A command-line or keyword argument is missing, unknown or contradictory."""

    code = "ARGUMENT_ERROR"
    exit_code = 2


class ModelLoadError(QbCompilerError):
    """The source model cannot be read or is not a valid model."""

    code = "MODEL_LOAD_ERROR"
    exit_code = 3


class UnsupportedOperatorError(QbCompilerError):
    """Layers that the target device does not support, with offloading off."""

    code = "UNSUPPORTED_OPERATOR"
    exit_code = 3


class UnsupportedDynamicShapeError(QbCompilerError):
    """A dimension that cannot be bound at parse time."""

    code = "UNSUPPORTED_DYNAMIC_SHAPE"
    exit_code = 3


class DeviceSchemeError(QbCompilerError):
    """An unknown device, or an inference scheme that the device lacks."""

    code = "DEVICE_SCHEME_ERROR"
    exit_code = 2


class ConfigError(QbCompilerError):
    """A configuration file, preset or field is wrong."""

    code = "CONFIG_ERROR"
    exit_code = 2


class CalibrationMissingError(QbCompilerError):
    """Neither calibration data nor random calibration was given."""

    code = "CALIBRATION_MISSING"
    exit_code = 2


class CalibrationDataError(QbCompilerError):
    """The calibration data is wrong: shape, dtype, count, name, non-finite, corrupt."""

    code = "CALIBRATION_DATA_ERROR"
    exit_code = 3


class QuantizationError(QbCompilerError):
    """The model cannot be quantized as asked."""

    code = "QUANTIZATION_ERROR"
    exit_code = 3


class OutputWriteError(QbCompilerError):
    """An output file cannot be written: permission, full disk, missing folder."""

    code = "OUTPUT_WRITE_ERROR"
    exit_code = 4


class ResourceLimitError(QbCompilerError):
    """A bound on memory, time or size was met."""

    code = "RESOURCE_LIMIT"
    exit_code = 5


class FormatError(QbCompilerError):
    """An MBLT or MXQ file is truncated, altered, hostile or of a newer major version."""

    code = "FORMAT_ERROR"
    exit_code = 3


class InternalError(QbCompilerError):
    """A fault of ours."""

    code = "INTERNAL_ERROR"
    exit_code = 70


ERROR_CLASSES: dict[str, type[QbCompilerError]] = {
    cls.code: cls
    for cls in (
        ArgumentError,
        ModelLoadError,
        UnsupportedOperatorError,
        UnsupportedDynamicShapeError,
        DeviceSchemeError,
        ConfigError,
        CalibrationMissingError,
        CalibrationDataError,
        QuantizationError,
        OutputWriteError,
        ResourceLimitError,
        FormatError,
        InternalError,
    )
}


# the folder docs/errors of the source tree
_PAGES = "error_pages"


def explained_codes() -> list[str]:
    """Return every code that has a page, the service's and the client's among them, sorted."""
    folder = resources.files(__package__).joinpath(_PAGES)
    names = (file.name.removesuffix(".md") for file in folder.iterdir())
    return sorted(name for name in names if _is_code(name))


def _is_code(name: str) -> bool:
    return name != "README" and re.fullmatch(r"[A-Z][A-Z_]*", name) is not None


RUN_HINT = "check that the model runs in ONNX Runtime, with inputs of these shapes and values"
"""The way out where the model's own arithmetic fails."""


def error_page(code: str) -> str:
    """Return the page of an error code as Markdown: what it means, how it shows, what to do.

    Raises:
        KeyError: no page has this name.
    """
    page = resources.files(__package__).joinpath(_PAGES, f"{code}.md")
    if not _is_code(code) or not page.is_file():
        raise KeyError(code)
    return page.read_text("utf-8")
