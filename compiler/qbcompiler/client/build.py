"""A build on the server, in order: send, submit, follow, fetch."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from ..config import resolve_config
from ..options import Plan
from ..progress import Reporter
from .connection import Server, ServerError, path_of
from .credentials import connect
from .fetch import Wanted, fetch_artifacts
from .follow import follow_job, raise_if_failed
from .uploads import ModelFile, send_calibration, send_model

__all__ = ["remote_build"]

_MAX_NAME = 255


def remote_build(
    plan: Plan, command: str, model: Any, wanted: Wanted
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Make a build on the server that the plan's options name.

    Args:
        plan: the checked request; its paths are this machine's.
        command: ``compile``, ``parse`` or ``quantize``.
        model: the source model (path, bytes or ``onnx.ModelProto``), or the MBLT's path.
        wanted: where each kind of file goes.

    Returns:
        an entry for each file written, and the job (``job``) with its summary's fields.

    Raises:
        QbCompilerError: what the build raised on the server, or :class:`ServerError`.
    """
    options, reporter = plan.options, plan.reporter
    with connect(options.get("server"), options.get("token")) as server:
        with reporter.phase("upload"):
            held = send_model(server, ModelFile(model, options.get("external_data_dir")), reporter)
            request = _request(plan, command, held)
            if command != "parse" and not plan.config.use_random_calib:
                samples = send_calibration(server, plan.calibration_paths, reporter)
                request["calibration_id"] = samples["id"]
        job = server.post(path_of("jobs"), request, key=str(uuid.uuid4()))
        job = _to_its_end(server, job, reporter)
        raise_if_failed(job)
        with reporter.phase("download"):
            files = fetch_artifacts(server, job, wanted, reporter)
    return files, {"job": job["id"], "cache": job["cache"], **(job.get("summary") or {})}


def _to_its_end(server: Server, job: Mapping[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Follow a job; on Ctrl-C do with it as the reporter's reader says."""
    job_id = str(job["id"])
    told = False
    while True:
        try:
            if not told:
                told = True
                reporter.info(f"job {job_id} on {server.url} (cache: {job['cache']})")
            return follow_job(server, job_id, reporter)
        except KeyboardInterrupt:
            choice = reporter.interrupted(job_id)
            if choice == "cancel":
                server.post(path_of("jobs", job_id, "cancel"))
            elif choice == "leave":
                raise ServerError(
                    "INTERRUPTED",
                    f"job {job_id} goes on on {server.url}",
                    details={"job": job_id, "server": server.url},
                    hint=f"`qbcompiler attach {job_id}` follows it, `qbcompiler fetch {job_id}` "
                    f"brings its files, `qbcompiler cancel {job_id}` ends it",
                ) from None


def _request(plan: Plan, command: str, model: Mapping[str, Any]) -> dict[str, Any]:
    options, config = plan.options, plan.config
    request: dict[str, Any] = {
        "type": command,
        "mblt_id" if command == "quantize" else "model_id": model["id"],
        "target_device": None if plan.device is None else plan.device.name,
        "config_preset": plan.preset,
        "compile_config": _differences(
            config.resolved(portable=True),
            resolve_config(preset=plan.preset).config.resolved(portable=True),
        ),
        "cpu_offload": config.cpu_offload or None,
        "name": str(model["name"])[:_MAX_NAME],
        "source_revision": options.get("source_revision"),
        "labels": dict(options.get("labels") or {}),
    }
    if command != "parse":
        request["inference_scheme"] = config.inference_scheme
        request["use_random_calib"] = config.use_random_calib or None
    return {k: v for k, v in request.items() if v is not None and v != {}}


def _differences(given: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a configuration differs from another, section by section."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        other = base.get(name)
        if value == other:
            continue
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            found[name] = _differences(value, other)
        else:
            found[name] = value
    return found
