"""The configuration of a build: its sections, presets, resolution order, and what has effect.

Light to import: no NumPy, no ONNX.
"""

from .base import Section
from .calibration import BitConfig, CalibrationConfig
from .compile_config import CALLER_FIELDS, CONFIG_VERSION, CompileConfig, InferenceScheme
from .effect import Remark, check_effect, remarks, settings_without_effect
from .inputs import (
    CenterCrop,
    ColorConvert,
    Letterbox,
    Normalize,
    PreprocessingConfig,
    PreprocessingStep,
    Resize,
    Uint8InputConfig,
)
from .load import load_config_file
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
from .presets import Preset, list_presets, load_preset, preset_names
from .resolve import ConfigSource, ResolvedConfig, resolve_config
from .template import config_schema, dump_default_config, render_config, write_config

__all__ = [
    "CALLER_FIELDS",
    "CONFIG_VERSION",
    "BitConfig",
    "CalibrationConfig",
    "CenterCrop",
    "ColorConvert",
    "CompileConfig",
    "ConfigSource",
    "EquivalentTransformationConfig",
    "HessianQuantConfig",
    "InferenceScheme",
    "LayerBiasCorrectionConfig",
    "Letterbox",
    "LlmConfig",
    "LoadScaleConfig",
    "ModConfig",
    "MoeConfig",
    "Normalize",
    "PreprocessingConfig",
    "PreprocessingStep",
    "Preset",
    "Remark",
    "Resize",
    "ResolvedConfig",
    "ResourceManagementConfig",
    "RuntimeOptions",
    "SaveSampleConfig",
    "SearchWeightScaleConfig",
    "Section",
    "Uint8InputConfig",
    "check_effect",
    "config_schema",
    "dump_default_config",
    "list_presets",
    "load_config_file",
    "load_preset",
    "preset_names",
    "remarks",
    "render_config",
    "resolve_config",
    "settings_without_effect",
    "write_config",
]
