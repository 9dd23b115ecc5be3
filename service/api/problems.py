"""Errors as ``application/problem+json`` (RFC 9457). Nothing of the server's inside gets out."""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from qbcompiler.errors import QbCompilerError

from ..db import DATABASE_ERRORS, is_full
from ..domain import FieldError, ServiceError
from ..storage import ObjectMissing, StorageError
from ..storage.port import storage_full

__all__ = [
    "PROBLEM_TYPE",
    "STATUS_OF_CODE",
    "BadBody",
    "Problem",
    "body_types",
    "from_compiler",
    "help_path",
    "install",
    "problem_response",
    "problems",
]

_log = logging.getLogger(__name__)

PROBLEM_TYPE = "application/problem+json"

STATUS_OF_CODE: Mapping[str, int] = {
    # the compiler's
    "ARGUMENT_ERROR": 422,
    "MODEL_LOAD_ERROR": 422,
    "UNSUPPORTED_OPERATOR": 422,
    "UNSUPPORTED_DYNAMIC_SHAPE": 422,
    "DEVICE_SCHEME_ERROR": 422,
    "CONFIG_ERROR": 422,
    "CALIBRATION_MISSING": 422,
    "CALIBRATION_DATA_ERROR": 422,
    "QUANTIZATION_ERROR": 422,
    "FORMAT_ERROR": 422,
    "OUTPUT_WRITE_ERROR": 507,
    "RESOURCE_LIMIT": 422,
    "INTERNAL_ERROR": 500,
    # the service's
    "NOT_FOUND": 404,
    "UNAUTHENTICATED": 401,
    "FORBIDDEN": 403,
    "CONFLICT": 409,
    "JOB_NOT_FINISHED": 409,
    "IDEMPOTENCY_MISMATCH": 422,
    "PAYLOAD_TOO_LARGE": 413,
    "DIGEST_MISMATCH": 422,
    "RATE_LIMITED": 429,
    "QUOTA_EXCEEDED": 429,
    # HTTP's own
    "BAD_REQUEST": 400,
    "METHOD_NOT_ALLOWED": 405,
    "PRECONDITION_FAILED": 412,
    "UNSUPPORTED_MEDIA_TYPE": 415,
    "RANGE_NOT_SATISFIABLE": 416,
    "UNAVAILABLE": 503,
}

_CODE_OF_STATUS = {
    400: "BAD_REQUEST",
    401: "UNAUTHENTICATED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    409: "CONFLICT",
    412: "PRECONDITION_FAILED",
    413: "PAYLOAD_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    416: "RANGE_NOT_SATISFIABLE",
    422: "ARGUMENT_ERROR",
    429: "RATE_LIMITED",
    503: "UNAVAILABLE",
}

_TITLES = {
    "ARGUMENT_ERROR": "The request is not right",
    "MODEL_LOAD_ERROR": "The model cannot be read",
    "DEVICE_SCHEME_ERROR": "No such device or inference scheme",
    "CONFIG_ERROR": "The configuration is wrong",
    "CALIBRATION_MISSING": "No calibration data",
    "CALIBRATION_DATA_ERROR": "The calibration data is wrong",
    "OUTPUT_WRITE_ERROR": "The server cannot store it",
    "INTERNAL_ERROR": "A fault of the server",
    "NOT_FOUND": "Not found",
    "CONFLICT": "Not possible in this state",
    "IDEMPOTENCY_MISMATCH": "The Idempotency-Key was used for another request",
    "PAYLOAD_TOO_LARGE": "Too large",
    "JOB_NOT_FINISHED": "The job has not ended",
    "UNAVAILABLE": "Not available now",
}


class ProblemField(BaseModel):
    """What is wrong with one field."""

    pointer: str | None = Field(
        default=None, description="JSON pointer into the body.", examples=["/target_device"]
    )
    parameter: str | None = Field(
        default=None, description="Name of the query or path parameter, header or form field."
    )
    detail: str = Field(description="What is wrong.")
    nearest: str | None = Field(
        default=None, description="The valid name that comes closest.", examples=["regulus-rb"]
    )


class Problem(BaseModel):
    """An error, RFC 9457."""

    type: str = Field(
        description="URN of the kind of error.", examples=["urn:qb:problem:device-scheme-error"]
    )
    title: str = Field(description="The kind of error, in words.")
    status: int = Field(description="The HTTP status.", examples=[422])
    code: str = Field(description="Stable code.", examples=["DEVICE_SCHEME_ERROR"])
    detail: str = Field(description="What is wrong, this time.")
    hint: str | None = Field(default=None, description="What to do about it.")
    help: str = Field(
        description="The code's page: what it means, how it shows, what to do.",
        examples=["/errors/DEVICE_SCHEME_ERROR"],
    )
    retryable: bool = Field(description="Whether the same request may succeed later.")
    request_id: str = Field(description="Names this request in the server's log.")
    errors: list[ProblemField] | None = Field(
        default=None, description="What is wrong with which field."
    )
    details: dict[str, Any] | None = Field(default=None, description="Facts for machines.")


