"""The advanced sections: transforms, searches, corrections, and what they save and load."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from .base import Count, Name, Ratio, Section

__all__ = [
    "EquivalentTransformationConfig",
    "HessianQuantConfig",
    "LayerBiasCorrectionConfig",
    "LoadScaleConfig",
    "ModConfig",
    "SaveSampleConfig",
    "SearchWeightScaleConfig",
]

LayerNames = Annotated[list[Name], Field(max_length=100_000)]


class _Switch(Section):
    """A transform that is on or off."""

    apply: bool = Field(default=False, description="Apply it.")


class _Learned(_Switch):
    """A transform that may be learned."""

    learn: bool = Field(
        default=False, description="Learn its parameters from the calibration samples."
    )


class _Ud(_Learned):
    """Scales between the up and down projections."""

    smoothing_factor: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        default=0.5, description="How much of the activations' range moves into the weights."
    )


class _OptimizeFfn(_Switch):
    """Arrangement of feed-forward blocks."""

    ch_per_ffn: Annotated[int, Field(ge=-1, le=1_000_000)] = Field(
        default=-1, description="Channels of each part; -1 lets the compiler choose."
    )


class _HeadOutChRotation(_Switch):
    """Rotation of the output channels by a matrix made before."""

    matrix_path: Annotated[str, Field(max_length=4096)] = Field(
        default="", description="File of the rotation matrix."
    )


class EquivalentTransformationConfig(Section):
    """Rewrites that keep the float function and make it easier to quantize."""

    NormConv: ClassVar = _Learned
    Qk: ClassVar = _Switch
    Ud: ClassVar = _Ud
    Vo: ClassVar = _Switch
    SpinR1: ClassVar = _Learned
    SpinR2: ClassVar = _Learned
    QkRotation: ClassVar = _Switch
    OptimizeFfn: ClassVar = _OptimizeFfn
    CrossLayerEqualization: ClassVar = _Switch
    FeedForwardMultiLut: ClassVar = _Switch
    FlattenQuant: ClassVar = _Learned
    HeadOutChRotation: ClassVar = _HeadOutChRotation

    norm_conv: _Learned = Field(
        default_factory=_Learned,
        description="Move part of a normalization's channel scales into the layers that read it, "
        "so that its channels are balanced.",
    )
    qk: _Switch = Field(
        default_factory=_Switch, description="Balance query and key channels against each other."
    )
    ud: _Ud = Field(
        default_factory=_Ud, description="Balance the up and down projections' channels."
    )
    vo: _Switch = Field(
        default_factory=_Switch, description="Balance the value and output projections' channels."
    )
    spin_r1: _Learned = Field(
        default_factory=_Learned, description="Rotate the residual stream by one matrix."
    )
    spin_r2: _Learned = Field(
        default_factory=_Learned,
        description="Rotate the value channels of each head, and back in the output projection.",
    )
    qk_rotation: _Switch = Field(
        default_factory=_Switch,
        description="Rotate query and key of each head alike, where no position encoding follows.",
    )
    optimize_ffn: _OptimizeFfn = Field(
        default_factory=_OptimizeFfn, description="Arrange feed-forward blocks for the NPU."
    )
    cross_layer_equalization: _Switch = Field(
        default_factory=_Switch,
        description="Balance the weights of convolutions that follow each other.",
    )
    feed_forward_multi_lut: _Switch = Field(
        default_factory=_Switch, description="Several look-up tables in feed-forward blocks."
    )
    flatten_quant: _Learned = Field(
        default_factory=_Learned, description="Spread outlier channels over several channels."
    )
    head_out_ch_rotation: _HeadOutChRotation = Field(
        default_factory=_HeadOutChRotation,
        description="Rotate the output channels to match a model that was rotated before.",
    )


class _SearchTransformer(Section):
    """Which projections of a transformer are searched."""

    query: bool = Field(default=True, description="The query projection.")
    key: bool = Field(default=True, description="The key projection.")
    value: bool = Field(default=True, description="The value projection.")
    out: bool = Field(default=True, description="The output projection.")
    ffn: bool = Field(default=True, description="The feed-forward block.")


class SearchWeightScaleConfig(Section):
    """Search for weight scales with less error than the largest weight gives."""

    Transformer: ClassVar = _SearchTransformer

    apply: bool = Field(default=False, description="Search.")
    transformer: _SearchTransformer = Field(
        default_factory=_SearchTransformer, description="Where in a transformer."
    )


class _HessianAttributes(Section):
    """Parameters of Hessian-based rounding."""

    act_order: bool = Field(
        default=False, description="Round the channels with the largest input first."
    )
    block_size: Annotated[int, Field(ge=1, le=65_536)] = Field(
        default=256, description="Columns that are rounded together."
    )
    perc_damp: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        default=0.01, description="Damping, as a share of the Hessian's mean diagonal."
    )


class HessianQuantConfig(Section):
    """Round weights so that the layer's output error, not each weight's, is least."""

    Attributes: ClassVar = _HessianAttributes

    apply: bool = Field(default=False, description="Round this way.")
    hessian_dtype: Literal["fp32", "bf16"] = Field(
        default="fp32", description="Type in which the accumulated Hessian is kept."
    )
    accumulation_device: Literal["auto", "cpu", "gpu"] = Field(
        default="auto", description="Where the Hessian is accumulated."
    )
    attributes: _HessianAttributes = Field(
        default_factory=_HessianAttributes, description="Parameters."
    )


class _BiasAttributes(Section):
    """Parameters of bias correction."""

    num_samples: Count = Field(
        default=256, description="Calibration samples used in each round, at most."
    )
    iterations: Annotated[int, Field(ge=1, le=1000)] = Field(default=5, description="Rounds.")
    correction_rate: Ratio = Field(
        default=0.05, description="Share of the measured error that a round corrects."
    )


class LayerBiasCorrectionConfig(Section):
    """Measure each channel's mean error and take it out of the layer's bias."""

    Attributes: ClassVar = _BiasAttributes

    apply: bool = Field(default=False, description="Correct biases.")
    attributes: _BiasAttributes = Field(default_factory=_BiasAttributes, description="Parameters.")


class ModConfig(Section):
    """Train the quantization parameters to minimize the output difference."""

    apply: bool = Field(default=False, description="Train.")
    epochs: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=1, description="Training epochs."
    )
    learning_rate: Annotated[float, Field(gt=0.0, le=10.0)] = Field(
        default=1e-4, description="Learning rate."
    )


class LoadScaleConfig(Section):
    """Take scales from a file in place of calibrating them."""

    apply: bool = Field(default=False, description="Load scales.")
    path: Annotated[str, Field(max_length=4096)] = Field(
        default="", description="File of the scales."
    )


class SaveSampleConfig(Section):
    """Keep calibration samples and what the layers make of them."""

    apply: bool = Field(default=False, description="Save samples.")
    path: Annotated[str, Field(max_length=4096)] = Field(
        default="", description="Folder to save into."
    )
    max_samples: Count = Field(default=1, description="Samples to save, at most.")
    layers: LayerNames = Field(
        default_factory=list, description="Layers to save, by name or glob; empty saves all."
    )
