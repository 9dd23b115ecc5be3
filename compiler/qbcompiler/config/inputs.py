"""``preprocessing`` and ``uint8Input``: what happens to an input before the model sees it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from .base import Name, PerChannel, Section

__all__ = [
    "CenterCrop",
    "ColorConvert",
    "Letterbox",
    "Normalize",
    "PreprocessingConfig",
    "PreprocessingStep",
    "Resize",
    "Uint8InputConfig",
]

Side = Annotated[int, Field(ge=1, le=65_536)]


class Resize(Section):
    """Scale the image."""

    op: Literal["resize"] = Field(default="resize", description="The step.")
    size: Side | None = Field(
        default=None,
        description="Pixels of the shorter side; the longer one keeps the proportion, truncated "
        "to an integer. Or give height and width.",
    )
    height: Side | None = Field(default=None, description="Pixels.")
    width: Side | None = Field(default=None, description="Pixels.")
    mode: Literal["bilinear", "nearest", "bicubic"] = Field(
        default="bilinear", description="Interpolation."
    )
    align_corners: bool = Field(
        default=False, description="Whether corner pixels keep their place."
    )
    antialias: bool = Field(default=True, description="Filter when making the image smaller.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.size is None) == (self.height is None and self.width is None):
            raise ValueError("give either size, or height and width")
        if self.size is None and (self.height is None or self.width is None):
            raise ValueError("height and width belong together")
        return self


class CenterCrop(Section):
    """Cut out the middle; an odd gap is split as round-half-even does."""

    op: Literal["centerCrop"] = Field(default="centerCrop", description="The step.")
    height: Side = Field(description="Pixels.")
    width: Side = Field(description="Pixels.")


class Letterbox(Section):
    """Scale to fit, keep the proportion, fill the rest."""

    op: Literal["letterbox"] = Field(default="letterbox", description="The step.")
    height: Side = Field(description="Pixels.")
    width: Side = Field(description="Pixels.")
    pad_value: Annotated[float, Field(ge=0.0, le=255.0)] = Field(
        default=114, description="Value of the filling, on the scale of the image at this step."
    )


class Normalize(Section):
    """Subtract a mean and divide by a deviation, per channel."""

    op: Literal["normalize"] = Field(default="normalize", description="The step.")
    mean: PerChannel = Field(description="One number per channel, or one for all.")
    std: PerChannel = Field(description="One number per channel, or one for all; not 0.")
    scale_to_uint8: bool = Field(
        default=False, description="Divide the 0..255 values by 255 before subtracting the mean."
    )
    fuse_into_first_layer: bool = Field(
        default=False,
        description="Let the model's first layer do it, so that the package takes uint8.",
    )

    @field_validator("std")
    @classmethod
    def _not_zero(cls, value: list[float]) -> list[float]:
        if any(v == 0 for v in value):
            raise ValueError("a deviation must not be 0")
        return value


class ColorConvert(Section):
    """Change the order of the colour channels."""

    op: Literal["colorConvert"] = Field(default="colorConvert", description="The step.")
    source: Literal["RGB", "BGR"] = Field(
        default="RGB", description="The order that the image has."
    )
    target: Literal["RGB", "BGR"] = Field(
        default="BGR", description="The order that the model wants."
    )


PreprocessingStep = Annotated[
    Resize | CenterCrop | Letterbox | Normalize | ColorConvert, Field(discriminator="op")
]
"""One step of a pipeline."""

Pipeline = Annotated[list[PreprocessingStep], Field(max_length=64)]


class _InputPreprocessing(Section):
    """The pipeline of one input."""

    auto_convert_format: bool | None = Field(
        default=None, description="As for all inputs where nothing is said here."
    )
    pipeline: Pipeline = Field(
        default_factory=list, description="Steps, in order; in place of the common ones."
    )


class PreprocessingConfig(Section):
    """What is done to image samples before the model."""

    InputConfig: ClassVar = _InputPreprocessing

    apply: bool = Field(default=False, description="Run the pipeline on calibration images.")
    auto_convert_format: bool = Field(
        default=True,
        description="Bring images into the layout and number of channels that the input has.",
    )
    pipeline: Pipeline = Field(default_factory=list, description="Steps, in order.")
    input_configs: dict[Name, _InputPreprocessing] = Field(
        default_factory=dict, description="Other pipelines, by input name."
    )


class Uint8InputConfig(Section):
    """Inputs that the package takes as uint8."""

    apply: bool = Field(default=False, description="Take uint8.")
    inputs: Annotated[list[Name], Field(max_length=4096)] = Field(
        default_factory=list, description="Input names; empty means every image input."
    )
