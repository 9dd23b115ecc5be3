"""Presets: named partial configurations, one YAML file each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from ..errors import ConfigError
from .compile_config import CompileConfig
from .documents import parse_yaml
from .load import canonical_keys, merge, nearest, validate_config

__all__ = ["Preset", "list_presets", "load_preset", "preset_names"]

_KEYS = {"name", "description", "extends", "config"}


@dataclass(frozen=True)
class Preset:
    """A named partial configuration.

    Attributes:
        name: as ``--config-preset`` takes it; the file's name.
        description: one sentence.
        extends: the preset that it builds on, or None.
        settings: what its own file sets.
        config: what it sets with everything that it extends, canonical keys.
    """

    name: str
    description: str
    extends: str | None
    settings: dict[str, Any]
    config: dict[str, Any]


@lru_cache(maxsize=1)
def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, sorted."""
    folder = resources.files("qbcompiler.config").joinpath("presets")
    return tuple(
        sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))
    )


@lru_cache(maxsize=256)
def load_preset(name: str) -> Preset:
    """Return a preset; treat it as read-only.

    Raises:
        ConfigError: there is no such preset, or its file is wrong.
    """
    return _load(name, ())


def list_presets() -> list[dict[str, Any]]:
    """Return every preset: ``name``, ``description``, ``extends``, and all of its ``config``."""
    found = []
    for name in preset_names():
        preset = load_preset(name)
        found.append(
            {
                "name": preset.name,
                "description": preset.description,
                "extends": preset.extends,
                "config": merge({}, preset.config),
            }
        )
    return found


def _load(name: str, below: tuple[str, ...]) -> Preset:
    known = preset_names()
    if name not in known:
        near = nearest(name, known)
        raise ConfigError(
            f"unknown preset {name!r}" + (f"; did you mean {near!r}?" if near else ""),
            details={"preset": name, "nearest": near, "known": list(known)},
            hint=f"presets: {', '.join(known)}",
        )
    if name in below:
        raise ConfigError(f"presets extend each other: {' -> '.join([*below, name])}")
    source = f"preset {name}"
    file = resources.files("qbcompiler.config").joinpath("presets", f"{name}.yaml")
    data = parse_yaml(file.read_text("utf-8"), source)
    if not isinstance(data, dict) or set(data) != _KEYS or data["name"] != name:
        raise ConfigError(f"{source}: its file must have exactly {', '.join(sorted(_KEYS))}")
    settings = canonical_keys(data["config"], source=source)
    extends = data["extends"]
    base = _load(extends, (*below, name)).config if extends else {}
    config = merge(base, settings)
    validate_config(CompileConfig, config, source=source)
    return Preset(name, data["description"], extends, settings, config)
