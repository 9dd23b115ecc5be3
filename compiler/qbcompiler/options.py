"""The keyword arguments of the compile functions, and what they come to."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from .config import (
    BitConfig,
    CalibrationConfig,
    CompileConfig,
    ConfigSource,
    EquivalentTransformationConfig,
    HessianQuantConfig,
    LayerBiasCorrectionConfig,
    LlmConfig,
    LoadScaleConfig,
    ModConfig,
    MoeConfig,
    PreprocessingConfig,
    ResourceManagementConfig,
    SaveSampleConfig,
    SearchWeightScaleConfig,
    Section,
    Uint8InputConfig,
    check_effect,
    resolve_config,
)
from .devices import Device, load_device, resolve_schemes
from .errors import ArgumentError
from .progress import Reporter

__all__ = [
    "BACKENDS",
    "CompileOptions",
    "ParseOptions",
    "Plan",
    "StrPath",
    "check_backend",
    "make_plan",
]

StrPath = str | os.PathLike[str]

BACKENDS = ("onnx",)
"""Source model formats that can be parsed."""

_OTHER_BACKENDS = ("tf", "tflite", "torch", "torchscript", "hf", "keras")


class ParseOptions(TypedDict, total=False):
    """Keyword arguments that every compile function takes; see ``docs/configuration.md``.

    Keys:
        backend: source model format.
        calib_data_path: a folder, list file or sample, or several.
        use_random_calib, inference_scheme, device, cpu_offload, image_channels,
        input_shape_dict: as in the configuration.
        layer_bias_correction: switches that section on or off.
        config_preset, compile_config: a preset's name; a path, map or ``CompileConfig``.
        config_save_path, report_path: write the resolved configuration, the report.
        trace_path: write the estimated timeline, a trace that Perfetto opens.
        validation_save_path: write the validation samples (.npz).
        body_save_path: write the NPU body as an MBLT of its own.
        cache_dir: keep parsed graphs and calibration statistics here for later builds;
            None for the folder that ``QBCOMPILER_CACHE_DIR`` names, if any.
        source_revision, labels: recorded beside the output.
        threads: threads to compute with; changes no byte of any output.
        reporter: takes progress, log and result.
        server: address of a compile server that makes the build; the files come here.
        token: its bearer token; by default ``QB_TOKEN`` or the one that was kept.
    """

    backend: str
    calib_data_path: StrPath | Sequence[StrPath] | None
    use_random_calib: bool | None
    inference_scheme: str | None
    device: str | None
    cpu_offload: bool | None
    image_channels: int | None
    input_shape_dict: Mapping[str, Sequence[int]] | None
    layer_bias_correction: bool | None
    buffer_mode: int | None
    force_npu_input_reposition: bool | None
    force_npu_output_reposition: bool | None
    split_blocks: Sequence[int] | None
    split_parts: int | None
    config_preset: str | None
    compile_config: ConfigSource | None
    config_save_path: StrPath | None
    report_path: StrPath | None
    trace_path: StrPath | None
    validation_save_path: StrPath | None
    body_save_path: StrPath | None
    cache_dir: StrPath | None
    source_revision: str | None
    labels: Mapping[str, str] | None
    external_data_dir: StrPath | None
    threads: int | None
    reporter: Reporter | None
    server: str | None
    token: str | None
    calibration_config: CalibrationConfig | None
    bit_config: BitConfig | None
    preprocessing_config: PreprocessingConfig | None
    uint8_input_config: Uint8InputConfig | None
    equivalent_transformation_config: EquivalentTransformationConfig | None
    search_weight_scale_config: SearchWeightScaleConfig | None
    hessian_quant_config: HessianQuantConfig | None
    layer_bias_correction_config: LayerBiasCorrectionConfig | None
    mod_config: ModConfig | None
    load_scale_config: LoadScaleConfig | None
    save_sample_config: SaveSampleConfig | None
    llm_config: LlmConfig | None
    moe_config: MoeConfig | None
    resource_management_config: ResourceManagementConfig | None


class CompileOptions(ParseOptions, total=False):
    """Keyword arguments of the functions that make an MXQ.

    Keys:
        save_path: the MXQ.
        mblt_save_path: keep the MBLT too; ``save_subgraph_type=2`` with
            ``output_subgraph_path`` is another way to say so.
        target_device: the device string.
    """

    save_path: StrPath | None
    mblt_save_path: StrPath | None
    target_device: str | None
    save_subgraph_type: int | None
    output_subgraph_path: StrPath | None


_FIELDS = (
    "use_random_calib",
    "inference_scheme",
    "device",
    "cpu_offload",
    "image_channels",
    "buffer_mode",
    "force_npu_input_reposition",
    "force_npu_output_reposition",
    "split_parts",
)
"""Arguments that are configuration fields of the same name."""


@dataclass(frozen=True)
class Plan:
    """A checked request.

    Attributes:
        config: the resolved configuration; its scheme is one that the device has.
        preset: the preset's name, or None.
        device: the target; None for a parse for any device.
        schemes: what the scheme means on the device; () without one.
        threads: threads to compute with.
        reporter: takes progress, log and result.
        options: the arguments as given.
        reuse: what was taken from earlier builds; for the report.
    """

    config: CompileConfig
    preset: str | None
    device: Device | None
    schemes: tuple[str, ...]
    threads: int
    reporter: Reporter
    options: CompileOptions = field(repr=False)
    reuse: dict[str, Any] = field(default_factory=dict)

    @property
    def target(self) -> Device:
        """The target device.

        Raises:
            ArgumentError: there is none.
        """
        if self.device is None:
            raise ArgumentError(
                "no target device is given",
                hint="give --target-device (target_device=); `qbcompiler devices` lists them",
            )
        return self.device

    @property
    def calibration_paths(self) -> list[StrPath]:
        """Calibration sources: the argument's, or else the configuration's."""
        given = self.options.get("calib_data_path")
        if given is None:
            return list(self.config.calib_data_paths)
        return [given] if isinstance(given, (str, os.PathLike)) else list(given)

    def with_config(self, **fields: Any) -> Plan:
        """Return the plan with configuration fields replaced."""
        config = self.config.model_copy(update=fields)
        return Plan(
            config,
            self.preset,
            self.device,
            self.schemes,
            self.threads,
            self.reporter,
            self.options,
            self.reuse,
        )


def make_plan(options: CompileOptions, *, device: str | None) -> Plan:
    """Check the arguments and put the configuration together; nothing is read but configuration.

    Args:
        options: the keyword arguments.
        device: the target device where the arguments name none (an MBLT's own).

    Raises:
        ArgumentError: an unknown or contradictory argument.
        DeviceSchemeError: an unknown device, or a scheme that it lacks.
        ConfigError: a wrong configuration, or one that this version cannot honour.
    """
    _check_names(options)
    reporter = options.get("reporter") or Reporter()
    check_backend(options.get("backend", "onnx"))
    name = options.get("target_device") or device
    target = None if name is None else load_device(name)
    scheme = options.get("inference_scheme")
    if scheme is not None and target is not None:
        resolve_schemes(target, scheme)
    resolved = resolve_config(
        arguments=_arguments(options),
        sections=_sections(options),
        compile_config=options.get("compile_config"),
        preset=options.get("config_preset"),
    )
    reporter.verbose = reporter.verbose or resolved.config.debug
    reporter.trace = reporter.trace or resolved.config.trace
    for note in resolved.notes:
        reporter.info(note)
    config = resolved.config
    schemes: tuple[str, ...] = ()
    if target is not None:
        schemes = resolve_schemes(target, config.inference_scheme)
        if config.inference_scheme == "all" and len(schemes) == 1:
            reporter.info(f"{target.name} has one inference scheme: all narrows to {schemes[0]}")
            config = config.model_copy(update={"inference_scheme": schemes[0]})
    for remark in check_effect(config):
        reporter.warning(f"{remark.pointer} has no effect: {remark.reason}")
    if config.device == "gpu":
        reporter.warning("no GPU is used by this compiler: the CPU compiles")
    return Plan(
        config=config,
        preset=resolved.preset,
        device=target,
        schemes=schemes,
        threads=_threads(options.get("threads")),
        reporter=reporter,
        options=options,
    )


def _arguments(options: CompileOptions) -> dict[str, Any]:
    found: dict[str, Any] = {name: options.get(name) for name in _FIELDS}
    shapes = options.get("input_shape_dict")
    if shapes is not None:
        found["input_shape_dict"] = {n: [int(d) for d in s] for n, s in shapes.items()}
    blocks = options.get("split_blocks")
    if blocks is not None:
        found["split_blocks"] = list(blocks)
    correction = options.get("layer_bias_correction")
    if correction is not None:
        found["layer_bias_correction"] = {"apply": correction}
    return found


def _sections(options: CompileOptions) -> dict[str, Section | None]:
    return {
        "calibration": options.get("calibration_config"),
        "bit": options.get("bit_config"),
        "preprocessing": options.get("preprocessing_config"),
        "uint8_input": options.get("uint8_input_config"),
        "equivalent_transformation": options.get("equivalent_transformation_config"),
        "search_weight_scale": options.get("search_weight_scale_config"),
        "hessian_quant": options.get("hessian_quant_config"),
        "layer_bias_correction": options.get("layer_bias_correction_config"),
        "mod": options.get("mod_config"),
        "load_scale": options.get("load_scale_config"),
        "save_sample": options.get("save_sample_config"),
        "llm": options.get("llm_config"),
        "moe": options.get("moe_config"),
        "resource_management": options.get("resource_management_config"),
    }


def _check_names(options: Mapping[str, Any]) -> None:
    known = sorted(CompileOptions.__optional_keys__)
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ArgumentError(
                f"unknown argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
                details={"argument": name, "nearest": near[0] if near else None},
            )


def check_backend(backend: str) -> None:
    """Refuse a source model format that cannot be parsed.

    Raises:
        ArgumentError: names those that can.
    """
    if backend in BACKENDS:
        return
    known = ", ".join(BACKENDS)
    if backend in _OTHER_BACKENDS:
        raise ArgumentError(
            f"backend {backend!r} is not available: this compiler reads {known}",
            details={"backend": backend, "known": list(BACKENDS)},
            hint="export the model to ONNX first",
        )
    raise ArgumentError(
        f"unknown backend {backend!r}",
        details={"backend": backend, "known": list(BACKENDS)},
        hint=f"backends: {known}",
    )


def _threads(wanted: int | None) -> int:
    if wanted is not None:
        if isinstance(wanted, bool) or not 1 <= wanted <= 1024:
            raise ArgumentError(f"threads must be between 1 and 1024, got {wanted}")
        return wanted
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1
