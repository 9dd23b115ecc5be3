"""The configuration classes under the module name that existing scripts import them from."""

from .config import (
    BitConfig,
    CalibrationConfig,
    CompileConfig,
    EquivalentTransformationConfig,
    HessianQuantConfig,
    LayerBiasCorrectionConfig,
    LlmConfig,
    ModConfig,
    PreprocessingConfig,
    ResourceManagementConfig,
    SaveSampleConfig,
    SearchWeightScaleConfig,
    Uint8InputConfig,
)

__all__ = [
    "BitConfig",
    "CalibrationConfig",
    "CompileConfig",
    "EquivalentTransformationConfig",
    "HessianQuantConfig",
    "LayerBiasCorrectionConfig",
    "LlmConfig",
    "ModConfig",
    "PreprocessingConfig",
    "ResourceManagementConfig",
    "SaveSampleConfig",
    "SearchWeightScaleConfig",
    "Uint8InputConfig",
]
