"""``CompileConfig``: the whole configuration of a build."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator

from .base import Name, Section, Shape
from .calibration import BitConfig, CalibrationConfig
from .inputs import PreprocessingConfig, Uint8InputConfig
from .models import LlmConfig, MoeConfig, ResourceManagementConfig, RuntimeOptions
from .optimization import (
    EquivalentTransformationConfig,
    HessianQuantConfig,
    LayerBiasCorrectionConfig,
    LoadScaleConfig,
    ModConfig,
    SaveSampleConfig,
    SearchWeightScaleConfig,
)

__all__ = ["CALLER_FIELDS", "CONFIG_VERSION", "CompileConfig", "InferenceScheme"]

CONFIG_VERSION = "1.0.0"

InferenceScheme = Literal["single", "multi", "global4", "global8", "all"]

CALLER_FIELDS = ("modelPaths", "calibDataPaths", "savePaths", "device", "debug", "trace")
"""Top-level fields that differ between callers of one build and change no byte of it."""

Paths = Annotated[list[Name], Field(max_length=4096)]


class CompileConfig(Section):
    """Everything that decides a build, apart from the model and the calibration data.

    See ``docs/configuration.md``.
    """

    model_paths: Paths = Field(
        default_factory=list, description="Source model; the command line and the API name it."
    )
    calib_data_paths: Paths = Field(
        default_factory=list, description="Calibration folders, list files or samples."
    )
    save_paths: Paths = Field(
        default_factory=list, description="Output file; the command line and the API name it."
    )
    use_random_calib: bool = Field(
        default=False,
        description="Calibrate with seeded random numbers; such a build is not for release.",
    )
    inference_scheme: InferenceScheme = Field(
        default="single", description="How the device's cores share the work."
    )
    cpu_offload: bool = Field(
        default=False, description="Run layers that the NPU lacks on the CPU, before and after it."
    )
    force_npu_input_reposition: bool = Field(
        default=False, description="Rearrange inputs on the NPU in place of the host."
    )
    force_npu_output_reposition: bool = Field(
        default=False, description="Rearrange outputs on the NPU in place of the host."
    )
    buffer_mode: Annotated[int, Field(ge=0, le=16)] = Field(
        default=1, description="How buffers are laid out in the package."
    )
    input_shape_dict: dict[Name, Shape] = Field(
        default_factory=dict, description="Shapes of inputs whose model leaves some open, by name."
    )
    device: Literal["gpu", "cpu"] = Field(
        default="cpu", description="What compiles; gpu falls back to the CPU where there is none."
    )
    dtype: Literal["float"] = Field(default="float", description="Type of the computation.")
    debug: bool = Field(default=False, description="Log more.")
    trace: bool = Field(default=False, description="Show tracebacks of internal faults.")
    image_channels: Annotated[int, Field(ge=0, le=4096)] = Field(
        default=0, description="Channels of image inputs; 0 reads them from the model."
    )
    config_version: Annotated[str, Field(max_length=64)] = Field(
        default=CONFIG_VERSION, description="Version of this schema that the file was written for."
    )
    split_blocks: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=4096)] = Field(
        default_factory=list, description="Blocks before which a language model is split."
    )
    split_parts: Annotated[int, Field(ge=0, le=4096)] = Field(
        default=0, description="Parts that a language model's blocks are split into."
    )
    uint8_input: Uint8InputConfig = Field(
        default_factory=Uint8InputConfig, description="Inputs that the package takes as uint8."
    )
    preprocessing: PreprocessingConfig = Field(
        default_factory=PreprocessingConfig, description="What is done to image samples."
    )
    resource_management: ResourceManagementConfig = Field(
        default_factory=ResourceManagementConfig, description="Memory and devices."
    )
    calibration: CalibrationConfig = Field(
        default_factory=CalibrationConfig, description="How ranges are chosen."
    )
    bit: BitConfig = Field(default_factory=BitConfig, description="How many bits.")
    hessian_quant: HessianQuantConfig = Field(
        default_factory=HessianQuantConfig, description="Rounding by the output error."
    )
    layer_bias_correction: LayerBiasCorrectionConfig = Field(
        default_factory=LayerBiasCorrectionConfig, description="Correction of biases."
    )
    mod: ModConfig = Field(default_factory=ModConfig, description="Training.")
    llm: LlmConfig = Field(default_factory=LlmConfig, description="Language models.")
    moe: MoeConfig = Field(default_factory=MoeConfig, description="Mixtures of experts.")
    equivalent_transformation: EquivalentTransformationConfig = Field(
        default_factory=EquivalentTransformationConfig, description="Equivalent rewrites."
    )
    search_weight_scale: SearchWeightScaleConfig = Field(
        default_factory=SearchWeightScaleConfig, description="Search for weight scales."
    )
    load_scale: LoadScaleConfig = Field(
        default_factory=LoadScaleConfig, description="Scales from a file."
    )
    runtime_options: RuntimeOptions = Field(
        default_factory=RuntimeOptions, description="Metadata for the runtime."
    )
    save_sample: SaveSampleConfig = Field(
        default_factory=SaveSampleConfig, description="Samples to keep."
    )

    @field_validator("inference_scheme", mode="before")
    @classmethod
    def _old_spelling(cls, value: Any) -> Any:
        if value == "global":
            raise ValueError("'global' is an old spelling; say 'global4' or 'global8'")
        return value

    @field_validator("config_version")
    @classmethod
    def _known_version(cls, value: str) -> str:
        major = value.split(".", 1)[0]
        if not major.isdecimal() or int(major) < 1:
            raise ValueError("must be a version like 1.0.0")
        if int(major) > int(CONFIG_VERSION.split(".", 1)[0]):
            raise ValueError(f"is newer than this compiler knows ({CONFIG_VERSION})")
        return value

    def resolved(self, *, portable: bool = False) -> dict[str, Any]:
        """Return the configuration as JSON data, every default filled in, in a fixed order.

        Args:
            portable: leave out what differs between callers of one build and changes no byte of
                it (:data:`CALLER_FIELDS`); this is what an MXQ records.
        """
        data: dict[str, Any] = self.model_dump(by_alias=True, mode="json")
        if portable:
            for name in CALLER_FIELDS:
                del data[name]
        return _sorted_maps(data, self)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Read a JSON or YAML file.

        Raises:
            ConfigError: it cannot be read, is not a configuration, or has an unknown key.
        """
        from .documents import read_document

        return cls.from_data(read_document(path), source=os.fspath(path))

    @classmethod
    def from_preset(cls, name: str) -> Self:
        """Return a preset's configuration.

        Raises:
            ConfigError: there is no such preset.
        """
        from .presets import load_preset

        return cls.from_data(load_preset(name).config, source=f"preset {name}")

    @classmethod
    def from_data(
        cls, data: Mapping[str, Any] | None, *, source: str = "the configuration"
    ) -> Self:
        """Build from JSON data in either spelling, grouped or not.

        Raises:
            ConfigError: an unknown key (with the nearest name) or a wrong value.
        """
        from .load import validate_config

        return validate_config(cls, data, source=source)


def _sorted_maps(data: dict[str, Any], section: Section) -> dict[str, Any]:
    """Sort the maps whose keys are data (names), at any depth; fields keep their order."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        alias = field.alias or name
        if alias not in data:
            continue
        if isinstance(value, Section):
            data[alias] = _sorted_maps(data[alias], value)
        elif isinstance(value, dict):
            data[alias] = dict(sorted(data[alias].items()))
    return data
