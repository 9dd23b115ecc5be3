"""The API's description (OpenAPI), with what FastAPI does not know put in."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from .examples import fill_examples
from .problems import Problem

__all__ = ["install_description"]

_LINKS: dict[str, dict[str, tuple[str, ...]]] = {
    # operation: {parameter that takes the id in its answer: operations with that parameter}
    "create_model": {"model_id": ("get_model", "delete_model")},
    "put_model": {"model_id": ("get_model", "delete_model")},
    "create_calibration": {"calibration_id": ("get_calibration", "delete_calibration")},
    "create_upload": {
        "upload_id": ("get_upload", "sign_parts", "put_part", "complete_upload", "delete_upload")
    },
    "create_job": {"job_id": ("get_job", "job_log", "cancel_job", "retry_job")},
    "retry_job": {"job_id": ("get_job", "job_log", "cancel_job")},
}
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
        contact=app.contact,
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
    for item in found["paths"].values():
        for operation in item.values():
            _link(operation)
            if "security" in operation:
                # embedded servers ask for no token
                operation["security"] = [*operation["security"], {}]
            else:
                # said, not left out: nobody is asked for a token here
                operation["security"] = []
    found["components"]["schemas"] = dict(sorted(schemas.items()))
    fill_examples(found)
    return found


def _link(operation: dict[str, Any]) -> None:
    """Say which calls take the id that this one answers with."""
    for parameter, followers in _LINKS.get(operation["operationId"], {}).items():
        for status in ("201", "202"):
            if status in operation["responses"]:
                operation["responses"][status]["links"] = {
                    follower: {
                        "operationId": follower,
                        "parameters": {parameter: "$response.body#/id"},
                    }
                    for follower in followers
                }
