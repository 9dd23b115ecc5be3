"""Examples for every request and answer of the API's description, put together from its schemas.

A field's example is, in this order: that of its schema, that of its name here, its default, or
what its type says. So one story runs through all examples, and an operation that is added needs
none of its own unless a field of it is new: then ``Field(examples=[...])`` at that field, or an
``example`` at the media type, is what the check of the description asks for.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .problems import help_path

__all__ = ["NoExample", "example_of", "fill_examples", "media_types"]

_ID = "01k2v7b0m8x9qj4t5w6y7z8a9b"
_MODEL_DIGEST = "4f1c2d3be7a89f60512c7d88e3b0a4c95d6e7f8091a2b3c4d5e6f708192a3b4c"
_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_BUILD_KEY = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"

_BY_NAME: Mapping[str, Any] = {
    "id": f"job_{_ID}",
    "job_id": f"job_{_ID}",
    "model_id": f"mdl_{_ID}",
    "mblt_id": None,
    "calibration_id": f"cal_{_ID}",
    "artifact_id": f"art_{_ID}",
    "build_id": f"bld_{_ID}",
    "build_key": _BUILD_KEY,
    "request_id": f"req_{_ID}",
    "token_id": f"tok_{_ID}",
    "link_id": f"lnk_{_ID}",
    "retry_of": None,
    "sha256": _DIGEST,
    "digest": _MODEL_DIGEST,
    "model_digest": _MODEL_DIGEST,
    "model_sha256": _MODEL_DIGEST,
    "calibration_digest": _DIGEST,
    "keyid": _DIGEST,
    "name": "resnet50",
    "path": "resnet50.onnx",
    "dtype": "float32",
    "size": 102_442_450,
    "source_revision": "9fceb02",
    "labels": {"team": "vision"},
    "target_device": "regulus-rb",
    "inference_scheme": "single",
    "config_preset": "classification",
    "compile_config": {"calibration": {"mode": 1}},
    "engine": "qbcompiler",
    "engine_version": "0.1.0",
    "version": "0.1.0",
    "kind": "mxq",
    "type": "compile",
    "state": "succeeded",
    "phase": None,
    "progress": None,
    "queue_position": None,
    "error": None,
    "cache": "miss",
    "cache_mode": "on",
    "use_random_calib": False,
    "cpu_offload": False,
    "priority": 5,
    "attempt": 1,
    "memory_mb": 8192,
    "queue_s": 3600,
    "run_s": 1800,
    "created_at": "2026-01-02T03:04:05Z",
    "started_at": "2026-01-02T03:04:06Z",
    "finished_at": "2026-01-02T03:06:41Z",
    "expires_at": "2026-01-02T04:04:05Z",
    "revoked_at": None,
    "next_cursor": None,
    "project": "default",
    "detail": None,
    "facts": {"producer": "pytorch 2.9.0", "opset": {"ai.onnx": 17}},
    "media_type": "application/octet-stream",
    "list": "val.txt",
    "resolved_config": {"calibration": {"method": 1, "mode": 1, "output": 0}},
    "summary": {"sqnr_db": 34.2, "seconds": {"parse": 1.4, "calibrate": 88.1}},
    "request": {
        "type": "compile",
        "model_id": f"mdl_{_ID}",
        "calibration_id": f"cal_{_ID}",
        "target_device": "regulus-rb",
    },
    "url": f"https://qb.example/v1/links/lnk_{_ID}/model.mxq?expires=1767323045&signature=Zm9v",
    "content_url": f"/v1/artifacts/art_{_ID}/content",
    "chip": "REGULUS",
    "schemes": ["single", "all"],
    "unsupported_operators": {},
    "config": {"calibration": {"mode": 1}},
    "notes": ["preset classification"],
    "warnings": [],
    "description": "REGULUS, one core.",
}

# answers whose schema is a plain object or a text
_BY_OPERATION: Mapping[tuple[str, str], Any] = {
    ("job_log", "200"): "engine qbcompiler 0.1.0, attempt 1\ninfo: 100 samples, 53 layers\n",
    ("metrics", "200"): "# HELP qb_jobs Jobs in each state.\n# TYPE qb_jobs gauge\n"
    'qb_jobs{state="queued"} 3.0\n',
    ("get_limits", "200"): {"max_model_bytes": 17_179_869_184, "max_json_depth": 32},
    ("get_config_schema", "200"): {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"calibration": {"type": "object"}},
    },
    ("job_provenance", "200"): {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "model.mxq", "digest": {"sha256": _DIGEST}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": {}, "runDetails": {}},
    },
    ("job_report", "200"): {
        "version": 1,
        "device": "regulus-rb",
        "schemes": ["single"],
        "preset": "classification",
        "warnings": [],
    },
    ("job_checklist", "200"): {
        "source_model": {"name": "resnet50.onnx", "sha256": _MODEL_DIGEST},
        "source_revision": "9fceb02",
        "target_device": "regulus-rb",
        "inference_scheme": "single",
    },
}

_FILE = "the bytes of the file"
_DEPTH = 12
_PROBLEM_TYPE = "application/problem+json"


class NoExample(ValueError):  # noqa: N818 (what it says)
    """A part of a schema has no example; the message names it by its JSON pointer."""


def fill_examples(document: dict[str, Any]) -> None:
    """Give every media type of a description an example, where its schema allows one.

    What has one already, or is bytes, stays as it is; so does a schema with a part that has none,
    which the check of the description reports.
    """
    for name, status, kind, media in media_types(document):
        if (name, status) in _BY_OPERATION and kind != _PROBLEM_TYPE:
            media["example"] = _BY_OPERATION[name, status]
        if "example" in media or "examples" in media or is_bytes(media.get("schema", {})):
            continue
        if kind == _PROBLEM_TYPE and status in _PROBLEMS:
            shared = document["components"].setdefault("examples", {})
            shared[f"problem-{status}"] = {"value": _problem(status)}
            media["examples"] = {
                _PROBLEMS[status]["code"]: {"$ref": f"#/components/examples/problem-{status}"}
            }
            continue
        with contextlib.suppress(NoExample):
            media["example"] = example_of(media.get("schema", {}), document)


def media_types(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield operation id, ``request`` or the answer's status, media type, and the entry of each."""
    for item in document["paths"].values():
        for operation in item.values():
            if not isinstance(operation, dict) or "operationId" not in operation:
                continue
            name = operation["operationId"]
            for kind, media in operation.get("requestBody", {}).get("content", {}).items():
                yield name, "request", kind, media
            for status, answer in operation["responses"].items():
                for kind, media in answer.get("content", {}).items():
                    yield name, status, kind, media


