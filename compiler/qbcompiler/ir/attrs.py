"""Operator attributes: frozen dataclasses with a plain JSON form."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from typing import Any, Self

__all__ = ["Attrs", "NoAttrs"]


@dataclass(frozen=True, slots=True)
class Attrs:
    """Base of the attributes of an operator.

    Fields are ``int``, ``float``, ``bool``, ``str``, tuples of these, or None. Infinite and
    NaN floats are not allowed (JSON has none): use None for "no bound".
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, fields in declaration order, tuples as lists."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Build from the JSON form.

        Raises:
            ValueError: an unknown or missing field, or a value of the wrong type.
        """
        fields = {f.name: f for f in dataclasses.fields(cls)}
        for key in data:
            if key not in fields:
                raise ValueError(f"{cls.__name__} has no attribute {key!r}")
        hints = _hints(cls)
        values: dict[str, Any] = {}
        for name, field in fields.items():
            if name in data:
                values[name] = _convert(data[name], hints[name], f"{cls.__name__}.{name}")
            elif (
                field.default is dataclasses.MISSING
                and field.default_factory is dataclasses.MISSING
            ):
                raise ValueError(f"{cls.__name__} lacks attribute {name!r}")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class NoAttrs(Attrs):
    """For operators without attributes."""


_HINTS: dict[type, dict[str, Any]] = {}


def _hints(cls: type) -> dict[str, Any]:
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls)
    return _HINTS[cls]


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("attributes must be finite; use None for no bound")
    return value


def _convert(value: Any, hint: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if value is None and type(None) in options:
            return None
        for option in options:
            if option is type(None):
                continue
            try:
                return _convert(value, option, where)
            except ValueError:
                continue
        raise ValueError(f"{where}: unexpected value {value!r}")
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{where}: expected a list, got {type(value).__name__}")
        inner = typing.get_args(hint)
        if len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(_convert(v, inner[0], where) for v in value)
        if len(inner) != len(value):
            raise ValueError(f"{where}: expected {len(inner)} items, got {len(value)}")
        return tuple(_convert(v, h, where) for v, h in zip(value, inner, strict=True))
    if hint is Any:
        return value
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, bool):
        raise ValueError(f"{where}: expected int, got bool")
    if isinstance(hint, type) and isinstance(value, hint):
        return value
    raise ValueError(f"{where}: expected {getattr(hint, '__name__', hint)}, got {value!r}")
