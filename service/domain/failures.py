"""Why a job did not succeed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

__all__ = ["INPUT_FAULT_CODES", "RETRYABLE_CODES", "Failure"]

INPUT_FAULT_CODES: frozenset[str] = frozenset(
    {
        "ARGUMENT_ERROR",
        "MODEL_LOAD_ERROR",
        "UNSUPPORTED_OPERATOR",
        "UNSUPPORTED_DYNAMIC_SHAPE",
        "DEVICE_SCHEME_ERROR",
        "CONFIG_ERROR",
        "CALIBRATION_MISSING",
        "CALIBRATION_DATA_ERROR",
        "QUANTIZATION_ERROR",
        "FORMAT_ERROR",
    }
)
"""Codes that the same input meets again, whatever the machine: only these failures are cached."""

RETRYABLE_CODES: frozenset[str] = frozenset(
    {"JOB_TIMEOUT", "WORKER_LOST", "OUTPUT_WRITE_ERROR", "RATE_LIMITED"}
)
"""Codes with which the same request may succeed later."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a client sees it.

    Args:
        code: a stable code, the compiler's or the service's.
        message: one line for a person; names the culprit.
        details: machine-readable facts; JSON.
        hint: what to do about it.
    """

    code: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)
    hint: str | None = None

    @property
    def is_input_fault(self) -> bool:
        """Whether the same input fails in the same way anywhere."""
        return self.code in INPUT_FAULT_CODES

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code in RETRYABLE_CODES

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that is stored and sent."""
        return {
            "code": self.code,
            "message": self.message,
            "details": dict(self.details),
            "hint": self.hint,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_json` wrote."""
        return cls(
            code=str(data["code"]),
            message=str(data["message"]),
            details=dict(data.get("details") or {}),
            hint=data.get("hint"),
        )
