"""The configuration as a file to edit: every field, its meaning, its value."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..paths import write_bytes
from .base import Section
from .compile_config import CompileConfig
from .documents import JSON_SUFFIXES, YAML_SUFFIXES

__all__ = ["config_schema", "dump_default_config", "render_config", "write_config"]


def config_schema() -> dict[str, Any]:
    """Return the JSON schema (2020-12) of a configuration file, keys in camelCase."""
    schema = CompileConfig.model_json_schema(by_alias=True, mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def dump_default_config(
    output_path: str | os.PathLike[str], preset: str | None = None
) -> CompileConfig:
    """Write a template with every field: the defaults, or a preset's values.

    Args:
        output_path: ``.json``, ``.yaml`` or ``.yml``; YAML carries each field's meaning.
        preset: a preset's name.

    Raises:
        ConfigError: an unknown preset, or another kind of file.
        OutputWriteError: it cannot be written.
    """
    config = CompileConfig() if preset is None else CompileConfig.from_preset(preset)
    write_config(output_path, config)
    return config


def write_config(output_path: str | os.PathLike[str], config: CompileConfig) -> None:
    """Write a configuration, every field filled in; JSON or YAML by the file's suffix.

    Raises:
        ConfigError: another kind of file.
        OutputWriteError: it cannot be written.
    """
    path = Path(output_path)
    suffix = path.suffix.lower()
    if suffix not in JSON_SUFFIXES + YAML_SUFFIXES:
        raise ConfigError(
            f"a configuration is written as JSON or YAML, not {suffix or 'a file without suffix'}",
            details={"path": os.fspath(output_path), "got": suffix},
            hint="name the file .json, .yaml or .yml",
        )
    text = render_config(config, "json" if suffix in JSON_SUFFIXES else "yaml")
    write_bytes(path, text.encode())


def render_config(config: CompileConfig, kind: str = "yaml") -> str:
    """Return the text of a configuration file; ``kind`` is ``json`` or ``yaml``."""
    data = config.resolved()
    if kind == "json":
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    return "\n".join(_yaml(data, CompileConfig, 0)) + "\n"


def _yaml(data: Mapping[str, Any], model: type[Section], depth: int) -> Iterator[str]:
    """Write a section; scalars, lists and data-keyed maps are JSON, which YAML contains."""
    pad = "  " * depth
    for name, field in model.model_fields.items():
        key = field.alias or name
        annotation = field.annotation
        nested = isinstance(annotation, type) and issubclass(annotation, Section)
        if depth == 0 and nested:
            yield ""
        if field.description:
            yield from _comment(field.description, pad)
        if nested:
            yield f"{pad}{key}:"
            assert isinstance(annotation, type)
            yield from _yaml(data[key], annotation, depth + 1)
        else:
            yield f"{pad}{key}: {json.dumps(data[key], ensure_ascii=False)}"


def _comment(text: str, pad: str) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(pad) + len(line) + len(word) + 3 > 98:
            yield f"{pad}# {line}"
            line = word
        else:
            line = f"{line} {word}".strip()
    yield f"{pad}# {line}"
