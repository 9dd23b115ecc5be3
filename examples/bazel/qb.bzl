"""qb_compile: compile an ONNX model to an MXQ on a compile server."""

def qb_compile(name, model, calibration, device, preset = None, scheme = None, config = None, **kwargs):
    """Makes NAME.mxq, again only when an input or an option changes.

    The server is QB_SERVER, its token QB_TOKEN; pass them on with
    `--action_env=QB_SERVER --action_env=QB_TOKEN`. The command `qbcompiler` must be on PATH.

    Args:
        name: of the target.
        model: label of the ONNX file.
        calibration: labels of the samples, taken in the order of their paths.
        device: target device.
        preset: name of a configuration preset.
        scheme: inference scheme.
        config: label of a configuration file.
        **kwargs: of the genrule.
    """
    options = ["--target-device", device]
    if preset:
        options += ["--config-preset", preset]
    if scheme:
        options += ["--inference-scheme", scheme]
    if config:
        options += ["--compile-config", "$(location " + config + ")"]
    samples = ["--calib-data-path $(location " + sample + ")" for sample in sorted(calibration)]
    native.genrule(
        name = name,
        srcs = [model] + calibration + ([config] if config else []),
        outs = [name + ".mxq"],
        cmd = " ".join(
            ["qbcompiler compile -q", "--model $(location " + model + ")", "--output $@"] +
            options + samples,
        ),
        # the server is another machine
        tags = ["requires-network"],
        **kwargs
    )
