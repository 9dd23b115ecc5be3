"""The field reference of ``docs/configuration.md``, made from the classes so that it stays true.

``python -m qbcompiler.config.reference docs/configuration.md`` writes it anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .compile_config import CompileConfig
from .effect import ACTED_ON, GAPS, Gap
from .presets import list_presets
from .template import config_schema

__all__ = ["BEGIN", "END", "render_reference", "update"]

BEGIN = "<!-- begin generated reference -->"
END = "<!-- end generated reference -->"


def render_reference() -> str:
    """Return the reference as Markdown: every field, then the presets and the gaps."""
    schema = config_schema()
    lines: list[str] = ["## Fields", ""]
    top, nested = _split(schema)
    lines += ["### Top level", "", *_table(schema, top, "")]
    for name, definition in nested:
        lines += ["", f"### `{name}`", "", definition.get("description", ""), ""]
        lines += _table(schema, _flat(schema, definition, ""), f"/{name}")
    lines += ["", "### Steps of a pipeline", ""]
    lines += [
        "A step is a map with `op`. Fields without a default must be given.",
        "",
        *_steps(schema),
    ]
    lines += ["", "## Presets", "", *_presets()]
    lines += ["", "## What has no effect yet", "", *_gaps()]
    return "\n".join(lines) + "\n"


def update(path: Path) -> None:
    """Write the reference between the two marks of a document.

    Raises:
        ValueError: the document lacks the marks.
    """
    text = path.read_text("utf-8")
    head, found, rest = text.partition(BEGIN)
    _, ends, tail = rest.partition(END)
    if not found or not ends:
        raise ValueError(f"{path} lacks {BEGIN} … {END}")
    path.write_text(f"{head}{BEGIN}\n\n{render_reference()}\n{END}{tail}", "utf-8")


def _resolve(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        found = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
        return {**found, **{k: v for k, v in node.items() if k != "$ref"}}
    return node


def _split(
    schema: dict[str, Any],
) -> tuple[list[tuple[str, dict[str, Any]]], list[tuple[str, dict[str, Any]]]]:
    top: list[tuple[str, dict[str, Any]]] = []
    nested: list[tuple[str, dict[str, Any]]] = []
    for name, node in schema["properties"].items():
        found = _resolve(schema, node)
        (nested if found.get("type") == "object" and "properties" in found else top).append(
            (name, found)
        )
    return top, nested


def _flat(
    schema: dict[str, Any], node: dict[str, Any], prefix: str
) -> list[tuple[str, dict[str, Any]]]:
    """List a section's leaves by dotted name."""
    found: list[tuple[str, dict[str, Any]]] = []
    for name, raw in node["properties"].items():
        inner = _resolve(schema, raw)
        if inner.get("type") == "object" and "properties" in inner:
            found += _flat(schema, inner, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", inner))
    return found


def _table(
    schema: dict[str, Any], fields: list[tuple[str, dict[str, Any]]], at: str
) -> Iterator[str]:
    yield "| key | values | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for name, node in fields:
        where = f"{at}/{name.replace('.', '/')}"
        default = _default(where)
        mark = " " + _mark(where) if _mark(where) else ""
        yield f"| `{name}` | {_values(schema, node)} | {default} | {_cell(node)}{mark} |"


def _cell(node: dict[str, Any]) -> str:
    return str(node.get("description", "")).replace("|", "\\|")


def _default(where: str) -> str:
    value: Any = CompileConfig().resolved()
    for part in where.split("/")[1:]:
        value = value[part]
    if value in ([], {}, ""):
        return "empty"
    return f"`{'true' if value is True else 'false' if value is False else value}`"


def _values(schema: dict[str, Any], node: dict[str, Any]) -> str:
    node = _resolve(schema, node)
    if "enum" in node:
        return ", ".join(f"`{v}`" for v in node["enum"])
    if "const" in node:
        return f"`{node['const']}`"
    if "anyOf" in node:
        return " or ".join(_values(schema, n) for n in node["anyOf"])
    kind = node.get("type")
    if kind == "array":
        items = node.get("items", {})
        return "list of steps" if "oneOf" in items else f"list of {_values(schema, items)}"
    if kind == "object":
        extra = _resolve(schema, node.get("additionalProperties", {}))
        inner = "sections" if "properties" in extra else _values(schema, extra)
        return f"map of {inner} by name"
    names = {"boolean": "true, false", "string": "text", "null": "null"}
    if kind in names:
        return names[kind]
    low = node.get("minimum", node.get("exclusiveMinimum"))
    high = node.get("maximum", node.get("exclusiveMaximum"))
    word = "whole number" if kind == "integer" else "number"
    if low is not None and high is not None:
        above = "above " if "exclusiveMinimum" in node else ""
        return f"{word}, {above}{low:,} to {high:,}"
    return word if low is None else f"{word} from {low:,}"


def _mark(where: str) -> str:
    found = [g for g in GAPS if _covers(g, where)]
    if not found:
        return ""
    acted = any(where == p or where.startswith(p + "/") for p in ACTED_ON)
    refused = any(g.severity == "error" for g in found)
    if acted:
        what = "some values are refused" if refused else "some values have no effect"
    else:
        what = "other values are refused" if refused else "no effect"
    return f"*({what} in this version)*"


def _covers(gap: Gap, where: str) -> bool:
    parts, path = gap.where.split("/"), where.split("/")
    if len(parts) > len(path):
        # a gap below a list or map of this field
        return parts[len(path)] == "*" and parts[: len(path)] == path
    return all(p in ("*", q) for p, q in zip(parts, path, strict=False))


def _steps(schema: dict[str, Any]) -> Iterator[str]:
    items = schema["$defs"]["PreprocessingConfig"]["properties"]["pipeline"]["items"]
    for op, reference in items["discriminator"]["mapping"].items():
        step = _resolve(schema, {"$ref": reference})
        yield f"* `{op}`: {step['description']}"
        for name, raw in step["properties"].items():
            if name == "op":
                continue
            node = _resolve(schema, raw)
            default = ""
            if "default" in node and node["default"] is not None:
                value = node["default"]
                shown = str(value).lower() if isinstance(value, bool) else value
                default = f", default `{shown}`"
            yield f"  * `{name}` ({_values(schema, node)}{default}): {_cell(node)}"


def _presets() -> Iterator[str]:
    yield "| preset | extends | what it is for |"
    yield "| --- | --- | --- |"
    for preset in list_presets():
        extends = f"`{preset['extends']}`" if preset["extends"] else ""
        yield f"| `{preset['name']}` | {extends} | {preset['description']} |"


def _gaps() -> Iterator[str]:
    yield "| setting | outcome | what happens in its place |"
    yield "| --- | --- | --- |"
    for gap in GAPS:
        outcome = "refused" if gap.severity == "error" else "warning"
        yield f"| `{gap.where}` | {outcome} | {gap.reason} |"


if __name__ == "__main__":
    update(Path(sys.argv[1]))