def is_bytes(schema: Mapping[str, Any]) -> bool:
    """Say whether a schema is a file's bytes, of which no example can be shown."""
    return schema.get("format") == "binary" or "contentMediaType" in schema


def example_of(
    schema: Mapping[str, Any], document: Mapping[str, Any], at: str = "", *, depth: int = 0
) -> Any:
    """Return the example of a schema.

    Raises:
        NoExample: a part of it has none.
    """
    if depth > _DEPTH:
        raise NoExample(f"{at}: nested too deeply for an example")
    if schema.get("examples"):
        return schema["examples"][0]
    if "$ref" in schema:
        found = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return example_of(found, document, at, depth=depth + 1)
    if "const" in schema:
        return schema["const"]
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return _first(choices, document, at, depth)
    if len(schema.get("allOf", ())) == 1:
        return example_of(schema["allOf"][0], document, at, depth=depth + 1)
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("default") is not None:
        return schema["default"]
    match schema.get("type"):
        case "object" if "properties" in schema:
            return _object(schema, document, at, depth)
        case "array":
            return [example_of(schema["items"], document, f"{at}/0", depth=depth + 1)]
        case "boolean":
            return True
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "string" if schema.get("format") == "date-time":
            return _BY_NAME["created_at"]
    raise NoExample(f"{at or '/'}: no example; give the field one with Field(examples=[...])")


def _object(schema: Mapping[str, Any], document: Mapping[str, Any], at: str, depth: int) -> Any:
    found = {}
    for name, inner in schema["properties"].items():
        if is_bytes(inner) or is_bytes(inner.get("items", {})):
            # a part of a form that is a file; linters want a text where it is required
            if name in schema.get("required", ()):
                found[name] = _FILE if is_bytes(inner) else [_FILE]
            continue
        if "examples" not in inner and name in _BY_NAME and _fits(_BY_NAME[name], inner, document):
            found[name] = _BY_NAME[name]
            continue
        value = example_of(inner, document, f"{at}/{name}", depth=depth + 1)
        if value is None and name not in schema.get("required", ()):
            # what may be left out says nothing as null
            continue
        found[name] = value
    return found


