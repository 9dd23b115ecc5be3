"""The base of every configuration section."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

__all__ = ["Count", "Name", "PerChannel", "Ratio", "Section", "Shape", "Whole", "set_fields"]

Count = Annotated[int, Field(ge=1, le=1_000_000)]
"""A number of things, at least one."""

Ratio = Annotated[float, Field(gt=0.0, le=1.0)]
"""A share, above 0 and up to 1."""


def _whole(value: Any) -> Any:
    if isinstance(value, (bool, float)):
        raise ValueError("input should be a whole number")
    return value


Whole = BeforeValidator(_whole)
"""For a ``Literal`` of integers: true is not 1, and neither is 1.0."""

Name = Annotated[str, Field(min_length=1, max_length=4096)]
"""A name, glob or path."""

Shape = Annotated[list[Annotated[int, Field(ge=1, le=2**31 - 1)]], Field(max_length=16)]
"""A tensor shape; every dimension known."""

PerChannel = Annotated[
    list[Annotated[float, Field(ge=-1e6, le=1e6)]], Field(min_length=1, max_length=4096)
]
"""One number for each channel, or one for all."""


class Section(BaseModel):
    """A part of the configuration.

    Files spell keys in camelCase, Python in snake_case; both are read. Unknown keys, strings for
    numbers, and NaN are refused. Assigning a field checks it.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        populate_by_name=True,
        validate_assignment=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    @classmethod
    def expand(cls, value: Any) -> Any:
        """Return the long form of a value that may be written short; the value itself otherwise."""
        return value

    def settings(self) -> dict[str, Any]:
        """Return what was set here on purpose, in file spelling; defaults are left out."""
        return set_fields(self)


def set_fields(section: BaseModel) -> dict[str, Any]:
    """Return the fields that were set, as nested maps keyed by alias.

    Unlike ``model_dump(exclude_unset=True)`` this sees a field that was assigned inside a
    section which itself is the default one.
    """
    found: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        alias = field.alias or name
        if isinstance(value, BaseModel):
            inner = set_fields(value)
            if inner or name in section.model_fields_set:
                found[alias] = inner
        elif name in section.model_fields_set:
            found[alias] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(by_alias=True, mode="json")
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value
