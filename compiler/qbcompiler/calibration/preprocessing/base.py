"""What a preprocessing step is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ...errors import ConfigError
from ...ir import Array

__all__ = ["Step", "integer", "number", "numbers", "one_of"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step: a frozen dataclass of its options, and what it does to an image.

    Class variables:
        op: the step's name in a configuration.
        spatial: whether it moves pixels (a step that is not only changes values).
    """

    op: ClassVar[str]
    spatial: ClassVar[bool] = True

    def apply(self, image: Array) -> Array:
        """Return the image, [height, width, channels] of uint8 or float32, after the step.

        Raises:
            CalibrationDataError: the image does not suit the options.
        """
        raise TypeError(f"step {self.op!r} does nothing")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Build from the options of a configuration (camelCase keys, without ``op``).

        Raises:
            ConfigError: an unknown key or a bad value.
        """
        fields = {camel(f.name): f.name for f in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for key, value in options.items():
            if key not in fields:
                raise ConfigError(
                    f"preprocessing step {cls.op!r} has no option {key!r}",
                    details={"step": cls.op, "got": key, "expected": sorted(fields)},
                    hint=f"its options are {', '.join(sorted(fields))}",
                )
            if value is not None:
                values[fields[key]] = tuple(value) if isinstance(value, list) else value
        try:
            return cls(**values)
        except TypeError as exc:
            raise ConfigError(
                f"preprocessing step {cls.op!r} lacks an option",
                details={"step": cls.op, "got": sorted(values), "reason": str(exc)},
                hint=f"its options are {', '.join(sorted(fields))}",
            ) from exc

    def to_options(self) -> dict[str, Any]:
        """Return the configuration form, with ``op``; the inverse of :meth:`from_options`."""
        options: dict[str, Any] = {"op": self.op}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                options[camel(field.name)] = list(value) if isinstance(value, tuple) else value
        return options

    def refuse(self, message: str, **details: Any) -> ConfigError:
        """Build the error of a bad option."""
        return ConfigError(
            f"preprocessing step {self.op!r}: {message}", details={"step": self.op, **details}
        )


def camel(name: str) -> str:
    """Return a snake_case name in camelCase."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def integer(step: Step, name: str, value: Any, low: int = 1, high: int = 1 << 15) -> int:
    """Return a whole number within bounds, or raise ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise step.refuse(f"{name} must be a whole number in {low}..{high}", got=value)
    return value


def number(step: Step, name: str, value: Any) -> float:
    """Return a finite number, or raise ConfigError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise step.refuse(f"{name} must be a finite number", got=value)
    return float(value)


def numbers(step: Step, name: str, value: Any) -> tuple[float, ...]:
    """Return one or more finite numbers, or raise ConfigError."""
    items = value if isinstance(value, (tuple, list)) else (value,)
    if not items:
        raise step.refuse(f"{name} must not be empty", got=value)
    return tuple(number(step, name, v) for v in items)


def one_of(step: Step, name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return one of the allowed words, or raise ConfigError."""
    if value not in allowed:
        raise step.refuse(f"{name} must be one of {', '.join(allowed)}", got=value)
    return str(value)
