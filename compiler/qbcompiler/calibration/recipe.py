"""Preprocessing descriptions of ``make_calib``: our pipeline, or qb Compiler's YAML vocabulary.

Pre-Order: [ResizeTorch, CenterCrop, Normalize, SetOrder]
Pre-processing:
    ResizeTorch: {size: 256, interpolation: bilinear}
    CenterCrop: {size: [224, 224]}
    Normalize: {mean: [...], std: [...], to_float_div255: true}
    SetOrder: {shape: HWC}
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError
from .preprocessing import Pipeline

__all__ = ["Recipe", "read_recipe"]

_MAX_BYTES = 1 << 20
_CHANNELS = {"RGB": 3, "BGR": 3, "GRAY": 1, "GREY": 1, "L": 1}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an image becomes a sample.

    Attributes:
        pipeline: the steps.
        channels: channels that images are read with.
        channel_first: whether samples are saved as [channels, height, width].
    """

    pipeline: Pipeline
    channels: int = 3
    channel_first: bool = False


def read_recipe(source: Any) -> Recipe:
    """Build from a YAML or JSON file, a map, a list of steps, a pipeline or a configuration.

    Raises:
        ConfigError: the file cannot be read, or a step or option is unknown.
    """
    if isinstance(source, Recipe):
        return source
    if isinstance(source, Pipeline):
        return Recipe(source)
    if isinstance(source, (str, os.PathLike)):
        source = _load(Path(source))
    if hasattr(source, "model_dump"):
        source = source.model_dump(by_alias=True, exclude_none=True)
    if isinstance(source, Sequence) and not isinstance(source, (str, bytes)):
        return Recipe(Pipeline.from_options(source))
    if not isinstance(source, Mapping):
        raise ConfigError(
            f"a preprocessing description cannot be a {type(source).__name__}",
            details={"got": type(source).__name__, "expected": "a map or a list of steps"},
        )
    if "Pre-processing" in source or "Pre-Order" in source:
        return _named_steps(source)
    section = source.get("preprocessing", source)
    channels = source.get("imageChannels", 3)
    if not isinstance(section, Mapping) or "pipeline" not in section:
        raise ConfigError(
            "the preprocessing description has no pipeline",
            details={"got": sorted(map(str, source)), "expected": ["pipeline"]},
            hint="give 'pipeline: [...]', or 'Pre-Order' and 'Pre-processing'",
        )
    if channels not in (1, 3, 4):
        raise ConfigError(
            f"imageChannels cannot be {channels!r}",
            details={"got": channels, "expected": [1, 3, 4]},
        )
    return Recipe(Pipeline.from_options(section["pipeline"] or ()), channels)


def _load(path: Path) -> Any:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(
                f"the preprocessing file {path.name!r} is too large",
                details={"path": str(path), "expected": f"at most {_MAX_BYTES} bytes"},
            )
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ConfigError(
            f"the preprocessing file {path.name!r} cannot be read: {' '.join(str(exc).split())}",
            details={"path": str(path)},
            hint="it is YAML or JSON with a 'pipeline', or 'Pre-Order' and 'Pre-processing'",
        ) from exc


def _named_steps(source: Mapping[str, Any]) -> Recipe:
    bodies = source.get("Pre-processing") or {}
    order = source.get("Pre-Order")
    order = list(bodies) if order is None else order
    if not isinstance(bodies, Mapping) or not isinstance(order, Sequence) or isinstance(order, str):
        raise ConfigError(
            "'Pre-processing' is a map of steps and 'Pre-Order' a list of their names"
        )
    steps: list[dict[str, Any]] = []
    channel_first = False
    for name in order:
        if name not in bodies:
            raise ConfigError(
                f"'Pre-Order' names {name!r}, which 'Pre-processing' lacks",
                details={"got": name, "expected": sorted(map(str, bodies))},
            )
        body = dict(bodies[name] or {})
        if name == "SetOrder":
            shape = body.pop("shape", "HWC")
            if shape not in ("HWC", "CHW"):
                raise ConfigError(f"SetOrder.shape cannot be {shape!r}", details={"got": shape})
            channel_first = shape == "CHW"
        elif name in _TRANSLATE:
            steps.append(_TRANSLATE[name](body))
        else:
            known = sorted([*_TRANSLATE, "SetOrder"])
            raise ConfigError(
                f"unknown preprocessing step {name!r}",
                details={"got": name, "expected": known},
                hint=f"the steps are {', '.join(known)}",
            )
        if body:
            raise ConfigError(
                f"preprocessing step {name!r} has no option {next(iter(body))!r}",
                details={"step": name, "got": sorted(map(str, body))},
            )
    image = source.get("GetImage") or {}
    color = str(image.get("channel_order", "RGB")).upper()
    if color not in _CHANNELS:
        raise ConfigError(
            f"GetImage.channel_order cannot be {color!r}",
            details={"got": color, "expected": sorted(_CHANNELS)},
        )
    if color == "BGR":
        steps.insert(0, {"op": "colorConvert", "source": "RGB", "target": "BGR"})
    return Recipe(Pipeline.from_options(steps), _CHANNELS[color], channel_first)


def _size(body: dict[str, Any]) -> dict[str, Any]:
    size = body.pop("size", None)
    if isinstance(size, (list, tuple)) and len(size) == 2:
        return {"height": size[0], "width": size[1]}
    if isinstance(size, (list, tuple)) and len(size) == 1:
        size = size[0]
    return {"size": size}


def _resize(body: dict[str, Any]) -> dict[str, Any]:
    return {"op": "resize", **_size(body), "mode": body.pop("interpolation", "bilinear")}


def _crop(body: dict[str, Any]) -> dict[str, Any]:
    size = _size(body)
    if "size" in size:
        size = {"height": size["size"], "width": size["size"]}
    return {"op": "centerCrop", **size}


def _letterbox(body: dict[str, Any]) -> dict[str, Any]:
    size = _size(body)
    if "size" in size:
        size = {"height": size["size"], "width": size["size"]}
    return {"op": "letterbox", **size, "padValue": body.pop("pad_value", 114)}


def _normalize(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "op": "normalize",
        "mean": body.pop("mean", 0.0),
        "std": body.pop("std", 1.0),
        "scaleToUint8": body.pop("to_float_div255", False),
    }


_TRANSLATE = {
    "Resize": _resize,
    "ResizeTorch": _resize,
    "CenterCrop": _crop,
    "LetterBox": _letterbox,
    "Normalize": _normalize,
}
