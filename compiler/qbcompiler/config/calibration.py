"""``calibration`` and ``bit``: how ranges are chosen and how many bits carry them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from .base import Count, Name, Ratio, Section, Whole

__all__ = ["BitConfig", "CalibrationConfig"]

Method = Annotated[Literal[0, 1, 2, 3], Whole]
Output = Annotated[Literal[0, 1, 2], Whole]
Mode = Annotated[Literal[0, 1, 2], Whole]
ActivationBits = Annotated[Literal[8, 16], Whole]
WeightBits = Annotated[Literal[4, 8, 16], Whole]
LayerNames = Annotated[list[Name], Field(max_length=100_000)]


class _MaxPercentile(Section):
    """Parameters of calibration mode 1."""

    percentile: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        default=0.9999,
        description="The range ends at this quantile of the largest topkRatio of the absolute "
        "values, so the share topkRatio * (1 - percentile) of all values is clipped.",
    )
    topk_ratio: Ratio = Field(
        default=0.01,
        description="Share of the absolute values, the largest ones, whose quantile is taken.",
    )


class _Histogram(Section):
    """Parameters of calibration mode 2."""

    criterion: Literal["mse", "kl"] = Field(
        default="mse",
        description="How the clip is chosen: least squared error (mse) or least Kullback-Leibler "
        "divergence (kl).",
    )
    bins: Annotated[int, Field(ge=128, le=65_536)] = Field(
        default=2048, description="Bins of the distributions that the kl criterion compares."
    )


class _CalibrationOverrides(Section):
    """Calibration settings for single layers; keys are layer names or globs."""

    method: dict[Name, Method] = Field(
        default_factory=dict, description="calibration.method by layer name or glob."
    )
    output: dict[Name, Output] = Field(
        default_factory=dict, description="calibration.output by layer name or glob."
    )
    mode: dict[Name, Mode] = Field(
        default_factory=dict, description="calibration.mode by layer name or glob."
    )


class _GroupLut(Section):
    """Grouping of look-up tables."""

    irls_iter: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=3, description="Rounds of the reweighted least-squares solve for a group's scale."
    )
    dro_eps: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        default=0.0, description="How cautiously the worst points are clipped; 0 is off."
    )
    cover_floor: Ratio = Field(default=0.85, description="Lower bound of a group's scale.")


class _OptimizeLut(Section):
    """Optimization of look-up tables."""

    optimization_level: Annotated[Literal[0, 1], Whole] = Field(
        default=1, description="0 searches a surrogate only, 1 refines against the true objective."
    )


class CalibrationConfig(Section):
    """How the integer range of each tensor is chosen from the calibration samples."""

    MaxPercentile: ClassVar = _MaxPercentile
    Histogram: ClassVar = _Histogram
    LayerOverrides: ClassVar = _CalibrationOverrides
    GroupLut: ClassVar = _GroupLut
    OptimizeLut: ClassVar = _OptimizeLut

    method: Method = Field(
        default=0,
        description="0: one scale per output channel for weights, one per tensor for activations. "
        "1: the same, and tensors that meet in an add or concat share one scale. 2 and 3: as 0 "
        "and 1, with a zero point.",
    )
    output: Output = Field(
        default=0,
        description="Scale of a layer's output: 0 one for all, 1 one per channel, which the "
        "weights of the layers that read it take up, 2 sigmoid-shaped.",
    )
    mode: Mode = Field(
        default=0,
        description="Range: 0 the largest absolute value, 1 a percentile of the absolute values, "
        "2 the best clip by the histogram.",
    )
    max_percentile: _MaxPercentile = Field(
        default_factory=_MaxPercentile, description="Parameters of mode 1."
    )
    histogram: _Histogram = Field(default_factory=_Histogram, description="Parameters of mode 2.")
    max_sample_size_for_quant_scheme: Count = Field(
        default=16,
        description="Calibration samples that each stage which compares quantization schemes uses; "
        "ranges always use every sample.",
    )
    layer_overrides: _CalibrationOverrides = Field(
        default_factory=_CalibrationOverrides, description="Other settings for single layers."
    )
    group_lut: _GroupLut = Field(
        default_factory=_GroupLut, description="Grouping of look-up tables."
    )
    optimize_lut: _OptimizeLut = Field(
        default_factory=_OptimizeLut, description="Optimization of look-up tables."
    )


class _Ffn(Section):
    """A feed-forward block's three projections; one integer stands for all three."""

    @classmethod
    def expand(cls, value: Any) -> Any:
        """Let one integer stand for the three projections."""
        if isinstance(value, int) and not isinstance(value, bool):
            return {"up": value, "gate": value, "down": value}
        return value

    @model_validator(mode="before")
    @classmethod
    def _one_for_all(cls, value: Any) -> Any:
        return cls.expand(value)


class _ActivationFfn(_Ffn):
    """Bits of a feed-forward block's activations."""

    up: ActivationBits = Field(default=8, description="Bits after the up projection.")
    gate: ActivationBits = Field(default=8, description="Bits after the gate projection.")
    down: ActivationBits = Field(default=8, description="Bits after the down projection.")


