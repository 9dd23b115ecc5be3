"""Reading JSON and YAML documents that a stranger may have written.

Size and depth are bounded, duplicate keys are refused, YAML has no tags, anchors or timestamps,
and every error names the file and, where there is one, the line.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError

__all__ = ["MAX_BYTES", "MAX_DEPTH", "parse_json", "parse_yaml", "read_document"]

MAX_BYTES = 4 << 20
"""Largest document, in bytes."""

MAX_DEPTH = 64
"""Deepest nesting of maps and lists."""

JSON_SUFFIXES = (".json",)
YAML_SUFFIXES = (".yaml", ".yml")


def read_document(path: str | os.PathLike[str]) -> Any:
    """Read a ``.json``, ``.yaml`` or ``.yml`` file.

    Raises:
        ConfigError: it is missing, unreadable, too large, of another kind, or malformed.
    """
    file = Path(path)
    name = os.fspath(path)
    suffix = file.suffix.lower()
    if suffix not in JSON_SUFFIXES + YAML_SUFFIXES:
        raise ConfigError(
            f"configuration file {name!r} is neither JSON nor YAML",
            details={"path": name, "expected": [*JSON_SUFFIXES, *YAML_SUFFIXES], "got": suffix},
            hint="name it .json, .yaml or .yml",
        )
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as exc:
        reason = exc.strerror or str(exc)
        raise ConfigError(
            f"configuration file {name!r} cannot be read: {reason}", details={"path": name}
        ) from exc
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        if len(raw) > MAX_BYTES:
            raise _too_large(name) from exc
        raise ConfigError(
            f"configuration file {name!r} is not UTF-8 text", details={"path": name}
        ) from exc
    return parse_json(text, name) if suffix in JSON_SUFFIXES else parse_yaml(text, name)


def parse_json(text: str, source: str) -> Any:
    """Parse JSON text; ``source`` names it in errors.

    Raises:
        ConfigError: malformed, too large or too deep, a key twice, or a number that is not finite.
    """
    _check_size(text, source)

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                raise ConfigError(
                    f"{source}: key {key!r} is given twice", details={"path": source, "key": key}
                )
            found[key] = value
        return found

    def constant(word: str) -> Any:
        raise ConfigError(f"{source}: {word} is not a JSON number", details={"path": source})

    try:
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as exc:
        raise ConfigError(
            f"{source}: not valid JSON at line {exc.lineno}, column {exc.colno}: {exc.msg}",
            details={"path": source, "line": exc.lineno, "column": exc.colno},
        ) from exc
    except RecursionError as exc:
        raise _too_deep(source) from exc
    except ValueError as exc:  # an integer with more digits than Python converts
        raise ConfigError(f"{source}: {exc}", details={"path": source}) from exc
    _check_depth(data, source)
    return data


def parse_yaml(text: str, source: str) -> Any:
    """Parse one YAML document; ``source`` names it in errors.

    Raises:
        ConfigError: malformed, too large or too deep, a key twice, an anchor, alias or tag.
    """
    _check_size(text, source)
    try:
        loader = _Loader(text)
        try:
            data = loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = " ".join(str(exc.problem or exc.context or "malformed").split())
        details: dict[str, Any] = {"path": source}
        if mark:
            details.update(line=mark.line + 1, column=mark.column + 1)
        raise ConfigError(f"{source}: not valid YAML{where}: {problem}", details=details) from exc
    except yaml.YAMLError as exc:
        problem = " ".join(str(exc).split())
        raise ConfigError(f"{source}: not valid YAML: {problem}", details={"path": source}) from exc
    except RecursionError as exc:
        raise _too_deep(source) from exc
    except ValueError as exc:
        raise ConfigError(f"{source}: not valid YAML: {exc}", details={"path": source}) from exc
    _check_depth(data, source)
    return data


class _Loader(yaml.SafeLoader):
    """The safe loader without what a configuration does not need and an attacker does."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.composer.ComposerError(
                None, None, "anchors and aliases are not allowed", event.start_mark
            )
        if getattr(event, "tag", None) is not None:
            raise yaml.composer.ComposerError(None, None, "tags are not allowed", event.start_mark)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(
                None, None, f"nested deeper than {MAX_DEPTH} levels", event.start_mark
            )
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is not a string", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


# only JSON's kinds of values: no dates, no base-60 numbers, no merge keys, no yes/no/on/off, and
# 1e-3 is a number although YAML 1.1 wants a dot in it
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:null", r"(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?"
        r"|[0-9]+[eE][-+]?[0-9]+)$",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), _first)


def _check_size(text: str, source: str) -> None:
    if len(text) > MAX_BYTES:
        raise _too_large(source)


def _too_large(source: str) -> ConfigError:
    return ConfigError(
        f"{source}: larger than {MAX_BYTES} bytes",
        details={"path": source, "expected": MAX_BYTES},
    )


def _too_deep(source: str) -> ConfigError:
    return ConfigError(
        f"{source}: nested deeper than {MAX_DEPTH} levels",
        details={"path": source, "expected": MAX_DEPTH},
    )


def _check_depth(data: Any, source: str) -> None:
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    if any(isinstance(item, (dict, list)) for item in level):
        raise _too_deep(source)
