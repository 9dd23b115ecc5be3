"""The preprocessing pipeline of an input, and which pipeline each input has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ...errors import ConfigError
from ...ir import Array
from .base import Step
from .center_crop import CenterCrop
from .color_convert import ColorConvert
from .letterbox import Letterbox
from .normalize import Normalize
from .resize import Resize

__all__ = ["STEPS", "InputPreprocessing", "Pipeline", "Preprocessing", "by_op"]

STEPS: tuple[type[Step], ...] = (Resize, CenterCrop, Letterbox, Normalize, ColorConvert)
"""Every step; a new one is a module of its own and a line here."""


def by_op(steps: Iterable[type[Step]]) -> dict[str, type[Step]]:
    """Index steps by their ``op``; ValueError on a duplicate."""
    index: dict[str, type[Step]] = {}
    for step in steps:
        if step.op in index:
            raise ValueError(f"preprocessing step {step.op!r} is registered twice")
        index[step.op] = step
    return index


_INDEX = by_op(STEPS)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Steps in order."""

    steps: tuple[Step, ...] = ()

    @classmethod
    def from_options(cls, items: Sequence[Any]) -> Self:
        """Build from a configuration's list: maps with ``op``, or configuration objects.

        Raises:
            ConfigError: an unknown step or option, or a bad value.
        """
        steps = []
        for item in items:
            options = _mapping(item)
            op = options.pop("op", None)
            if op not in _INDEX:
                raise ConfigError(
                    f"unknown preprocessing step {op!r}",
                    details={"got": op, "expected": sorted(_INDEX)},
                    hint=f"the steps are {', '.join(sorted(_INDEX))}",
                )
            steps.append(_INDEX[op].from_options(options))
        return cls(tuple(steps))

    def to_options(self) -> list[dict[str, Any]]:
        """Return the configuration form."""
        return [step.to_options() for step in self.steps]

    @property
    def normalizes(self) -> bool:
        """Whether a step changes the scale of the values."""
        return any(isinstance(s, Normalize) for s in self.steps)

    @property
    def scales_from_255(self) -> bool:
        """Whether a step takes the values for 0..255 and divides them by 255."""
        return any(isinstance(s, Normalize) and s.scale_to_uint8 for s in self.steps)

    def apply(self, image: Array) -> Array:
        """Run all steps on an image [height, width, channels] of uint8 or float.

        Raises:
            CalibrationDataError: a step does not suit the image.
        """
        if image.dtype != np.uint8:
            image = image.astype(np.float32, copy=False)
        for step in self.steps:
            image = step.apply(image)
        return image

    def values_only(self) -> Self:
        """Return the pipeline without the steps that move pixels."""
        return type(self)(tuple(s for s in self.steps if not s.spatial))


@dataclass(frozen=True, slots=True)
class InputPreprocessing:
    """What is done to the samples of one input.

    Attributes:
        pipeline: None where images are taken as they are.
        convert: whether other channel orders and counts than the model's are converted.
    """

    pipeline: Pipeline | None = None
    convert: bool = True


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """What is done to the samples: for every image input, and for single inputs by name."""

    common: InputPreprocessing = InputPreprocessing()
    inputs: Mapping[str, InputPreprocessing] | None = None

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Build from ``CompileConfig.preprocessing``, its JSON form, or None for nothing.

        Raises:
            ConfigError: an unknown step or option, or a bad value.
        """
        if config is None:
            return cls()
        options = _mapping(config)
        convert = bool(options.get("autoConvertFormat", True))
        if not options.get("apply", False):
            return cls(InputPreprocessing(None, convert))
        common = InputPreprocessing(Pipeline.from_options(options.get("pipeline") or ()), convert)
        inputs: dict[str, InputPreprocessing] = {}
        for name, item in (options.get("inputConfigs") or {}).items():
            own = _mapping(item)
            own_convert = own.get("autoConvertFormat")
            inputs[name] = InputPreprocessing(
                Pipeline.from_options(own.get("pipeline") or ()),
                convert if own_convert is None else bool(own_convert),
            )
        return cls(common, inputs)

    def of(self, name: str) -> InputPreprocessing:
        """Return what is done to the samples of an input."""
        return (self.inputs or {}).get(name, self.common)


def _mapping(item: Any) -> dict[str, Any]:
    """Return a configuration object or map as a map with file spelling."""
    if hasattr(item, "model_dump"):
        dumped: dict[str, Any] = item.model_dump(by_alias=True, mode="python", exclude_none=True)
        return dumped
    if isinstance(item, Mapping):
        return dict(item)
    raise ConfigError(
        f"preprocessing has a {type(item).__name__} where a map belongs",
        details={"got": type(item).__name__},
    )