def _first(
    choices: list[Mapping[str, Any]], document: Mapping[str, Any], at: str, depth: int
) -> Any:
    """Return the example of the first choice that has one; null where that is a choice."""
    missing: NoExample | None = None
    for choice in choices:
        if choice.get("type") == "null":
            continue
        try:
            return example_of(choice, document, at, depth=depth + 1)
        except NoExample as exc:
            missing = missing or exc
    if missing is not None and not any(choice.get("type") == "null" for choice in choices):
        raise missing
    return None


def _fits(value: Any, schema: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    """Say whether a value known by its name is of the kind that a schema takes."""
    if "$ref" in schema:
        found: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return _fits(value, found, document)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return any(_fits(value, choice, document) for choice in schema[key])
    if "const" in schema:
        return bool(value == schema["const"])
    if "enum" in schema:
        return value in schema["enum"]
    match schema.get("type"):
        case "null":
            return value is None
        case "string":
            return isinstance(value, str) and (
                "pattern" not in schema or re.search(schema["pattern"], value) is not None
            )
        case "integer" | "number":
            return isinstance(value, int) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "object":
            return isinstance(value, dict) and "properties" not in schema
        case "array":
            return isinstance(value, list)
    return False


_PROBLEMS: Mapping[str, dict[str, Any]] = {
    "400": {
        "code": "BAD_REQUEST",
        "title": "Bad request",
        "detail": "the body is not JSON: Expecting value at character 17",
        "hint": "send a JSON object with Content-Type: application/json",
    },
    "401": {
        "code": "UNAUTHENTICATED",
        "title": "Unauthenticated",
        "detail": "the token is unknown, expired or revoked",
        "hint": "send Authorization: Bearer <token>; qbserver token create makes one",
    },
    "403": {
        "code": "FORBIDDEN",
        "title": "Forbidden",
        "detail": "the token's role is reader; this call needs builder",
        "hint": "use a token with that role",
    },
    "404": {
        "code": "NOT_FOUND",
        "title": "Not found",
        "detail": f"there is no job 'job_{_ID}'",
    },
    "405": {
        "code": "METHOD_NOT_ALLOWED",
        "title": "Method not allowed",
        "detail": "PATCH is not a method of this path",
    },
    "409": {
        "code": "JOB_NOT_FINISHED",
        "title": "The job has not ended",
        "detail": "the job is running; only one that succeeded has a record",
    },
    "412": {
        "code": "PRECONDITION_FAILED",
        "title": "Precondition failed",
        "detail": "the file is not the one that If-Match names",
    },
    "413": {
        "code": "PAYLOAD_TOO_LARGE",
        "title": "Too large",
        "detail": "the JSON body is larger than 1048576 bytes",
        "hint": "GET /v1/limits lists every bound",
        "details": {"limit": 1_048_576},
    },
    "415": {
        "code": "UNSUPPORTED_MEDIA_TYPE",
        "title": "Unsupported media type",
        "detail": "the body is not multipart/form-data",
    },
    "416": {
        "code": "RANGE_NOT_SATISFIABLE",
        "title": "Range not satisfiable",
        "detail": "the range begins behind the end of the file",
        "details": {"size": 102_442_450},
    },
    "422": {
        "code": "DEVICE_SCHEME_ERROR",
        "title": "No such device or inference scheme",
        "detail": "/target_device: there is no device 'regulus-rc'; did you mean 'regulus-rb'?",
        "hint": "GET /v1/devices lists the devices",
        "errors": [
            {
                "pointer": "/target_device",
                "detail": "there is no device 'regulus-rc'",
                "nearest": "regulus-rb",
            }
        ],
    },
    "429": {
        "code": "RATE_LIMITED",
        "title": "Too many requests",
        "detail": "more than 600 requests a minute",
        "hint": "wait for the seconds of Retry-After",
        "retryable": True,
    },
    "500": {
        "code": "INTERNAL_ERROR",
        "title": "A fault of the server",
        "detail": "the server made a mistake",
        "hint": f"tell its operator the request id req_{_ID}",
    },
    "503": {
        "code": "UNAVAILABLE",
        "title": "Not available now",
        "detail": "the database cannot be reached",
        "hint": "try again in a moment",
        "retryable": True,
    },
    "507": {
        "code": "OUTPUT_WRITE_ERROR",
        "title": "The server cannot store it",
        "detail": "the server's disk is full",
        "retryable": True,
    },
}


def _problem(status: str) -> dict[str, Any]:
    known = _PROBLEMS[status]
    return {
        "type": f"urn:qb:problem:{known['code'].lower().replace('_', '-')}",
        "status": int(status),
        "hint": None,
        "help": help_path(known["code"]),
        "retryable": False,
        "request_id": f"req_{_ID}",
        **known,
    }
