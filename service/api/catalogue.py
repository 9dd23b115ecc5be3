"""What can be asked for: devices, presets, the configuration's schema, engines, limits."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import StringConstraints

from qbcompiler.config import config_schema, list_presets, resolve_config
from qbcompiler.devices import list_devices, load_device
from qbcompiler.errors import QbCompilerError

from ..domain import ServiceError
from .body import StrictRoute
from .context import Context, Ctx, Reader
from .problems import problems
from .schemas import DeviceOut, EngineOut, PresetOut, PresetSummary

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["catalogue"], route_class=StrictRoute)

_Text = Annotated[str, StringConstraints(max_length=64)]


@router.get(
    "/devices",
    response_model=list[DeviceOut],
    responses=problems(),
    summary="List target devices",
    operation_id="list_devices",
)
def get_devices(principal: Reader) -> list[dict[str, Any]]:
    """List target devices: cores, schemes, figures, and the operators that each lacks."""
    return [device.as_dict() for device in list_devices()]


@router.get(
    "/devices/{name}",
    response_model=DeviceOut,
    responses=problems(404, 422),
    summary="Show a target device",
    operation_id="get_device",
)
def get_device(
    principal: Reader, name: Annotated[_Text, Path(description="A device string.")]
) -> dict[str, Any]:
    """Show a target device."""
    try:
        return load_device(name).as_dict()
    except QbCompilerError as exc:
        raise ServiceError("NOT_FOUND", exc.message, hint=exc.hint) from exc


@router.get(
    "/presets",
    response_model=list[PresetSummary],
    responses=problems(),
    summary="List presets",
    operation_id="list_presets",
)
def get_presets(principal: Reader) -> list[dict[str, Any]]:
    """List configuration presets."""
    return list_presets()


@router.get(
    "/presets/{name}",
    response_model=PresetOut,
    responses=problems(404, 422),
    summary="Show a preset",
    operation_id="get_preset",
)
def get_preset(
    principal: Reader, name: Annotated[_Text, Path(description="A preset's name.")]
) -> dict[str, Any]:
    """Show a preset: what it sets, and the whole configuration that this makes."""
    for preset in list_presets():
        if preset["name"] == name:
            resolved = resolve_config(preset=name).config.resolved(portable=True)
            return {**preset, "resolved_config": resolved}
    known = ", ".join(preset["name"] for preset in list_presets())
    raise ServiceError("NOT_FOUND", f"there is no preset {name!r}", hint=f"presets: {known}")


@router.get(
    "/schemas/compile-config",
    response_model=dict[str, Any],
    responses=problems(),
    summary="Show the configuration's JSON schema",
    operation_id="get_config_schema",
)
def get_config_schema(principal: Reader) -> dict[str, Any]:
    """The JSON schema of `compile_config`."""
    return config_schema()


@router.get(
    "/engines",
    response_model=list[EngineOut],
    responses=problems(),
    summary="List engines",
    operation_id="list_engines",
)
def get_engines(context: Ctx, principal: Reader) -> list[EngineOut]:
    """List the engines that a job can name."""
    return [
        EngineOut(
            name=engine.name,
            version=engine.version,
            description=engine.description,
            default=engine.name == context.settings.default_engine,
            builtin=engine.builtin,
        )
        for engine in context.engines.values()
    ]


@router.get(
    "/limits",
    response_model=dict[str, float | int | None],
    responses=problems(),
    summary="List every bound",
    operation_id="get_limits",
)
def get_limits(context: Ctx, principal: Reader) -> dict[str, float | int | None]:
    """Every bound that a request can meet, with its number."""
    return limits_of(context)


def limits_of(context: Context) -> dict[str, float | int | None]:
    """Return the bounds by name."""
    s = context.settings
    return {
        "max_model_bytes": s.max_model_bytes,
        "max_calibration_bytes": s.max_calibration_bytes,
        "upload_part_bytes": s.upload_part_bytes,
        "upload_hours": s.upload_hours,
        "max_open_uploads": s.max_open_uploads,
        "max_unpacked_bytes": s.max_unpacked_bytes,
        "max_unpack_ratio": s.max_unpack_ratio,
        "max_archive_entries": s.max_archive_entries,
        "max_image_pixels": s.max_image_pixels,
        "max_json_bytes": s.max_json_bytes,
        "max_json_depth": s.max_json_depth,
        "max_labels": s.max_labels,
        "max_matrix_jobs": s.max_matrix_jobs,
        "max_page_items": 200,
        "max_wait_seconds": s.max_wait_seconds,
        "max_streams": s.max_streams,
        "max_log_bytes": s.max_log_bytes,
        "queue_limit_s": s.queue_limit_s,
        "run_limit_s": s.run_limit_s,
        "memory_limit_mb": max(s.memory_classes.values(), default=s.memory_limit_mb),
        "rate_per_minute": s.rate_per_minute,
        "max_active_jobs": s.max_active_jobs,
        "max_project_bytes": s.max_project_bytes,
        "disk_limit_mb": s.disk_limit_mb,
        "link_max_seconds": s.link_max_seconds,
        "idempotency_hours": s.idempotency_hours,
    }
