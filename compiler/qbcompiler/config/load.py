"""From a document to a checked ``CompileConfig``: groups, spellings, unknown keys, values."""

from __future__ import annotations

import difflib
import os
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from ..errors import ConfigError
from .base import Section
from .compile_config import CompileConfig
from .documents import read_document

__all__ = ["GROUPS", "canonical_keys", "load_config_file", "merge", "pointer", "validate_config"]

C = TypeVar("C", bound=CompileConfig)

GROUPS: Mapping[str, tuple[str, ...]] = {
    "quantization": ("calibration", "bit"),
    "advancedQuantization": (
        "hessianQuant",
        "mod",
        "equivalentTransformation",
        "searchWeightScale",
        "loadScale",
        "layerBiasCorrection",
    ),
}
"""Groups that a file may put sections under."""

_MESSAGES = {
    "model_type": "must be a map of keys",
    "dict_type": "must be a map of keys",
    "model_attributes_type": "must be a map of keys",
}
"""Own words for what Pydantic says in terms of Python."""

_OLD_NAMES = {"EquivalentTransformation": "equivalentTransformation"}


def load_config_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a configuration file; keys come back canonical: ungrouped, camelCase.

    Raises:
        ConfigError: the file, a key or the grouping is wrong.
    """
    return canonical_keys(read_document(path), source=os.fspath(path))


def canonical_keys(data: Any, *, source: str) -> dict[str, Any]:
    """Return ``data`` ungrouped and with every key in its camelCase spelling.

    Args:
        data: what a document holds.
        source: names the document in errors.

    Raises:
        ConfigError: not a map, an unknown key, or one thing said in two places.
    """
    return _canonical_document(data, source)[0]


def _canonical_document(data: Any, source: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the canonical map, and where the document has each of its top-level keys."""
    if data is None:
        return {}, {}
    flat, places = _ungroup(_mapping(data, "", source), source)
    clean = _canonical(flat, CompileConfig, "", source, places)
    return clean, {_camel(_OLD_NAMES.get(key, key)): where for key, where in places.items()}


def validate_config(cls: type[C], data: Any, *, source: str) -> C:
    """Build the configuration, or say what is wrong with it.

    Raises:
        ConfigError: names the place as a JSON pointer; ``details["errors"]`` has all of them.
    """
    clean, places = _canonical_document(data, source)
    try:
        return cls.model_validate(clean)
    except ValidationError as exc:
        raise config_error(exc, source, places) from exc


def merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Lay ``high`` over ``low``: maps merge, everything else is replaced."""
    result = dict(low)
    for key, value in high.items():
        below = result.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            result[key] = merge(below, value)
        else:
            result[key] = value
    return result


def pointer(path: Sequence[object]) -> str:
    """Return the JSON pointer (RFC 6901) of a path."""
    return "".join(f"/{str(p).replace('~', '~0').replace('/', '~1')}" for p in path)


def config_error(
    exc: ValidationError, source: str, places: Mapping[str, str] | None = None
) -> ConfigError:
    """Translate Pydantic's findings; the first one makes the message.

    Args:
        exc: the findings.
        source: names the document.
        places: JSON pointers of top-level keys that the document has elsewhere.
    """
    errors = []
    for item in exc.errors(include_url=False, include_context=False):
        path = _without_tags(item["loc"])
        top = (places or {}).get(str(path[0])) if path else None
        where = pointer(path) if top is None else top + pointer(path[1:])
        text = _MESSAGES.get(item["type"]) or _sentence(item["msg"])
        got = item.get("input")
        entry: dict[str, Any] = {"pointer": where, "message": text}
        if got is None or isinstance(got, (bool, int, float, str)):
            entry["got"] = got[:200] if isinstance(got, str) else got
            text = f"{text}, got {_shown(got)}"
        entry["text"] = text
        errors.append(entry)
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    message = f"{source}: {first['pointer'] or '/'}: {first.pop('text')}{more}"
    for entry in errors[1:]:
        entry.pop("text")
    return ConfigError(
        message,
        details={"pointer": first["pointer"], "errors": errors},
        hint="docs/configuration.md lists every field with its type and bounds",
    )


def unknown_key(key: str, known: Sequence[str], where: str, source: str) -> ConfigError:
    """Build the error of a key that does not exist."""
    near = nearest(key, known)
    at = f"{where}{pointer([key])}"
    return ConfigError(
        f"{source}: unknown key {key!r} at {at}" + (f"; did you mean {near!r}?" if near else ""),
        details={"pointer": at, "key": key, "nearest": near, "known": list(known)},
        hint=f"known here: {', '.join(known)}",
    )


def nearest(word: str, known: Sequence[str]) -> str | None:
    """Return the known word most like ``word``, in any spelling, or None."""
    plain = {k.replace("_", "").lower(): k for k in known}
    found = difflib.get_close_matches(word.replace("_", "").lower(), list(plain), n=1, cutoff=0.6)
    return plain[found[0]] if found else None


# -- groups -------------------------------------------------------------------------------


def _ungroup(data: Mapping[str, Any], source: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Move grouped sections to the top; return them and where each one was."""
    flat: dict[str, Any] = {}
    places: dict[str, str] = {}
    for key, value in data.items():
        group = _group_of(key)
        if group is None:
            _put(flat, places, key, value, pointer([key]), source)
            continue
        known = GROUPS[group]
        for inner, section in _mapping(value, pointer([key]), source).items():
            name = _OLD_NAMES.get(inner, inner)
            if _camel(name) not in known:
                raise unknown_key(inner, known, pointer([key]), source)
            _put(flat, places, name, section, pointer([key, inner]), source)
    return flat, places


