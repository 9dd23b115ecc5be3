"""Errors that the service answers with on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .failures import RETRYABLE_CODES

__all__ = ["FieldError", "LeaseLost", "ServiceError"]


@dataclass(frozen=True, slots=True)
class FieldError:
    """What is wrong with one field of a request.

    Args:
        pointer: JSON pointer (RFC 6901) into the body, or None for a parameter.
        detail: what is wrong.
        parameter: name of the query parameter, header or path parameter.
        nearest: the valid name that comes closest.
    """

    pointer: str | None
    detail: str
    parameter: str | None = None
    nearest: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, without what is not set."""
        found = {
            "pointer": self.pointer,
            "parameter": self.parameter,
            "detail": self.detail,
            "nearest": self.nearest,
        }
        return {name: value for name, value in found.items() if value is not None}


class ServiceError(Exception):
    """A refusal with a stable code.

    Args:
        code: the service's code or the compiler's.
        detail: one line for a person; names the culprit, never an internal path.
        hint: what to do about it.
        errors: what is wrong with which field.
        details: machine-readable facts.
        retryable: whether the same request may succeed later; by default the code decides.
        retry_after_s: when to try again.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        hint: str | None = None,
        errors: Sequence[FieldError] = (),
        details: Mapping[str, Any] | None = None,
        retryable: bool | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.hint = hint
        self.errors = tuple(errors)
        self.details = dict(details or {})
        self.retryable = code in RETRYABLE_CODES if retryable is None else retryable
        self.retry_after_s = retry_after_s


class LeaseLost(Exception):  # noqa: N818 (it is a fact about the claim, not a fault)
    """A write came with a fencing number that is no longer the build's."""

    def __init__(self, build_id: str, fencing: int) -> None:
        super().__init__(f"{build_id}: attempt {fencing} no longer holds the lease")
        self.build_id = build_id
        self.fencing = fencing
