"""Compile ONNX models for Mobilint NPUs: source model to MBLT to MXQ.

Every public name is imported on first use, so that ``import qbcompiler`` loads neither NumPy nor
ONNX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .api import (
        get_body_subgraph,
        mblt_compile,
        mblt_compile_with_callback,
        mxq_compile,
        mxq_compile_from_mblt,
        mxq_compile_from_source,
        mxq_compile_with_callback,
        read_provenance,
    )
    from .compare import Setting, compare_settings, settings_of
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
        dump_default_config,
        list_presets,
    )
    from .errors import QbCompilerError

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
    "QbCompilerError",
    "ResourceManagementConfig",
    "SaveSampleConfig",
    "SearchWeightScaleConfig",
    "Setting",
    "Uint8InputConfig",
    "__version__",
    "compare_settings",
    "dump_default_config",
    "get_body_subgraph",
    "list_presets",
    "mblt_compile",
    "mblt_compile_with_callback",
    "mxq_compile",
    "mxq_compile_from_mblt",
    "mxq_compile_from_source",
    "mxq_compile_with_callback",
    "read_provenance",
    "settings_of",
]

_HOMES = {
    "QbCompilerError": "errors",
    "Setting": "compare",
    "compare_settings": "compare",
    "get_body_subgraph": "api",
    "mblt_compile": "api",
    "mblt_compile_with_callback": "api",
    "mxq_compile": "api",
    "mxq_compile_from_mblt": "api",
    "mxq_compile_from_source": "api",
    "mxq_compile_with_callback": "api",
    "read_provenance": "api",
    "settings_of": "compare",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES.get(name, 'config')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