def _group_of(key: str) -> str | None:
    name = _camel(key)
    return name if name in GROUPS else None


def _put(
    flat: dict[str, Any], places: dict[str, str], key: str, value: Any, where: str, source: str
) -> None:
    for other in flat:
        if _same(other, key):
            raise _twice(places[other], where, source)
    flat[key] = value
    places[key] = where


def _twice(first: str, second: str, source: str) -> ConfigError:
    return ConfigError(
        f"{source}: {first} and {second} set the same thing",
        details={"pointer": second, "pointers": [first, second]},
        hint="keep one of the two",
    )


# -- spellings ----------------------------------------------------------------------------


def _canonical(
    data: Mapping[str, Any],
    model: type[BaseModel],
    where: str,
    source: str,
    places: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    spelled = {alias: alias for alias in fields}
    spelled.update({name: field.alias or name for name, field in model.model_fields.items()})
    result: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for key, value in data.items():
        at = (places or {}).get(key) or f"{where}{pointer([key])}"
        alias = spelled.get(key)
        if alias is None:
            known = list(fields) + (list(GROUPS) if model is CompileConfig else [])
            raise unknown_key(key, known, where, source)
        if alias in result:
            raise _twice(origin[alias], at, source)
        origin[alias] = at
        result[alias] = _canonical_value(value, fields[alias].annotation, at, source)
    return result


def _canonical_value(value: Any, annotation: Any, where: str, source: str) -> Any:
    """Respell what is inside a value, guided by the field's type."""
    if isinstance(value, BaseModel):
        return value
    kind, arguments = _kind(annotation)
    if kind is list and isinstance(value, list):
        return [
            _canonical_value(item, arguments[0], f"{where}/{i}", source)
            for i, item in enumerate(value)
        ]
    if kind is dict and isinstance(value, Mapping):
        return {
            key: _canonical_value(item, arguments[1], f"{where}{pointer([key])}", source)
            for key, item in value.items()
        }
    models = _models(annotation)
    if len(models) == 1 and issubclass(models[0], Section):
        value = models[0].expand(value)
    if not isinstance(value, Mapping):
        return value
    if len(models) > 1:
        models = [m for m in models if value.get("op") in _tags(m)]
    if len(models) == 1:
        return _canonical(_mapping(value, where, source), models[0], where, source)
    return dict(value)


def _kind(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    while typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    return typing.get_origin(annotation), typing.get_args(annotation)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections that an annotation allows."""
    origin, arguments = _kind(annotation)
    if origin in (typing.Union, types.UnionType):
        return [m for a in arguments for m in _models(a)]
    while typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return []


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    field = model.model_fields.get("op")
    return () if field is None else typing.get_args(field.annotation)


def _camel(key: str) -> str:
    return to_camel(key) if "_" in key else key


def _same(a: str, b: str) -> bool:
    return _camel(_OLD_NAMES.get(a, a)) == _camel(_OLD_NAMES.get(b, b))


def _mapping(value: Any, where: str, source: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{source}: {where or '/'}: must be a map of keys, got {type(value).__name__}",
            details={"pointer": where, "got": type(value).__name__},
        )
    for key in value:
        if not isinstance(key, str):
            raise ConfigError(
                f"{source}: {where or '/'}: key {key!r} is not a string",
                details={"pointer": where},
            )
    return value


# -- messages -----------------------------------------------------------------------------


def _without_tags(loc: Sequence[object]) -> list[object]:
    """Drop the tag that Pydantic puts between a list index and a pipeline step's field."""
    kept: list[object] = []
    for i, part in enumerate(loc):
        if i and isinstance(loc[i - 1], int) and "pipeline" in loc[: i - 1]:
            continue
        kept.append(part)
    return kept


def _sentence(message: str) -> str:
    text = message.removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else {None: "null"}.get(value, str(value))
