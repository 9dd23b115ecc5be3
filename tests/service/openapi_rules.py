"""What the recommended rule sets of Redocly and Spectral ask of an OpenAPI 3.1 description.

Each rule yields what breaks it, led by the operation or the place. The JSON schema of OpenAPI
itself (both sets' ``struct`` and ``oas3-schema``) is openapi-spec-validator's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jsonschema

from service.api.examples import NoExample, example_of, is_bytes, media_types

__all__ = ["RULES", "operations"]

_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
Document = Mapping[str, Any]


def operations(document: Document) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                yield path, method, item[method]


def _name(path: str, method: str, operation: Mapping[str, Any]) -> str:
    return str(operation.get("operationId") or f"{method.upper()} {path}")


def info(document: Document) -> Iterator[str]:
    """info-contact, info-description, info-license, info-license-strict."""
    found = document["info"]
    for key in ("contact", "description", "license"):
        if not found.get(key):
            yield f"info has no {key}"
    if not {"url", "identifier"} & set(found.get("license", {})):
        yield "info.license has neither url nor identifier"


def servers(document: Document) -> Iterator[str]:
    """no-empty-servers, no-server-example.com, no-server-trailing-slash, oas3-api-servers."""
    if not document.get("servers"):
        yield "there are no servers"
    for server in document.get("servers", []):
        if "example.com" in server["url"] or (server["url"] != "/" and server["url"][-1] == "/"):
            yield f"server {server['url']}"


def tags(document: Document) -> Iterator[str]:
    """operation-tags, operation-tag-defined, tag-description, openapi-tags-uniqueness."""
    names = [tag["name"] for tag in document.get("tags", [])]
    yield from (f"tag {name} twice" for name, n in Counter(names).items() if n > 1)
    for tag in document.get("tags", []):
        if not tag.get("description"):
            yield f"tag {tag['name']} has no description"
    for path, method, operation in operations(document):
        if not operation.get("tags"):
            yield f"{_name(path, method, operation)} has no tag"
        for tag in operation.get("tags", []):
            if tag not in names:
                yield f"{_name(path, method, operation)}: tag {tag} is not declared"


def words(document: Document) -> Iterator[str]:
    """operation-summary, operation-description, no-eval-in-markdown, no-script-tags-in-markdown."""
    for path, method, operation in operations(document):
        for key in ("summary", "description"):
            if not operation.get(key, "").strip():
                yield f"{_name(path, method, operation)} has no {key}"
        if re.search(r"eval\(|<script", operation.get("description", "")):
            yield f"{_name(path, method, operation)}: script in the description"


def operation_ids(document: Document) -> Iterator[str]:
    """operation-operationId, its uniqueness, and operation-operationId-valid-in-url."""
    seen: Counter[str] = Counter()
    for path, method, operation in operations(document):
        found = operation.get("operationId", "")
        seen[found] += 1
        if not re.fullmatch(r"[A-Za-z0-9_.~-]+", found):
            yield f"{method.upper()} {path}: operationId {found!r}"
    yield from (f"operationId {name} {n} times" for name, n in seen.items() if n > 1)


def paths(document: Document) -> Iterator[str]:
    """path-params, path-keys-no-trailing-slash, path-not-include-query, no-identical-paths,
    no-ambiguous-paths, path-declaration-must-exist, operation-parameters-unique."""
    shapes: dict[str, str] = {}
    for path, item in document["paths"].items():
        if (path != "/" and path.endswith("/")) or "?" in path or "{}" in path:
            yield f"path {path}"
        shape = re.sub(r"\{[^}]*\}", "{}", path)
        if shape in shapes:
            yield f"path {path} is {shapes[shape]} by another name"
        shapes[shape] = path
        for method in _METHODS:
            if method not in item:
                continue
            found = [
                (p["in"], p["name"])
                for p in [*item.get("parameters", []), *item[method].get("parameters", [])]
            ]
            if len(set(found)) != len(found):
                yield f"{_name(path, method, item[method])}: a parameter twice"
            if {n for where, n in found if where == "path"} != set(re.findall(r"\{(\w+)\}", path)):
                yield f"{_name(path, method, item[method])}: path parameters"


def answers(document: Document) -> Iterator[str]:
    """operation-success-response, operation-2xx-response, operation-4xx-response."""
    for path, method, operation in operations(document):
        for first in "24":
            if not any(status.startswith(first) for status in operation["responses"]):
                yield f"{_name(path, method, operation)} has no {first}xx answer"


def security(document: Document) -> Iterator[str]:
    """security-defined, oas3-operation-security-defined."""
    known = document["components"].get("securitySchemes", {})
    for path, method, operation in operations(document):
        if "security" not in operation and "security" not in document:
            yield f"{_name(path, method, operation)} does not say who may call it"
        for entry in operation.get("security", []):
            for name in entry:
                if name not in known:
                    yield f"{_name(path, method, operation)}: security scheme {name}"


def references(document: Document) -> Iterator[str]:
    """no-unresolved-refs, no-unused-components, oas3-unused-component."""
    used = set()

    def walk(part: Any) -> None:
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                used.add(part["$ref"])
            for inner in part.values():
                walk(inner)
        elif isinstance(part, list):
            for inner in part:
                walk(inner)

    walk(dict(document))
    held = {
        f"#/components/{kind}/{name}"
        for kind, entries in document["components"].items()
        if kind != "securitySchemes"
        for name in entries
    }
    yield from (f"{ref} is not there" for ref in sorted(used - held))
    yield from (f"{ref} is not used" for ref in sorted(held - used))


def schemas(document: Document) -> Iterator[str]:
    """typed-enum, no-enum-type-mismatch, duplicated-entry-in-enum, array-items,
    no-required-schema-properties-undefined."""
    kinds: dict[str, Any] = {
        "string": str, "integer": int, "number": (int, float), "boolean": bool
    }  # fmt: skip

    def walk(part: Any, at: str) -> Iterator[str]:
        if isinstance(part, dict):
            kind = part.get("type")
            if isinstance(part.get("enum"), list):
                values = part["enum"]
                if len({repr(v) for v in values}) != len(values):
                    yield f"{at}: a value twice in enum"
                if isinstance(kind, str) and not all(isinstance(v, kinds[kind]) for v in values):
                    yield f"{at}: a value of enum is no {kind}"
            if kind == "array" and "items" not in part and "prefixItems" not in part:
                yield f"{at}: an array without items"
            if isinstance(part.get("properties"), dict) and isinstance(part.get("required"), list):
                for name in part["required"]:
                    if name not in part["properties"]:
                        yield f"{at}: required {name} is not a property"
            for key, inner in part.items():
                if key not in ("example", "examples", "default"):
                    yield from walk(inner, f"{at}/{key}")
        elif isinstance(part, list):
            for index, inner in enumerate(part):
                yield from walk(inner, f"{at}/{index}")

    yield from walk(document["components"]["schemas"], "schemas")
    yield from walk(document["paths"], "paths")


def links(document: Document) -> Iterator[str]:
    """Links lead to operations that are there, with parameters that they have."""
    known = {
        operation["operationId"]: {p["name"] for p in operation.get("parameters", [])}
        for _, _, operation in operations(document)
    }
    for path, method, operation in operations(document):
        for answer in operation["responses"].values():
            for link in answer.get("links", {}).values():
                if not set(link["parameters"]) <= known.get(link["operationId"], set()):
                    yield f"{_name(path, method, operation)}: link to {link['operationId']}"


def examples(document: Document) -> Iterator[str]:
    """Every request and answer has an example (oas3-valid-media-example,
    no-invalid-media-type-examples, no-example-value-and-externalValue), and its schema takes it."""
    for name, status, kind, media in media_types(document):
        schema = media.get("schema", {})
        if is_bytes(schema):
            continue
        if "example" in media:
            values = [media["example"]]
        elif media.get("examples"):
            values = [_resolve(e, document)["value"] for e in media["examples"].values()]
        else:
            try:
                why = f"{example_of(schema, document)!r} would be one"
            except NoExample as exc:
                why = str(exc)
            yield f"{name}: the {kind} of {status} has no example: {why}"
            continue
        for value in values:
            for wrong in _errors(value, schema, document):
                yield f"{name}: the example of {status} ({kind}): {wrong}"


def schema_examples(document: Document) -> Iterator[str]:
    """Examples and defaults in schemas: no-invalid-schema-examples, oas3-valid-schema-example."""
    for component, schema in document["components"]["schemas"].items():
        places = [("", schema), *schema.get("properties", {}).items()]
        for name, part in places:
            for value in part.get("examples", []):
                for wrong in _errors(value, part, document):
                    yield f"{component}.{name}: {wrong}"


def _errors(value: Any, schema: Any, document: Document) -> list[str]:
    whole = {**schema, "components": document["components"]}
    checker = jsonschema.Draft202012Validator(
        whole, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    return [f"{e.json_path} {e.message[:200]}" for e in checker.iter_errors(value)]


def _resolve(part: Any, document: Document) -> Any:
    while "$ref" in part:
        found: Any = document
        for step in part["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        part = found
    return part


RULES: tuple[Callable[[Document], Iterator[str]], ...] = (
    info, servers, tags, words, operation_ids, paths, answers, security, references, schemas,
    links, examples, schema_examples,
)  # fmt: skip