class _WeightFfn(_Ffn):
    """Bits of a feed-forward block's weights."""

    up: WeightBits = Field(default=8, description="Bits of the up projection.")
    gate: WeightBits = Field(default=8, description="Bits of the gate projection.")
    down: WeightBits = Field(default=8, description="Bits of the down projection.")


class _Activation(Section):
    """Activation bits of a transformer block's parts."""

    Ffn: ClassVar = _ActivationFfn

    query: ActivationBits = Field(default=8, description="Bits of the query.")
    key: ActivationBits = Field(default=8, description="Bits of the key.")
    value: ActivationBits = Field(default=8, description="Bits of the value.")
    output: ActivationBits = Field(
        default=8, description="Bits of the attention's output projection."
    )
    head: ActivationBits = Field(default=8, description="Bits of the model's head.")
    router: ActivationBits = Field(default=8, description="Bits of a mixture's router gate.")
    ffn: _ActivationFfn = Field(
        default_factory=_ActivationFfn,
        description="Bits of the feed-forward block: an integer, or up, gate and down.",
    )


class _Weight(Section):
    """Weight bits of a transformer block's parts."""

    Ffn: ClassVar = _WeightFfn

    query: WeightBits = Field(default=8, description="Bits of the query projection.")
    key: WeightBits = Field(default=8, description="Bits of the key projection.")
    value: WeightBits = Field(default=8, description="Bits of the value projection.")
    output: WeightBits = Field(default=8, description="Bits of the attention's output projection.")
    head: WeightBits = Field(default=8, description="Bits of the model's head.")
    router: WeightBits = Field(default=8, description="Bits of a mixture's router gate.")
    ffn: _WeightFfn = Field(
        default_factory=_WeightFfn,
        description="Bits of the feed-forward block: an integer, or up, gate and down.",
    )


class _MixedActivation(Section):
    """Mixed precision of activations."""

    apply: bool = Field(default=False, description="Choose activation bits per tensor.")


class _MixedPrecision(Section):
    """Mixed precision."""

    Activation: ClassVar = _MixedActivation

    activation: _MixedActivation = Field(
        default_factory=_MixedActivation, description="Mixed precision of activations."
    )


class _Transformer(Section):
    """Bits of a transformer block's parts."""

    Activation: ClassVar = _Activation
    Weight: ClassVar = _Weight
    MixedPrecision: ClassVar = _MixedPrecision

    activation: _Activation = Field(
        default_factory=_Activation, description="Activation bits by part."
    )
    weight: _Weight = Field(default_factory=_Weight, description="Weight bits by part.")
    mixed_precision: _MixedPrecision = Field(
        default_factory=_MixedPrecision, description="Mixed precision."
    )


class _BitOverrides(Section):
    """Bits of single layers, by layer name or glob."""

    activation_16bits: LayerNames = Field(
        default_factory=list, description="Layers with 16-bit activations."
    )
    weight_16bits: LayerNames = Field(
        default_factory=list, description="Layers with 16-bit weights."
    )
    weight_8bits: LayerNames = Field(default_factory=list, description="Layers with 8-bit weights.")
    weight_4bits: LayerNames = Field(default_factory=list, description="Layers with 4-bit weights.")


class _AutoBits(Section):
    """Choice of the layers that get 16 bits, by what each layer's rounding does to the outputs."""

    apply: bool = Field(default=False, description="Choose.")
    target_sqnr: Annotated[float, Field(ge=-20.0, le=120.0)] | None = Field(
        default=None,
        description="Signal to noise ratio in dB that the worst output is to reach on the "
        "calibration samples; null for the best that the budget gives.",
    )
    budget: Ratio | None = Field(
        default=None,
        description="Share of the multiply-adds that may have a factor of 16 bits; null for any.",
    )

    @model_validator(mode="after")
    def _wants_something(self) -> Self:
        if self.apply and self.target_sqnr is None and self.budget is None:
            raise ValueError("give targetSqnr, budget or both")
        return self


class BitConfig(Section):
    """How many bits activations and weights have; 8 where nothing else is said."""

    Transformer: ClassVar = _Transformer
    LayerOverrides: ClassVar = _BitOverrides
    Auto: ClassVar = _AutoBits

    transformer: _Transformer = Field(
        default_factory=_Transformer, description="Bits by part of a transformer block."
    )
    layer_overrides: _BitOverrides = Field(
        default_factory=_BitOverrides, description="Bits of single layers."
    )
    inner_activations: Literal[8, 16] = Field(
        default=8,
        description="Bits of a tensor that a convolution, a matrix product or a function makes and "
        "one elementwise function alone reads: it stays inside the accelerator's pipeline, so 16 "
        "bits there widen no multiply-add.",
    )
    elementwise_activations: Literal[8, 16] = Field(
        default=8,
        description="Bits of tensors that only sums, normalizations, functions, moves and outputs "
        "read; a convolution or product that reads such a tensor too gets a copy of 8 bits, so "
        "that no multiply-add becomes wider.",
    )
    auto: _AutoBits = Field(
        default_factory=_AutoBits,
        description="Let the compiler choose the layers that get 16 bits; the configuration that "
        "is recorded has them in layerOverrides, so that it gives the same build again.",
    )