body_types = "qb.body_type"
"""Key of a request's scope: the model of a body that the route read itself."""


class BadBody(HTTPException):
    """A refusal from inside FastAPI's reading of the body, which lets only this class through."""

    def __init__(self, error: ServiceError) -> None:
        super().__init__(STATUS_OF_CODE[error.code], error.detail)
        self.error = error


Status = Literal[400, 401, 403, 404, 405, 409, 412, 413, 415, 416, 422, 429, 503, 507]


# Python 3.13 renamed these as RFC 9110 did; the description of the API is one on every version
_PHRASES = {413: "Content Too Large", 416: "Range Not Satisfiable", 422: "Unprocessable Content"}


def _phrase(status: int) -> str:
    return _PHRASES.get(status) or HTTPStatus(status).phrase


def problems(*statuses: Status) -> dict[int | str, dict[str, Any]]:
    """Return the ``responses=`` of a route: its own errors, and those that any call can meet."""
    every: set[int] = {*statuses, 401, 403, 429, 500, 503}
    return {
        status: {
            "description": _phrase(status),
            "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in sorted(every)
    }


def help_path(code: str) -> str:
    """Return the path of the page that explains a code."""
    return f"/errors/{code}"


def problem_response(
    request_id: str, error: ServiceError, *, status: int | None = None
) -> Response:
    """Return the response that says what is wrong."""
    status = STATUS_OF_CODE.get(error.code, 500) if status is None else status
    body: dict[str, Any] = {
        "type": f"urn:qb:problem:{error.code.lower().replace('_', '-')}",
        "title": _TITLES.get(error.code) or error.code.replace("_", " ").capitalize(),
        "status": status,
        "code": error.code,
        "detail": error.detail,
        "hint": error.hint,
        "help": help_path(error.code),
        "retryable": error.retryable,
        "request_id": request_id,
    }
    if error.errors:
        body["errors"] = [e.to_json() for e in error.errors]
    if error.details:
        body["details"] = error.details
    headers = {"Cache-Control": "no-store"}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and "size" in error.details:
        headers["Content-Range"] = f"bytes */{error.details['size']}"
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="qb"'
    text = json.dumps(body, ensure_ascii=True, default=str)
    return Response(text, status_code=status, headers=headers, media_type=PROBLEM_TYPE)


def from_compiler(exc: QbCompilerError, pointer: str | None = None) -> ServiceError:
    """Return a compiler's error as a refusal.

    Args:
        exc: the error.
        pointer: the field of the request that it is about; pointers inside the error are below
            it.
    """
    details = dict(exc.details)
    errors: list[FieldError] = []
    nearest = details.get("nearest")
    found = details.get("errors")
    if isinstance(found, Sequence) and not isinstance(found, str):
        for item in found:
            at = f"{pointer or ''}{item.get('pointer') or ''}"
            errors.append(FieldError(at or None, str(item.get("message", exc.message))))
    elif pointer is not None or "pointer" in details:
        at = f"{pointer or ''}{details.get('pointer') or ''}"
        errors.append(FieldError(at, exc.message, nearest=nearest if nearest else None))
    for internal in ("errors", "pointer", "path", "paths"):
        details.pop(internal, None)
    return ServiceError(exc.code, exc.message, hint=exc.hint, errors=errors, details=details)


def install(app: FastAPI) -> None:
    """Make every error of the application a problem document."""

    async def service_error(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, ServiceError)
        return problem_response(_request_id(request), exc)

    async def compiler_error(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, QbCompilerError)
        return problem_response(_request_id(request), from_compiler(exc))

    async def storage_error(request: Request, exc: Exception) -> Response:
        _log.error("storage: %s", exc)
        return problem_response(_request_id(request), storage_problem(exc))

    async def database_error(request: Request, exc: Exception) -> Response:
        _log.error("database: %s", exc)
        return problem_response(_request_id(request), database_problem(exc))

    async def http_error(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        if isinstance(exc, BadBody):
            return problem_response(_request_id(request), exc.error)
        return _http_problem(request, exc)

    async def validation_error(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, RequestValidationError)
        return problem_response(*_validation_problem(request, exc))

    app.add_exception_handler(ServiceError, service_error)
    app.add_exception_handler(QbCompilerError, compiler_error)
    app.add_exception_handler(StorageError, storage_error)
    for kind in DATABASE_ERRORS:
        app.add_exception_handler(kind, database_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, validation_error)


def storage_problem(exc: Exception) -> ServiceError:
    """Return the refusal for an object store that does not do what it should."""
    if isinstance(exc, ObjectMissing):
        return ServiceError(
            "INTERNAL_ERROR",
            "the file is missing from the server's object store",
            hint="build it again with cache: refresh, and tell the server's operator",
            retryable=False,
        )
    return ServiceError(
        "UNAVAILABLE",
        "the object store cannot be reached",
        hint="try again; GET /readyz shows what is missing",
        retryable=True,
        retry_after_s=5,
    )


def database_problem(exc: Exception) -> ServiceError:
    """Return the refusal for a database that is away, locked or full."""
    if is_full(exc):
        return storage_full("the request")
    return ServiceError(
        "UNAVAILABLE",
        "the database cannot be reached",
        hint="try again; GET /readyz shows what is missing",
        retryable=True,
        retry_after_s=5,
    )


def _request_id(request: Request) -> str:
    return str(request.scope.get("state", {}).get("request_id", ""))


def _http_problem(request: Request, exc: HTTPException) -> Response:
    code = _CODE_OF_STATUS.get(exc.status_code, "BAD_REQUEST")
    headers = dict(exc.headers or {})
    if exc.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = _allowed(request)
    detail = {
        404: f"there is nothing at {request.url.path[:200]}",
        405: f"{request.method} is not possible here",
        400: "the body cannot be read",
    }.get(exc.status_code, _phrase(exc.status_code))
    hint = {
        404: "GET /openapi.json lists every call",
        405: f"possible: {headers.get('Allow', '')}",
    }.get(exc.status_code)
    response = problem_response(
        _request_id(request), ServiceError(code, detail, hint=hint), status=exc.status_code
    )
    for name, value in headers.items():
        response.headers[name] = value
    return response


def _allowed(request: Request) -> str:
    """Return every method of the path; Starlette names those of the first route only."""
    routes: Sequence[APIRoute] = request.app.state.routes
    path = request.url.path
    found = [route for route in routes if route.path_regex.match(path)]
    # a path that is there word for word is no other route's parameter
    exact = [route for route in found if route.path == path and route.include_in_schema]
    return ", ".join(sorted({m for route in exact or found for m in route.methods or ()}))


def _validation_problem(request: Request, exc: RequestValidationError) -> tuple[str, ServiceError]:
    findings = exc.errors()
    if findings and findings[0]["type"] == "json_invalid":
        position = findings[0]["loc"][-1]
        reason = findings[0].get("ctx", {}).get("error", "")
        error = ServiceError(
            "BAD_REQUEST",
            f"the body is not JSON: {reason} at character {position}",
            hint="send a JSON object with Content-Type: application/json",
        )
        return _request_id(request), error
    body_type = _body_type(request)
    errors = [_field_error(finding, body_type) for finding in findings[:50]]
    first = errors[0]
    where = first.pointer if first.pointer is not None else f"parameter {first.parameter}"
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    near = f"; did you mean {first.nearest!r}?" if first.nearest else ""
    return _request_id(request), ServiceError(
        "ARGUMENT_ERROR",
        f"{where or 'the body'}: {first.detail}{near}{more}",
        hint="GET /openapi.json has every field with its bounds",
        errors=errors,
    )


def _field_error(finding: Mapping[str, Any], body_type: Any) -> FieldError:
    source, *path = finding["loc"]
    detail = _sentence(str(finding["msg"]))
    if source != "body":
        name = str(path[0]) if path else str(source)
        return FieldError(None, detail, parameter=name, nearest=_nearest_value(finding))
    pointer = "".join(f"/{str(p).replace('~', '~0').replace('/', '~1')}" for p in path)
    if finding["type"] == "missing" and not path:
        return FieldError("", "a JSON object is required, with Content-Type: application/json")
    nearest = _nearest_value(finding)
    if finding["type"] == "extra_forbidden":
        detail = "there is no such field"
        nearest = _nearest_field(body_type, path)
    return FieldError(pointer, detail, nearest=nearest)


def _sentence(message: str) -> str:
    text = re.sub(r"^Value error, ", "", message)
    return text[:1].lower() + text[1:]


def _nearest_value(finding: Mapping[str, Any]) -> str | None:
    expected = finding.get("ctx", {}).get("expected")
    given = finding.get("input")
    if not isinstance(expected, str) or not isinstance(given, str):
        return None
    near = difflib.get_close_matches(given.lower()[:64], re.findall(r"'([^']*)'", expected), n=1)
    return near[0] if near else None


def _nearest_field(body_type: Any, path: Sequence[Any]) -> str | None:
    model = body_type
    for part in path[:-1]:
        fields = getattr(model, "model_fields", {})
        model = _model_in(fields[part].annotation) if part in fields else None
    known = list(getattr(model, "model_fields", {}))
    near = difflib.get_close_matches(str(path[-1])[:64], known, n=1)
    return near[0] if near else None


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _model_in(inner)
        if found is not None:
            return found
    return None


def _body_type(request: Request) -> Any:
    if body_types in request.scope:
        return request.scope[body_types]
    field = getattr(request.scope.get("route"), "body_field", None)
    annotation = None if field is None else field.field_info.annotation
    return _model_in(annotation)
