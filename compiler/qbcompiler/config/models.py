"""``llm``, ``moe``, ``resourceManagement`` and ``runtimeOptions``."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from .base import Section

__all__ = ["LlmConfig", "MoeConfig", "ResourceManagementConfig", "RuntimeOptions"]

Length = Annotated[int, Field(ge=1, le=2**31 - 1)]


class _LlmCalibration(Section):
    """How sequences calibrate."""

    use_full_seq_length: bool = Field(
        default=False, description="Calibrate on whole sequences, not on parts of them."
    )


class _LlmRuntime(Section):
    """What the runtime of a language model needs."""

    batch_size: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=1, description="Sequences at a time."
    )
    dynamic_rope: bool = Field(default=False, description="Take the position tables as inputs.")


class _LlmAttributes(Section):
    """Lengths of a language model."""

    Calibration: ClassVar = _LlmCalibration
    Runtime: ClassVar = _LlmRuntime

    max_data_length: Length = Field(default=4096, description="Tokens taken at a time, at most.")
    max_sequence_length: Length = Field(default=4096, description="Tokens of a sequence, at most.")
    max_cache_length: Length = Field(
        default=4096, description="Tokens in the key-value cache, at most."
    )
    max_core_data_length: Length = Field(
        default=128, description="Tokens that a core works on at a time."
    )
    calibration: _LlmCalibration = Field(
        default_factory=_LlmCalibration, description="How sequences calibrate."
    )
    runtime: _LlmRuntime = Field(default_factory=_LlmRuntime, description="For the runtime.")


class LlmConfig(Section):
    """Language models: sequences and caches."""

    Attributes: ClassVar = _LlmAttributes

    apply: bool = Field(default=False, description="Compile as a language model.")
    attributes: _LlmAttributes = Field(default_factory=_LlmAttributes, description="Lengths.")


class MoeConfig(Section):
    """Mixtures of experts: which experts calibration visits."""

    apply: bool = Field(default=False, description="Choose experts for calibration.")
    experts_per_layer: Annotated[int, Field(ge=0, le=65_536)] = Field(
        default=0, description="Experts that each sample visits; 0 leaves it to the router."
    )


class _WeightMemory(Section):
    """Where float weights stay while layers are quantized."""

    method: Annotated[int, Field(ge=0, le=4)] = Field(
        default=0, description="0 delete, 1 save to disk, 2 move, 3 keep, 4 keep all."
    )


class ResourceManagementConfig(Section):
    """Memory and devices of the compilation."""

    WeightMemory: ClassVar = _WeightMemory

    weight_dtype: Literal["float32", "float16", "bfloat16"] = Field(
        default="float32", description="Type of the float weights during compilation."
    )
    use_gpu_only_for_calibration: bool = Field(
        default=True,
        alias="useGPUOnlyForCalibration",
        description="Use a graphics processor for calibration only.",
    )
    weight_memory: _WeightMemory = Field(
        default_factory=_WeightMemory, description="Where float weights stay."
    )


class RuntimeOptions(Section):
    """Metadata for the runtime."""

    version: Annotated[str, Field(max_length=64)] = Field(
        default="0.0.0", description="Version that the runtime is told."
    )
