"""The order in which settings win: argument, sub-config object, file over preset, default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from .base import Section
from .compile_config import CompileConfig
from .documents import read_document
from .load import canonical_keys, merge, pointer, validate_config
from .presets import load_preset

__all__ = ["ConfigSource", "ResolvedConfig", "resolve_config"]

ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | CompileConfig
"""What ``compile_config=`` takes: a path, a map in file spelling, or the object."""


@dataclass(frozen=True)
class ResolvedConfig:
    """The outcome.

    Attributes:
        config: every field filled in.
        preset: the preset's name, or None.
        origins: who set each field that is not a default, by JSON pointer.
        notes: lines for the log: which layers there were and what overrode what.
    """

    config: CompileConfig
    preset: str | None
    origins: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def resolve_config(
    *,
    arguments: Mapping[str, Any] | None = None,
    sections: Mapping[str, Section | Mapping[str, Any] | None] | None = None,
    compile_config: ConfigSource | None = None,
    preset: str | None = None,
) -> ResolvedConfig:
    """Put the layers together.

    A layer overrides only the fields that it sets; maps merge and lists are replaced.

    Args:
        arguments: explicit arguments by field name (either spelling); None values are left out.
        sections: sub-config objects by section name, such as ``calibration``.
        compile_config: a file, a map or an object.
        preset: a preset's name.

    Raises:
        ConfigError: an unknown preset or key, or a wrong value; names the layer and the place.
    """
    layers: list[tuple[str, dict[str, Any]]] = []
    if preset is not None:
        layers.append((f"preset {preset}", load_preset(preset).config))
    if compile_config is not None:
        layers.append(_of_source(compile_config))
    for name, section in (sections or {}).items():
        if section is not None:
            settings = section.settings() if isinstance(section, Section) else section
            layers.append((f"{name}_config", canonical_keys({name: settings}, source=name)))
    given = {k: v for k, v in (arguments or {}).items() if v is not None}
    if given:
        layers.append(("arguments", canonical_keys(given, source="arguments")))

    data: dict[str, Any] = {}
    origins: dict[str, str] = {}
    notes: list[str] = []
    for source, layer in layers:
        validate_config(CompileConfig, layer, source=source)
        for where, value in _leaves(layer):
            before = origins.get(where)
            if before is not None and _get(data, where) != value:
                notes.append(f"{where}: {source} overrides {before}")
            origins[where] = source
        data = merge(data, layer)
    if len(layers) > 1:
        names = " over ".join(source for source, _ in reversed(layers))
        notes.insert(0, f"configuration: {names} over the defaults")
    elif layers:
        notes.insert(0, f"configuration: {layers[0][0]} over the defaults")
    config = validate_config(CompileConfig, data, source="the configuration")
    return ResolvedConfig(config, preset, origins, tuple(notes))


def _of_source(source: ConfigSource) -> tuple[str, dict[str, Any]]:
    if isinstance(source, CompileConfig):
        return "compile_config object", canonical_keys(source.settings(), source="compile_config")
    if isinstance(source, Mapping):
        validate_config(CompileConfig, source, source="compile_config")
        return "compile_config", canonical_keys(source, source="compile_config")
    if isinstance(source, (str, os.PathLike)):
        name = f"file {os.fspath(source)}"
        data = read_document(source)
        validate_config(CompileConfig, data, source=name)
        return name, canonical_keys(data, source=name)
    raise ConfigError(
        f"compile_config must be a path, a map or a CompileConfig, got {type(source).__name__}"
    )


def _leaves(data: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in data.items():
        here = (*path, key)
        if isinstance(value, Mapping) and value:
            found += _leaves(value, here)
        else:
            found.append((pointer(here), value))
    return found


def _get(data: Mapping[str, Any], where: str) -> Any:
    value: Any = data
    for part in where.split("/")[1:]:
        value = value[part.replace("~1", "/").replace("~0", "~")]
    return value
