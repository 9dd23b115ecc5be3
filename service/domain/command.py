"""The compiler's command line for a build, as the worker runs it and a bundle repeats it."""

from __future__ import annotations

from .spec import BuildSpec, JobKind

__all__ = ["compiler_arguments"]


def compiler_arguments(
    spec: BuildSpec,
    *,
    model: str,
    output: str,
    calibration: str | None = None,
    config: str | None = None,
    records: bool = True,
    own: bool = True,
) -> list[str]:
    """Return the words behind the engine's command.

    What the caller gave is passed on as it was given (preset, configuration, options), so that
    the engine resolves it as a person's own run would.

    Args:
        spec: the build.
        model: path of the model or MBLT.
        output: folder of the results.
        calibration: path of the calibration data.
        config: path of the caller's configuration.
        records: whether report, configuration and the like are wanted beside the package.
        own: whether the engine is this repository's; another need not know its options.
    """
    args = [spec.kind.value]
    if spec.kind is JobKind.QUANTIZE:
        args += ["--mblt", model]
    else:
        args += ["--model", model, "--backend", spec.backend]
    if spec.kind is JobKind.PARSE:
        args += ["--output", f"{output}/model.mblt"]
    else:
        args += ["--output", f"{output}/model.mxq"]
        if records:
            args += ["--report-path", f"{output}/report.json"]
            args += ["--config-save-path", f"{output}/config.json"]
        if records and own:
            args += ["--validation-save-path", f"{output}/validation.npz"]
    if records and own:
        args += ["--body-save-path", f"{output}/body.mblt"]
    if spec.kind is JobKind.COMPILE:
        args += ["--mblt-save-path", f"{output}/model.mblt"]
    if spec.target_device is not None:
        args += ["--target-device", spec.target_device]
    if spec.config_preset is not None:
        args += ["--config-preset", spec.config_preset]
    if config is not None:
        args += ["--compile-config", config]
    if spec.kind is not JobKind.QUANTIZE:
        for name, shape in spec.input_shapes.items():
            args += ["--input-shape", f"{name}={','.join(map(str, shape))}"]
        if spec.cpu_offload:
            args += ["--cpu-offload"]
    if spec.kind is not JobKind.PARSE:
        if spec.inference_scheme is not None:
            args += ["--inference-scheme", spec.inference_scheme]
        if spec.use_random_calib:
            args += ["--use-random-calib"]
        elif calibration is not None:
            args += ["--calib-data-path", calibration]
    return args
