"""The API's description (OpenAPI), with what FastAPI does not know put in."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from .problems import Problem

__all__ = ["install_description"]

_REFERENCE = "#/components/schemas/{model}"


def install_description(app: FastAPI) -> None:
    """Make ``app.openapi()`` return the whole description."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _describe(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _describe(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
        servers=app.servers,
        license_info=app.license_info,
        separate_input_output_schemas=app.separate_input_output_schemas,
    )
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    # errors are problem documents only, never FastAPI's own kind
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schema = Problem.model_json_schema(ref_template=_REFERENCE, mode="serialization")
    for name, inner in schema.pop("$defs", {}).items():
        schemas[name] = inner
    schemas["Problem"] = schema
    found["components"]["schemas"] = dict(sorted(schemas.items()))
    return found
